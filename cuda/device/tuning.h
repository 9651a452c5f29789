// The one table of choices that depend on the GPU's architecture. A choice changes results only as far as cuBLAS rounds activations and
// orders sums differently from our kernels (kernels/matmul_cublas.cu).
#pragma once

#include <cstdint>

#include "cuda/device/formats.h"

namespace orrery::cuda {

// The least number of rows from which on cuBLAS computes a prompt's products, if the machine has it; 0: our own kernels compute all. With
// fewer rows, reading the weights is the limit, and our own kernels keep up with cuBLAS.
struct Tuning {
  int32_t architecture;  // this architecture and newer ones, up to the table's next row
  int32_t f16, bf16;     // of F16 and BF16 weights: our kernels compute two products where cuBLAS computes one (matmul_prefill.cu)
  int32_t blocks;        // of quantized weights, converted to halves first: pays where mma.sync does not reach the tensor cores' rate
};
inline constexpr Tuning kTuning[] = {
    {80, 64, 64, 0},  {86, 64, 64, 0}, {89, 64, 64, 0}, {90, 64, 64, 64},  // wgmma alone reaches its tensor cores' rate
    {120, 64, 64, 0},
};
constexpr Tuning tuning_of(int32_t architecture) {
  Tuning found = kTuning[0];
  for (const Tuning& row : kTuning)
    if (row.architecture <= architecture) found = row;
  return found;
}
constexpr int32_t least_cublas_rows(const Tuning& tuning, TensorType type) {
  // A power of two that is MXFP4's scale may be out of a half's reach.
  return type == TensorType::f32 || type == TensorType::mxfp4 ? 0
         : type == TensorType::f16                            ? tuning.f16
         : type == TensorType::bf16                           ? tuning.bf16
                                                              : tuning.blocks;
}

}  // namespace orrery::cuda
