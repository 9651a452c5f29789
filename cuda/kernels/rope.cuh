// What a head's vector goes through before attention, a step of each: the same roundings in whichever kernel.
#pragma once

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/ptx.h"

namespace orrery::cuda {

// A pair turned by an angle.
__device__ __forceinline__ float2 turned(float first, float second, float cosine, float sine) {
  return make_float2(fmaf(first, cosine, -__fmul_rn(second, sine)), fmaf(first, sine, __fmul_rn(second, cosine)));
}

// What a vector of `dim` values, whose squares' sum this is, is multiplied with by its norm.
__device__ __forceinline__ float norm_scale(float sum, int dim, float eps) { return 1.0f / sqrtf(sum / static_cast<float>(dim) + eps); }

}  // namespace orrery::cuda
