#include "runtime/policy/allocate/apportion.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orrery::policy {

namespace {

using Wide = unsigned __int128;

constexpr double kWeightScale = 4294967296.0;  // weights have 33 bits

Status check_total(uint64_t n, uint64_t total, uint64_t lowest, uint64_t highest) {
  if (n <= kMaxHeads && lowest <= highest && highest <= kMaxTokens && n * lowest <= total && total <= n * highest) {
    return ok_status();
  }
  return error(Code::invalid_argument, "%llu tokens cannot be dealt to %llu heads with %llu to %llu each", ull(total), ull(n), ull(lowest),
               ull(highest));
}

// Which heads lie on a bound once the shares add up: by ascending weight, the first n_low have the lowest share, the last n_high the
// highest.
struct Level {
  size_t n_low, n_high;
};

// Raises the water level from 0. A head of weight w leaves the lowest share at the level lowest / w, and meets the highest at highest / w;
// the heaviest head is first both times. The result lies before the first event at which the shares reach the total. Levels are compared as
// fractions.
Level find_level(const std::vector<uint64_t>& ascending, uint64_t total, uint64_t lowest, uint64_t highest) {
  const size_t n = ascending.size();
  Level level{n, 0};
  Wide moving = 0;  // the sum of the weights between the bounds
  while (level.n_high < n) {
    const bool leaves = level.n_low > 0 && (n == level.n_low + level.n_high ||
                                            Wide{lowest} * ascending[n - 1 - level.n_high] <= Wide{highest} * ascending[level.n_low - 1]);
    const uint64_t bound = leaves ? lowest : highest;
    const uint64_t weight = leaves ? ascending[level.n_low - 1] : ascending[n - 1 - level.n_high];
    const Wide on_bounds = Wide{level.n_low} * lowest + Wide{level.n_high} * highest;
    if (on_bounds * weight + moving * bound >= Wide{total} * weight && moving > 0) break;
    if (moving == 0 && on_bounds >= total) break;
    if (leaves) {
      --level.n_low;
      moving += weight;
    } else {
      ++level.n_high;
      moving -= weight;
    }
  }
  return level;
}

}  // namespace

Result<Ratio> Ratio::from(double value) {
  if (!(value >= 0 && value <= 1)) {
    return error(Code::invalid_argument, "a share of %g: expected 0 to 1", value);
  }
  return Ratio{static_cast<uint64_t>(std::llround(value * 1e6)), 1000000};
}

Result<std::vector<uint64_t>> apportion(Span<const double> weights, uint64_t total, uint64_t lowest, uint64_t highest) {
  const size_t n = weights.size();
  ORRERY_TRY(check_total(n, total, lowest, highest));
  double largest = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!(weights[i] > 0) || !std::isfinite(weights[i])) {
      return error(Code::invalid_argument, "weight %zu is %g: expected a positive number", i, weights[i]);
    }
    largest = std::max(largest, weights[i]);
  }
  std::vector<uint64_t> scaled(n);
  for (size_t i = 0; i < n; ++i) {
    scaled[i] = static_cast<uint64_t>(std::max(1.0, std::round(weights[i] / largest * kWeightScale)));
  }
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scaled[a] < scaled[b]; });
  std::vector<uint64_t> ascending(n);
  for (size_t i = 0; i < n; ++i) ascending[i] = scaled[order[i]];
  const Level level = find_level(ascending, total, lowest, highest);

  std::vector<uint64_t> shares(n, lowest);
  for (size_t i = n - level.n_high; i < n; ++i) shares[order[i]] = highest;
  const Wide rest = Wide{total} - Wide{level.n_low} * lowest - Wide{level.n_high} * highest;
  std::vector<size_t> moving(order.begin() + static_cast<std::ptrdiff_t>(level.n_low),
                             order.end() - static_cast<std::ptrdiff_t>(level.n_high));
  Wide sum = 0, dealt = 0;
  for (const size_t i : moving) sum += scaled[i];
  std::vector<Wide> remainder(n, 0);
  for (const size_t i : moving) {
    const Wide product = rest * scaled[i];
    shares[i] = static_cast<uint64_t>(product / sum);
    remainder[i] = product % sum;
    dealt += shares[i];
  }
  std::sort(moving.begin(), moving.end(),
            [&](size_t a, size_t b) { return remainder[a] > remainder[b] || (remainder[a] == remainder[b] && a < b); });
  // The remainders add up to (rest - dealt) * sum, and each is less than sum: so every head that gets one more has a remainder.
  for (size_t i = 0; i < static_cast<size_t>(rest - dealt); ++i) ++shares[moving[i]];
  return shares;
}

Result<std::vector<uint64_t>> apportion_evenly(uint64_t n, uint64_t total, uint64_t highest) {
  ORRERY_TRY(check_total(n, total, 0, highest));
  std::vector<uint64_t> shares(n);
  for (uint64_t i = 0; i < n; ++i) shares[i] = total / n + (i < total % n);
  return shares;
}

std::vector<uint64_t> round_to_total(Span<const double> shares, uint64_t total) {
  std::vector<uint64_t> whole(shares.size());
  std::vector<int64_t> remainder(shares.size());  // in billionths, which hides the rounding of a share
  uint64_t dealt = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double near = std::nearbyint(shares[i] * 1e9);
    whole[i] = static_cast<uint64_t>(near / 1e9);
    remainder[i] = static_cast<int64_t>(near - static_cast<double>(whole[i]) * 1e9);
    dealt += whole[i];
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder[a] > remainder[b]; });
  for (size_t i = 0; dealt < total; ++dealt, ++i) ++whole[order[i % order.size()]];
  return whole;
}

}  // namespace orrery::policy
