#include "runtime/cpu/encoder/encoder.h"

#include <cmath>

namespace orrery::cpu {

void layer_norm(const float* x, const float* weight, const float* bias, float* out, int64_t n, float eps) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    const double y = static_cast<double>(x[i]) - mean;
    squares += y * y;
  }
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(eps));
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * factor) * weight[i] + (bias ? bias[i] : 0.0f);
}

void gelu_erf(const float* gate, const float* up, float* out, int64_t n) {
  constexpr float kInverseRoot = 0.70710678118654752f;  // 1 / sqrt(2)
  for (int64_t i = 0; i < n; ++i) {
    const float y = 0.5f * gate[i] * (1.0f + std::erf(gate[i] * kInverseRoot));
    out[i] = up ? y * up[i] : y;
  }
}

}  // namespace orrery::cpu
