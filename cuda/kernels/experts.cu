// Mixtures of experts (runtime/backend/experts.h): the choice, the order of slots, the products, and their sum. The
// host knows none of the results: grids are sized for the number of rows, and a thread block reads its expert on the device. And products
// of heads (runtime/backend/head_products.h), which are those of experts that every row takes.
//
// Choice: a warp has a row, and finds its best experts one after another, each the largest of keys that order as scores do. Order: one
// thread block; a thread has an expert and reads all choices, so slots are sorted by row. Products: a warp has an output (two outputs of
// more rows), as in matmul_decode.cu, with the same order of sums, so a slot has the bits of the row's own product at decode. A thread
// block has up to kMostRows slots of one expert, from a slot on whose place among the expert's is a multiple of that; the thread blocks of
// other slots end at once. Of heads, a thread block has one head and up to kMostRows rows; a head's first one also copies the inputs that
// follow the product.
#include "cuda/device/launch.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/products.cuh"

namespace orrery::cuda {

namespace experts_cu {

constexpr int kThreads = 256, kWarp = 32, kSortThreads = kMostExperts, kProductThreads = 128, kMostRows = 8;
constexpr int kEntries = kMostExperts / kWarp;  // scores of a lane

// Keys order as the numbers do, and zeros are equal. A NaN is as low as the lowest number; 0 is below all: taken already, or no expert.
__device__ __forceinline__ unsigned order_key(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f), key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  const unsigned lowest = 0x007FFFFFu;  // of -infinity
  return x >= -INFINITY ? key : lowest;
}

__global__ void __launch_bounds__(kWarp) choose_experts_kernel(DeviceRouter r, const float* logits) {
  start_early();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const float* own = logits + static_cast<int64_t>(row) * r.n_experts;
  float largest = -INFINITY, sum = 0.0f;
  for (int e = lane; e < r.n_experts; e += kWarp) largest = fmaxf(largest, own[e]);
  largest = warp_max(largest);
  if (r.gating == DeviceRouter::kSoftmax) {
    for (int e = lane; e < r.n_experts; e += kWarp) sum += expf(own[e] - largest);
    sum = warp_sum(sum);
  }
  const auto probability = [&](float logit) {
    return r.gating == DeviceRouter::kSoftmax   ? expf(logit - largest) / sum
           : r.gating == DeviceRouter::kSigmoid ? 1.0f / (1.0f + expf(-logit))
                                                : logit;
  };
  unsigned keys[kEntries];
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    const int e = i * kWarp + lane;
    keys[i] = 0;
    // A softmax orders as its logits do.
    if (e < r.n_experts)
      keys[i] = order_key(r.bias ? probability(own[e]) + r.bias[e] : r.gating == DeviceRouter::kSoftmax ? own[e] : probability(own[e]));
  }
  float total = 0.0f, best = 0.0f;
  const int64_t at = static_cast<int64_t>(row) * r.n_used;
  for (int j = 0; j < r.n_used; ++j) {
    unsigned most = 0, place = 0;
#pragma unroll
    for (int i = 0; i < kEntries; ++i)
      if (keys[i] > most) most = keys[i], place = static_cast<unsigned>(i);
    const unsigned winner = warp_largest(most);
    // Of equal ones, the lowest index: the largest complement.
    const int e = kMostExperts - 1 -
                  static_cast<int>(warp_largest(most == winner ? kMostExperts - 1 - (place * kWarp + static_cast<unsigned>(lane)) : 0));
#pragma unroll
    for (int i = 0; i < kEntries; ++i)
      if (i * kWarp + lane == e) keys[i] = 0;
    const float logit = own[e];
    if (j == 0) best = logit;
    const float weight = r.gating == DeviceRouter::kOfChosen ? expf(logit - best) : probability(logit);
    total += weight;
    if (lane == 0) r.experts[at + j] = e, r.weights[at + j] = weight;
  }
  if (lane != 0) return;
  float factor = r.scale;
  if (r.gating == DeviceRouter::kOfChosen) factor /= total;
  else if (r.normalised) factor /= fmaxf(total, RouterShape::kLeastSum);
  for (int j = 0; j < r.n_used; ++j) {
    const float weight = __fmul_rn(r.weights[at + j], factor);
    r.weights[at + j] = r.scales ? __fmul_rn(weight, r.scales[r.experts[at + j]]) : weight;
  }
}

