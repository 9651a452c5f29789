// Reads a row of weights (device/formats.h) group by group; a group is 32 columns. Reading has two steps, so that many loads are under way
// before the first one is used: load_group() loads, unpack_group() makes eight words of four codes, scales and minima:
//   weight = scale * (code - offset) - min
// Codes are bytes, for dp4a and mma. A caller subtracts the offset by the sums of the activations, or takes signed bytes (signed_codes,
// unpack_signed).
// One template serves all twelve formats: an instance contains only the parts that its format has.
#pragma once

#include <type_traits>

#include "cuda/device/formats.h"
#include "cuda/kernels/ptx.h"

namespace orrery::cuda {

template <TensorType kType>
struct Format {
  static constexpr PlaneBytes kPlanes = plane_bytes(kType);
  // Codes are indices into a table of 16 values.
  static constexpr bool kTable = kType == TensorType::iq4_nl || kType == TensorType::iq4_xs;
  static constexpr bool kSixBits = kPlanes.block == 16;
  // true: each 16 columns have a scale. false: all 32 columns share one.
  static constexpr bool kHalves = kType == TensorType::q2_k || kType == TensorType::q3_k || kType == TensorType::q6_k;
  static constexpr bool kMin = kType == TensorType::q4_1 || kType == TensorType::q5_1 || kType == TensorType::q2_k ||
                               kType == TensorType::q4_k || kType == TensorType::q5_k;
  static constexpr int kOffset = kType == TensorType::q4_0   ? 8
                                 : kType == TensorType::q5_0 ? 16
                                 : kType == TensorType::q3_k ? 4
                                 : kType == TensorType::q6_k ? 32
                                                             : 0;
  // Codes with an offset are signed bytes at the tensor cores, with their bits at the top: zeros below.
  static constexpr int kShift = kOffset == 8 ? 4 : kOffset == 16 ? 3 : kOffset == 4 ? 5 : kOffset == 32 ? 2 : 0;
};

struct LoadedGroup {
  uint4 codes, high, block;
  uint32_t group;
};

// code: bytes, signed if kTable or Q8_0. The second scale and the second min are set only if kHalves.
struct UnpackedGroup {
  uint32_t code[8];
  float scale[2], min[2];
};

__device__ __forceinline__ float half_from_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits & 0xFFFFu)));
}

template <class T>
__device__ __forceinline__ T load_at(const std::byte* p) {
  return __ldg(reinterpret_cast<const T*>(p));
}
// Loads n = 0, 1, 2 or 4 bytes. They stay in the first-level cache, because neighbouring lanes read them, too.
template <int n>
__device__ __forceinline__ uint32_t load_bytes(const std::byte* p) {
  if constexpr (n == 1) return load_at<uint8_t>(p);
  if constexpr (n == 2) return load_at<uint16_t>(p);
  if constexpr (n == 4) return load_at<uint32_t>(p);
  return 0;
}

// Loads group g + ahead. `ahead`, a multiple of eight, moves all addresses by constants if it is one.
template <TensorType kType>
__device__ __forceinline__ LoadedGroup load_group(const std::byte* row, const RowPlanes& planes, int g, int ahead = 0) {
  constexpr PlaneBytes n = Format<kType>::kPlanes;
  const std::byte* const codes = row + n.codes * g + n.codes * ahead;
  const std::byte* const high = row + (planes.high + n.high * g) + n.high * ahead;
  const std::byte* const group = row + (planes.group + n.group * g) + n.group * ahead;
  const std::byte* const block = row + (planes.block + n.block * static_cast<int>(static_cast<unsigned>(g) / 8)) + n.block * (ahead / 8);
  LoadedGroup out = {};
  if constexpr (n.codes == 16) out.codes = load_once(codes);
  if constexpr (n.codes == 8) {
    const uint2 words = load_once_8(codes);
    out.codes.x = words.x, out.codes.y = words.y;
  }
  if constexpr (n.high == 16) out.high = load_once(high);
  if constexpr (n.high == 8) {
    const uint2 words = load_once_8(high);
    out.high.x = words.x, out.high.y = words.y;
  }
  if constexpr (n.high == 4) out.high.x = load_bytes<4>(high);
  out.group = load_bytes<n.group>(group);
  if constexpr (n.block == 16) out.block = load_at<uint4>(block);
  else out.block.x = load_bytes<n.block>(block);
  return out;
}

