// Reads a row of weights (device/formats.h) group by group; a group is 32 columns. Reading has two steps, so that many loads are under way
// before the first one is used: load_group() loads, unpack_group() makes eight words of four codes, scales and minima:
//   weight = scale * (code - offset) - min
// Codes are bytes, for dp4a and mma. A caller subtracts the offset by the sums of the activations, or takes signed bytes (signed_codes,
// unpack_signed). unpack_products() makes words for dp4a with fewer instructions.
// One template serves all formats: an instance contains only the parts that its format has.
#pragma once

#include <type_traits>

#include "cuda/device/formats.h"
#include "cuda/device/ptx.h"
#include "cuda/device/grids.h"

namespace orrery::cuda {

template <TensorType kType>
struct Format {
  static constexpr PlaneBytes kPlanes = plane_bytes(kType);
  // Codes are indices into a table of 16 values.
  static constexpr bool kTable =
      kType == TensorType::iq4_nl || kType == TensorType::iq4_xs || kType == TensorType::nvfp4 || kType == TensorType::mxfp4;
  // Scales are floats of their own, and not small whole numbers times d.
  static constexpr bool kFloatScales = kType == TensorType::nvfp4;
  // Codes are magnitudes of a codebook with signs (device/grids.h).
  static constexpr bool kGrid = is_grid(kType);
  static constexpr bool kNibbles = kPlanes.codes == 16 && !kTable && kType != TensorType::q8_0;
  static constexpr bool kSixBits = kPlanes.block == 16;
  // true: each 16 columns have a scale. false: all 32 columns share one.
  static constexpr bool kHalves = kType == TensorType::q2_k || kType == TensorType::q3_k || kType == TensorType::q6_k ||
                                  kType == TensorType::iq2_xs || kType == TensorType::iq2_s || kType == TensorType::nvfp4;
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

// code: bytes, signed if kTable, kGrid or Q8_0. The second scale and the second min are set only if kHalves.
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

// Where a group's parts lie, in the planes of its row.
template <TensorType kType>
struct GroupPlace {
  static constexpr PlaneBytes n = Format<kType>::kPlanes;
  const std::byte *codes, *high, *group, *block;

  GroupPlace() = default;
  __device__ __forceinline__ GroupPlace(const std::byte* row, const RowPlanes& planes, int g)
      : codes(row + n.codes * g), high(row + (planes.high + n.high * g)), group(row + (planes.group + n.group * g)),
        block(row + (planes.block + n.block * static_cast<int>(static_cast<unsigned>(g) / 8))) {}
  // By n_groups, a multiple of eight.
  __device__ __forceinline__ void advance(int n_groups) {
    codes += n.codes * n_groups, high += n.high * n_groups, group += n.group * n_groups, block += n.block * (n_groups / 8);
  }
};

// Loads the group that is `ahead` of a place. `ahead`, a multiple of eight, moves all addresses by constants if it is one.
template <TensorType kType>
__device__ __forceinline__ LoadedGroup load_group(const GroupPlace<kType>& at, int ahead = 0) {
  constexpr PlaneBytes n = Format<kType>::kPlanes;
  const std::byte* const codes = at.codes + n.codes * ahead;
  const std::byte* const high = at.high + n.high * ahead;
  const std::byte* const group = at.group + n.group * ahead;
  const std::byte* const block = at.block + n.block * (ahead / 8);
  LoadedGroup out = {};
  if constexpr (n.codes == 16) out.codes = load_once(codes);
  if constexpr (n.codes == 8) {
    const uint2 words = load_once_8(codes);
    out.codes.x = words.x, out.codes.y = words.y;
  }
  if constexpr (n.codes == 4) out.codes.x = load_bytes<4>(codes);
  if constexpr (n.high == 16) out.high = load_once(high);
  if constexpr (n.high == 8) {
    const uint2 words = load_once_8(high);
    out.high.x = words.x, out.high.y = words.y;
  }
  if constexpr (n.high == 4) out.high.x = load_bytes<4>(high);
  out.group = load_bytes<n.group>(group);
  if constexpr (n.block == 16) out.block = load_at<uint4>(block);
  else if constexpr (n.block == 8) out.block.x = load_at<uint2>(block).x, out.block.y = load_at<uint2>(block).y;
  else out.block.x = load_bytes<n.block>(block);
  return out;
}

template <TensorType kType>
__device__ __forceinline__ LoadedGroup load_group(const std::byte* row, const RowPlanes& planes, int g) {
  return load_group(GroupPlace<kType>(row, planes, g));
}

// Four codes of 4 bits, in the low half of the word, become four values. One byte permutation looks up the table's lower eight values, one
// the upper eight, and a third one chooses between the two results.
template <TensorType kType>
__device__ __forceinline__ uint32_t table_values(uint32_t codes) {
  constexpr bool kE2m1 =
      kType == TensorType::nvfp4 ||
      kType == TensorType::mxfp4;  // doubled: 0 1 2 3 4 6 8 12, then the negative ones. Otherwise IQ4: -127 -104 -83 -65, ...
  constexpr uint32_t k0 = kE2m1 ? 0x03020100u : 0xBFAD9881u, k4 = kE2m1 ? 0x0C080604u : 0xF6EADDCFu;
  constexpr uint32_t k8 = kE2m1 ? 0xFDFEFF00u : 0x26190D01u, k12 = kE2m1 ? 0xF4F8FAFCu : 0x71594535u;
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
  if constexpr (F::kGrid) {
    unpack_grid<kType>({in.codes.x, in.codes.y}, in.high.x, in.group, code);
    return;
  }
  const uint32_t low[4] = {in.codes.x, in.codes.y, in.codes.z, in.codes.w};
  const uint32_t high[4] = {in.high.x, in.high.y, in.high.z, in.high.w};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t c;
    if constexpr (kType == TensorType::q8_0) c = j < 4 ? low[j % 4] : high[j % 4];
    else if constexpr (F::kTable) c = table_values<kType>(j < 4 ? low[j % 4] : low[j % 4] >> 16);
    else if constexpr (F::kPlanes.codes == 8) c = low[pair_word(j)] >> pair_bit(j) & 0x03030303u;
    else c = low[j % 4] >> (j < 4 ? 0 : 4) & 0x0F0F0F0Fu;
    if constexpr (F::kPlanes.high == 4) c |= (high[0] >> single_bit(j) & 0x01010101u) << (F::kPlanes.codes == 8 ? 2 : 4);
    if constexpr (F::kPlanes.high == 8) c |= (high[pair_word(j)] >> pair_bit(j) & 0x03030303u) << 4;
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
      const uint32_t word = kTwoBits ? low[pair_word(j)] : low[j % 4] ^ (kHigh ? 0u : turned);
      constexpr int kBits = kTwoBits ? 2 : 4, kTop = F::kPlanes.high == 8 ? 2 : kHigh ? 1 : 0;
      code[j] = moved<F::kShift>(word, kTwoBits ? pair_bit(j) : j / 4 * 4, kBits);
      if constexpr (kHigh) code[j] |= moved<8 - kTop>(high[kTop == 2 ? pair_word(j) : 0], kTop == 2 ? pair_bit(j) : single_bit(j), kTop);
    }
  }
}

