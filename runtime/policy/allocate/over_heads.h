// Ada-KV: a layer's budget over its heads, by the best scores of all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate/apportion.h"

namespace orrery::policy {

// Ada-KV: how many of the best `total` scores of all heads are each head's, where the best n_protected of each head come
// first. scores (n_heads, n); n_heads * n_protected <= total <= n_heads * n. Ties: lower head, then lower key.
Result<std::vector<uint64_t>> count_best(Span<const float> scores, uint64_t n_heads, uint64_t total, uint64_t n_protected);

// Ada-KV's safeguard: (1 - alpha) of its own count and alpha of the mean, for each head. (Algorithm 2, line 8 prints them
// the other way round.)
std::vector<uint64_t> with_floor(Span<const uint64_t> counts, Ratio alpha);

}  // namespace orrery::policy