// A thread has an expert.
__global__ void __launch_bounds__(kSortThreads) sort_slots_kernel(DeviceRouter r, int n_slots) {
  start_early();
  __shared__ int ends[kSortThreads];
  const int expert = static_cast<int>(threadIdx.x);
  int n = 0;
  for (int i = 0; i < n_slots; ++i) n += r.experts[i] == expert;
  ends[expert] = n;
  for (int step = 1; step < kSortThreads; step *= 2) {
    __syncthreads();
    const int before = expert >= step ? ends[expert - step] : 0;
    __syncthreads();
    ends[expert] += before;
  }
  __syncthreads();
  if (expert >= r.n_experts) return;
  int slot = ends[expert] - n;
  r.first_slots[expert] = slot;
  if (expert == 0) r.first_slots[r.n_experts] = n_slots;
  for (int i = 0; n > 0; ++i) {
    if (r.experts[i] != expert) continue;
    r.slots[i] = slot, r.rows[slot] = i / r.n_used, r.owners[slot] = expert;
    ++slot, --n;
  }
}

struct ExpertArgs : UnitArgs {
  Batch products;
  const int32_t *owners, *first_slots;
  const int32_t* rows;  // the input's row of each slot; null: the slot itself
  int32_t n_blocks;     // thread blocks of a slot
  int32_t first_slot;   // the grid's first one
};

// sums = the products of n of kRows rows of the input with kOuts rows of weights, by the lanes of a team: every lane has the result.
template <class Unit, int kRows, int kOuts>
__device__ __forceinline__ void multiply_rows(const UnitArgs& a, const std::byte* const (&weights)[kOuts], const int (&rows)[kRows], int n,
                                              int lanes, int lane, float (&sums)[kOuts][kRows]) {
  constexpr int kUnroll = kRows > 1 ? 1 : 4;
  const auto add = [&](const typename Unit::Loaded(&loaded)[kOuts], int unit) {
    typename Unit::Weights w[kOuts];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) w[o] = Unit::unpack(loaded[o], unit);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= n) break;
      const typename Unit::Input x = Unit::input(a, typename Unit::InputPlace(a, rows[r], unit), unit);
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
}

// With a bound of its own: ptxas spills a few bytes for more blocks on an SM, otherwise.
template <class Unit, int kRows>
__global__ void __launch_bounds__(kProductThreads, kRows > 1 ? 1 : 4) expert_products_kernel(const __grid_constant__ ExpertArgs a) {
  constexpr int kOuts = kRows > 1 ? 2 : 1;
  start_early();
  const int slot = a.first_slot + static_cast<int>(blockIdx.x) / a.n_blocks, index = static_cast<int>(blockIdx.x) % a.n_blocks;
  const int owner = a.owners[slot];
  if (owner >= 0 && (slot - a.first_slots[owner]) % kRows != 0) return;
  const int p = a.products.product_of(index);
  const DeviceProduct& product = a.products.list[p];
  const int lanes = 1 << a.lanes_log2, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t team = static_cast<int64_t>(index - a.products.first_block[p]) * (kProductThreads >> a.lanes_log2) +
                       static_cast<int>(threadIdx.x >> a.lanes_log2);
  const int64_t n_out = product.weight.n_rows, first_out = team * kOuts;
  if (owner < 0) {
    if (lane == 0)
      for (int64_t out = first_out; out < min(first_out + kOuts, n_out); ++out) product.out[slot * product.out_stride + out] = 0.0f;
    return;
  }
  const int n = min(kRows, a.first_slots[owner + 1] - slot);
  const std::byte* const matrix = product.expert_units
                                      ? reinterpret_cast<const std::byte*>(product.expert_units[owner]) + product.expert_stride
                                      : weights_of(product) + static_cast<uint64_t>(owner) * product.expert_stride;
  const std::byte* weights[kOuts];
#pragma unroll
  for (int o = 0; o < kOuts; ++o) weights[o] = matrix + min(first_out + o, n_out - 1) * a.planes.bytes;
  int rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = a.rows ? a.rows[min(slot + r, slot + n - 1)] : min(slot + r, slot + n - 1);
  float sums[kOuts][kRows] = {};
  multiply_rows<Unit>(a, weights, rows, n, lanes, lane, sums);
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= n) break;
#pragma unroll
    for (int o = 0; o < kOuts; ++o) {
      if (first_out + o >= n_out) break;
      const float bias = product.bias ? product.bias[owner * n_out + first_out + o] : 0.0f;
      product.out[(slot + r) * product.out_stride + first_out + o] = product.bias ? __fadd_rn(sums[o][r], bias) : sums[o][r];
    }
  }
}

