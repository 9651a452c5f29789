// Products of heads (backend/head_products.h).
#pragma once

#include <cstdint>

#include "runtime/backend/head_products.h"
#include "runtime/cpu/experts.h"

namespace orrery::cpu {

// ExpertsWork::quantized has room for n_rows times n_heads quantized rows, or for the heads' packed strips.
void multiply_heads(const ExpertsWork& work, const Weight& weight, int32_t n_heads, const float* x, int64_t x_dim, float* out,
                    int64_t out_dim);

}  // namespace orrery::cpu
