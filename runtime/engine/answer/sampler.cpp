#include "runtime/engine/answer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/base/sum_exp.h"

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
  return option_error(Code::invalid_argument, name, "%s is %g, expected %s", name, static_cast<double>(value), expected);
}

bool is_finite(float x) { return std::fabs(x) <= std::numeric_limits<float>::max(); }

// Relative error bound of a shortlist's tempered sums.
constexpr double kTemperedError = 1e-12;
// Bands of a shortlist's tail in which a weight falls by a factor of e.
constexpr double kBandsPerUnit = 128.0;

}  // namespace

Status SamplingOptions::validate(int32_t n_vocab) const {
  if (!(temperature >= 0.0f && temperature <= 1000.0f)) return out_of_range("temperature", temperature, "0 to 1000");
  if (!(top_p > 0.0f && top_p <= 1.0f)) return out_of_range("top_p", top_p, "more than 0, at most 1");
  if (!(min_p >= 0.0f && min_p <= 1.0f)) return out_of_range("min_p", min_p, "0 to 1");
  if (!(repetition_penalty > 0.0f && repetition_penalty <= 1000.0f))
    return out_of_range("repetition_penalty", repetition_penalty, "more than 0, at most 1000");
  if (!(std::fabs(frequency_penalty) <= 1000.0f)) return out_of_range("frequency_penalty", frequency_penalty, "-1000 to 1000");
  if (!(std::fabs(presence_penalty) <= 1000.0f)) return out_of_range("presence_penalty", presence_penalty, "-1000 to 1000");
  if (n_logprobs > kMaxLogprobs)
    return option_error(Code::invalid_argument, "n_logprobs", "n_logprobs is %u, expected at most %u", n_logprobs, kMaxLogprobs);
  for (const LogitBias& b : bias) {
    if (b.token < 0 || b.token >= n_vocab)
      return option_error(Code::invalid_argument, "logit_bias", "a logit bias names token %d of a vocabulary of %d", b.token, n_vocab);
    if (std::isnan(b.bias) || b.bias == std::numeric_limits<float>::infinity())
      return option_error(Code::invalid_argument, "logit_bias", "a logit bias is %g, expected a number or -infinity",
                          static_cast<double>(b.bias));
  }
  return ok_status();
}

Sampler::Sampler(SamplingOptions options, int32_t n_vocab) : options_(std::move(options)), row_(static_cast<size_t>(n_vocab)) {
  const size_t n = static_cast<size_t>(n_vocab);
  logits_.resize(n);
  order_.resize(n);
  if (options_.temperature > 0.0f) weight_.resize(n);
  count_.resize(n);
  top_.reserve(kMaxLogprobs);
  merge_biases();
  uint64_t state = options_.seed;
  for (uint64_t& word : rng_) word = splitmix64(&state);
}

// Adds up the biases of each token, in the order of their first occurrence: every choice reads the list.
void Sampler::merge_biases() {
  size_t n = 0;
  for (const LogitBias& b : options_.bias) {
    const size_t token = static_cast<size_t>(b.token);
    if (count_[token]++ > 0) {
      options_.bias[static_cast<size_t>(order_[token])].bias += b.bias;
    } else {
      order_[token] = static_cast<int32_t>(n);
      options_.bias[n++] = b;
    }
  }
  options_.bias.resize(n);
  for (const LogitBias& b : options_.bias) count_[static_cast<size_t>(b.token)] = 0;
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

Span<const int32_t> Sampler::penalized(Span<const int32_t> tokens) const {
  return penalizes() ? tokens.last(std::min<size_t>(tokens.size(), options_.penalty_tokens)) : Span<const int32_t>();
}

void Sampler::penalize(Span<const int32_t> tokens) {
  const SamplingOptions& o = options_;
  const Span<const int32_t> last = penalized(tokens);
  for (const int32_t t : last) ++count_[static_cast<size_t>(t)];
  for (const int32_t t : last) {
    const size_t i = static_cast<size_t>(t);
    if (count_[i] == 0) continue;  // penalized at its first occurrence
    float& x = logits_[i];
    x = x > 0.0f ? x / o.repetition_penalty : x * o.repetition_penalty;
    x -= static_cast<float>(count_[i]) * o.frequency_penalty + o.presence_penalty;
    count_[i] = 0;
  }
}

void Sampler::apply_mask() {
  if (mask_.empty()) return;
  const size_t n = logits_.size(), n_masked = std::min(n, 32 * mask_.size());
  for (size_t first = 0; first < n_masked; first += 32) {
    uint32_t banned = ~mask_[first / 32];  // none, in most words of most masks
    for (size_t i = first; banned != 0 && i < n; ++i, banned >>= 1)
      if (banned & 1) logits_[i] = kMinusInfinity;
  }
  std::fill(logits_.begin() + static_cast<ptrdiff_t>(n_masked), logits_.end(), kMinusInfinity);
}

int32_t Sampler::likeliest(Span<const float> logits) const {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (allowed(token) && logits[i] == logits[i] && (best < 0 || logits[i] > logits[static_cast<size_t>(best)])) best = token;
  }
  return best;
}

