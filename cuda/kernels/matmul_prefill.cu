// Products of many rows, on tensor cores. Weights are read as they lie on the device. Error and cost: README.md.
//
// Quantized: a thread block has a tile of 128 rows x 128 outputs and takes 64 columns at a time, two groups. A thread unpacks one output's
// group to signed bytes in shared memory, with its factors; cp.async copies the activations. Both prepare the next 64 columns while these
// are multiplied, int8 by int8: sum += x_d * (w_scale * dot) (- x_d * x_sum * w_min). Smaller tiles serve fewer rows and fewer outputs
// (launch_best). Of large tiles another kernel computes gate, up and activation at once. F16, BF16: tiles of 64 x 64; a float activation
// becomes two halves, hi + lo, and so two products. F32: tiles of 64 x 64 on float units, because TF32 keeps only 11 bits.
//
// Columns are summed in order, in steps of fixed size: a row's bits depend neither on other rows nor on the tile.
#include "cuda/device/launch.h"
#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/products.cuh"

namespace orrery::cuda {

namespace matmul_prefill_cu {

struct PrefillArgs {
  Batch products;
  RowPlanes planes;
  QuantizedRows quantized;
  ConstRows x;
  const float* scales;  // F16: (n_rows) powers of two
  int32_t n_rows, n_cols;
  Activation activation;  // of gate and up
};

// Shared memory holds rows of 64 bytes. Their 16-byte pieces are swapped by row, so that eight rows of ldmatrix meet all banks.
constexpr int kRowBytes = 64, kPieces = kRowBytes / 16;
__device__ __forceinline__ int piece_at(int row, int piece) { return row * kRowBytes + 16 * (piece ^ (row / 2 % kPieces)); }

// Load fragments of m16n8k32 of bytes, or of m16n8k16 of halves, from two pieces (`piece` on) of 16 rows (`row` on). load_b: for two n8
// tiles, b[0], b[1] and b[2], b[3].
__device__ __forceinline__ void load_a(uint32_t* a, const std::byte* rows, int row, int piece) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices_4(a, rows + piece_at(row + lane % 16, piece + lane / 16));
}
__device__ __forceinline__ void load_b(uint32_t* b, const std::byte* rows, int row, int piece) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices_4(b, rows + piece_at(row + lane % 8 + lane / 16 * 8, piece + lane / 8 % 2));
}

template <int kRows_, int kOuts_, int kWarpRows_, int kWarpOuts_, int kBlocks_>
struct Tile {
  static constexpr int kRows = kRows_, kOuts = kOuts_;
  static constexpr int kWarpRows = kWarpRows_, kWarpOuts = kWarpOuts_;
  static constexpr int kThreads = 32 * (kRows / kWarpRows) * (kOuts / kWarpOuts);
  static constexpr int kBlocks = kBlocks_;  // thread blocks of an SM, which share its registers
  // Issue slots of a warp for a tensor product of Q4_K, roughly.
  static constexpr int kSlots = kWarpOuts == 16 ? 35 : kRows == 64 ? 25 : 20;
};
using SmallTile = Tile<32, 64, 32, 16, 3>;
using HalfTile = Tile<64, 64, 32, 32, 3>;
template <TensorType kType>  // Q2_K, with two scales and two minima, takes more registers
using MiddleTile = std::conditional_t<kType == TensorType::q2_k, Tile<64, 64, 32, 32, 2>, HalfTile>;
// With two scales for 32 columns a warp has fewer rows, whose fragments it holds, or it would take more than 255 registers. Q2_K and Q3_K
// take more all the same. IQ2 and NVFP4 take tiles of middle size, too.
template <TensorType kType>
using LargeTile = std::conditional_t<!Format<kType>::kHalves, Tile<128, 128, 64, 32, 1>,
                                     std::conditional_t<kType == TensorType::q6_k, Tile<128, 128, 32, 64, 1>, MiddleTile<kType>>>;

// The place of a thread's sums: acc[m][n][j] is row 16 m + 8 (j / 2) + lane / 4, output 8 n + 2 (lane % 4) + j % 2 of the warp's part.
template <class T>
struct Place {
  int first_row, first_out;  // of the thread block
  int row, out;              // of the warp, within the thread block

