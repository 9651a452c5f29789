// RoPE and the norm of a head's vector, value by value: every kernel that includes this file rounds in the same way.
#pragma once

#include "cuda/kernels/kernels.h"
#include "cuda/device/ptx.h"

namespace orrery::cuda {

// Rotates a pair by an angle.
__device__ __forceinline__ float2 rotated(float first, float second, float cosine, float sine) {
  return make_float2(fmaf(first, cosine, -__fmul_rn(second, sine)), fmaf(first, sine, __fmul_rn(second, cosine)));
}

// The factor of the RMS norm for a vector of `dim` values. sum: of the values' squares.
__device__ __forceinline__ float norm_scale(float sum, int dim, float eps) { return 1.0f / sqrtf(sum / static_cast<float>(dim) + eps); }

}  // namespace orrery::cuda