// The order of candidates: falling logits, rising ids among equal logits.
bool Sampler::better(int32_t a, int32_t b) const {
  const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
  return x > y || (x == y && a < b);
}

double Sampler::weight(int32_t token, float most, double inverse) const {
  return std::exp((static_cast<double>(logits_[static_cast<size_t>(token)]) - static_cast<double>(most)) * inverse);
}

int32_t Sampler::draw() {
  std::iota(order_.begin(), order_.end(), 0);
  return draw_of(order_.size());
}

// Draws from the first n candidates, which are in the order of ids. All others have no weight.
int32_t Sampler::draw_of(size_t n) {
  if (options_.top_k > 0 && options_.top_k < n) {
    const auto begin = order_.begin(), end = begin + static_cast<ptrdiff_t>(n);
    n = options_.top_k;
    std::nth_element(begin, begin + static_cast<ptrdiff_t>(n) - 1, end, [&](int32_t a, int32_t b) { return better(a, b); });
  }
  return draw_of_k(n);
}

// Draws from the first n candidates, after top-k.
int32_t Sampler::draw_of_k(size_t n) {
  if (n < order_.size()) std::sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n));  // a fixed order: ids, rising
  float most = kMinusInfinity;
  for (size_t i = 0; i < n; ++i) most = std::max(most, logits_[static_cast<size_t>(order_[i])]);
  const double inverse = inverse_temperature();
  double sum = 0.0, heaviest = 0.0;
  for (size_t i = 0; i < n; ++i) {
    weight_[i] = weight(order_[i], most, inverse);
    sum += weight_[i];
    heaviest = std::max(heaviest, weight_[i]);
  }
  if (options_.top_p < 1.0f) {
    // Keeps the fewest candidates that hold top_p of the weight. Usually a few: sort only as many as needed.
    const double wanted = static_cast<double>(options_.top_p) * sum;
    double held = 0.0;
    size_t kept = 0;
    for (size_t sorted = std::min<size_t>(n, 256); held < wanted && kept < n; sorted = std::min(n, sorted * 8)) {
      const auto begin = order_.begin() + static_cast<ptrdiff_t>(kept);
      std::partial_sort(begin, order_.begin() + static_cast<ptrdiff_t>(sorted), order_.begin() + static_cast<ptrdiff_t>(n),
                        [&](int32_t a, int32_t b) { return better(a, b); });
      for (; kept < sorted && held < wanted; ++kept) {
        weight_[kept] = weight(order_[kept], most, inverse);
        held += weight_[kept];
      }
    }
    n = std::max<size_t>(kept, 1);
    sum = held;
  }
  return draw_of_weights(n, sum, heaviest);
}

