#include "runtime/policy/allocate/over_layers.h"

#include <algorithm>
#include <cmath>

#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

namespace {

Status check_total(uint64_t n, uint64_t total, uint64_t highest) {
  if (n > 0 && (total / n < highest || (total / n == highest && total % n == 0))) return ok_status();
  return error(Code::invalid_argument, "%llu tokens cannot be spread over %llu with at most %llu each", ull(total), ull(n), ull(highest));
}

}  // namespace

Result<std::vector<uint64_t>> pyramid(uint64_t n_layers, uint64_t n_heads, uint64_t total, uint64_t highest, uint64_t n_tokens,
                                      uint32_t beta) {
  ORRERY_TRY(check_total(n_layers * n_heads, total, highest));
  const double b = static_cast<double>(total) / static_cast<double>(n_layers * n_heads);
  if (n_layers == 1 || static_cast<double>(n_tokens) < 2 * b) return apportion_evenly(n_layers, total, n_heads * highest);
  double least = std::floor(b / beta), most = 2 * b - least;
  if (most > static_cast<double>(highest)) most = static_cast<double>(highest), least = 2 * b - most;
  std::vector<double> shares;
  for (uint64_t l = 0; l < n_layers; ++l)
    shares.push_back(static_cast<double>(n_heads) * (most - (most - least) * static_cast<double>(l) / static_cast<double>(n_layers - 1)));
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
  // Each round at least one more layer reaches the cap, or no excess is left.
  for (size_t round = 0; round <= n; ++round) {
    double excess = 0;
    size_t n_free = 0;
    for (double& share : shares) {
      if (share >= most) excess += share - most, share = most;
      n_free += share < most;
    }
    if (excess <= 0 || n_free == 0) break;
    for (double& share : shares)
      if (share < most) share += excess / static_cast<double>(n_free);
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
  // All weights 0: divide evenly.
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
    if (static_cast<uint64_t>(x) >> (digit.shift + digit.n_bits) == least_)
      ++values[x >> digit.shift & mask];  // true for all in the first round, then for few: predictable
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
  for (size_t layer = 0; layer < weights_.size(); ++layer) {  // of equal scores the lower layers' first
    const uint64_t taken = std::min<uint64_t>(n_wanted_, values_[layer * kMostValues + value]);
    above_[layer] += taken, n_wanted_ -= taken;
  }
}

std::vector<uint64_t> BestOfLayers::counts() const { return above_; }

uint64_t BestOfLayers::host_bytes(uint64_t n_layers) {
  return n_layers * (sizeof(float) + kMostValues * sizeof(uint32_t) + 2 * sizeof(uint64_t));
}

}  // namespace orrery::policy
