// Select: the best keys of a row of scores. Ties go to the lower index; NaN ranks lowest.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::policy {

// Token indices among the candidates, unique. "In score order": best first.
using Tokens = std::vector<uint32_t>;

// A number that orders as the score does: NaN lowest, both zeros equal.
inline uint32_t order_of(float score) {
  const float x = score + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits ^= bits >> 31 ? UINT32_MAX : uint32_t{1} << 31;
  return std::isnan(score) ? 0 : bits;
}

// The min(k, n) best of scores (n), in score order. O(n + k log k). `out` is also the scratch: with a capacity of n nothing is allocated.
void top_k(Span<const float> scores, size_t k, Tokens* out);

// The same set, ascending. O(n), without comparisons.
void top_k_ascending(Span<const float> scores, size_t k, Tokens* out);

}  // namespace orrery::policy