// A scale is d * scale[h], a minimum dmin * min[h].
struct Factors {
  int scale[2], min[2];
  float d, dmin;
  float own[2];  // where F::kFloatScales: the scales
};
// Half of a UE4M3 number, exact: a half's exponent has another bias. Codes of E2M1 are doubled.
__device__ __forceinline__ float half_ue4m3(uint32_t x) { return (x & 0xFFu) == 0x7Fu ? 0.0f : half_from_bits((x & 0x7Fu) << 7) * 128.0f; }
template <TensorType kType>
__device__ __forceinline__ Factors unpack_factors(const LoadedGroup& in, int g) {
  using F = Format<kType>;
  Factors out = {};
  out.scale[0] = 1;
  if constexpr (F::kFloatScales) {
    out.own[0] = half_ue4m3(in.group), out.own[1] = half_ue4m3(in.group >> 8);
  } else if constexpr (F::kGrid) {
    // d times an odd number, and a power of two: exact.
    constexpr float kUnit = kType == TensorType::iq3_s ? 1.0f : kType == TensorType::iq3_xxs ? 0.25f : 0.125f;
    out.d = half_from_bits(in.block.x) * kUnit;
    const uint32_t nibbles = kType == TensorType::iq3_s    ? in.block.y >> (4 * (static_cast<unsigned>(g) % 8))
                             : kType == TensorType::iq2_xs ? in.group
                             : kType == TensorType::iq2_s  ? in.group >> 8
                                                           : in.high.x >> 28;
    out.scale[0] = static_cast<int>(2 * (nibbles & 15) + 1);
    if constexpr (F::kHalves) out.scale[1] = static_cast<int>(2 * (nibbles >> 4 & 15) + 1);
  } else if constexpr (F::kSixBits) {
    const unsigned i = static_cast<unsigned>(g) % 8;
    // Bytes 0 and 2 of a word: the nibbles of the two numbers, and the bits above them.
    const uint32_t low = __byte_perm(in.block.y, in.block.z, i / 2 * 0x0101u + 0x0400u) >> (4 * (i % 2));
    const uint32_t upper = __funnelshift_r(in.block.w, in.block.w, 2 * i + 28);
    const uint32_t both = (low & 0x000F000Fu) | (upper & 0x00300030u);
    const int first = static_cast<int>(both & 0xFFu), second = static_cast<int>(both >> 16);
    out.d = half_from_bits(in.block.x);
    if constexpr (F::kHalves) out.scale[0] = first - 32, out.scale[1] = second - 32;
    else out.scale[0] = first, out.min[0] = second, out.dmin = half_from_bits(in.block.x >> 16);
  } else if constexpr (kType == TensorType::q2_k) {
    out.d = half_from_bits(in.block.x), out.dmin = half_from_bits(in.block.x >> 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      out.scale[h] = static_cast<int>(in.group >> (8 * h) & 15);
      out.min[h] = static_cast<int>(in.group >> (8 * h + 4) & 15);
    }
  } else if constexpr (F::kPlanes.block == 2) {  // Q6_K: two signed bytes; IQ4_XS: one
    out.d = half_from_bits(in.block.x);
    out.scale[0] = static_cast<int8_t>(in.group & 0xFF);
    if constexpr (F::kHalves) out.scale[1] = static_cast<int8_t>(in.group >> 8 & 0xFF);
  } else if constexpr (kType == TensorType::mxfp4) {  // 2^(e - 127), halved: codes of E2M1 are doubled
    out.d = __uint_as_float(in.group < 2 ? 0x00200000u << in.group : (in.group - 1) << 23);
  } else {
    out.d = half_from_bits(in.group);
    if constexpr (F::kMin) out.min[0] = 1, out.dmin = -half_from_bits(in.group >> 16);
  }
  return out;
}

