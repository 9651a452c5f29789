// Allocate: a budget over heads, by where the best scores of all heads are (Ada-KV). Totals are exact.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate/apportion.h"

namespace orrery::policy {

// Of the best `total` scores of all heads, how many belong to each head? The best n_protected of each head come first. scores (n_heads, n);
// n_heads * n_protected <= total <= n_heads * n. Ties: the lower head, then the lower key.
Result<std::vector<uint64_t>> count_best(Span<const float> scores, uint64_t n_heads, uint64_t total, uint64_t n_protected);

// The same for many scores, to within an eighth: scores are counted by the first bits of a float (score_bin), and of the bin in which the
// best end, heads count in proportion. Adds each head's number to counts (n_heads). bins (n_heads, kScoreBins).
inline constexpr uint32_t kScoreBins = 1024;
inline uint32_t score_bin(float score) {  // 0 for what is not positive; of a score of 1 or less below kScoreBins
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return score > 0 ? std::min(bits >> 20, kScoreBins - 1) : 0;
}
void add_best_counts(Span<const uint32_t> bins, uint64_t total, Span<double> counts);

// Ada-KV's safeguard: (1 - alpha) of the head's own count plus alpha of the mean count. (Algorithm 2, line 8 prints alpha and 1 - alpha
// exchanged.)
std::vector<uint64_t> with_floor(Span<const uint64_t> counts, Ratio alpha);

}  // namespace orrery::policy