  __device__ __forceinline__ explicit Place(const Batch& products, int p) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    first_row = static_cast<int>(blockIdx.x) * T::kRows;
    first_out = (static_cast<int>(blockIdx.y) - products.first_block[p]) * T::kOuts;
    row = warp % (T::kRows / T::kWarpRows) * T::kWarpRows;
    out = warp / (T::kRows / T::kWarpRows) * T::kWarpOuts;
  }
  template <class F>
  __device__ __forceinline__ void store_all(const PrefillArgs& a, const DeviceProduct& product, const F& sum_of) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, o = first_out + out + 2 * (lane % 4);
    const int n_left = static_cast<int>(product.weight.n_rows) - o;
    const float* bias = product.bias ? product.bias + o : nullptr;
#pragma unroll
    for (int m = 0; m < T::kWarpRows / 16; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // one address at a time, because 64 addresses at once exceed the registers
        const int r = first_row + row + 16 * m + 8 * i + lane / 4;
        if (r >= a.n_rows) continue;
        float* to = product.out + r * product.out_stride + o;
#pragma unroll
        for (int n = 0; n < T::kWarpOuts / 8; ++n)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int at = 8 * n + j;
            if (at >= n_left) continue;
            float sum = sum_of(r, m, n, 2 * i + j);
            if (bias) sum = __fadd_rn(sum, bias[at]);
            to[at] = product.accumulate ? __fadd_rn(to[at], sum) : sum;
          }
      }
  }
};

// A thread's sums (Place).
template <class T>
using Sums = float[T::kWarpRows / 16][T::kWarpOuts / 8][4];

// ---- quantized weights

constexpr int kStepGroups = 2;  // groups of 32 columns in a step

// A tensor product's sum of integers becomes a float without a conversion: the sum starts at a constant, and its bits are read as a float.
// One scale: the bits of 1.5 * 2^23, where the last place of a float counts ones. A sum that moves by at most 2^22 is kMagicValue + dot.
// Two scales: a number of one or two bits above |dot| of 16 columns. The bits are the subnormal float (kStart + dot) * 2^-149. The start is
// small: the first half's operation takes the second half's start away, too, and keeps enough digits. Scales hold 2^100 of the 2^149, and a
// thread's sums are 2^-49 of the products'.
constexpr int32_t kMagic = 0x4B400000;
constexpr float kMagicValue = 12582912.0f;
constexpr float kScaleUnit = 0x1p100f, kSumUnit = 0x1p-49f;
template <TensorType kType>  // above 16 * 127 times the largest code: 3 of Q2_K, 12 of NVFP4, 43 of IQ2, and 128 of shifted codes
constexpr int32_t kStart = !Format<kType>::kHalves      ? kMagic
                           : kType == TensorType::q2_k  ? 3 << 11
                           : kType == TensorType::nvfp4 ? 3 << 13
                           : Format<kType>::kGrid       ? 3 << 15
                                                        : 1 << 18;

// Factors lie as a thread of multiply() loads them: those of a row side by side, and those of two neighbouring outputs.
template <class T, TensorType kType>
struct BlockStage {
  static constexpr int kHalves = Format<kType>::kHalves ? 2 : 1, kMins = Format<kType>::kMin ? kHalves : 0;
  static constexpr int kRowFactors = kMins == 2 ? 4 : 1 + kMins;  // d, then -d * sum of the group or of each half
  static constexpr int kOutPairs = 1 + kHalves + kMins;
  alignas(16) std::byte x[T::kRows * kRowBytes];
  alignas(16) std::byte w[T::kOuts * kRowBytes];
  alignas(16) float rows[kStepGroups][T::kRows / 16][8][2][kRowFactors];  // rows r and r + 8 side by side
  // Of two outputs side by side: the scale of the group or its first half, what takes the start away, then the second scale and the minima.
  alignas(16) float outs[kStepGroups][T::kOuts / 2][kOutPairs > 2 ? (kOutPairs + 1) / 2 * 2 : 2][2];
};

// What a thread loads for a step: one output's group; the scale and the sums of one row's group. The first threads of a block have outputs,
// the last ones have rows.
struct Fetched {
  LoadedGroup group;
  float d;
  uint32_t sums;
};
template <class T>
struct Units {
  static constexpr int kOuts = T::kOuts * kStepGroups, kRows = T::kRows * kStepGroups;
  static_assert(kOuts <= T::kThreads && kRows <= T::kThreads, "a group for each thread");
  static __device__ __forceinline__ bool has_out() { return kOuts == T::kThreads || static_cast<int>(threadIdx.x) < kOuts; }
  static __device__ __forceinline__ bool has_row() { return kRows == T::kThreads || static_cast<int>(threadIdx.x) >= T::kThreads - kRows; }
  static __device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) % kStepGroups; }
  static __device__ __forceinline__ int out() { return static_cast<int>(threadIdx.x) / kStepGroups; }
  static __device__ __forceinline__ int row() { return (static_cast<int>(threadIdx.x) - (T::kThreads - kRows)) / kStepGroups; }
};

