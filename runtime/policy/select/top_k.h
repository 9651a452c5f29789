// The best of scores: top-k sets.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::policy {

// Token indices within the candidates, unique. Where the order is meant, best first ("score order").
using Tokens = std::vector<uint32_t>;

// Numbers that order as scores do: NaN lowest, both zeros the same.
inline uint32_t order_of(float score) {
  const float x = score + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits ^= bits >> 31 ? UINT32_MAX : uint32_t{1} << 31;
  return std::isnan(score) ? 0 : bits;
}

// The min(k, n) best of scores (n): by score descending, then index ascending; in that order. O(n + k log k).
// `out` is also the scratch: with a capacity of n nothing is allocated.
void top_k(Span<const float> scores, size_t k, Tokens* out);

// The same keys, ascending. O(n), without comparisons.
void top_k_ascending(Span<const float> scores, size_t k, Tokens* out);

// The same over the candidates that `excluded` (any order; indices outside scores do nothing) leaves.
void top_k_excluding(Span<const float> scores, size_t k, Span<const uint32_t> excluded, Tokens* out);

}  // namespace orrery::policy
