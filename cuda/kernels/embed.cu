// Rows of the embedding, of any weight type, with exactly the values of runtime/gguf/dequantize.h, times a scale.
//
// A warp has a group of 32 columns, and a lane one column. Every lane unpacks the whole group, from the same addresses, and keeps its own
// code. 31 of 32 unpackings are for nothing, but cheaper than an exchange of codes between lanes. A warp stores 128 bytes together. Cost:
// README.md.
#include "cuda/device/launch.h"
#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/kernels.h"

namespace orrery::cuda {

namespace embed_cu {

struct EmbedGeometry {
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
};

struct EmbedArgs {
  StepView step;
  const std::byte* table;
  RowPlanes planes;
  float* out;
  int n_cols;
  float scale;
};

template <TensorType kType>
__global__ void __launch_bounds__(EmbedGeometry::kThreads) embed_blocks_kernel(EmbedArgs a) {
  const int row = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int g = static_cast<int>(blockIdx.x) * EmbedGeometry::kWarps + static_cast<int>(threadIdx.x) / 32;
  if (g >= a.n_cols / 32) return;
  const std::byte* from = a.table + a.step.rows[row].token * a.planes.bytes;
  const UnpackedGroup group = unpack_group<kType>(load_group<kType>(from, a.planes, g), g);
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (lane / 4 == j) word = signed_codes<kType>(group.code[j]);
  const int half = Format<kType>::kHalves && lane >= 16;
  const float code = static_cast<float>(static_cast<int8_t>(word >> (8 * (lane % 4)) & 0xFFu));
  float value = __fmul_rn(half ? group.scale[1] : group.scale[0], code);
  if constexpr (Format<kType>::kMin) value = __fadd_rn(value, -(half ? group.min[1] : group.min[0]));
  a.out[static_cast<int64_t>(row) * a.n_cols + 32 * g + lane] = __fmul_rn(value, a.scale);
}

template <TensorType kType>
__global__ void __launch_bounds__(EmbedGeometry::kThreads) embed_floats_kernel(EmbedArgs a) {
  const int row = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x) * EmbedGeometry::kThreads + static_cast<int>(threadIdx.x);
  if (i >= a.n_cols) return;
  constexpr int kBytes = FloatFormat<kType>::kBytes;
  const std::byte* from = a.table + a.step.rows[row].token * a.planes.bytes + kBytes * i;
  const uint32_t bits = load_bytes<kBytes>(from);
  float value;
  if constexpr (kType == TensorType::f16) value = half_from_bits(bits);
  else value = __uint_as_float(kType == TensorType::bf16 ? bits << 16 : bits);
  a.out[static_cast<int64_t>(row) * a.n_cols + i] = __fmul_rn(value, a.scale);
}

}  // namespace embed_cu
using namespace embed_cu;

void embed(Queue& queue, const StepView& step, const Weight& table, float scale, float* out, int32_t n_rows) {
  const EmbedArgs args = {step,
                          reinterpret_cast<const std::byte*>(table.data.address),
                          row_planes(table.type, table.n_cols),
                          out,
                          static_cast<int>(table.n_cols),
                          scale};
  const auto grid = [&](int per_block) {
    return Geometry{Dim3(static_cast<unsigned>((args.n_cols + per_block - 1) / per_block), static_cast<unsigned>(n_rows)),
                    Dim3(EmbedGeometry::kThreads)};
  };
  with_block_type(table.type, [&](auto type) { launch<embed_blocks_kernel<type()>>(queue, grid(32 * EmbedGeometry::kWarps), args); });
  with_float_type(table.type, [&](auto type) { launch<embed_floats_kernel<type()>>(queue, grid(EmbedGeometry::kThreads), args); });
}

}  // namespace orrery::cuda