// Min-p and one draw from the first n candidates, with weights in weight_.
int32_t Sampler::draw_of_weights(size_t n, double sum, double heaviest) {
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

int32_t Sampler::draft(Span<const float> logits, Span<const int32_t> tokens) {
  const LogitsHook hook = std::exchange(options_.hook, nullptr);
  const Result<Choice> choice = choose(logits, tokens);
  options_.hook = hook;
  return choice.ok() ? choice.value().token : -1;
}

// Fills top_ with the best tokens and their log-probabilities. total: the logarithm of the sum over all tokens.
void Sampler::note_top(Span<const ShortlistEntry> best, double total) {
  top_.clear();
  for (size_t i = 0; i < std::min<size_t>(options_.n_logprobs, best.size()); ++i)
    top_.push_back({best[i].token, static_cast<float>(static_cast<double>(as_number(best[i].logit)) - total)});
}

// False: the row's shortlist does not decide the token.
bool Sampler::choose_by_row(Span<const float> logits, Span<const int32_t> tokens, Choice* choice) {
  // Sorting takes time here, and a second look at the row does not wait for a device.
  const size_t many = std::min<size_t>(ShortlistRequest::kMostBest, std::max<size_t>(64, logits.size() / 512));
  if (!ask_for(tokens, many)) return false;
  row_.make(logits, shortlist_.request(), {order_.data(), order_.size()}, shortlist_.result());
  shortlist_.arrived();
  for (;;) {
    const Outcome outcome = choose(tokens, choice);
    if (outcome != Outcome::wants_more) return outcome == Outcome::chosen;
    switch (shortlist_.wanted()) {
      case Shortlist::Stage::block: {
        const Span<float> block = shortlist_.block();
        std::copy_n(logits.begin() + shortlist_.first_of_block(), block.size(), block.begin());
        break;
      }
      case Shortlist::Stage::bands: RowShortlist::bands(logits, shortlist_.tail(), shortlist_.bands().data()); break;
      default: RowShortlist::entries(logits, shortlist_.tail(), shortlist_.band(), shortlist_.other_band(), shortlist_.tail_entries());
    }
    shortlist_.more_arrived();
  }
}

Result<Choice> Sampler::choose(Span<const float> logits, Span<const int32_t> tokens) {
  Choice choice;
  if (choose_by_row(logits, tokens, &choice)) return choice;
  return choose_of_all(logits, tokens);
}

Result<Choice> Sampler::choose_of_all(Span<const float> logits, Span<const int32_t> tokens) {
  float most = kMinusInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    logits_[i] = as_number(logits[i]);
    most = std::max(most, logits_[i]);
  }
  if (most == kMinusInfinity) return error(Code::bad_model, "the model's output holds no number: its weights are damaged");
  const double total = static_cast<double>(most) + std::log(SumExp::sum(logits_, most));

  top_.clear();
  if (options_.n_logprobs > 0) {
    const size_t n = std::min<size_t>(options_.n_logprobs, logits_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n), order_.end(),
                      [&](int32_t a, int32_t b) { return better(a, b); });
    ShortlistEntry best[kMaxLogprobs];
    for (size_t i = 0; i < n; ++i) best[i] = {logits_[static_cast<size_t>(order_[i])], order_[i]};
    note_top({best, n}, total);
  }

  for (const LogitBias& b : options_.bias) logits_[static_cast<size_t>(b.token)] += b.bias;
  penalize(tokens);
  apply_mask();
  if (options_.hook) {
    if (options_.hook(options_.hook_user, logits_.data(), logits_.size(), tokens.data(), tokens.size()) != 0)
      return error(Code::cancelled, "cancelled by the logits hook");
    for (float& x : logits_) x = as_number(x);
    apply_mask();  // a hook bans, and allows nothing that the grammar bans
  }
  const auto best = std::max_element(logits_.begin(), logits_.end());
  if (*best == kMinusInfinity)
    return mask_.empty() ? error(Code::invalid_argument, "bias or hook ban every token of the vocabulary")
                         : error(Code::invalid_argument, "the grammar, with bias or hook, bans every token of the vocabulary");

  Choice choice;
  choice.token = options_.temperature > 0.0f ? draw() : static_cast<int32_t>(best - logits_.begin());
  choice.logprob = static_cast<float>(static_cast<double>(as_number(logits[static_cast<size_t>(choice.token)])) - total);
  choice.top = top_;
  return choice;
}

