// The normalised Hadamard transform of stored KV (KvTransform, kv.h), one value at a time: the plain kernel, and the conversion of saved
// pages to plain KV. The transform is its own inverse.
#pragma once

#include <cmath>
#include <cstdint>

namespace orrery {

// Transforms x (n) in blocks of `block` values, a power of two that divides n. Sylvester's order.
inline void hadamard(float* x, int32_t n, int32_t block) {
  for (int32_t h = 1; h < block; h *= 2)
    for (int32_t i = 0; i < n; ++i)
      if ((i & h) == 0) {
        const float a = x[i], b = x[i + h];
        x[i] = a + b, x[i + h] = a - b;
      }
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  for (int32_t i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace orrery
