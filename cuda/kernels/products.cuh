// Parts that the files of products share: which products of a list go to one launch, how a sum is stored, the gate, activations as int8,
// and the units of a row of weights.
#pragma once

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/kernels.h"

namespace orrery::cuda {

constexpr float kGeluScale = 0.79788456080286536f, kGeluCube = 0.044715f;  // sqrt(2 / pi)

// Products of one weight type. The grid's thread blocks serve the products in order.
struct Batch {
  DeviceProduct list[kMostProducts];
  int32_t first_block[kMostProducts];
  int32_t n;

  // blocks_of(product) is the number of thread blocks that a product needs. Returns the sum.
  template <class F>
  int32_t deal(const F& blocks_of) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) {
      first_block[i] = sum;
      sum += static_cast<int32_t>(blocks_of(list[i]));
    }
    return sum;
  }
  __device__ __forceinline__ int product_of(int block) const {
    int p = 0;
    while (p + 1 < n && block >= first_block[p + 1]) ++p;
    return p;
  }
};

template <class F>
void for_each_type(const Products& products, const F& f) {
  bool done[kMostProducts] = {};
  for (int i = 0; i < products.n; ++i) {
    if (done[i]) continue;
    Batch batch = {};
    for (int j = i; j < products.n; ++j) {
      if (products.list[j].weight.type != products.list[i].weight.type) continue;
      batch.list[batch.n++] = products.list[j];
      done[j] = true;
    }
    f(batch);
  }
}

__device__ __forceinline__ const std::byte* weights_of(const DeviceProduct& p) {
  return reinterpret_cast<const std::byte*>(p.weight.data.address);
}
__device__ __forceinline__ float with_bias(const DeviceProduct& p, int64_t o, float sum) {
  return p.bias ? __fadd_rn(sum, p.bias[o]) : sum;
}
// activate() of one value. x / 2 * (1 + tanh(u)) = x * sigmoid(2 u).
__device__ __forceinline__ float gated(Activation activation, float gate, float up) {
  const float inner = activation == Activation::gelu ? 2.0f * kGeluScale * fmaf(kGeluCube * gate * gate, gate, gate) : gate;
  return gate / (1.0f + expf(-inner)) * up;
}
__device__ __forceinline__ void store(const DeviceProduct& p, int64_t row, int64_t o, float sum) {
  float* out = p.out + row * p.out_stride + o;
  sum = with_bias(p, o, sum);
  *out = p.accumulate ? __fadd_rn(*out, sum) : sum;
}

// Units of a row of weights, as decode's products take them: what a lane loads at once, how it is unpacked, and how it meets a row of
// activations.
struct UnitArgs {
  int32_t lanes_log2;  // log2 of the lanes that share a row of weights
  int32_t n_units;     // units of a row: groups, or 16 bytes of floats
  int32_t n_cols;
  RowPlanes planes;
  QuantizedRows quantized;
  ConstRows x;
  bool aligned;  // rows of x are 16-byte aligned

  // The rest, from the matrix. x is set.
  void set(const Weight& weight) {
    planes = row_planes(weight.type, weight.n_cols);
    n_cols = static_cast<int32_t>(weight.n_cols);
    n_units = is_float(weight.type) ? static_cast<int32_t>(planes.bytes / 16) : n_cols / 32;
    while ((1 << lanes_log2) < (n_units < 32 ? n_units : 32)) ++lanes_log2;
    aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 4 == 0;
  }
};

// A unit of a row of quantized weights: 32 columns.
template <TensorType kType>
struct BlockUnit {
  using F = Format<kType>;
  using Loaded = LoadedGroup;
  using Weights = ProductGroup;
  struct Input {
    uint32_t q[8];
    int sums;  // two of 16 bits: of columns 0 .. 15 and 16 .. 31
    float d;
  };