// By shortlist ---------------------------------------------------------------------------------------------

// Asks for enough best logits to decide: one, or top-k, and one more for each token that bias or penalties may move out of them. Or for
// sums.
Shortlist* Sampler::ask(Span<const int32_t> tokens) { return ask_for(tokens, ShortlistRequest::kMostBest); }

// many: the number of the best where a choice does not say how many it needs.
Shortlist* Sampler::ask_for(Span<const int32_t> tokens, size_t many) {
  const SamplingOptions& o = options_;
  asked_allowed_ = false;
  const bool draws = o.temperature > 0.0f, by_k = draws && takes_top_k(), by_p = draws && !by_k && o.top_p < 1.0f;
  const bool of_all = draws_of_all();
  const size_t n_sums = of_all ? (logits_.size() + Shortlist::kSumLogits - 1) / Shortlist::kSumLogits : 0;
  shortlist_.forget();
  constexpr size_t kMost = ShortlistRequest::kMostBest;
  const bool masked = !mask_.empty() && o.n_logprobs == 0 && logits_.size() <= 32 * Shortlist::kMostWords;
  if (o.hook) return nullptr;
  if (!mask_.empty()) {
    std::vector<int32_t>& wanted = shortlist_.ask(0.0, 0);
    shortlist_.set_best(static_cast<int32_t>(o.n_logprobs));
    if (ask_allowed(&wanted)) {
      asked_allowed_ = true;
      return &shortlist_;
    }
    if (!masked && (by_p || of_all)) return nullptr;  // a sum over the allowed tokens
  }
  if ((by_k && o.top_k > kMost) || n_sums > Shortlist::kMostSums) return nullptr;

  std::vector<int32_t>& wanted = shortlist_.ask(by_p || of_all ? inverse_temperature() : 0.0, static_cast<int32_t>(n_sums));
  if (masked) shortlist_.set_mask(mask_, logits_.size());
  bool fits = true;
  const auto want = [&](int32_t token) {
    if ((masked && !allowed(token)) || std::exchange(count_[static_cast<size_t>(token)], 1u) == 1) return;
    fits = fits && wanted.size() < static_cast<size_t>(ShortlistRequest::kMostTokens);
    if (fits) wanted.push_back(token);
  };
  for (const LogitBias& b : o.bias) want(b.token);
  for (const int32_t t : penalized(tokens)) want(t);
  for (const LogitBias& b : o.bias) count_[static_cast<size_t>(b.token)] = 0;
  for (const int32_t t : penalized(tokens)) count_[static_cast<size_t>(t)] = 0;
  if (!fits) return nullptr;

  const size_t n_best = !mask_.empty() && !masked ? kMost : !draws ? 1 + wanted.size() : by_k ? o.top_k + wanted.size() : of_all ? 0 : many;
  shortlist_.set_best(static_cast<int32_t>(std::min(kMost, std::max<size_t>(n_best, o.n_logprobs))));
  return &shortlist_;
}

// Lists all allowed tokens. False: there are too many.
bool Sampler::ask_allowed(std::vector<int32_t>* wanted) const {
  for (size_t w = 0; w < mask_.size(); ++w) {
    for (uint32_t bits = mask_[w], i = 0; bits != 0; bits >>= 1, ++i) {
      const size_t token = 32 * w + i;
      if ((bits & 1) == 0 || token >= logits_.size()) continue;
      if (wanted->size() == Shortlist::kMostTokens) return false;
      wanted->push_back(static_cast<int32_t>(token));
    }
  }
  return !wanted->empty();
}

