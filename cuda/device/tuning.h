// What is chosen by the GPU's architecture: the one table. Nothing here changes what is computed, but for the order of cuBLAS' sums.
#pragma once

#include <cstdint>

#include "cuda/device/formats.h"

namespace orrery::cuda {

// Prompts' products of so many rows and more go through cuBLAS, where the machine has it; 0: none do. Of fewer rows reading weights is the
// limit, and rows of 64 our own kernels keep up with anyway.
struct Tuning {
  int32_t architecture;   // this one and newer ones, up to the next row
  int32_t f16, bf16;      // of these weights: our kernels take two products where cuBLAS takes one (matmul_prefill.cu)
  int32_t blocks;         // of quantized weights, made halves before: where tensor cores outrun mma.sync
};
inline constexpr Tuning kTuning[] = {
    {80, 64, 64, 0},
    {86, 64, 64, 0},
    {89, 64, 64, 0},
    {90, 64, 64, 64},   // wgmma alone reaches its tensor cores' rate
    {120, 64, 64, 0},
};
constexpr Tuning tuning_of(int32_t architecture) {
  Tuning found = kTuning[0];
  for (const Tuning& row : kTuning)
    if (row.architecture <= architecture) found = row;
  return found;
}
constexpr int32_t least_cublas_rows(const Tuning& tuning, TensorType type) {
  return type == TensorType::f32 ? 0 : type == TensorType::f16 ? tuning.f16 : type == TensorType::bf16 ? tuning.bf16 : tuning.blocks;
}

}  // namespace orrery::cuda