// Where a thread's loads come from. Behind the last row or output it loads the last one again, and nobody stores the sums. Behind a row's
// last group it loads that group again, and the activations there are zeros.
template <class T, TensorType kType>
struct Sources {
  static constexpr int kCopies = T::kRows * kPieces / T::kThreads;
  const std::byte* weights;
  int32_t x[kCopies], d;  // places among the quantized rows' bytes and scales: 32 bits, because large tiles need the registers

  // weight_row: of the thread's output (Units::out()).
  __device__ __forceinline__ Sources(const PrefillArgs& a, const Place<T>& at, const std::byte* weight_row) : weights(weight_row) {
    using U = Units<T>;
    const QuantizedRows& q = a.quantized;
#pragma unroll
    for (int k = 0; k < kCopies; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * T::kThreads;
      x[k] = min(at.first_row + i / kPieces, a.n_rows - 1) * static_cast<int32_t>(q.n_padded) + 16 * (i % kPieces);
    }
    const int row = min(at.first_row + (U::has_row() ? U::row() : 0), a.n_rows - 1);
    d = row * static_cast<int32_t>(q.n_padded / 32) + U::group();
  }
  __device__ __forceinline__ void fetch(const PrefillArgs& a, int step, Fetched* out) const {
    using U = Units<T>;
    if (U::has_out()) out->group = load_group<kType>(weights, a.planes, min(kStepGroups * step + U::group(), a.n_cols / 32 - 1));
    if (U::has_row()) {
      const int32_t from = d + kStepGroups * step;
      out->d = __ldg(a.quantized.d + from);
      if constexpr (Format<kType>::kMin) out->sums = __ldg(reinterpret_cast<const uint32_t*>(a.quantized.sums) + from);
    }
  }
  __device__ __forceinline__ void copy_rows(const PrefillArgs& a, int step, BlockStage<T, kType>* stage) const {
#pragma unroll
    for (int k = 0; k < kCopies; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * T::kThreads;
      copy_async_16(stage->x + piece_at(i / kPieces, i % kPieces), a.quantized.q + (x[k] + kRowBytes * step));
    }
    copy_async_commit();
  }
};

__device__ __forceinline__ void store_piece(std::byte* to, const uint32_t* words) {
  *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
}

template <class T, TensorType kType>
__device__ __forceinline__ void unpack_out(int step, const LoadedGroup& in, BlockStage<T, kType>* stage) {
  using S = BlockStage<T, kType>;
  const int i = Units<T>::out(), g = Units<T>::group();
  uint32_t code[8];
  float scale[2], min[2];
  unpack_signed<kType>(in, code);
  unpack_scales<kType>(in, kStepGroups * step + g, scale, min);
#pragma unroll
  for (int half = 0; half < 2; ++half) store_piece(stage->w + piece_at(i, 2 * g + half), code + 4 * half);
  constexpr float kUnit = 1.0f / (1 << Format<kType>::kShift);  // of a code
  auto& to = stage->outs[g][i / 2];
  if constexpr (S::kHalves == 2) {
    to[0][i % 2] = __fmul_rn(kScaleUnit * kUnit, scale[0]);
    to[1][i % 2] = __fmul_rn(-kStart<kType> * kSumUnit * kUnit, __fadd_rn(scale[0], scale[1]));  // exact: of 20 bits
    to[2][i % 2] = __fmul_rn(kScaleUnit * kUnit, scale[1]);
  } else {
    to[0][i % 2] = __fmul_rn(kUnit, scale[0]);
    to[1][i % 2] = __fmul_rn(-kMagicValue * kUnit, scale[0]);
  }
#pragma unroll
  for (int h = 0; h < S::kMins; ++h) to[1 + S::kHalves + h][i % 2] = __fmul_rn(S::kHalves == 2 ? kSumUnit : 1.0f, min[h]);
}