__global__ void __launch_bounds__(kThreads) add_experts_kernel(DeviceRouter r, float* x, const float* y, int64_t n, bool accumulate) {
  start_early();
  const int64_t row = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  float sum = accumulate ? x[row * n + i] : 0.0f;
  for (int64_t j = row * r.n_used; j < (row + 1) * r.n_used; ++j) sum = __fadd_rn(sum, __fmul_rn(r.weights[j], y[r.slots[j] * n + i]));
  x[row * n + i] = sum;
}

__global__ void __launch_bounds__(kThreads) clamped_swiglu_kernel(const float* gate, const float* up, float* out, int64_t n) {
  start_early();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float g = gate[i] > 7.0f ? 7.0f : gate[i], u = up[i] > 7.0f ? 7.0f : up[i] < -7.0f ? -7.0f : up[i];  // a NaN stays one
  out[i] = g / (1.0f + expf(-1.702f * g)) * (u + 1.0f);
}

__global__ void __launch_bounds__(kThreads) squared_relu_kernel(float* x, int64_t n) {
  start_early();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] = x[i] < 0.0f ? 0.0f : x[i] * x[i];  // a NaN stays one
}

__global__ void __launch_bounds__(kThreads) gate_rows_kernel(float* x, const float* gates, int64_t n) {
  start_early();
  const int64_t row = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[row * n + i] *= 1.0f / (1.0f + expf(-gates[row]));
}

struct HeadArgs : UnitArgs {
  const std::byte* weights;
  float* out;
  int64_t out_dim;
  int32_t n_heads, n_out, n_rows, n_copied;
};

template <class Unit, int kRows>
__global__ void __launch_bounds__(kProductThreads, kRows > 1 ? 1 : 4) head_products_kernel(const __grid_constant__ HeadArgs a) {
  constexpr int kOuts = kRows > 1 ? 2 : 1;
  start_early();
  const int head = static_cast<int>(blockIdx.y), first_row = static_cast<int>(blockIdx.z) * kRows, n = min(kRows, a.n_rows - first_row);
  const auto vector_of = [&](int r) { return (first_row + min(r, n - 1)) * a.n_heads + head; };
  if (blockIdx.x == 0)
    for (int i = static_cast<int>(threadIdx.x); i < n * a.n_copied; i += kProductThreads) {
      const int64_t vector = vector_of(i / a.n_copied);
      a.out[vector * a.out_dim + a.n_out + i % a.n_copied] = a.x.data[vector * a.x.stride + a.n_cols + i % a.n_copied];
    }
  const int lanes = 1 << a.lanes_log2, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int first_out =
      (static_cast<int>(blockIdx.x) * (kProductThreads >> a.lanes_log2) + static_cast<int>(threadIdx.x >> a.lanes_log2)) * kOuts;
  const std::byte* weights[kOuts];
#pragma unroll
  for (int o = 0; o < kOuts; ++o)
    weights[o] = a.weights + static_cast<int64_t>(head * a.n_out + min(first_out + o, a.n_out - 1)) * a.planes.bytes;
  int rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = vector_of(r);
  float sums[kOuts][kRows] = {};
  multiply_rows<Unit>(a, weights, rows, n, lanes, lane, sums);
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= n) break;
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
      if (first_out + o < a.n_out) a.out[rows[r] * a.out_dim + first_out + o] = sums[o][r];
  }
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

template <class Unit, int kRows>
void launch_experts(Queue& queue, ExpertArgs a, int32_t n_slots) {
  const int64_t outs = int64_t{kProductThreads >> a.lanes_log2} * (kRows > 1 ? 2 : 1);
  a.n_blocks = a.products.deal([&](const DeviceProduct& p) { return (p.weight.n_rows + outs - 1) / outs; });
  launch<expert_products_kernel<Unit, kRows>>(queue, {Dim3(static_cast<unsigned>(n_slots * a.n_blocks)), Dim3(kProductThreads), 0, true},
                                              a);
}

