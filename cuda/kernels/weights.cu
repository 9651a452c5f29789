// Weights outside of products, of any type: rows of the embedding, and matrices that came over the link as in the file.
//
// Rows of the embedding have exactly the values of runtime/gguf/dequantize.h, times a scale. A warp has a group of 32 columns, and a lane one column. Every lane unpacks the whole group, from the same addresses, and keeps its own
// code. 31 of 32 unpackings are for nothing, but cheaper than an exchange of codes between lanes. A warp stores 128 bytes together.
//
// A block of a file's matrix goes to the planes of its row, as repack_row() does it on the host. A thread has a block, or 16 bytes of a row of
// floats, and the first thread of a row clears the padding. The blocks of the file are not aligned, so a warp's loads are single bytes from
// neighbouring blocks, which the cache keeps. Cost: README.md.
#include "cuda/device/file_blocks.h"
#include "cuda/device/launch.h"
#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/kernels.h"

namespace orrery::cuda {

namespace weights_cu {

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

struct RepackGeometry {
  static constexpr int kThreads = 128;
};

struct RepackArgs {
  const std::byte* from;
  std::byte* to;
  RowPlanes planes;
  int64_t from_bytes;  // of a row
  int64_t n_threads;   // in all rows
  int of_row;          // threads
};

__device__ __forceinline__ void clear(uint8_t* from, const uint8_t* end) {
  for (; from < end; ++from) *from = 0;
}

template <TensorType kType>
__global__ void __launch_bounds__(RepackGeometry::kThreads) repack_blocks_kernel(RepackArgs a) {
  using Block = file_blocks::FileBlock<kType>;
  constexpr PlaneBytes bytes = Block::kPlanes;
  constexpr int kGroups = Block::kGroups;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * RepackGeometry::kThreads + static_cast<int>(threadIdx.x);
  if (i >= a.n_threads) return;
  const int64_t row = i / a.of_row;
  const int block = static_cast<int>(i - row * a.of_row), group = block * kGroups;
  uint8_t* const to = reinterpret_cast<uint8_t*>(a.to + row * a.planes.bytes);
  file_blocks::put_block<kType>(reinterpret_cast<const uint8_t*>(a.from + row * a.from_bytes) + block * Block::kBytes,
                                {to + group * bytes.codes, to + a.planes.high + group * bytes.high,
                                 to + a.planes.group + group * bytes.group, to + a.planes.block + group / 8 * bytes.block});
  if (block > 0) return;
  const int n_groups = a.of_row * kGroups;
  clear(to + n_groups * bytes.codes, to + a.planes.high);
  clear(to + a.planes.high + n_groups * bytes.high, to + a.planes.group);
  clear(to + a.planes.group + n_groups * bytes.group, to + a.planes.block);
  clear(to + a.planes.block + n_groups / 8 * bytes.block, to + a.planes.bytes);
}

__global__ void __launch_bounds__(RepackGeometry::kThreads) repack_floats_kernel(RepackArgs a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * RepackGeometry::kThreads + static_cast<int>(threadIdx.x);
  if (i >= a.n_threads) return;
  const int64_t row = i / a.of_row, first = 16 * (i - row * a.of_row);
  const std::byte* const from = a.from + row * a.from_bytes;
  std::byte* const to = a.to + row * a.planes.bytes;
  for (int64_t b = first; b < first + 16; ++b) to[b] = b < a.from_bytes ? from[b] : std::byte{0};
}

}  // namespace weights_cu
using namespace weights_cu;

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

void repack_rows(Queue& queue, TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* from, std::byte* to) {
  RepackArgs args = {from, to, row_planes(type, n_cols), static_cast<int64_t>(row_bytes(type, static_cast<uint64_t>(n_cols))), 0, 0};
  args.of_row = static_cast<int>(is_float(type) ? args.planes.bytes / 16 : n_cols / type_traits(type)->block_elements);
  args.n_threads = n_rows * args.of_row;
  constexpr int kThreads = RepackGeometry::kThreads;
  const Geometry geometry = {Dim3(static_cast<unsigned>((args.n_threads + kThreads - 1) / kThreads)), Dim3(kThreads)};
  if (is_float(type)) launch<repack_floats_kernel>(queue, geometry, args);
  with_block_type(type, [&](auto t) { launch<repack_blocks_kernel<t()>>(queue, geometry, args); });
}

}  // namespace orrery::cuda
