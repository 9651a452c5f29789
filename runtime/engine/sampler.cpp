#include "runtime/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace orrery::engine {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

uint64_t splitmix64(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

Status out_of_range(const char* name, float value, const char* expected) {
  return error(Code::invalid_argument, "%s is %g, expected %s", name, static_cast<double>(value), expected);
}

// exp(x) for x <= 0 to about 2e-7 relative, in plain arithmetic that compilers vectorise: a vocabulary's worth of
// std::exp would cost more than a small model's last layer.
inline float exp_negative(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float n = static_cast<float>(static_cast<int32_t>(x * 1.44269504f - 0.5f));
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  union {
    uint32_t bits;
    float value;
  } scale = {static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23};
  return p * scale.value;
}

// ln(sum of exp), in eight fixed lanes. `most` is the largest logit.
double log_sum_exp(Span<const float> logits, float most) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= logits.size(); i += 8)
    for (size_t j = 0; j < 8; ++j) lanes[j] += static_cast<double>(exp_negative(logits[i + j] - most));
  for (size_t j = 0; i < logits.size(); ++i, ++j) lanes[j] += static_cast<double>(exp_negative(logits[i] - most));
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return static_cast<double>(most) + std::log(sum);
}

}  // namespace

Status SamplingOptions::validate(int32_t n_vocab) const {
  if (!(temperature >= 0.0f && temperature <= 1000.0f)) return out_of_range("temperature", temperature, "0 to 1000");
  if (!(top_p > 0.0f && top_p <= 1.0f)) return out_of_range("top_p", top_p, "more than 0, at most 1");
  if (!(min_p >= 0.0f && min_p <= 1.0f)) return out_of_range("min_p", min_p, "0 to 1");
  if (!(repetition_penalty > 0.0f && repetition_penalty <= 1000.0f))
    return out_of_range("repetition_penalty", repetition_penalty, "more than 0, at most 1000");
  if (!(std::fabs(frequency_penalty) <= 1000.0f))
    return out_of_range("frequency_penalty", frequency_penalty, "-1000 to 1000");
  if (!(std::fabs(presence_penalty) <= 1000.0f))
    return out_of_range("presence_penalty", presence_penalty, "-1000 to 1000");
  if (n_logprobs > kMaxLogprobs)
    return error(Code::invalid_argument, "n_logprobs is %u, expected at most %u", n_logprobs, kMaxLogprobs);
  for (const LogitBias& b : bias) {
    if (b.token < 0 || b.token >= n_vocab)
      return error(Code::invalid_argument, "a logit bias names token %d of a vocabulary of %d", b.token, n_vocab);
    if (std::isnan(b.bias) || b.bias == std::numeric_limits<float>::infinity())
      return out_of_range("a logit bias", b.bias, "a number or -infinity");
  }
  return ok_status();
}

Sampler::Sampler(SamplingOptions options, int32_t n_vocab) : options_(std::move(options)) {
  const size_t n = static_cast<size_t>(n_vocab);
  logits_.resize(n);
  order_.resize(n);
  if (options_.temperature > 0.0f) weight_.resize(n);
  count_.resize(n);
  top_.reserve(kMaxLogprobs);
  uint64_t state = options_.seed;
  for (uint64_t& word : rng_) word = splitmix64(&state);
}

// xoshiro256**, 53 bits.
double Sampler::uniform() {
  const uint64_t result = rotate(rng_[1] * 5, 7) * 9, t = rng_[1] << 17;
  rng_[2] ^= rng_[0];
  rng_[3] ^= rng_[1];
  rng_[1] ^= rng_[2];
  rng_[0] ^= rng_[3];
  rng_[2] ^= t;
  rng_[3] = rotate(rng_[3], 45);
  return static_cast<double>(result >> 11) * 0x1.0p-53;
}

void Sampler::penalize(Span<const int32_t> tokens) {
  const SamplingOptions& o = options_;
  if (o.repetition_penalty == 1.0f && o.frequency_penalty == 0.0f && o.presence_penalty == 0.0f) return;
  const Span<const int32_t> last = tokens.last(std::min<size_t>(tokens.size(), o.penalty_tokens));
  for (const int32_t t : last) ++count_[static_cast<size_t>(t)];
  for (const int32_t t : last) {
    const size_t i = static_cast<size_t>(t);
    if (count_[i] == 0) continue;   // done at its first occurrence
    float& x = logits_[i];
    x = x > 0.0f ? x / o.repetition_penalty : x * o.repetition_penalty;
    x -= static_cast<float>(count_[i]) * o.frequency_penalty + o.presence_penalty;
    count_[i] = 0;
  }
}