template <class T, TensorType kType>
__device__ __forceinline__ void unpack_row(float d, uint32_t sums, BlockStage<T, kType>* stage) {
  using S = BlockStage<T, kType>;
  const int i = Units<T>::row();
  float* to = stage->rows[Units<T>::group()][i / 16][i % 8][i / 8 % 2];
  const int first = static_cast<int16_t>(sums & 0xFFFFu), second = static_cast<int16_t>(sums >> 16);
  if constexpr (S::kMins == 0) *to = d;
  else if constexpr (S::kMins == 1) *reinterpret_cast<float2*>(to) = {d, __fmul_rn(-d, static_cast<float>(first + second))};
  else *reinterpret_cast<float4*>(to) = {d, __fmul_rn(-d, static_cast<float>(first)), __fmul_rn(-d, static_cast<float>(second)), 0.0f};
}

template <class T, TensorType kType>
__device__ __forceinline__ void unpack(int step, const Fetched& in, BlockStage<T, kType>* stage) {
  if (Units<T>::has_out()) unpack_out(step, in.group, stage);
  if (Units<T>::has_row()) unpack_row(in.d, in.sums, stage);
}

// Factors of two rows, in one or two loads.
template <int kFactors>
__device__ __forceinline__ void load_factors(const float (&from)[2][kFactors], float (&to)[2][kFactors]) {
  if constexpr (kFactors == 1) {
    const float2 both = *reinterpret_cast<const float2*>(from);
    to[0][0] = both.x, to[1][0] = both.y;
  } else if constexpr (kFactors == 2) {
    const float4 both = *reinterpret_cast<const float4*>(from);
    to[0][0] = both.x, to[0][1] = both.y, to[1][0] = both.z, to[1][1] = both.w;
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 one = *reinterpret_cast<const float4*>(from[i]);
      to[i][0] = one.x, to[i][1] = one.y, to[i][2] = one.z;
    }
  }
}

// sum += x_d * w_scale * dot - x_sum * w_min, of one group. (kMagicValue + dot) * scale - kMagicValue * scale is scale * dot, rounded once:
// a scale has at most 19 bits, so the second product is exact. Of two scales the first operation is off by up to 2^-8 of the second one.
template <class T, TensorType kType>
__device__ __forceinline__ void multiply(const BlockStage<T, kType>& stage, const Place<T>& at, int g, const int32_t* start, Sums<T>& acc) {
  using S = BlockStage<T, kType>;
  constexpr int kM = T::kWarpRows / 16, kPairs = T::kWarpOuts / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t x[kM][4];
  float rows[kM][2][S::kRowFactors];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    load_a(x[m], stage.x, at.row + 16 * m, 2 * g);
    load_factors(stage.rows[g][at.row / 16 + m][lane / 4], rows[m]);
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint32_t w[4];
    load_b(w, stage.w, at.out + 16 * pair, 2 * g);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const auto& from = stage.outs[g][at.out / 2 + 8 * pair + 4 * n + lane % 4];
      const float4 first = *reinterpret_cast<const float4*>(from[0]);
      float2 factors[S::kOutPairs] = {{first.x, first.y}, {first.z, first.w}};
#pragma unroll
      for (int i = 2; i < S::kOutPairs; ++i) factors[i] = *reinterpret_cast<const float2*>(from[i]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        int32_t dot[S::kHalves][4];
        if constexpr (S::kHalves == 2) {
          mma_s8_k16(dot[0], x[m], w[2 * n], start);
          mma_s8_k16(dot[1], x[m] + 2, w[2 * n + 1], start);
        } else {
          mma_s8(dot[0], x[m], w + 2 * n, start);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& sum = acc[m][2 * pair + n][j];
          const float* of_row = rows[m][j / 2];
          const auto of_out = [&](int i) { return j % 2 ? factors[i].y : factors[i].x; };
          float value = fmaf(__int_as_float(dot[0][j]), of_out(0), of_out(1));
          if constexpr (S::kHalves == 2) value = fmaf(__int_as_float(dot[1][j]), of_out(2), value);
          sum = fmaf(of_row[0], value, sum);
#pragma unroll
          for (int h = 0; h < S::kMins; ++h) sum = fmaf(of_row[1 + h], of_out(1 + S::kHalves + h), sum);
        }
      }
    }
  }
}

