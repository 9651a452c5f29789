// Products of many rows, on tensor cores. Weights are read as they lie on the device. Error and cost: README.md.
//
// Quantized: a thread block has a tile of 128 rows x 128 outputs and takes 64 columns at a time, two groups. A thread unpacks one output's
// group to signed bytes in shared memory, with its factors; cp.async copies the activations. Both prepare the next 64 columns while these
// are multiplied, int8 by int8: sum += x_d * (w_scale * dot) (- x_d * x_sum * w_min). Smaller tiles serve fewer rows and fewer outputs
// (launch_best). F16, BF16: tiles of 64 x 64; a float activation becomes two halves, hi + lo, and so two products. F32: tiles of 64 x 64
// on float units, because TF32 keeps only 11 bits.
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
  const float* scales;   // F16: (n_rows) powers of two
  int32_t n_rows, n_cols;
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
  static constexpr int kBlocks = kBlocks_;   // thread blocks of an SM, which share its registers
  // Issue slots of a warp for a tensor product of Q4_K, roughly.
  static constexpr int kSlots = kWarpOuts == 16 ? 40 : kRows == 64 ? 28 : 21;
};
using SmallTile = Tile<32, 64, 32, 16, 3>;
using HalfTile = Tile<64, 64, 32, 32, 3>;
using MiddleTile = HalfTile;
// With two scales for 32 columns a warp of a large tile would take more than 255 registers.
template <TensorType kType>
using LargeTile = std::conditional_t<Format<kType>::kHalves, MiddleTile, Tile<128, 128, 64, 32, 1>>;