// Applies bias and penalties to the shortlist's logits. False: one is not finite afterwards, so the choice needs all logits.
bool Sampler::move_tokens(Span<const int32_t> tokens) {
  const Span<const int32_t> moved = shortlist_.tokens();
  const Span<const float> block = shortlist_.block();
  for (const ShortlistEntry& e : shortlist_.best()) logits_[static_cast<size_t>(e.token)] = as_number(e.logit);
  for (size_t i = 0; i < block.size(); ++i) logits_[shortlist_.first_of_block() + i] = as_number(block[i]);
  for (size_t i = 0; i < moved.size(); ++i) logits_[static_cast<size_t>(moved[i])] = as_number(shortlist_.logits()[i]);
  for (const LogitBias& b : options_.bias) logits_[static_cast<size_t>(b.token)] += b.bias;
  penalize(tokens);
  for (size_t i = shortlist_.first_of_block(); i < shortlist_.first_of_block() + block.size(); ++i)
    if (!allowed(static_cast<int32_t>(i))) logits_[i] = kMinusInfinity;
  return std::all_of(moved.begin(), moved.end(), [&](int32_t t) {
    const float x = logits_[static_cast<size_t>(t)];
    return x == kMinusInfinity || is_finite(x);
  });
}

// Fills order_ with the shortlist's tokens that rank before all other tokens, best first. Returns their number.
size_t Sampler::rank_shortlist() {
  const Span<const ShortlistEntry> best = shortlist_.best();
  const Span<const int32_t> moved = shortlist_.tokens();
  const bool all = best.size() == logits_.size();
  const ShortlistEntry& last = best[best.size() - 1];
  size_t n = 0;
  for (const int32_t t : moved) {
    count_[static_cast<size_t>(t)] = 1;
    const float x = logits_[static_cast<size_t>(t)], bound = as_number(last.logit);
    if (all || x > bound || (x == bound && t <= last.token)) order_[n++] = t;
  }
  for (const ShortlistEntry& e : best)
    if (count_[static_cast<size_t>(e.token)] == 0) order_[n++] = e.token;
  for (const int32_t t : moved) count_[static_cast<size_t>(t)] = 0;
  std::sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n), [&](int32_t a, int32_t b) { return better(a, b); });
  const auto end = std::remove_if(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n), [&](int32_t t) { return !allowed(t); });
  return static_cast<size_t>(end - order_.begin());
}

// Fills order_ with all allowed tokens, in the order of ids, from a shortlist that has them. Returns their number.
size_t Sampler::list_allowed(int32_t* best) {
  const Span<const int32_t> tokens = shortlist_.tokens();
  std::copy(tokens.begin(), tokens.end(), order_.begin());
  *best = order_[0];
  for (const int32_t t : tokens)
    if (better(t, *best)) *best = t;
  return tokens.size();
}

Sampler::Outcome Sampler::choose(Span<const int32_t> tokens, Choice* choice) {
  const Shortlist::Stage stage = shortlist_.take();
  const ShortlistHead& head = shortlist_.head();
  if (stage == Shortlist::Stage::nothing || head.most_allowed == kMinusInfinity || !move_tokens(tokens)) return Outcome::open;
  const auto more_or_open = [](bool more) { return more ? Outcome::wants_more : Outcome::open; };
  int32_t token = -1;
  switch (stage) {
    case Shortlist::Stage::block:
      if (!draw_of_block(&token)) return Outcome::open;
      break;
    case Shortlist::Stage::bands: return more_or_open(find_bands());
    case Shortlist::Stage::entries:
      if (!draw_of_tail(&token)) return Outcome::open;
      break;
    default:
      if (asked_allowed_) {
        const size_t n = list_allowed(&token);
        if (!is_finite(logits_[static_cast<size_t>(token)])) return Outcome::open;
        if (options_.temperature > 0.0f) token = draw_of(n);
        break;
      }
      if (draws_of_all()) return more_or_open(find_block());
      const size_t n = rank_shortlist();
      if (n == 0 || !is_finite(logits_[static_cast<size_t>(order_[0])])) return Outcome::open;
      token = order_[0];
      if (options_.temperature > 0.0f)
        if (const Outcome drawn = draw_of_shortlist(n, &token); drawn != Outcome::chosen) return drawn;
  }
  const double total = static_cast<double>(head.most) + std::log(head.sum);
  note_top(shortlist_.best(), total);
  choice->token = token;
  choice->logprob = static_cast<float>(static_cast<double>(as_number(logit_of(token))) - total);
  choice->top = top_;
  return Outcome::chosen;
}