  // Where a lane's units lie, of a row of weights and of a row of activations. advance(n): n is a multiple of eight.
  struct Place : GroupPlace<kType> {
    Place() = default;
    __device__ __forceinline__ Place(const std::byte* row, const UnitArgs& a, int unit) : GroupPlace<kType>(row, a.planes, unit) {}
  };
  struct InputPlace {
    const int8_t* q;
    const int16_t* sums;
    const float* d;
    InputPlace() = default;
    __device__ __forceinline__ InputPlace(const UnitArgs& a, int row, int unit)
        : q(a.quantized.q + row * a.quantized.n_padded + 32 * unit), sums(a.quantized.sums + row * (a.quantized.n_padded / 16) + 2 * unit),
          d(a.quantized.d + row * (a.quantized.n_padded / 32) + unit) {}
    __device__ __forceinline__ void advance(int n) { q += 32 * n, sums += 2 * n, d += n; }
  };

  static __device__ __forceinline__ Loaded load(const Place& at, int ahead = 0) { return load_group<kType>(at, ahead); }
  static __device__ __forceinline__ Weights unpack(const Loaded& in, int unit) { return unpack_products<kType>(in, unit); }
  static __device__ __forceinline__ Input input(const UnitArgs&, const InputPlace& at, int, int ahead = 0) {
    const uint4* q = reinterpret_cast<const uint4*>(at.q + 32 * ahead);
    const uint4 first = load_result(q), second = load_result(q + 1);
    return {{first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w},
            load_result(reinterpret_cast<const int*>(at.sums + 2 * ahead)),
            load_result(at.d + ahead)};
  }
  // n[0] * (sum of columns 0 .. 15) + n[1] * (sum of the others) + c. n: of eight bits.
  static __device__ __forceinline__ int add_sums(const Input& x, int n0, int n1, int c) {
    return __dp2a_lo(x.sums, (n0 & 0xFF) | (n1 & 0xFF) << 8, c);
  }
  // Products of whole numbers stay below 2^24, so they are exact as floats, and d * (scale * dot) is (d * scale) * dot rounded once.
  static __device__ __forceinline__ float add(float sum, const Weights& w, const Input& x) {
    int dot[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 4; ++j) dot[0] = __dp4a(static_cast<int>(w.code[j]), static_cast<int>(x.q[j]), dot[0]);
    if constexpr (F::kNibbles) {
      int sixteenths = 0, upper = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sixteenths = dot_unsigned(w.code[4 + j], x.q[4 + j], sixteenths);
        if constexpr (F::kPlanes.high != 0) upper = dot_unsigned(w.upper[j], x.q[4 + j], upper);
      }
      dot[1] = (sixteenths + upper * 256) >> 4;
    } else {
#pragma unroll
      for (int j = 4; j < 8; ++j) dot[1] = __dp4a(static_cast<int>(w.code[j]), static_cast<int>(x.q[j]), dot[1]);
    }
    const Factors& f = w.factors;
    float value;
    if constexpr (F::kHalves) {
      if constexpr (F::kOffset != 0) dot[0] = add_sums(x, -F::kOffset, 0, dot[0]), dot[1] = add_sums(x, 0, -F::kOffset, dot[1]);
      if constexpr (F::kFloatScales) {
        value = __fmul_rn(f.own[0], static_cast<float>(dot[0]));
        value = fmaf(f.own[1], static_cast<float>(dot[1]), value);
      } else {
        value = __fmul_rn(f.d, static_cast<float>(f.scale[0] * dot[0]));
        value = fmaf(f.d, static_cast<float>(f.scale[1] * dot[1]), value);
      }
      if constexpr (F::kMin) {
        value = fmaf(-f.dmin, static_cast<float>(add_sums(x, f.min[0], 0, 0)), value);
        value = fmaf(-f.dmin, static_cast<float>(add_sums(x, 0, f.min[1], 0)), value);
      }
    } else {
      int both = dot[0] + dot[1];
      if constexpr (F::kOffset != 0) both = add_sums(x, -F::kOffset, -F::kOffset, both);
      value = __fmul_rn(f.d, static_cast<float>(f.scale[0] * both));
      if constexpr (F::kMin) value = fmaf(-f.dmin, static_cast<float>(f.min[0] * add_sums(x, 1, 1, 0)), value);
    }
    return fmaf(x.d, value, sum);
  }
};

