// Allocate: a budget over heads, by where the best scores of all heads are (Ada-KV). Totals are exact.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate/apportion.h"

namespace orrery::policy {

// Of the best `total` scores of all heads, how many belong to each head? The best n_protected of each head come first. scores (n_heads, n);
// n_heads * n_protected <= total <= n_heads * n. Ties: the lower head, then the lower key.
Result<std::vector<uint64_t>> count_best(Span<const float> scores, uint64_t n_heads, uint64_t total, uint64_t n_protected);

// Ada-KV's safeguard: (1 - alpha) of the head's own count plus alpha of the mean count. (Algorithm 2, line 8 prints alpha and 1 - alpha
// exchanged.)
std::vector<uint64_t> with_floor(Span<const uint64_t> counts, Ratio alpha);

}  // namespace orrery::policy