// The place of a thread's sums: acc[m][n][j] is row 16 m + 8 (j / 2) + lane / 4, output 8 n + 2 (lane % 4) + j % 2 of the warp's part.
template <class T>
struct Place {
  int first_row, first_out;   // of the thread block
  int row, out;               // of the warp, within the thread block

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
      for (int i = 0; i < 2; ++i) {   // one address at a time, because 64 addresses at once exceed the registers
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

// ---- quantized weights

constexpr int kStepGroups = 2;   // groups of 32 columns in a step

// Sums of a tensor product start here: the bits of 1.5 * 2^23, where the last place of a float counts ones. A sum of integers that moves by
// at most 2^22 from here is the float kMagicValue + dot.
constexpr int32_t kMagic = 0x4B400000;
constexpr float kMagicValue = 12582912.0f;

// Factors lie as a thread of multiply() loads them: those of a row side by side, and those of two neighbouring outputs.
template <class T, TensorType kType>
struct BlockStage {
  static constexpr int kHalves = Format<kType>::kHalves ? 2 : 1, kMins = Format<kType>::kMin ? kHalves : 0;
  static constexpr int kRowFactors = kMins == 2 ? 4 : 1 + kMins;   // d, then -d * sum of the group or of each half
  alignas(16) std::byte x[T::kRows * kRowBytes];
  alignas(16) std::byte w[T::kOuts * kRowBytes];
  alignas(16) float rows[kStepGroups][T::kRows][kRowFactors];
  alignas(16) float scales[kStepGroups][T::kOuts / 2][4];          // of the group or its first half; then -kMagicValue * scale
  alignas(8) float more[kHalves - 1 + kMins ? kHalves - 1 + kMins : 1][kStepGroups][T::kOuts / 2][2];   // second scale; minima
};

// A thread's loads from memory for a step: one output's group; the scale and the sums of one row's group. The first threads of a block have
// outputs, the last ones have rows.
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

template <class T, TensorType kType>
__device__ __forceinline__ void fetch(const PrefillArgs& a, const Place<T>& at, const DeviceProduct& p, int step, Fetched* out) {
  using U = Units<T>;
  const int group = kStepGroups * step + U::group(), o = at.first_out + U::out(), r = at.first_row + U::row();
  if (U::has_out() && o < p.weight.n_rows && group < a.n_cols / 32)
    out->group = load_group<kType>(weights_of(p) + o * a.planes.bytes, a.planes, group);
  if (U::has_row() && r < a.n_rows) {   // a group behind the row's end is padding
    out->d = __ldg(a.quantized.d + r * (a.quantized.n_padded / 32) + group);
    out->sums = __ldg(reinterpret_cast<const uint32_t*>(a.quantized.sums + r * (a.quantized.n_padded / 16) + 2 * group));
  }
}

template <class T, TensorType kType>
__device__ __forceinline__ void fetch_rows(const PrefillArgs& a, const Place<T>& at, int step, BlockStage<T, kType>* stage) {
#pragma unroll
  for (int k = 0; k < T::kRows * kPieces / T::kThreads; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * T::kThreads, row = i / kPieces, piece = i % kPieces;
    const bool valid = at.first_row + row < a.n_rows;
    const int from = valid ? at.first_row + row : 0;
    copy_async_16(stage->x + piece_at(row, piece), a.quantized.q + from * a.quantized.n_padded + kRowBytes * step + 16 * piece, valid ? 16 : 0);
  }
  copy_async_commit();
}

template <class T, TensorType kType>
__device__ __forceinline__ void unpack_out(const PrefillArgs& a, const Place<T>& at, const DeviceProduct& p, int step, const LoadedGroup& in,
                                           BlockStage<T, kType>* stage) {
  using S = BlockStage<T, kType>;
  const int i = Units<T>::out(), g = Units<T>::group(), group = kStepGroups * step + g;
  const bool valid = at.first_out + i < p.weight.n_rows && group < a.n_cols / 32;
  const UnpackedGroup w = unpack_group<kType>(in, group);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* code = w.code + 4 * half;
    uint4 bytes = {0, 0, 0, 0};
    if (valid)
      bytes = {signed_codes<kType>(code[0]), signed_codes<kType>(code[1]), signed_codes<kType>(code[2]), signed_codes<kType>(code[3])};
    *reinterpret_cast<uint4*>(stage->w + piece_at(i, 2 * g + half)) = bytes;
  }
  const float scale = valid ? w.scale[0] : 0.0f;
  stage->scales[g][i / 2][i % 2] = scale;
  stage->scales[g][i / 2][2 + i % 2] = __fmul_rn(-kMagicValue, scale);
  if constexpr (S::kHalves == 2) stage->more[0][g][i / 2][i % 2] = valid ? w.scale[1] : 0.0f;
#pragma unroll
  for (int h = 0; h < S::kMins; ++h) stage->more[S::kHalves - 1 + h][g][i / 2][i % 2] = valid ? w.min[h] : 0.0f;
}

template <class T, TensorType kType>
__device__ __forceinline__ void unpack_row(const PrefillArgs& a, const Place<T>& at, float d, uint32_t sums, BlockStage<T, kType>* stage) {
  using S = BlockStage<T, kType>;
  const int i = Units<T>::row();
  float* to = stage->rows[Units<T>::group()][i];
  if (at.first_row + i >= a.n_rows) d = 0.0f;
  const int first = static_cast<int16_t>(sums & 0xFFFFu), second = static_cast<int16_t>(sums >> 16);
  if constexpr (S::kMins == 0) *to = d;
  else if constexpr (S::kMins == 1) *reinterpret_cast<float2*>(to) = {d, __fmul_rn(-d, static_cast<float>(first + second))};
  else *reinterpret_cast<float4*>(to) = {d, __fmul_rn(-d, static_cast<float>(first)), __fmul_rn(-d, static_cast<float>(second)), 0.0f};
}

template <class T, TensorType kType>
__device__ __forceinline__ void unpack(const PrefillArgs& a, const Place<T>& at, const DeviceProduct& p, int step, const Fetched& in,
                                       BlockStage<T, kType>* stage) {
  if (Units<T>::has_out()) unpack_out(a, at, p, step, in.group, stage);
  if (Units<T>::has_row()) unpack_row(a, at, in.d, in.sums, stage);
}

// sum += x_d * w_scale * dot - x_sum * w_min, of one group. (kMagicValue + dot) * scale - kMagicValue * scale is scale * dot, rounded once: a
// scale has at most 19 bits, so the second product is exact.
template <class T, TensorType kType>
__device__ __forceinline__ void multiply(const BlockStage<T, kType>& stage, const Place<T>& at, int g, const int32_t* magic,
                                         float (&acc)[T::kWarpRows / 16][T::kWarpOuts / 8][4]) {
  using S = BlockStage<T, kType>;
  constexpr int kM = T::kWarpRows / 16, kPairs = T::kWarpOuts / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t x[kM][4];
  float rows[kM][2][S::kRowFactors];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    load_a(x[m], stage.x, at.row + 16 * m, 2 * g);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* from = stage.rows[g][at.row + 16 * m + 8 * i + lane / 4];
      if constexpr (S::kMins == 0) {
        rows[m][i][0] = *from;
      } else if constexpr (S::kMins == 1) {
        const float2 two = *reinterpret_cast<const float2*>(from);
        rows[m][i][0] = two.x, rows[m][i][1] = two.y;
      } else {
        const float4 four = *reinterpret_cast<const float4*>(from);
        rows[m][i][0] = four.x, rows[m][i][1] = four.y, rows[m][i][2] = four.z;
      }
    }
  }
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint32_t w[4];
    load_b(w, stage.w, at.out + 16 * pair, 2 * g);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int outs = at.out / 2 + 8 * pair + 4 * n + lane % 4;
      const float4 scales = *reinterpret_cast<const float4*>(stage.scales[g][outs]);
      float2 more[S::kHalves - 1 + S::kMins ? S::kHalves - 1 + S::kMins : 1];
