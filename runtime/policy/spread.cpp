#include "runtime/policy/spread.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace orrery::policy {
namespace {

unsigned long long ull(uint64_t x) { return static_cast<unsigned long long>(x); }

Status check_total(uint64_t n, uint64_t total, uint64_t highest) {
  if (n > 0 && (total / n < highest || (total / n == highest && total % n == 0))) return ok_status();
  return error(Code::invalid_argument, "%llu tokens cannot be spread over %llu with at most %llu each", ull(total), ull(n),
               ull(highest));
}

// Indices in the order of their remainders, largest first.
template <class Remainder>
std::vector<size_t> by_remainder(size_t n, const Remainder& remainder) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder(a) > remainder(b); });
  return order;
}

}  // namespace

std::vector<uint64_t> round_to_total(Span<const double> shares, uint64_t total) {
  std::vector<uint64_t> whole(shares.size());
  std::vector<int64_t> remainder(shares.size());   // in billionths: a rounding of a share is none
  uint64_t dealt = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double near = std::nearbyint(shares[i] * 1e9);
    whole[i] = static_cast<uint64_t>(near / 1e9);
    remainder[i] = static_cast<int64_t>(near - static_cast<double>(whole[i]) * 1e9);
    dealt += whole[i];
  }
  const std::vector<size_t> order = by_remainder(shares.size(), [&](size_t i) { return remainder[i]; });
  for (size_t i = 0; dealt < total; ++dealt, ++i) ++whole[order[i % order.size()]];
  return whole;
}

Result<std::vector<uint64_t>> pyramid(uint64_t n_layers, uint64_t n_heads, uint64_t total, uint64_t highest, uint64_t n_tokens,
                                      uint32_t beta) {
  ORRERY_TRY(check_total(n_layers * n_heads, total, highest));
  const double b = static_cast<double>(total) / static_cast<double>(n_layers * n_heads);
  if (n_layers == 1 || static_cast<double>(n_tokens) < 2 * b)
    return apportion_evenly(n_layers, total, n_heads * highest);
  double least = std::floor(b / beta), most = 2 * b - least;
  if (most > static_cast<double>(highest)) most = static_cast<double>(highest), least = 2 * b - most;
  std::vector<double> shares;
  for (uint64_t l = 0; l < n_layers; ++l)
    shares.push_back(static_cast<double>(n_heads) *
                     (most - (most - least) * static_cast<double>(l) / static_cast<double>(n_layers - 1)));
  return round_to_total(shares, total);
}

Result<std::vector<uint64_t>> by_preference(Span<const double> preference, uint64_t total, uint64_t highest) {
  const size_t n = preference.size();
  ORRERY_TRY(check_total(n, total, highest));
  double sum = 0;
  for (const double p : preference) {
    if (!(p >= 0) || !std::isfinite(p)) return error(Code::invalid_argument, "a layer's preference is %g", p);
    sum += p;
  }
  if (!(sum > 0) || !std::isfinite(sum)) return apportion_evenly(n, total, highest);
  std::vector<double> shares;
  for (const double p : preference) shares.push_back(p / sum * static_cast<double>(total));
  const auto most = static_cast<double>(highest);
  // Each time round at least one more is full, or nothing is beyond.
  for (size_t round = 0; round <= n; ++round) {
    double beyond = 0;
    size_t n_free = 0;
    for (double& share : shares) {
      if (share >= most) beyond += share - most, share = most;
      n_free += share < most;
    }
    if (beyond <= 0 || n_free == 0) break;
    for (double& share : shares)
      if (share < most) share += beyond / static_cast<double>(n_free);
  }
  return round_to_total(shares, total);
}

Result<BestOfLayers> BestOfLayers::make(Span<const float> scores, Span<const double> weights, uint64_t total) {
  const size_t n_layers = weights.size();
  if (n_layers == 0 || scores.size() % n_layers != 0 || total > scores.size())
    return error(Code::invalid_argument, "the best %llu of %zu scores of %zu layers", ull(total), scores.size(), n_layers);
  double largest = 0;
  for (const double w : weights) {
    if (!(w >= 0) || !std::isfinite(w)) return error(Code::invalid_argument, "a layer's weight is %g", w);
    largest = std::max(largest, w);
  }
  BestOfLayers best(scores, total);
  for (const double w : weights) best.weights_.push_back(largest > 0 ? static_cast<float>(w / largest) : 0);
  best.above_.assign(n_layers, 0);
  best.values_.assign(n_layers * kMostValues, 0);
  if (largest > 0) return best;
  // No layer wants more than another.
  ORRERY_ASSIGN(best.above_, apportion_evenly(n_layers, total, scores.size() / n_layers));
  best.n_wanted_ = 0;
  best.round_ = kRounds;
  return best;
}

