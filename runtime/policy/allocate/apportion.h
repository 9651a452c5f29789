// How many tokens each compressed head may keep: HeteroCache's eq. 7 and 8, uniform shares, SyncKV's k,
// StreamingLLM's sinks and recent tokens.
//
// Budgets are ratios of integers and shares are dealt by largest remainder, all in integer arithmetic: totals
// are exact, nothing depends on the order of a sum, and heads that change places take their shares with them
// (only equal remainders are dealt by index). A budget of 1 gives every head everything.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

// A share as a fraction. `.29 * 100` is 28.999... in doubles, and a budget must not lose a token by that.
struct Ratio {
  uint64_t num = 0, den = 1;
  double value() const { return static_cast<double>(num) / static_cast<double>(den); }
  // To the nearest millionth. invalid_argument outside 0 to 1, NaN included.
  static Result<Ratio> from(double value);
};

// Deals `total` in proportion to weights, each share within [lowest, highest]: shares that would pass a bound
// stay on it, and the others take up the difference in proportion (water-filling); then floors and largest
// remainders (tie: lowest index). The shares' sum is `total` exactly. Weights are positive and finite; a
// weight below the largest one's 2^-32 counts as that. invalid_argument where n * lowest <= total <= n *
// highest does not hold.
Result<std::vector<uint64_t>> apportion(Span<const double> weights, uint64_t total, uint64_t lowest,
                                        uint64_t highest);

// The same for equal weights: total / n each, and one more for the first total % n. n * highest >= total.
Result<std::vector<uint64_t>> apportion_evenly(uint64_t n, uint64_t total, uint64_t highest);

// The whole numbers next to `shares`, which add up to `total`: floors, and one more for the largest remainders. A share may be a
// whole number but for a rounding.
std::vector<uint64_t> round_to_total(Span<const double> shares, uint64_t total);

}  // namespace orrery::policy