// All columns of a thread block's tile.
template <class T, TensorType kType>
__device__ __forceinline__ void multiply_all(const PrefillArgs& a, const Place<T>& at, const std::byte* weights,
                                             BlockStage<T, kType> (&stages)[2], Sums<T>& acc) {
  Fetched fetched = {};
  constexpr int32_t kFrom = kStart<kType>;
  const int32_t start[4] = {kFrom, kFrom, kFrom, kFrom};
  const int n_steps = (a.n_cols / 32 + kStepGroups - 1) / kStepGroups;
  const Sources<T, kType> sources(a, at, weights);
  sources.copy_rows(a, 0, &stages[0]);
  sources.fetch(a, 0, &fetched);
  unpack(0, fetched, &stages[0]);
  copy_async_wait<0>();
  __syncthreads();
  for (int step = 0; step < n_steps; ++step) {
    BlockStage<T, kType>* next = &stages[(step + 1) % 2];  // no warp reads it: all have passed the barrier since
    const bool more = step + 1 < n_steps;
    if (more) {
      sources.copy_rows(a, step + 1, next);
      sources.fetch(a, step + 1, &fetched);
    }
#pragma unroll 1
    for (int g = 0; g < kStepGroups; ++g) multiply(stages[step % 2], at, g, start, acc);
    if (more) unpack(step + 1, fetched, next);
    copy_async_wait<0>();
    __syncthreads();
  }
}
template <TensorType kType>
__device__ __forceinline__ float finished(float sum) {
  return Format<kType>::kHalves ? __fmul_rn(sum, 1.0f / kSumUnit) : sum;
}
// Row `out` of a matrix, or its last row.
__device__ __forceinline__ const std::byte* weight_row(const PrefillArgs& a, const DeviceProduct& p, int out) {
  out = min(out, static_cast<int>(p.weight.n_rows) - 1);
  return weights_of(p) + static_cast<int64_t>(out) * static_cast<int32_t>(a.planes.bytes);
}

template <class T, TensorType kType>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) matmul_blocks_kernel(const __grid_constant__ PrefillArgs a) {
  __shared__ BlockStage<T, kType> stages[2];
  const int p = a.products.product_of(static_cast<int>(blockIdx.y));
  const DeviceProduct& product = a.products.list[p];
  const Place<T> at(a.products, p);
  Sums<T> acc = {};
  multiply_all<T, kType>(a, at, weight_row(a, product, at.first_out + Units<T>::out()), stages, acc);
  at.store_all(a, product, [&](int, int m, int n, int j) { return finished<kType>(acc[m][n][j]); });
}

// Gate and up in one tile, eight outputs of each in turn, so that a thread has both sums of an output. Writes activation(gate) * up.
template <class T, TensorType kType>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) matmul_gated_blocks_kernel(const __grid_constant__ PrefillArgs a) {
  __shared__ BlockStage<T, kType> stages[2];
  const DeviceProduct &gate = a.products.list[0], &up = a.products.list[1];
  const Place<T> at(a.products, 0);
  Sums<T> acc = {};
  const int turn = at.first_out + Units<T>::out();
  multiply_all<T, kType>(a, at, weight_row(a, turn / 8 % 2 ? up : gate, turn / 16 * 8 + turn % 8), stages, acc);

  const int lane = static_cast<int>(threadIdx.x) % 32, o = (at.first_out + at.out) / 2 + 2 * (lane % 4);
  const int n_left = static_cast<int>(gate.weight.n_rows) - o;
#pragma unroll
  for (int m = 0; m < T::kWarpRows / 16; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = at.first_row + at.row + 16 * m + 8 * i + lane / 4;
      if (r >= a.n_rows) continue;
      float* to = gate.out + r * gate.out_stride + o;
#pragma unroll
      for (int n = 0; n < T::kWarpOuts / 8; n += 2)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (4 * n + j < n_left)
            to[4 * n + j] = gated(a.activation, with_bias(gate, o + 4 * n + j, finished<kType>(acc[m][n][2 * i + j])),
                                  with_bias(up, o + 4 * n + j, finished<kType>(acc[m][n + 1][2 * i + j])));
    }
}

// ---- F16 and BF16

struct HalfStage {
  alignas(16) std::byte x[2][HalfTile::kRows * kRowBytes];  // hi, lo
  alignas(16) std::byte w[HalfTile::kOuts * kRowBytes];
};
constexpr int kHalfColumns = kRowBytes / 2;                                          // columns of a step
constexpr int kHalfPairs = HalfTile::kRows * kHalfColumns / 2 / HalfTile::kThreads;  // pairs of columns for each thread

// Splits x into halves: x = hi + lo, nearly.
template <TensorType kType>
__device__ __forceinline__ void split(float x, uint32_t* hi, uint32_t* lo) {
  if constexpr (kType == TensorType::f16) {
    const __half high = __float2half_rn(x);
    *hi = __half_as_ushort(high);
    *lo = __half_as_ushort(__float2half_rn(x - __half2float(high)));
  } else {
    const uint32_t high = __float_as_uint(x) & 0xFFFF0000u, rest = __float_as_uint(x - __uint_as_float(high));
    *hi = high >> 16;
    *lo = (rest + 0x7FFFu + (rest >> 16 & 1)) >> 16;  // rounds to nearest; hi keeps a NaN
  }
}

