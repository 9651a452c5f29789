// The operations of encoders (backend/encoder.h), portable and in float64 sums: they are a small part of a step, and have the same bits on
// every instruction set.
#pragma once

#include <cstdint>

namespace orrery::cpu {

// Of one row. up, bias: null where there are none.
void layer_norm(const float* x, const float* weight, const float* bias, float* out, int64_t n, float eps);
void gelu_erf(const float* gate, const float* up, float* out, int64_t n);

}  // namespace orrery::cpu