// Each product is rounded by itself: runtime/gguf/dequantize.h defines the order, so the compiler may not fuse operations.
template <TensorType kType>
__device__ __forceinline__ void unpack_scales(const LoadedGroup& in, int g, float* scale, float* min) {
  const Factors factors = unpack_factors<kType>(in, g);
#pragma unroll
  for (int h = 0; h < (Format<kType>::kHalves ? 2 : 1); ++h) {
    scale[h] = Format<kType>::kFloatScales ? factors.own[h] : __fmul_rn(factors.d, static_cast<float>(factors.scale[h]));
    if constexpr (Format<kType>::kMin) min[h] = __fmul_rn(factors.dmin, static_cast<float>(factors.min[h]));
  }
}

// Codes for dp4a with few instructions. Of codes with four low bits, words 4 .. 7 are 16 * these bits, unsigned, and `upper` has their
// further bits: a code is word / 16 + 16 * upper. Of other formats code is as in UnpackedGroup.
struct ProductGroup {
  uint32_t code[8], upper[4];
  Factors factors;
};
template <TensorType kType>
__device__ __forceinline__ ProductGroup unpack_products(const LoadedGroup& in, int g) {
  using F = Format<kType>;
  ProductGroup out;
  out.factors = unpack_factors<kType>(in, g);
  if constexpr (!F::kNibbles) {
    unpack_codes<kType>(in, out.code);
  } else {
    const uint32_t low[4] = {in.codes.x, in.codes.y, in.codes.z, in.codes.w}, high[2] = {in.high.x, in.high.y};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out.code[j] = low[j] & 0x0F0F0F0Fu;
      out.code[4 + j] = low[j] & 0xF0F0F0F0u;
      if constexpr (F::kPlanes.high == 4) {
        const uint32_t bits = high[0] >> single_bit(4 + j);
        out.code[j] |= bits & 0x10101010u;
        out.upper[j] = bits & 0x01010101u;
      }
      if constexpr (F::kPlanes.high == 8) {
        const uint32_t pairs = high[pair_word(j)] >> pair_bit(4 + j);
        out.code[j] |= pairs & 0x30303030u;
        out.upper[j] = pairs & 0x03030303u;
      }
    }
  }
  return out;
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
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
      break;
// clang-format off
#define ORRERY_TYPE(t) \
  case TensorType::t: f(std::integral_constant<TensorType, TensorType::t>()); break;
    ORRERY_TYPE(q8_0) ORRERY_TYPE(q4_0) ORRERY_TYPE(q4_1) ORRERY_TYPE(q5_0) ORRERY_TYPE(q5_1)
    ORRERY_TYPE(q2_k) ORRERY_TYPE(q3_k) ORRERY_TYPE(q4_k) ORRERY_TYPE(q5_k) ORRERY_TYPE(q6_k)
    ORRERY_TYPE(iq4_nl) ORRERY_TYPE(iq4_xs) ORRERY_TYPE(iq3_xxs) ORRERY_TYPE(iq3_s)
    ORRERY_TYPE(iq2_xxs) ORRERY_TYPE(iq2_xs) ORRERY_TYPE(iq2_s) ORRERY_TYPE(nvfp4) ORRERY_TYPE(mxfp4)
#undef ORRERY_TYPE
      // clang-format on
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