// Four codes of 4 bits, in the low half of the word, become four values. One byte permutation looks up the table's lower eight values, one
// the upper eight, and a third one chooses between the two results.
__device__ __forceinline__ uint32_t table_values(uint32_t codes) {
  constexpr uint32_t k0 = 0xBFAD9881u, k4 = 0xF6EADDCFu, k8 = 0x26190D01u, k12 = 0x71594535u;   // -127 -104 -83 -65, ...
  const uint32_t lower = codes & 0x77777777u;
  const uint32_t upper_half = 0x32103210u | (codes & 0x88888888u) >> 1;
  return __byte_perm(__byte_perm(k0, k4, lower), __byte_perm(k8, k12, lower), upper_half);
}

// Bits from .. from + n - 1 of each byte, at place kTo.
template <int kTo>
__device__ __forceinline__ uint32_t moved(uint32_t word, int from, int n) {
  return (from > kTo ? word >> (from - kTo) : word << (kTo - from)) & ((1u << n) - 1) * (0x01010101u << kTo);
}

template <TensorType kType>
__device__ __forceinline__ void unpack_codes(const LoadedGroup& in, uint32_t* code) {
  using F = Format<kType>;
  const uint32_t low[4] = {in.codes.x, in.codes.y, in.codes.z, in.codes.w};
  const uint32_t high[4] = {in.high.x, in.high.y, in.high.z, in.high.w};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t c;
    if constexpr (kType == TensorType::q8_0)
      c = j < 4 ? low[j % 4] : high[j % 4];
    else if constexpr (F::kTable)
      c = table_values(j < 4 ? low[j % 4] : low[j % 4] >> 16);
    else if constexpr (F::kPlanes.codes == 8)
      c = low[j / 4] >> (2 * (j % 4)) & 0x03030303u;
    else
      c = low[j % 4] >> (j < 4 ? 0 : 4) & 0x0F0F0F0Fu;
    if constexpr (F::kPlanes.high == 4) c |= (high[0] >> j & 0x01010101u) << (F::kPlanes.codes == 8 ? 2 : 4);
    if constexpr (F::kPlanes.high == 8) c |= (high[j / 4] >> (2 * (j % 4)) & 0x03030303u) << 4;
    code[j] = c;
  }
}

// code - offset in each byte. Codes and offsets are below 128, so no borrow passes from byte to byte.
template <TensorType kType>
__device__ __forceinline__ uint32_t signed_codes(uint32_t code) {
  constexpr uint32_t kOffsets = Format<kType>::kOffset * 0x01010101u;
  return Format<kType>::kOffset == 0 ? code : ((code | 0x80808080u) - kOffsets) ^ 0x80808080u;
}

// (code - offset) * 2^kShift in each byte: a code's bits lie at the byte's top, and the highest one is the sign, turned around.
template <TensorType kType>
__device__ __forceinline__ void unpack_signed(const LoadedGroup& in, uint32_t* code) {
  using F = Format<kType>;
  if constexpr (F::kShift == 0) {
    unpack_codes<kType>(in, code);
  } else {
    constexpr bool kHigh = F::kPlanes.high != 0;
    const uint32_t turned = F::kPlanes.high == 8 ? 0xAAAAAAAAu : kHigh ? 0xFFFFFFFFu : 0x88888888u;
    const uint32_t low[4] = {in.codes.x, in.codes.y, in.codes.z, in.codes.w};
    const uint32_t high[2] = {in.high.x ^ turned, in.high.y ^ turned};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      // The lower bits' word, their place in its bytes and their number; then the upper ones'.
      constexpr bool kTwoBits = F::kPlanes.codes == 8;
      const uint32_t word = kTwoBits ? low[j / 4] : low[j % 4] ^ (kHigh ? 0u : turned);
      constexpr int kBits = kTwoBits ? 2 : 4, kTop = F::kPlanes.high == 8 ? 2 : kHigh ? 1 : 0;
      code[j] = moved<F::kShift>(word, kTwoBits ? 2 * (j % 4) : j / 4 * 4, kBits);
      if constexpr (kHigh) code[j] |= moved<8 - kTop>(high[kTop == 2 ? j / 4 : 0], kTop == 2 ? 2 * (j % 4) : j, kTop);
    }
  }
}