void BestOfLayers::count(size_t layer) {
  if (round_ == kRounds) return;
  const size_t n = scores_.size() / weights_.size();
  const Digit digit = kDigits[round_];
  const uint32_t mask = (uint32_t{1} << digit.n_bits) - 1;
  const float weight = weights_[layer];
  uint32_t* values = &values_[layer * kMostValues];
  std::fill(values, values + kMostValues, 0);
  for (const float score : scores_.subspan(layer * n, n)) {
    const uint32_t x = order_of(score * weight);
    if (static_cast<uint64_t>(x) >> (digit.shift + digit.n_bits) == least_) ++values[x >> digit.shift & mask];   // all, then few: a good guess
  }
}

void BestOfLayers::end_round() {
  if (round_ == kRounds) return;
  const Digit digit = kDigits[round_++];
  size_t value = size_t{1} << digit.n_bits;
  for (uint64_t n_equal = 0; value-- > 0; n_wanted_ -= n_equal) {
    n_equal = 0;
    for (size_t layer = 0; layer < weights_.size(); ++layer) n_equal += values_[layer * kMostValues + value];
    if (n_equal >= n_wanted_) break;
    for (size_t layer = 0; layer < weights_.size(); ++layer) above_[layer] += values_[layer * kMostValues + value];
  }
  least_ = least_ << digit.n_bits | value;
  if (round_ < kRounds) return;
  for (size_t layer = 0; layer < weights_.size(); ++layer) {   // of equal ones those of the lower layers
    const uint64_t taken = std::min<uint64_t>(n_wanted_, values_[layer * kMostValues + value]);
    above_[layer] += taken, n_wanted_ -= taken;
  }
}

std::vector<uint64_t> BestOfLayers::counts() const { return above_; }

uint64_t BestOfLayers::host_bytes(uint64_t n_layers) {
  return n_layers * (sizeof(float) + kMostValues * sizeof(uint32_t) + 2 * sizeof(uint64_t));
}

Result<std::vector<uint64_t>> count_best(Span<const float> scores, uint64_t n_heads, uint64_t total, uint64_t n_protected) {
  const uint64_t n = n_heads > 0 ? scores.size() / n_heads : 0;
  if (n_heads == 0 || n * n_heads != scores.size() || n_protected > n || n_heads * n_protected > total || total > scores.size())
    return error(Code::invalid_argument, "the best %llu of %zu scores of %llu heads, %llu of each for certain", ull(total),
                 scores.size(), ull(n_heads), ull(n_protected));
  std::vector<uint64_t> counts(n_heads, n_protected), ends(n_heads);   // of each head's part of `rest`
  std::vector<float> rest;   // scores that are not protected, head by head
  rest.reserve(scores.size() - n_heads * n_protected);
  Tokens best;
  for (uint64_t h = 0; h < n_heads; ++h) {
    const Span<const float> own = scores.subspan(h * n, n);
    top_k_ascending(own, n_protected, &best);
    auto next = own.begin();
    for (const uint32_t key : best) {
      rest.insert(rest.end(), next, own.begin() + key);
      next = own.begin() + key + 1;
    }
    rest.insert(rest.end(), next, own.end());
    ends[h] = rest.size();
  }
  top_k_ascending(rest, total - n_heads * n_protected, &best);
  uint64_t head = 0;
  for (const uint32_t i : best) {
    while (i >= ends[head]) ++head;
    ++counts[head];
  }
  return counts;
}

std::vector<uint64_t> with_floor(Span<const uint64_t> counts, Ratio alpha) {
  // In parts of a token, n * den to one: nothing is rounded.
  const uint64_t n = counts.size(), one = n * alpha.den;
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  std::vector<uint64_t> whole(n), remainder(n);
  uint64_t dealt = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t parts = (alpha.den - alpha.num) * counts[i] * n + alpha.num * total;
    whole[i] = parts / one, remainder[i] = parts % one;
    dealt += whole[i];
  }
  const std::vector<size_t> order = by_remainder(n, [&](size_t i) { return remainder[i]; });
  for (size_t i = 0; dealt < total; ++dealt, ++i) ++whole[order[i]];
  return whole;
}