template <class Unit>
void launch_experts(Queue& queue, const ExpertArgs& a, const DeviceRouter& r, int32_t n_rows) {
  const int32_t n_slots = r.n_slots < 0 ? n_rows * r.n_used : r.n_slots;
  if (n_rows == 1) launch_experts<Unit, 1>(queue, a, n_slots);  // each expert has one slot at most
  else launch_experts<Unit, kMostRows>(queue, a, n_slots);
}

template <class Unit, int kRows>
void launch_heads(Queue& queue, const HeadArgs& a) {
  const int32_t outs = (kProductThreads >> a.lanes_log2) * (kRows > 1 ? 2 : 1);
  const Dim3 grid(static_cast<unsigned>((a.n_out + outs - 1) / outs), static_cast<unsigned>(a.n_heads),
                  static_cast<unsigned>((a.n_rows + kRows - 1) / kRows));
  launch<head_products_kernel<Unit, kRows>>(queue, {grid, Dim3(kProductThreads), 0, true}, a);
}

template <class Unit>
void launch_heads(Queue& queue, const HeadArgs& a) {
  if (a.n_rows == 1) launch_heads<Unit, 1>(queue, a);
  else launch_heads<Unit, kMostRows>(queue, a);
}

}  // namespace experts_cu
using namespace experts_cu;

void route(Queue& queue, const DeviceRouter& r, const float* logits, int32_t n_rows) {
  launch<choose_experts_kernel>(queue, {Dim3(static_cast<unsigned>(n_rows)), Dim3(kWarp), 0, true}, r, logits);
  launch<sort_slots_kernel>(queue, {Dim3(1), Dim3(kSortThreads), 0, true}, r, n_rows * r.n_used);
}

void expert_products(Queue& queue, const Products& products, const DeviceRouter& r, ConstRows x, bool of_rows,
                     const QuantizedRows& quantized, int32_t n_rows) {
  for_each_type(products, [&](const Batch& batch) {
    ExpertArgs a = {};
    a.products = batch;
    a.x = x;
    a.quantized = quantized;
    a.owners = r.owners, a.first_slots = r.first_slots, a.rows = of_rows ? r.rows : nullptr;
    a.first_slot = r.n_slots < 0 ? 0 : r.first_slot;
    const Weight& weight = batch.list[0].weight;
    a.set(weight);
    with_block_type(weight.type, [&](auto type) { launch_experts<BlockUnit<type()>>(queue, a, r, n_rows); });
    with_float_type(weight.type, [&](auto type) { launch_experts<FloatUnit<type()>>(queue, a, r, n_rows); });
  });
}

void multiply_heads(Queue& queue, const Weight& weight, int32_t n_heads, ConstRows x, Rows out, const QuantizedRows& quantized,
                    int32_t n_rows) {
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

void add_experts(Queue& queue, const DeviceRouter& r, float* x, const float* y, int64_t n, int32_t n_rows, bool accumulate) {
  launch<add_experts_kernel>(queue, {Dim3(experts_cu::blocks(n), static_cast<unsigned>(n_rows)), Dim3(kThreads), 0, true}, r, x, y, n,
                             accumulate);
}

void clamped_swiglu(Queue& queue, const float* gate, const float* up, float* out, int64_t n) {
  launch<clamped_swiglu_kernel>(queue, {Dim3(experts_cu::blocks(n)), Dim3(kThreads), 0, true}, gate, up, out, n);
}

void squared_relu(Queue& queue, float* x, int64_t n) {
  launch<squared_relu_kernel>(queue, {Dim3(experts_cu::blocks(n)), Dim3(kThreads), 0, true}, x, n);
}

void gate_rows(Queue& queue, float* x, const float* gates, int64_t n, int32_t n_rows) {
  launch<gate_rows_kernel>(queue, {Dim3(experts_cu::blocks(n), static_cast<unsigned>(n_rows)), Dim3(kThreads), 0, true}, x, gates, n);
}

}  // namespace orrery::cuda