__device__ __forceinline__ void fetch_halves(const PrefillArgs& a, const Place<HalfTile>& at, const DeviceProduct& p, int step,
                                             HalfStage* stage, float (&x)[kHalfPairs][2]) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < HalfTile::kOuts * kPieces / HalfTile::kThreads; ++k) {
    const int i = thread + k * HalfTile::kThreads, out = i / kPieces, piece = i % kPieces;
    const int o = at.first_out + out, from = kRowBytes * step + 16 * piece;
    const bool valid = o < p.weight.n_rows && from < a.planes.bytes;
    copy_async_16(stage->w + piece_at(out, piece), weights_of(p) + (valid ? o * a.planes.bytes + from : 0), valid ? 16 : 0);
  }
  copy_async_commit();
#pragma unroll
  for (int k = 0; k < kHalfPairs; ++k) {
    const int i = thread + k * HalfTile::kThreads, column = kHalfColumns * step + i % (kHalfColumns / 2) * 2;
    const int row = at.first_row + i / (kHalfColumns / 2);
    const float* from = a.x.data + row * a.x.stride + column;
    x[k][0] = row < a.n_rows && column < a.n_cols ? __ldg(from) : 0.0f;
    x[k][1] = row < a.n_rows && column + 1 < a.n_cols ? __ldg(from + 1) : 0.0f;
  }
}

template <TensorType kType>
__device__ __forceinline__ void split_halves(const PrefillArgs& a, const Place<HalfTile>& at, const float (&x)[kHalfPairs][2],
                                             HalfStage* stage) {
#pragma unroll
  for (int k = 0; k < kHalfPairs; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * HalfTile::kThreads, row = i / (kHalfColumns / 2), pair = i % (kHalfColumns / 2);
    float scale = 1.0f;
    if (kType == TensorType::f16 && at.first_row + row < a.n_rows) scale = __ldg(a.scales + at.first_row + row);
    uint32_t hi[2], lo[2];
    split<kType>(x[k][0] * scale, &hi[0], &lo[0]);
    split<kType>(x[k][1] * scale, &hi[1], &lo[1]);
    const int to = piece_at(row, pair / 4) + pair % 4 * 4;
    *reinterpret_cast<uint32_t*>(stage->x[0] + to) = hi[0] | hi[1] << 16;
    *reinterpret_cast<uint32_t*>(stage->x[1] + to) = lo[0] | lo[1] << 16;
  }
}

template <TensorType kType>
__global__ void __launch_bounds__(HalfTile::kThreads, HalfTile::kBlocks) matmul_halves_kernel(const __grid_constant__ PrefillArgs a) {
  constexpr int kM = HalfTile::kWarpRows / 16, kN = HalfTile::kWarpOuts / 8;
  __shared__ HalfStage stages[2];
  const int p = a.products.product_of(static_cast<int>(blockIdx.y));
  const DeviceProduct& product = a.products.list[p];
  const Place<HalfTile> at(a.products, p);
  float acc[kM][kN][4] = {};
  float x[kHalfPairs][2];
  const int n_steps = (a.n_cols + kHalfColumns - 1) / kHalfColumns;
  fetch_halves(a, at, product, 0, &stages[0], x);
  split_halves<kType>(a, at, x, &stages[0]);
  copy_async_wait<0>();
  __syncthreads();
  for (int step = 0; step < n_steps; ++step) {
    HalfStage* next = &stages[(step + 1) % 2];
    if (step + 1 < n_steps) fetch_halves(a, at, product, step + 1, next, x);
    const HalfStage& stage = stages[step % 2];
#pragma unroll
    for (int k = 0; k < kHalfColumns / 16; ++k) {
      uint32_t rows[2][kM][4];
#pragma unroll
      for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int m = 0; m < kM; ++m) load_a(rows[part][m], stage.x[part], at.row + 16 * m, 2 * k);
#pragma unroll
      for (int pair = 0; pair < kN / 2; ++pair) {
        uint32_t w[4];
        load_b(w, stage.w, at.out + 16 * pair, 2 * k);
#pragma unroll
        for (int part = 1; part >= 0; --part)
#pragma unroll
          for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              float* sums = acc[m][2 * pair + n];
              if constexpr (kType == TensorType::f16) mma_f16(sums, rows[part][m], w + 2 * n);
              else mma_bf16(sums, rows[part][m], w + 2 * n);
            }
      }
    }
    if (step + 1 < n_steps) split_halves<kType>(a, at, x, next);
    copy_async_wait<0>();
    __syncthreads();
  }
  at.store_all(a, product, [&](int row, int m, int n, int j) {
    if (kType == TensorType::bf16) return acc[m][n][j];
    const uint32_t power = 254u - (__float_as_uint(__ldg(a.scales + row)) >> 23);  // 1 / scale
    return __fmul_rn(acc[m][n][j], __uint_as_float(power << 23));
  });
}