// The model's own logit of a token in the shortlist.
float Sampler::logit_of(int32_t token) {
  const size_t in_block = static_cast<size_t>(token) - shortlist_.first_of_block();
  if (in_block < shortlist_.block().size()) return shortlist_.block()[in_block];
  for (size_t i = 0; i < shortlist_.tokens().size(); ++i)
    if (shortlist_.tokens()[i] == token) return shortlist_.logits()[i];
  for (const ShortlistEntry& e : shortlist_.best())
    if (e.token == token) return e.logit;
  const ShortlistTailEntries& tail = *shortlist_.tail_entries();
  return std::find_if(tail.entries, tail.entries + tail.n, [&](const ShortlistEntry& e) { return e.token == token; })->logit;
}

double Sampler::peek_uniform() {
  const std::array<uint64_t, 4> state = rng_;
  const double drawn = uniform();
  rng_ = state;
  return drawn;
}

// Error bound of a sum of the weights of all tokens: the difference between the shortlist's sum and the sampler's own sum over all logits,
// one by one. size: the sum of the absolute values. A weight has a few roundings of its own, of an exponent below 746.
double Sampler::error_of(double size) const { return size * (2 * kTemperedError + 4 * static_cast<double>(logits_.size()) * 0x1.0p-53); }

// Finds the block of tokens that contains the draw. False: open.
bool Sampler::find_block() {
  constexpr size_t kBlock = Shortlist::kSumLogits;
  const ShortlistHead& head = shortlist_.head();
  const Span<const double> sums = shortlist_.sums();
  const Span<const int32_t> moved = shortlist_.tokens();
  const double inverse = inverse_temperature();
  float most = head.most_allowed;
  for (const int32_t t : moved) most = std::max(most, logits_[static_cast<size_t>(t)]);
  const auto weight_of = [&](float x) { return std::exp((static_cast<double>(x) - static_cast<double>(most)) * inverse); };
  const double unit = weight_of(head.most_allowed);
  double size = 0.0, total = 0.0;
  for (size_t i = 0; i < sums.size(); ++i) size += weight_[i] = unit * sums[i];
  for (size_t i = 0; i < moved.size(); ++i) {  // with bias and penalties, not as the model gave them
    const size_t token = static_cast<size_t>(moved[i]);
    const double is = weight_of(logits_[token]), was = weight_of(as_number(shortlist_.logits()[i]));
    weight_[token / kBlock] += is - was;
    size += is + was;
  }
  for (size_t i = 0; i < sums.size(); ++i) total += weight_[i];
  draw_ = {0.0, peek_uniform() * total, error_of(size), most};

  size_t at = 0;
  for (; at < sums.size() && draw_.before + weight_[at] <= draw_.target; ++at) draw_.before += weight_[at];
  if (at == sums.size() || (at > 0 && draw_.before > draw_.target - draw_.error)) return false;
  shortlist_.ask_block(at * kBlock, std::min(kBlock, logits_.size() - at * kBlock));
  return true;
}

// Finds the drawn token in the block. False: open.
bool Sampler::draw_of_block(int32_t* token) {
  const double inverse = inverse_temperature();
  double left = draw_.target - draw_.before;
  for (size_t i = 0; i < shortlist_.block().size(); ++i) {
    *token = static_cast<int32_t>(shortlist_.first_of_block() + i);
    left -= weight(*token, draw_.most, inverse);
    if (left < -draw_.error) {
      uniform();
      return true;
    }
    if (left < draw_.error) return false;
  }
  return false;
}

