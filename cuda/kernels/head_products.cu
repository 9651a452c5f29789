// Products of heads (runtime/backend/head_products.h): each head of a row meets a matrix of its own.
//
// A warp has an output (two outputs of more rows), as in matmul_decode.cu, with the same order of sums, so a row has the bits of its own step. A
// thread block has one head and up to kMostRows rows; the matrices of all heads stay in the second-level cache for the blocks of further rows. A
// head's first thread block also copies the inputs that follow the product.
#include "cuda/device/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/products.cuh"

namespace orrery::cuda {

namespace head_products_cu {

constexpr int kThreads = 128, kMostRows = 8;

struct HeadArgs : UnitArgs {
  const std::byte* weights;
  float* out;
  int64_t out_dim;
  int32_t n_heads, n_out, n_rows, n_copied;
};

// With a bound of its own, as experts' products have.
template <class Unit, int kRows>
__global__ void __launch_bounds__(kThreads, kRows > 1 ? 1 : 4) head_products_kernel(const __grid_constant__ HeadArgs a) {
  constexpr int kOuts = kRows > 1 ? 2 : 1, kUnroll = kRows > 1 ? 1 : 4;
  start_early();
  const int head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.z) * kRows, n = min(kRows, a.n_rows - first_row);
  const auto vector_of = [&](int r) { return static_cast<int64_t>(first_row + min(r, n - 1)) * a.n_heads + head; };
  if (blockIdx.x == 0)
    for (int i = static_cast<int>(threadIdx.x); i < n * a.n_copied; i += kThreads) {
      const int64_t vector = vector_of(i / a.n_copied);
      a.out[vector * a.out_dim + a.n_out + i % a.n_copied] = a.x.data[vector * a.x.stride + a.n_cols + i % a.n_copied];
    }
  const int lanes = 1 << a.lanes_log2, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int first_out = (static_cast<int>(blockIdx.x) * (kThreads >> a.lanes_log2) + static_cast<int>(threadIdx.x >> a.lanes_log2)) * kOuts;
  const std::byte* weights[kOuts];
#pragma unroll
  for (int o = 0; o < kOuts; ++o) weights[o] = a.weights + (static_cast<uint64_t>(head) * static_cast<uint64_t>(a.n_out) + static_cast<uint64_t>(min(first_out + o, a.n_out - 1))) * a.planes.bytes;
  float sums[kOuts][kRows] = {};
  const auto add = [&](const typename Unit::Loaded (&loaded)[kOuts], int unit) {
    typename Unit::Weights w[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) w[o] = Unit::unpack(loaded[o], unit);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) break;
      const typename Unit::Input x = Unit::input(a, typename Unit::InputPlace(a, static_cast<int>(vector_of(r)), unit), unit);
#pragma unroll
      for (int o = 0; o < kOuts; ++o) sums[o][r] = Unit::add(sums[o][r], w[o], x);
    }
  };
  int unit = lane;
  for (; unit + (kUnroll - 1) * lanes < a.n_units; unit += kUnroll * lanes) {
    typename Unit::Loaded loaded[kUnroll][kOuts];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
#pragma unroll
      for (int o = 0; o < kOuts; ++o) loaded[k][o] = Unit::load({weights[o], a, unit + k * lanes});
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) add(loaded[k], unit + k * lanes);
  }
  for (; unit < a.n_units; unit += lanes) {
    typename Unit::Loaded loaded[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) loaded[o] = Unit::load({weights[o], a, unit});
    add(loaded, unit);
  }
  __syncwarp();
#pragma unroll
  for (int o = 0; o < kOuts; ++o)
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      for (int i = lanes / 2; i > 0; i /= 2) sums[o][r] = __fadd_rn(sums[o][r], __shfl_xor_sync(0xFFFFFFFFu, sums[o][r], i));
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= n) break;
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
      if (first_out + o < a.n_out) a.out[vector_of(r) * a.out_dim + first_out + o] = sums[o][r];
  }
}

template <class Unit, int kRows>
void launch_heads(Queue& queue, const HeadArgs& a) {
  const int32_t outs = (kThreads >> a.lanes_log2) * (kRows > 1 ? 2 : 1);
  const Dim3 grid(static_cast<unsigned>((a.n_out + outs - 1) / outs), static_cast<unsigned>(a.n_heads), static_cast<unsigned>((a.n_rows + kRows - 1) / kRows));
  launch<head_products_kernel<Unit, kRows>>(queue, {grid, Dim3(kThreads), 0, true}, a);
}

template <class Unit>
void launch_heads(Queue& queue, const HeadArgs& a) {
  if (a.n_rows == 1) launch_heads<Unit, 1>(queue, a);
  else launch_heads<Unit, kMostRows>(queue, a);
}

}  // namespace head_products_cu
using namespace head_products_cu;

void multiply_heads(Queue& queue, const Weight& weight, int32_t n_heads, ConstRows x, Rows out, const QuantizedRows& quantized, int32_t n_rows) {
  HeadArgs a = {};
  a.x = x;
  a.quantized = quantized;
  a.set(weight);
  a.weights = reinterpret_cast<const std::byte*>(weight.data.address);
  a.out = out.data, a.out_dim = out.stride;
  a.n_heads = n_heads, a.n_rows = n_rows;
  a.n_out = static_cast<int32_t>(weight.n_rows / n_heads);
  const int64_t left = x.stride - weight.n_cols, room = out.stride - a.n_out;
  a.n_copied = static_cast<int32_t>(left < room ? left : room);
  with_block_type(weight.type, [&](auto type) { launch_heads<BlockUnit<type()>>(queue, a); });
  with_float_type(weight.type, [&](auto type) { launch_heads<FloatUnit<type()>>(queue, a); });
}

}  // namespace orrery::cuda
