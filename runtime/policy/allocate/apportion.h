// Allocate: a number of tokens divided exactly.
//
// Budgets are ratios of integers, and remainders go to the largest first, all in integer arithmetic. So totals are exact, and nothing
// depends on the order of a sum. Heads that change places take their shares with them; only equal remainders are settled by index. The
// published codes round each share by itself, and miss their totals.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

// With these bounds every product of the allocators fits 128 bits: tokens have 31 bits, heads 23.
inline constexpr uint64_t kMaxTokens = 1ull << 31, kMaxHeads = 1ull << 23;

// As "%llu" takes it.
inline unsigned long long ull(uint64_t x) { return static_cast<unsigned long long>(x); }

// A share as a fraction. `.29 * 100` is 28.999... in doubles, which would cost a budget a token.
struct Ratio {
  uint64_t num = 0, den = 1;
  double value() const { return static_cast<double>(num) / static_cast<double>(den); }
  // To the nearest millionth. invalid_argument outside 0 to 1, NaN included.
  static Result<Ratio> from(double value);
};

// Divides `total` in proportion to `weights`, each share within [lowest, highest]. A share that would pass a bound stays on it, and the
// others take the difference in proportion (water-filling). Fractions: floors, then one more by largest remainder (tie: lowest index). The
// shares add up to `total` exactly.
// Weights are positive and finite; a weight below 2^-32 of the largest counts as 2^-32 of it. invalid_argument unless
// n * lowest <= total <= n * highest.
Result<std::vector<uint64_t>> apportion(Span<const double> weights, uint64_t total, uint64_t lowest, uint64_t highest);

// Equal weights: total / n each, and one more for the first total % n. total <= n * highest.
Result<std::vector<uint64_t>> apportion_evenly(uint64_t n, uint64_t total, uint64_t highest);

// Rounds `shares`, which add up to `total`, to whole numbers that add up to `total`: floors, then one more by largest remainder. A share
// that differs from a whole number by a rounding counts as whole.
std::vector<uint64_t> round_to_total(Span<const double> shares, uint64_t total);

}  // namespace orrery::policy