// Draws from the first n tokens of order_, which are ranked.
Sampler::Outcome Sampler::draw_of_shortlist(size_t n, int32_t* token) {
  if (takes_top_k()) {
    if (n < options_.top_k) return Outcome::open;
    *token = draw_of_k(options_.top_k);
    return Outcome::chosen;
  }
  const float most = logits_[static_cast<size_t>(order_[0])];
  size_t kept = 0;
  double held = 0.0;
  if (options_.top_p < 1.0f) {
    if (const Outcome kept_is = keep_top_p(n, &kept, &held); kept_is != Outcome::chosen) return kept_is;
  } else {  // min-p alone: the tokens that it keeps, in the order of ids
    const double least = static_cast<double>(options_.min_p), inverse = inverse_temperature();
    while (kept < n && weight(order_[kept], most, inverse) >= least) ++kept;
    // The next token must be below the limit by more than exp's rounding; then all later tokens are below it, too.
    if (n < logits_.size() && (kept == n || weight(order_[kept], most, inverse) > least * (1 - 1e-12))) return Outcome::open;
    std::sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(kept));
    for (size_t i = 0; i < kept; ++i) weight_[i] = weight(order_[i], most, inverse);
  }
  *token = draw_of_weights(kept, held, 1.0);
  return Outcome::chosen;
}

// The number of candidates that hold top_p of all weights. The sum of all weights is known within an error bound.
Sampler::Outcome Sampler::keep_top_p(size_t n, size_t* n_kept, double* held) {
  const ShortlistHead& head = shortlist_.head();
  const float most = logits_[static_cast<size_t>(order_[0])];
  const double inverse = inverse_temperature();
  const double unit = std::exp((static_cast<double>(head.most_allowed) - static_cast<double>(most)) * inverse);
  double sum = unit * head.tempered_sum, size = sum;
  for (size_t i = 0; i < shortlist_.tokens().size(); ++i) {  // with bias and penalties, not as the model gave them
    const double is = weight(shortlist_.tokens()[i], most, inverse);
    const double was = std::exp((static_cast<double>(as_number(shortlist_.logits()[i])) - static_cast<double>(most)) * inverse);
    sum += is - was, size += is + was;
  }
  const double error = error_of(size);
  const double p = static_cast<double>(options_.top_p), least = p * (sum - error), wanted = p * (sum + error);
  if (!(wanted <= std::numeric_limits<double>::max())) return Outcome::open;
  size_t kept = 0;
  *held = 0.0;
  for (; *held < wanted && kept < n; ++kept) {
    if (*held >= least && kept > 0) return Outcome::open;
    weight_[kept] = weight(order_[kept], most, inverse);
    *held += weight_[kept];
  }
  *n_kept = kept;
  if (*held >= wanted || n == logits_.size()) return Outcome::chosen;
  if (options_.min_p > 0.0f)  // if min-p removes the last candidate, it removes all tokens behind it
    return weight_[n - 1] < static_cast<double>(options_.min_p) * (1 - 1e-12) ? Outcome::chosen : Outcome::open;
  const ShortlistEntry& last = shortlist_.best()[shortlist_.best().size() - 1];
  const float bands_per_logit = static_cast<float>(kBandsPerUnit * inverse);
  if (*held >= least || !is_finite(as_number(last.logit)) || !is_finite(bands_per_logit)) return Outcome::open;
  tail_ = {n, *held, p * sum, size, 0.0, 0.0, 0.0, most};
  shortlist_.ask_bands({{as_number(last.logit), last.token}, bands_per_logit, inverse, shortlist_.mask()});
  return Outcome::wants_more;
}

// Whether a token ranks behind the last of the shortlist's best.
bool Sampler::in_tail(float x, int32_t token) const { return ranks_behind(shortlist_.tail().last, x, token); }