// scales[row] = the power of two that brings the row's largest |x| to [2^14, 2^15). Rows near zero, or with infinity or NaN, get a power of
// two that is a normal number and has a normal inverse.
__global__ void __launch_bounds__(256) row_scales_kernel(ConstRows x, int n_cols, float* scales) {
  const int64_t row = blockIdx.x;
  uint32_t largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n_cols; i += 256)
    largest = max(largest, __float_as_uint(x.data[row * x.stride + i]) & 0x7FFFFFFFu);
  for (int i = 16; i > 0; i /= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, i));
  __shared__ uint32_t of_warps[8];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const uint32_t other : of_warps) largest = max(largest, other);
  const uint32_t exponent = max(largest >> 23, 27u);
  scales[row] = __uint_as_float((268u - exponent) << 23);
}

// ---- F32

struct FloatGeometry {
  static constexpr int kTile = 64, kThreads = 256, kColumns = 16, kOf = 4;  // a thread has kOf x kOf products
};

__global__ void __launch_bounds__(FloatGeometry::kThreads, 2) matmul_floats_kernel(const __grid_constant__ PrefillArgs a) {
  using G = FloatGeometry;
  // (columns, rows), each column padded with four floats, so that stores meet different banks.
  __shared__ __align__(16) float x[G::kColumns][G::kTile + 4];
  __shared__ __align__(16) float w[G::kColumns][G::kTile + 4];
  const int p = a.products.product_of(static_cast<int>(blockIdx.y));
  const DeviceProduct& product = a.products.list[p];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * G::kTile;
  const int64_t first_out = static_cast<int64_t>(static_cast<int>(blockIdx.y) - a.products.first_block[p]) * G::kTile;
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16 * G::kOf, out = thread % 16 * G::kOf;
  float acc[G::kOf][G::kOf] = {};
  for (int first = 0; first < a.n_cols; first += G::kColumns) {
    for (int i = thread; i < G::kTile * G::kColumns; i += G::kThreads) {
      const int at = i / G::kColumns, column = i % G::kColumns;
      const bool in_row = first + column < a.n_cols;
      const float* weights = reinterpret_cast<const float*>(weights_of(product) + (first_out + at) * a.planes.bytes);
      x[column][at] = in_row && first_row + at < a.n_rows ? __ldg(a.x.data + (first_row + at) * a.x.stride + first + column) : 0.0f;
      w[column][at] = in_row && first_out + at < product.weight.n_rows ? __ldg(weights + first + column) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int column = 0; column < G::kColumns; ++column) {
      const float4 rows = *reinterpret_cast<const float4*>(&x[column][row]), outs = *reinterpret_cast<const float4*>(&w[column][out]);
      const float r[4] = {rows.x, rows.y, rows.z, rows.w}, o[4] = {outs.x, outs.y, outs.z, outs.w};
#pragma unroll
      for (int i = 0; i < G::kOf; ++i)
#pragma unroll
        for (int j = 0; j < G::kOf; ++j) acc[i][j] = fmaf(r[i], o[j], acc[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < G::kOf; ++i)
#pragma unroll
    for (int j = 0; j < G::kOf; ++j)
      if (first_row + row + i < a.n_rows && first_out + out + j < product.weight.n_rows)
        store(product, first_row + row + i, first_out + out + j, acc[i][j]);
}

PrefillArgs prefill_args(const Batch& batch, ConstRows x, const QuantizedRows& quantized, int32_t n_rows) {
  const Weight& weight = batch.list[0].weight;
  PrefillArgs args = {};
  args.products = batch;
  args.planes = row_planes(weight.type, weight.n_cols);
  args.quantized = quantized;
  args.x = x;
  args.scales = quantized.scales;
  args.n_rows = n_rows;
  args.n_cols = static_cast<int32_t>(weight.n_cols);
  return args;
}

// The grid's first index counts tiles of rows, so that thread blocks that run together share weights.
Geometry tiles(PrefillArgs* a, int64_t rows, int64_t outs, int threads) {
  const int32_t n = a->products.deal([&](const DeviceProduct& p) { return (p.weight.n_rows + outs - 1) / outs; });
  return {Dim3(static_cast<unsigned>((a->n_rows + rows - 1) / rows), static_cast<unsigned>(n)), Dim3(static_cast<unsigned>(threads))};
}

// What a tile's thread blocks take on the busiest SM.
template <class T>
int64_t slots(PrefillArgs a, const DeviceShape& device) {
  const Dim3 grid = tiles(&a, T::kRows, T::kOuts, T::kThreads).grid;
  return (int64_t{grid.x} * grid.y + device.n_sms - 1) / device.n_sms * T::kRows * T::kOuts * T::kSlots;
}

template <class T, TensorType kType>
void launch_blocks(Queue& queue, PrefillArgs a) {
  launch<matmul_blocks_kernel<T, kType>>(queue, tiles(&a, T::kRows, T::kOuts, T::kThreads), a);
}

// Large tiles read an operand for more products, and small ones leave fewer SMs idle.
template <TensorType kType>
bool large_is_best(const DeviceShape& device, const PrefillArgs& a) {
  const int64_t large = slots<LargeTile<kType>>(a, device);
  return large <= slots<MiddleTile<kType>>(a, device) && large <= slots<SmallTile>(a, device);
}
template <TensorType kType>
void launch_best(Queue& queue, const DeviceShape& device, const PrefillArgs& a) {
  if (large_is_best<kType>(device, a)) launch_blocks<LargeTile<kType>, kType>(queue, a);
  else if (slots<MiddleTile<kType>>(a, device) <= slots<SmallTile>(a, device)) launch_blocks<MiddleTile<kType>, kType>(queue, a);
  else launch_blocks<SmallTile, kType>(queue, a);
}

}  // namespace matmul_prefill_cu
using namespace matmul_prefill_cu;

bool matmul_prefill_gated(Queue& queue, const DeviceShape& device, Activation activation, const DeviceProduct& gate,
                          const DeviceProduct& up, const QuantizedRows& quantized, Rows out, int32_t n_rows) {
  bool launched = false;
  with_block_type(gate.weight.type, [&](auto type) {
    if constexpr (!Format<type()>::kHalves) {  // Q6_K would spill registers
      using Tile = LargeTile<type()>;
      Batch batch = {};
      batch.list[0] = gate, batch.list[1] = up, batch.n = 2;
      batch.list[0].out = out.data, batch.list[0].out_stride = out.stride;
      PrefillArgs args = prefill_args(batch, {}, quantized, n_rows);
      if (!large_is_best<type()>(device, args)) return;
      args.products.n = 1;
      args.activation = activation;
      Geometry geometry = tiles(&args, Tile::kRows, Tile::kOuts / 2, Tile::kThreads);
      launch<matmul_gated_blocks_kernel<Tile, type()>>(queue, geometry, args);
      launched = true;
    }
  });
  return launched;
}

void matmul_prefill(Queue& queue, const DeviceShape& device, const Products& products, ConstRows x, const QuantizedRows& quantized,
                    int32_t n_rows) {
  bool scaled = false;
  for_each_type(products, [&](const Batch& batch) {
    const Weight& weight = batch.list[0].weight;
    PrefillArgs args = prefill_args(batch, x, quantized, n_rows);
    if (weight.type == TensorType::f16 && !scaled) {
      launch<row_scales_kernel>(queue, {Dim3(static_cast<unsigned>(n_rows)), Dim3(256)}, x, args.n_cols, quantized.scales);
      scaled = true;
    }
    if (weight.type == TensorType::f32) {
      launch<matmul_floats_kernel>(queue, tiles(&args, FloatGeometry::kTile, FloatGeometry::kTile, FloatGeometry::kThreads), args);
    } else if (is_float(weight.type)) {
      const Geometry geometry = tiles(&args, HalfTile::kRows, HalfTile::kOuts, HalfTile::kThreads);
      if (weight.type == TensorType::f16) launch<matmul_halves_kernel<TensorType::f16>>(queue, geometry, args);
      else launch<matmul_halves_kernel<TensorType::bf16>>(queue, geometry, args);
    } else {
      with_block_type(weight.type, [&](auto type) { launch_best<type()>(queue, device, args); });
    }
  });
}

}  // namespace orrery::cuda