// Each product is rounded by itself: runtime/gguf/dequantize.h defines the order, so the compiler may not fuse operations.
template <TensorType kType>
__device__ __forceinline__ void unpack_scales(const LoadedGroup& in, int g, float* scale, float* min) {
  using F = Format<kType>;
  if constexpr (F::kSixBits) {
    const int i = static_cast<int>(static_cast<unsigned>(g) % 8);
    const uint32_t low = (i < 4 ? in.block.y : in.block.z) >> (8 * (i % 4)), upper = in.block.w >> (4 * i);
    const int first = static_cast<int>((low & 15) | (upper & 3) << 4), second = static_cast<int>((low >> 4 & 15) | (upper & 12) << 2);
    const float d = half_from_bits(in.block.x);
    if constexpr (F::kHalves) {
      scale[0] = __fmul_rn(d, static_cast<float>(first - 32));
      scale[1] = __fmul_rn(d, static_cast<float>(second - 32));
    } else {
      scale[0] = __fmul_rn(d, static_cast<float>(first));
      min[0] = __fmul_rn(half_from_bits(in.block.x >> 16), static_cast<float>(second));
    }
  } else if constexpr (kType == TensorType::q2_k) {
    const float d = half_from_bits(in.block.x), dmin = half_from_bits(in.block.x >> 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = __fmul_rn(d, static_cast<float>(in.group >> (8 * h) & 15));
      min[h] = __fmul_rn(dmin, static_cast<float>(in.group >> (8 * h + 4) & 15));
    }
  } else if constexpr (F::kPlanes.block == 2) {   // Q6_K: two signed bytes; IQ4_XS: one
    const float d = half_from_bits(in.block.x);
    scale[0] = __fmul_rn(d, static_cast<float>(static_cast<int8_t>(in.group & 0xFF)));
    if constexpr (F::kHalves) scale[1] = __fmul_rn(d, static_cast<float>(static_cast<int8_t>(in.group >> 8 & 0xFF)));
  } else {
    scale[0] = half_from_bits(in.group);
    if constexpr (F::kMin) min[0] = -half_from_bits(in.group >> 16);
  }
}

template <TensorType kType>
__device__ __forceinline__ UnpackedGroup unpack_group(const LoadedGroup& in, int g) {
  UnpackedGroup out;
  unpack_codes<kType>(in, out.code);
  unpack_scales<kType>(in, g, out.scale, out.min);
  return out;
}

// On the host: calls f(std::integral_constant<TensorType, type>) if the type is quantized.
template <class F>
void with_block_type(TensorType type, const F& f) {
  switch (type) {
#define ORRERY_TYPE(t) \
  case TensorType::t: f(std::integral_constant<TensorType, TensorType::t>()); break;
    ORRERY_TYPE(q8_0) ORRERY_TYPE(q4_0) ORRERY_TYPE(q4_1) ORRERY_TYPE(q5_0) ORRERY_TYPE(q5_1) ORRERY_TYPE(q2_k)
    ORRERY_TYPE(q3_k) ORRERY_TYPE(q4_k) ORRERY_TYPE(q5_k) ORRERY_TYPE(q6_k) ORRERY_TYPE(iq4_nl) ORRERY_TYPE(iq4_xs)
#undef ORRERY_TYPE
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16: break;
  }
}
template <class F>
void with_float_type(TensorType type, const F& f) {
  if (type == TensorType::f32) f(std::integral_constant<TensorType, TensorType::f32>());
  if (type == TensorType::f16) f(std::integral_constant<TensorType, TensorType::f16>());
  if (type == TensorType::bf16) f(std::integral_constant<TensorType, TensorType::bf16>());
}

// A row of F32, F16 or BF16 is read in chunks of 16 bytes.
template <TensorType kType>
struct FloatFormat {
  static constexpr int kBytes = kType == TensorType::f32 ? 4 : 2;
  static constexpr int kChunk = 16 / kBytes;
};
template <TensorType kType>
__device__ __forceinline__ void unpack_floats(const uint4& in, float* out) {
  const uint32_t words[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if constexpr (kType == TensorType::f32) {
      out[j] = __uint_as_float(words[j]);
    } else if constexpr (kType == TensorType::bf16) {
      out[2 * j] = __uint_as_float(words[j] << 16);
      out[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000u);
    } else {
      out[2 * j] = half_from_bits(words[j]);
      out[2 * j + 1] = half_from_bits(words[j] >> 16);
    }
  }
}

}  // namespace orrery::cuda