// Finds the bands that contain top-p's cut and the draw. False: open.
bool Sampler::find_bands() {
  const ShortlistTail& tail = shortlist_.tail();
  const auto weight_of = [&](float x) {
    return std::exp((static_cast<double>(x) - static_cast<double>(tail_.most)) * tail.inverse_temperature);
  };
  const double most_of_tail = weight_of(tail.last.logit);
  double bands[ShortlistTail::kBands];
  for (size_t i = 0; i < ShortlistTail::kBands; ++i)
    bands[i] = static_cast<double>(shortlist_.bands()[i]) / ShortlistTail::kUnit * most_of_tail;
  for (size_t i = 0; i < shortlist_.tokens().size(); ++i) {  // with bias and penalties, not as the model gave them
    const int32_t token = shortlist_.tokens()[i];
    const float is = logits_[static_cast<size_t>(token)], was = as_number(shortlist_.logits()[i]);
    if (in_tail(was, token)) bands[tail.band_of(was)] -= weight_of(was);
    if (in_tail(is, token)) bands[tail.band_of(is)] += weight_of(is);
  }
  // Each weight in a band's sum was rounded.
  const double error = 2 * error_of(tail_.size) + static_cast<double>(logits_.size()) / ShortlistTail::kUnit * most_of_tail;
  const auto find = [&](double at, double* before) {
    int32_t band = 0;
    for (*before = tail_.held; band < ShortlistTail::kBands && *before + bands[band] <= at; ++band) *before += bands[band];
    return band;
  };
  const int32_t cut = find(tail_.wanted, &tail_.before_cut);
  if (cut == ShortlistTail::kBands || tail_.before_cut > tail_.wanted - error) return false;
  tail_.error = error;
  // The kept weight is known up to a token of the cut's band. So the draw may lie beyond the band found here; draw_of_tail() checks.
  shortlist_.ask_entries(cut, find(peek_uniform() * tail_.wanted, &tail_.before));
  return true;
}

// Appends the band's tokens to order_ behind the tail_.n best ones, best first. Returns their number.
size_t Sampler::order_band(int32_t band) {
  const ShortlistTail& tail = shortlist_.tail();
  const ShortlistTailEntries& entries = *shortlist_.tail_entries();
  const Span<const int32_t> moved = shortlist_.tokens();
  size_t end = tail_.n;
  const auto add = [&](int32_t token) {
    const float x = logits_[static_cast<size_t>(token)];
    if (in_tail(x, token) && tail.band_of(x) == band) order_[end++] = token;
  };
  for (const int32_t t : moved) count_[static_cast<size_t>(t)] = 1, add(t);
  for (int32_t i = 0; i < entries.n; ++i) {
    const ShortlistEntry& e = entries.entries[i];
    if (count_[static_cast<size_t>(e.token)] > 0) continue;
    logits_[static_cast<size_t>(e.token)] = as_number(e.logit);
    add(e.token);
  }
  for (const int32_t t : moved) count_[static_cast<size_t>(t)] = 0;
  std::sort(order_.begin() + static_cast<ptrdiff_t>(tail_.n), order_.begin() + static_cast<ptrdiff_t>(end),
            [&](int32_t a, int32_t b) { return better(a, b); });
  return end - tail_.n;
}

// One draw from the best and from the tail, up to the cut. False: open.
bool Sampler::draw_of_tail(int32_t* token) {
  if (shortlist_.tail_entries()->n > ShortlistTail::kMostEntries) return false;
  const double inverse = inverse_temperature(), error = tail_.error;
  const int32_t* band = order_.data() + tail_.n;
  double held = tail_.before_cut;
  size_t n = order_band(shortlist_.band());
  for (size_t i = 0; i < n && held < tail_.wanted - error; ++i) held += weight(band[i], tail_.most, inverse);
  if (held < tail_.wanted + error) return false;

  double left = peek_uniform() * held;
  const auto falls_on = [&](int32_t candidate, double its_weight) {  // within the error bound of its end, the caller leaves it open
    *token = candidate;
    left -= its_weight;
    return left < 3 * error;
  };
  bool found = false;
  for (size_t i = 0; i < tail_.n && !found; ++i) found = falls_on(order_[i], weight_[i]);
  if (!found) {
    left = left + tail_.held - tail_.before;
    if (tail_.before > tail_.held && left < 3 * error) return false;
    n = order_band(shortlist_.other_band());
    for (size_t i = 0; i < n && !found; ++i) found = falls_on(band[i], weight(band[i], tail_.most, inverse));
  }
  if (!found || left > -3 * error) return false;
  uniform();
  return true;
}

}  // namespace orrery::engine