int32_t Sampler::draw() {
  // Falling logit, ids rising among equals.
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::iota(order_.begin(), order_.end(), 0);
  size_t n = order_.size();
  if (options_.top_k > 0 && options_.top_k < n) {
    n = options_.top_k;
    std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n) - 1, order_.end(), better);
    std::sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n));   // a fixed order: ids, rising
  }
  float most = kMinusInfinity;
  for (size_t i = 0; i < n; ++i) most = std::max(most, logits_[static_cast<size_t>(order_[i])]);
  const double inverse = 1.0 / static_cast<double>(options_.temperature);
  const auto weigh = [&](int32_t id) {
    return std::exp((static_cast<double>(logits_[static_cast<size_t>(id)]) - static_cast<double>(most)) * inverse);
  };
  double sum = 0.0, heaviest = 0.0;
  for (size_t i = 0; i < n; ++i) {
    weight_[i] = weigh(order_[i]);
    sum += weight_[i];
    heaviest = std::max(heaviest, weight_[i]);
  }
  if (options_.top_p < 1.0f) {
    // The fewest candidates that hold top_p of the weight. They are usually few: sort only as many as it takes.
    const double wanted = static_cast<double>(options_.top_p) * sum;
    double held = 0.0;
    size_t kept = 0;
    for (size_t sorted = std::min<size_t>(n, 256); held < wanted && kept < n; sorted = std::min(n, sorted * 8)) {
      const auto begin = order_.begin() + static_cast<ptrdiff_t>(kept);
      std::partial_sort(begin, order_.begin() + static_cast<ptrdiff_t>(sorted),
                        order_.begin() + static_cast<ptrdiff_t>(n), better);
      for (; kept < sorted && held < wanted; ++kept) {
        weight_[kept] = weigh(order_[kept]);
        held += weight_[kept];
      }
    }
    n = std::max<size_t>(kept, 1);
    sum = held;
  }
  if (options_.min_p > 0.0f) {
    sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
      if (weight_[i] < static_cast<double>(options_.min_p) * heaviest) weight_[i] = 0.0;
      sum += weight_[i];
    }
  }
  double target = uniform() * sum;
  int32_t last = order_[0];
  for (size_t i = 0; i < n; ++i) {
    if (weight_[i] <= 0.0) continue;
    last = order_[i];
    target -= weight_[i];
    if (target < 0.0) break;
  }
  return last;
}

Result<Choice> Sampler::choose(Span<const float> logits, Span<const int32_t> tokens) {
  float most = kMinusInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = logits[i];
    // NaN, from damaged weights, is never chosen; nor does +inf drown the rest.
    logits_[i] = x == x ? std::min(x, std::numeric_limits<float>::max()) : kMinusInfinity;
    most = std::max(most, logits_[i]);
  }
  if (most == kMinusInfinity) return error(Code::bad_model, "the model's output holds no number: its weights are damaged");
  const double total = log_sum_exp(logits_, most);

  top_.clear();
  if (options_.n_logprobs > 0) {
    const size_t n = std::min<size_t>(options_.n_logprobs, logits_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n), order_.end(), [&](int32_t a, int32_t b) {
      const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    });
    for (size_t i = 0; i < n; ++i) {
      const float x = logits_[static_cast<size_t>(order_[i])];
      top_.push_back({order_[i], static_cast<float>(static_cast<double>(x) - total)});
    }
  }

  for (const LogitBias& b : options_.bias) logits_[static_cast<size_t>(b.token)] += b.bias;
  penalize(tokens);
  if (options_.hook) {
    if (options_.hook(options_.hook_user, logits_.data(), logits_.size(), tokens.data(), tokens.size()) != 0)
      return error(Code::cancelled, "cancelled by the logits hook");
    for (float& x : logits_) x = x == x ? std::min(x, std::numeric_limits<float>::max()) : kMinusInfinity;
  }
  const auto best = std::max_element(logits_.begin(), logits_.end());
  if (*best == kMinusInfinity)
    return error(Code::invalid_argument, "bias or hook ban every token of the vocabulary");

  Choice choice;
  choice.token = options_.temperature > 0.0f ? draw() : static_cast<int32_t>(best - logits_.begin());
  choice.logprob = static_cast<float>(static_cast<double>(logits[static_cast<size_t>(choice.token)]) - total);
  choice.top = top_;
  return choice;
}

}  // namespace orrery::engine
