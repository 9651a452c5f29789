// Products of a step's rows of activations, up to eight in a thread block. Each weight is read once, so reading weights is the limit
// (README.md). Of more rows, thread blocks that run side by side have the same weights and other rows: the second-level cache gives the
// weights to all blocks but the first.
//
// A warp has one row of weights; or two rows, which share the loads of activations, if there are more than two rows of activations, or a
// gate. Lane l takes groups l, l + 32, ... of 32 columns. A row of fewer than 32 groups takes as many lanes, rounded up to a power of two,
// and the warp has several rows. A warp loads 512 consecutive bytes of codes at once, 16 a lane. Four groups (two if a warp has two rows)
// are loaded before the first is used, as long as a row has as many for each lane.
//
// A lane sums its groups in order, then lanes are added by halves: the order depends only on the number of columns. Float operations are
// written one by one, so that every instance rounds alike: a row's bits do not depend on other rows.
#include "cuda/device/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/products.cuh"

namespace orrery::cuda {

namespace matmul_decode_cu {

struct DecodeGeometry {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kMostRows = 8;  // rows of activations of a thread block
  // Thread blocks of an SM. A thread has 128 registers for one row, and 168 or 255 for more rows.
  static constexpr int blocks(int n_rows) { return n_rows == 1 ? 4 : n_rows <= 4 ? 3 : 2; }
};

struct DecodeArgs : UnitArgs {
  Batch products;  // if gated: gate and up; the result goes to the gate's `out`
  int32_t n_rows;
  int32_t n_parts;        // thread blocks that share weights: each has kMostRows rows, the last one the rest
  Activation activation;  // if gated
};

template <class Unit, int kRows, bool kGated>
__global__ void __launch_bounds__(DecodeGeometry::kThreads, DecodeGeometry::blocks(kRows))
    matmul_decode_kernel(const __grid_constant__ DecodeArgs a) {
  constexpr int kOuts = kGated || kRows >= 4 ? 2 : 1, kUnroll = kRows == DecodeGeometry::kMostRows ? 1 : kOuts == 1 ? 4 : 2;
  constexpr bool kParts = kRows == DecodeGeometry::kMostRows;
  let_next_kernel_start();
  const int index = static_cast<int>(blockIdx.x) / (kParts ? a.n_parts : 1);
  const int first_row = kParts ? static_cast<int>(blockIdx.x) % a.n_parts * kRows : 0, last_row = min(first_row + kRows, a.n_rows) - 1;
  const int p = kGated ? 0 : a.products.product_of(index);
  const int lanes = 1 << a.lanes_log2, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t block = index - a.products.first_block[p];
  const int64_t team = block * (DecodeGeometry::kThreads >> a.lanes_log2) + static_cast<int>(threadIdx.x >> a.lanes_log2);
  const int64_t n_out = a.products.list[p].weight.n_rows, first_out = team * (kGated ? 1 : kOuts);

  const std::byte* weights[kOuts];
#pragma unroll
  for (int o = 0; o < kOuts; ++o) {
    const int64_t out = min(kGated ? first_out : first_out + o, n_out - 1);
    weights[o] = weights_of(a.products.list[kGated ? o : p]) + out * a.planes.bytes;
  }
  float sums[kOuts][kRows] = {};
  // Adds a unit's products: unpacked as of place `within` its block, with the input of `input_of(row)`.
  const auto add = [&](const typename Unit::Loaded* loaded, int within, const auto& input_of) {
    typename Unit::Weights w[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) w[o] = Unit::unpack(loaded[o], within);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const typename Unit::Input x = input_of(r);
#pragma unroll
      for (int o = 0; o < kOuts; ++o) sums[o][r] = Unit::add(sums[o][r], w[o], x);
    }
  };
  const auto input_place = [&](int r, int unit) { return typename Unit::InputPlace(a, min(first_row + r, last_row), unit); };
  int unit = lane;
  if constexpr (kUnroll > 1) {
    // Whole warps with kUnroll units for each lane: no branch, behind which the compiler would move the loads. A unit's place in its block
    // is the lane's.
    // With up to two rows places advance from round to round. Of more rows they would take too many registers.
    constexpr bool kAdvances = kRows <= 2;
    typename Unit::Place at[kOuts];
    typename Unit::InputPlace input_at[kRows];
    const auto set_places = [&] {
#pragma unroll
      for (int o = 0; o < kOuts; ++o) at[o] = typename Unit::Place(weights[o], a, unit);
#pragma unroll
      for (int r = 0; r < kRows; ++r) input_at[r] = input_place(r, unit);
    };
    if (kAdvances) set_places();
    bool first = true;  // weights are on their way before the input is there
    for (int i = a.n_units / (32 * kUnroll); i > 0; --i, unit += 32 * kUnroll) {
      if (!kAdvances) set_places();
      typename Unit::Loaded loaded[kUnroll][kOuts];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
#pragma unroll
        for (int o = 0; o < kOuts; ++o) loaded[k][o] = Unit::load(at[o], 32 * k);
      if (first) wait_for_earlier_kernels();
      first = false;
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) add(loaded[k], lane, [&](int r) { return Unit::input(a, input_at[r], unit, 32 * k); });
#pragma unroll
      for (int o = 0; o < kOuts; ++o) at[o].advance(32 * kUnroll);
#pragma unroll
      for (int r = 0; r < kRows; ++r) input_at[r].advance(32 * kUnroll);
    }
  }
  if (unit < a.n_units) {  // the rest, one unit ahead
    typename Unit::Loaded loaded[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) loaded[o] = Unit::load({weights[o], a, unit});
    wait_for_earlier_kernels();  // at once, behind the rounds
#pragma unroll 1
    while (true) {
      typename Unit::Loaded next[kOuts];
      const bool more = unit + lanes < a.n_units;
#pragma unroll
      for (int o = 0; o < kOuts; ++o) next[o] = more ? Unit::load({weights[o], a, unit + lanes}) : loaded[o];
      add(loaded, unit, [&](int r) { return Unit::input(a, input_place(r, unit), unit); });
      if (!more) break;
#pragma unroll
      for (int o = 0; o < kOuts; ++o) loaded[o] = next[o];
      unit += lanes;
    }
  }
  wait_for_earlier_kernels();  // a lane without units
#pragma unroll
  for (int o = 0; o < kOuts; ++o)
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      for (int i = lanes / 2; i > 0; i /= 2) sums[o][r] = __fadd_rn(sums[o][r], __shfl_xor_sync(0xFFFFFFFFu, sums[o][r], i));

  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = first_row + r;
    if (row > last_row) break;
    if constexpr (kGated) {
      if (first_out >= n_out) break;
      const DeviceProduct &gate = a.products.list[0], &up = a.products.list[1];
      gate.out[row * gate.out_stride + first_out] =
          gated(a.activation, with_bias(gate, first_out, sums[0][r]), with_bias(up, first_out, sums[1][r]));
    } else {
#pragma unroll
      for (int o = 0; o < kOuts; ++o)
        if (first_out + o < n_out) store(a.products.list[p], row, first_out + o, sums[o][r]);
    }
  }
}