#pragma unroll
      for (int i = 0; i < S::kHalves - 1 + S::kMins; ++i) more[i] = *reinterpret_cast<const float2*>(stage.more[i][g][outs]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        int32_t dot[S::kHalves][4];
        if constexpr (S::kHalves == 2) {
          mma_s8_k16(dot[0], x[m], w[2 * n], magic);
          mma_s8_k16(dot[1], x[m] + 2, w[2 * n + 1], magic);
        } else {
          mma_s8(dot[0], x[m], w + 2 * n, magic);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& sum = acc[m][2 * pair + n][j];
          const float* factors = rows[m][j / 2];
          float value = fmaf(__int_as_float(dot[0][j]), j % 2 ? scales.y : scales.x, j % 2 ? scales.w : scales.z);
          if constexpr (S::kHalves == 2)
            value = fmaf(__fadd_rn(__int_as_float(dot[1][j]), -kMagicValue), j % 2 ? more[0].y : more[0].x, value);
          sum = fmaf(factors[0], value, sum);
#pragma unroll
          for (int h = 0; h < S::kMins; ++h) {
            const float2& min = more[S::kHalves - 1 + h];
            sum = fmaf(factors[1 + h], j % 2 ? min.y : min.x, sum);
          }
        }
      }
    }
  }
}

template <class T, TensorType kType>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) matmul_blocks_kernel(const __grid_constant__ PrefillArgs a) {
  __shared__ BlockStage<T, kType> stages[2];
  const int p = a.products.product_of(static_cast<int>(blockIdx.y));
  const DeviceProduct& product = a.products.list[p];
  const Place<T> at(a.products, p);
  float acc[T::kWarpRows / 16][T::kWarpOuts / 8][4] = {};
  Fetched fetched = {};
  const int32_t magic[4] = {kMagic, kMagic, kMagic, kMagic};
  const int n_steps = (a.n_cols / 32 + kStepGroups - 1) / kStepGroups;
  fetch_rows(a, at, 0, &stages[0]);
  fetch<T, kType>(a, at, product, 0, &fetched);
  unpack(a, at, product, 0, fetched, &stages[0]);
  copy_async_wait<0>();
  __syncthreads();
  for (int step = 0; step < n_steps; ++step) {
    BlockStage<T, kType>* next = &stages[(step + 1) % 2];   // no warp reads it: all have passed the barrier since
    const bool more = step + 1 < n_steps;
    if (more) {
      fetch_rows(a, at, step + 1, next);
      fetch<T, kType>(a, at, product, step + 1, &fetched);
    }
    __syncwarp();   // lanes may have diverged at a matrix's end
#pragma unroll 1
    for (int g = 0; g < kStepGroups; ++g) multiply(stages[step % 2], at, g, magic, acc);
    if (more) unpack(a, at, product, step + 1, fetched, next);
    copy_async_wait<0>();
    __syncthreads();
  }
  at.store_all(a, product, [&](int, int m, int n, int j) { return acc[m][n][j]; });
}

