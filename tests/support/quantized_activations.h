// The definition of quantized activations, which every backend's products with quantized weights use: for each 32 values a scale, which is
// the largest magnitude / 127, and integers rounded to nearest. It is the oracle of the products' tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace orrery::testing {

// The values that the quantized x (n, a multiple of 32) stands for.
inline std::vector<double> quantized(const float* x, int64_t n) {
  std::vector<double> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i += 32) {
    float largest = 0;
    for (int64_t j = i; j < i + 32; ++j) largest = std::max(largest, std::fabs(x[j]));
    for (int64_t j = i; j < i + 32; ++j)
      out[static_cast<size_t>(j)] = largest == 0 ? 0.0 : std::nearbyint(x[j] * (127.0f / largest)) * static_cast<double>(largest / 127.0f);
  }
  return out;
}

}  // namespace orrery::testing