template <class Unit, int kRows, bool kGated>
void launch_rows(Queue& queue, DecodeArgs* a) {
  constexpr int kOuts = kGated ? 1 : kRows >= 4 ? 2 : 1;
  const int64_t outs = int64_t{DecodeGeometry::kThreads >> a->lanes_log2} * kOuts;
  int32_t blocks = a->products.deal([&](const DeviceProduct& p) { return (p.weight.n_rows + outs - 1) / outs; });
  if (kGated) blocks = a->products.first_block[1];
  a->n_parts = (a->n_rows + kRows - 1) / kRows;
  launch<matmul_decode_kernel<Unit, kRows, kGated>>(
      queue, {Dim3(static_cast<unsigned>(blocks * a->n_parts)), Dim3(DecodeGeometry::kThreads), 0, true}, *a);
}

template <class Unit, bool kGated>
void launch_all_rows(Queue& queue, DecodeArgs a, int32_t n_rows) {
  a.n_rows = n_rows;
  if (n_rows == 1) launch_rows<Unit, 1, kGated>(queue, &a);
  else if (n_rows == 2) launch_rows<Unit, 2, kGated>(queue, &a);
  else if (n_rows <= 4) launch_rows<Unit, 4, kGated>(queue, &a);
  else launch_rows<Unit, DecodeGeometry::kMostRows, kGated>(queue, &a);
}

template <bool kGated>
void launch_products(Queue& queue, DecodeArgs a, int32_t n_rows) {
  const Weight& weight = a.products.list[0].weight;
  a.set(weight);
  with_block_type(weight.type, [&](auto type) { launch_all_rows<BlockUnit<type()>, kGated>(queue, a, n_rows); });
  with_float_type(weight.type, [&](auto type) { launch_all_rows<FloatUnit<type()>, kGated>(queue, a, n_rows); });
}

// A warp has a group of 32 columns. A row of 4096 columns takes 16 thread blocks.
__global__ void __launch_bounds__(256) quantize_rows_kernel(ConstRows x, int n_columns, QuantizedRows out) {
  start_early();
  const int64_t row = blockIdx.y;
  const int column = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  quantize_group(column < n_columns ? x.data[row * x.stride + column] : 0.0f, out, row, column / 32);
}

}  // namespace matmul_decode_cu
using namespace matmul_decode_cu;

void quantize_rows(Queue& queue, ConstRows x, int64_t n_columns, int32_t n_rows, const QuantizedRows& out) {
  launch<quantize_rows_kernel>(queue, {Dim3(static_cast<unsigned>(out.n_padded / 256), static_cast<unsigned>(n_rows)), Dim3(256), 0, true},
                               x, static_cast<int>(n_columns), out);
}

void matmul_decode(Queue& queue, const DeviceShape&, const Products& products, ConstRows x, const QuantizedRows& quantized,
                   int32_t n_rows) {
  for_each_type(products, [&](const Batch& batch) {
    DecodeArgs args = {};
    args.products = batch;
    args.x = x;
    args.quantized = quantized;
    launch_products<false>(queue, args, n_rows);
  });
}

void matmul_gated(Queue& queue, Activation activation, const DeviceProduct& gate, const DeviceProduct& up, ConstRows x,
                  const QuantizedRows& quantized, Rows out, int32_t n_rows) {
  DecodeArgs args = {};
  args.activation = activation;
  args.products.list[0] = gate;
  args.products.list[1] = up;
  args.products.list[0].out = out.data;
  args.products.list[0].out_stride = out.stride;
  args.products.n = 2;
  args.x = x;
  args.quantized = quantized;
  launch_products<true>(queue, args, n_rows);
}

}  // namespace orrery::cuda