// ---- F16 and BF16

struct HalfStage {
  alignas(16) std::byte x[2][HalfTile::kRows * kRowBytes];   // hi, lo
  alignas(16) std::byte w[HalfTile::kOuts * kRowBytes];
};
constexpr int kHalfColumns = kRowBytes / 2;                                                   // columns of a step
constexpr int kHalfPairs = HalfTile::kRows * kHalfColumns / 2 / HalfTile::kThreads;           // pairs of columns for each thread

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
    *lo = (rest + 0x7FFFu + (rest >> 16 & 1)) >> 16;   // rounds to nearest; hi keeps a NaN
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
    const uint32_t power = 254u - (__float_as_uint(__ldg(a.scales + row)) >> 23);   // 1 / scale
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
  static constexpr int kTile = 64, kThreads = 256, kColumns = 16, kOf = 4;   // a thread has kOf x kOf products
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
void launch_best(Queue& queue, const DeviceShape& device, const PrefillArgs& a) {
  const int64_t small = slots<SmallTile>(a, device), middle = slots<MiddleTile>(a, device);
  const int64_t large = slots<LargeTile<kType>>(a, device);
  if (large <= middle && large <= small) launch_blocks<LargeTile<kType>, kType>(queue, a);
  else if (middle <= small) launch_blocks<MiddleTile, kType>(queue, a);
  else launch_blocks<SmallTile, kType>(queue, a);
}

}  // namespace matmul_prefill_cu
using namespace matmul_prefill_cu;

void matmul_prefill(Queue& queue, const DeviceShape& device, const Products& products, ConstRows x, const QuantizedRows& quantized,
                    int32_t n_rows) {
  bool scaled = false;
  for_each_type(products, [&](const Batch& batch) {
    const Weight& weight = batch.list[0].weight;
    PrefillArgs args = {};
    args.products = batch;
    args.planes = row_planes(weight.type, weight.n_cols);
    args.quantized = quantized;
    args.x = x;
    args.scales = quantized.scales;
    args.n_rows = n_rows;
    args.n_cols = static_cast<int32_t>(weight.n_cols);
    if (weight.type == TensorType::f16 && !scaled) {
      launch<row_scales_kernel>(queue, {Dim3(static_cast<unsigned>(n_rows)), Dim3(256)}, x, args.n_cols, quantized.scales);
      scaled = true;
    }
    if (weight.type == TensorType::f32) {
      launch<matmul_floats_kernel>(queue, tiles(&args, FloatGeometry::kTile, FloatGeometry::kTile, FloatGeometry::kThreads), args);
    } else if (is_float(weight.type)) {
      const Geometry geometry = tiles(&args, HalfTile::kRows, HalfTile::kOuts, HalfTile::kThreads);
      if (weight.type == TensorType::f16)
        launch<matmul_halves_kernel<TensorType::f16>>(queue, geometry, args);
      else
        launch<matmul_halves_kernel<TensorType::bf16>>(queue, geometry, args);
    } else {
      with_block_type(weight.type, [&](auto type) {
        launch_best<type()>(queue, device, args);
      });
    }
  });
}

}  // namespace orrery::cuda