// A unit of a row of F32, F16 or BF16: 16 bytes, 4 or 8 columns. Behind the last column weights are zeros, and x is not read.
template <TensorType kType>
struct FloatUnit {
  static constexpr int kColumns = FloatFormat<kType>::kChunk;
  using Loaded = uint4;
  struct Floats {
    float v[kColumns];
  };
  using Weights = Floats;
  using Input = Floats;

  struct Place {
    const std::byte* at;
    Place() = default;
    __device__ __forceinline__ Place(const std::byte* row, const UnitArgs&, int unit) : at(row + 16 * unit) {}
    __device__ __forceinline__ void advance(int n) { at += 16 * n; }
  };
  struct InputPlace {
    const float* x;
    InputPlace() = default;
    __device__ __forceinline__ InputPlace(const UnitArgs& a, int row, int unit) : x(a.x.data + row * a.x.stride + kColumns * unit) {}
    __device__ __forceinline__ void advance(int n) { x += kColumns * n; }
  };

  static __device__ __forceinline__ Loaded load(const Place& place, int ahead = 0) { return load_once(place.at + 16 * ahead); }
  static __device__ __forceinline__ Weights unpack(const Loaded& in, int) {
    Weights out;
    unpack_floats<kType>(in, out.v);
    return out;
  }
  static __device__ __forceinline__ Input input(const UnitArgs& a, const InputPlace& place, int unit, int ahead = 0) {
    const float* x = place.x + kColumns * ahead;
    const int n = min(a.n_cols - kColumns * (unit + ahead), kColumns);
    Input out;
    if (a.aligned && n == kColumns) {
#pragma unroll
      for (int i = 0; i < kColumns; i += 4) {
        const float4 four = load_result(reinterpret_cast<const float4*>(x + i));
        out.v[i] = four.x, out.v[i + 1] = four.y, out.v[i + 2] = four.z, out.v[i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) out.v[i] = i < n ? load_result(x + i) : 0.0f;
    }
    return out;
  }
  static __device__ __forceinline__ float add(float sum, const Weights& w, const Input& x) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sum = fmaf(w.v[i], x.v[i], sum);
    return sum;
  }
};

// Quantizes activations to int8, as runtime/cpu/kernels/kernels.h defines it: with the bits that the CPU backend's plain kernels give.
// A warp quantizes columns 32 g .. 32 g + 31 of a row. Lane i has the value of column 32 g + i, or zero behind the row's end.
__device__ __forceinline__ void quantize_group(float x, const QuantizedRows& out, int64_t row, int g) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t bits = __float_as_uint(x) & 0x7FFFFFFFu;  // ordered like magnitudes; infinity and NaN are above all numbers
  for (int i = 16; i > 0; i /= 2) bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, i));
  const float largest = __uint_as_float(bits);
  const bool not_finite = bits >= 0x7F800000u, vanishes = !not_finite && largest < kSmallestBlockMax;
  const int q = not_finite || vanishes ? 0 : __float2int_rn(x * (127.0f / largest));
  int sum = q;
  for (int i = 8; i > 0; i /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, i);
  out.q[row * out.n_padded + 32 * g + lane] = static_cast<int8_t>(q);
  if (lane % 16 == 0) out.sums[row * (out.n_padded / 16) + 2 * g + lane / 16] = static_cast<int16_t>(sum);
  if (lane == 0) out.d[row * (out.n_padded / 32) + g] = not_finite ? __uint_as_float(0x7FC00000u) : vanishes ? 0.0f : largest / 127.0f;
}

}  // namespace orrery::cuda
