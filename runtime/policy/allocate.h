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
#include "runtime/policy/score.h"

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

struct HeteroBudget {
  uint64_t l_base = 0;            // tokens (eq. 7)
  std::vector<uint64_t> lengths;  // (n_compressed) l_i in tokens (eq. 8); their sum is n_compressed * l_base
};

// Eq. 7 and 8 with exact totals: `weights` (n_compressed) are 1 / S or a published allocation, n_full heads
// keep all n_tokens, and every compressed head keeps 1 to n_tokens. invalid_argument, naming the least ratio
// that does, where L_base would be 0; all heads full needs a ratio of 1.
Result<HeteroBudget> hetero_budget(Ratio ratio, uint64_t n_full, Span<const double> weights,
                                   uint64_t n_tokens);

// The share of all KV that full heads alone take: a budget must exceed it.
inline Ratio full_share(uint64_t n_full, uint64_t n_heads) { return {n_full, n_heads}; }

// SyncKV's k (section 2 of the method: k/L = (Mem*H - N_r)/(H - N_r), floored): tokens that each of a layer's
// n_heads - n_representatives other heads keeps so that the layer takes `memory` of its full KV. All heads
// representatives: n_tokens. invalid_argument naming the least share, and how many representatives would fit,
// where k would be 0.
Result<uint64_t> sync_budget(Ratio memory, uint64_t n_heads, uint64_t n_representatives, uint64_t n_tokens);

// StreamingLLM: the first `n_sinks` and the last `n_recent` of n_tokens, ascending; all where they meet.
// In the caller's vector, which is emptied first and, if it has room, not reallocated.
void sinks_and_recent(uint32_t n_tokens, uint32_t n_sinks, uint32_t n_recent, Tokens* out);

}  // namespace orrery::policy