namespace {

constexpr uint64_t kKeysOfPart = 2048;   // of one head: rows' parts stay in the second-level cache

// The natural logarithm of a positive normal number, to 2e-7 of itself or of 1: a loop of them becomes one of vectors.
float log_of(float x) {
  constexpr int32_t kRootHalf = 0x3F3504F3;
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int32_t exponent = (bits - kRootHalf) >> 23;
  bits -= exponent * (1 << 23);   // from sqrt(1/2) to sqrt(2)
  float m;
  std::memcpy(&m, &bits, sizeof m);
  // log((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + ...); s is at most .172
  const float s = (m - 1) / (m + 1), s2 = s * s;
  const float series = 2 * s * (1 + s2 * (1.0f / 3 + s2 * (1.0f / 5 + s2 * (1.0f / 7 + s2 * (1.0f / 9)))));
  return static_cast<float>(exponent) * 0.693147181f + series;
}

}  // namespace

size_t Moments::begin(const WindowRows& x) {
  mean.assign(x.n_heads * x.n, 0);
  variance.assign(x.n_heads * x.n, 0);
  entropies_.assign(x.n_heads * ((x.n + kKeysOfPart - 1) / kKeysOfPart), 0);
  return entropies_.size();
}

void Moments::measure_part(const WindowRows& x, size_t part) {
  const uint64_t of_head = (x.n + kKeysOfPart - 1) / kKeysOfPart, head = part / of_head, first = part % of_head * kKeysOfPart;
  const uint64_t n = std::min(kKeysOfPart, x.n - first);
  double *means = &mean[head * x.n + first], *variances = &variance[head * x.n + first];
  const auto row_of = [&](uint64_t r) { return x.rows + (r * x.n_heads + head) * x.stride + first; };
  constexpr uint64_t kLanes = 8;
  double sums[kLanes] = {};
  const auto term = [](float a) { return static_cast<double>(a * log_of(a + 1e-10f)); };
  for (uint64_t r = 0; r < x.n_rows; ++r) {
    const float* row = row_of(r);
    const uint64_t whole = n / kLanes * kLanes;
    for (uint64_t key = 0; key < whole; key += kLanes)
      for (uint64_t i = 0; i < kLanes; ++i) sums[i] += term(row[key + i]);
    for (uint64_t key = whole; key < n; ++key) sums[0] += term(row[key]);
    for (uint64_t key = 0; key < n; ++key) means[key] += static_cast<double>(row[key]);
  }
  for (const double sum : sums) entropies_[part] -= sum;
  for (uint64_t key = 0; key < n; ++key) means[key] /= static_cast<double>(x.n_rows);
  if (x.n_rows < 2) return;
  for (uint64_t r = 0; r < x.n_rows; ++r) {
    const float* row = row_of(r);
    for (uint64_t key = 0; key < n; ++key) {
      const double d = static_cast<double>(row[key]) - means[key];
      variances[key] += d * d;
    }
  }
  for (uint64_t key = 0; key < n; ++key) variances[key] /= static_cast<double>(x.n_rows - 1);
}

void Moments::finish() {
  entropy = 0;
  for (const double e : entropies_) entropy += e;
}

void Moments::scores(double gamma, Span<float> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(mean[i] + gamma * variance[i]);
}

void Dispersion::add(const Moments& m) {
  entropy += m.entropy;
  for (const double v : m.variance) variance += v;
}

double Dispersion::preference(double tau_1, double tau_2) const {
  return std::pow(std::max(entropy, 0.0), 1 / tau_1) * std::pow(variance, 1 / tau_2);
}

Status steady_scores(Span<const float> scores, uint64_t n_heads, Pooling pooling, uint32_t width, Span<float> out) {
  const size_t n = out.size();
  if (scores.size() != n_heads * n)
    return error(Code::invalid_argument, "%zu scores are not those of %llu query heads, %zu keys each", scores.size(), ull(n_heads), n);
  std::vector<float> pooled(n_heads * n);
  for (uint64_t h = 0; h < n_heads; ++h) ORRERY_TRY(pool1d(scores.subspan(h * n, n), pooling, width, Span<float>(pooled).subspan(h * n, n)));
  return group_reduce(pooled, static_cast<uint32_t>(n_heads), GroupReduce::mean, out);
}

}  // namespace orrery::policy
