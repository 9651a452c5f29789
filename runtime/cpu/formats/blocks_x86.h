// The quantized formats in AVX2 registers. `Unpacked` holds 256 weights: codes as bytes in column order, scales and minima as
// floats, and for groups of 16 also the small integers that scales and minima are made of.
//
// weight = scale * (code - kOffset) - min. Codes are unsigned and below 64, or signed (kSigned). Eight blocks of a 32-weight format
// are read at a time, or the last ones of a row (unpack_part()). The AVX2 and the AVX-512 kernels share this file, because 128 to 256 bits
// are the natural width of these layouts. It needs AVX2 and F16C. Loads never leave the blocks.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace orrery::cpu {
namespace {

struct Unpacked {
  __m256i q[8];     // 32 codes each
  __m256 scale[2];  // one for each group: 8 groups of 32 in [0], or 16 groups of 16
  __m256 min[2];
  // For groups of 16: scale = d * scale8, min = dmin * min8, with signed bytes scale8 and min8.
  __m128i scale8, min8;
  float d, dmin;
};

inline __m256i bytes32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i bytes16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
template <class T>
inline T word(const uint8_t* p) {
  T w;
  __builtin_memcpy(&w, p, sizeof w);
  return w;
}
inline float half_value(const uint8_t* p) { return _cvtsh_ss(word<uint16_t>(p)); }

inline float sum256(__m256 x) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
inline float max256(__m256 x) {
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
inline double sum256(__m256d x) {
  const __m128d a = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
  return _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a)));
}

// The halves at the start of eight blocks of at least 16 bytes. Whole loads are interleaved, because inserting each half takes two
// operations.
inline __m256 eight_halves(const uint8_t* p, int stride) {
  const auto two = [&](int i) { return _mm_unpacklo_epi16(bytes16(p + i * stride), bytes16(p + (i + 1) * stride)); };
  const auto four = [&](int i) { return _mm_unpacklo_epi32(two(i), two(i + 2)); };
  return _mm256_cvtph_ps(_mm_unpacklo_epi64(four(0), four(4)));
}
// Eight bytes as floats, times d.
inline __m256 scaled_bytes(uint64_t bytes, float d) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(d));
}
inline __m256 scaled_words(__m256i dwords, float d) { return _mm256_mul_ps(_mm256_cvtepi32_ps(dwords), _mm256_set1_ps(d)); }
// Sixteen signed bytes, times d.
inline void scaled_signed_bytes(__m128i bytes, float d, __m256* out) {
  out[0] = scaled_words(_mm256_cvtepi8_epi32(bytes), d);
  out[1] = scaled_words(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)), d);
}

inline __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
// 16 bytes: low nibbles, then high nibbles.
inline __m256i nibbles32(const uint8_t* p) {
  const __m256i twice = _mm256_broadcastsi128_si256(bytes16(p));
  return low_nibbles(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)));
}
// Bit i of every byte, moved to bit `to`.
template <int kBit, int kTo>
inline __m256i bit(__m256i x) {
  constexpr int kLeft = kTo > kBit ? kTo - kBit : 0, kRight = kBit > kTo ? kBit - kTo : 0;
  return _mm256_and_si256(_mm256_srli_epi16(_mm256_slli_epi16(x, kLeft), kRight), _mm256_set1_epi8(1 << kTo));
}
// For each bit of a 32-bit word: byte i is 16 where bit i is set.
inline __m256i fifth_bits(const uint8_t* p) {
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word<int32_t>(p)),
                                            _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i each = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}
inline __m128i codebook_values() { return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113); }
inline __m256i codebook(__m256i nibbles) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codebook_values()), nibbles); }
inline __m256 negated(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }

// kBytes: bytes of 256 weights. kBlock: weights in a block of the format.
template <int kBytesValue, int kBlockValue, int kGroupValue, int kOffsetValue, bool kSignedValue, bool kHasMinValue>
struct FormatTraits {
  static constexpr int kBytes = kBytesValue, kBlock = kBlockValue, kGroup = kGroupValue, kOffset = kOffsetValue;
  static constexpr bool kSigned = kSignedValue, kHasMin = kHasMinValue;
};

// The formats with blocks of 32. Block::codes(p) gives the 32 codes of a block. The half at the block's start is its scale,
// and the next one, negated, its minimum.
template <class Block, class Traits>
struct Blocks32 : Traits {
  static constexpr int kBlockBytes = Traits::kBytes / 8;
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int i = 0; i < 8; ++i) u.q[i] = Block::codes(p + kBlockBytes * i);
    u.scale[0] = eight_halves(p, kBlockBytes);
    if (Traits::kHasMin) u.min[0] = negated(eight_halves(p + 2, kBlockBytes));
  }
  // The last n < 8 blocks of a row, then zeros.
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    alignas(32) float scale[8] = {}, min[8] = {};
    for (int i = 0; i < 8; ++i) u.q[i] = _mm256_setzero_si256();
    for (int i = 0; i < n; ++i, p += kBlockBytes) {
      u.q[i] = Block::codes(p);
      scale[i] = half_value(p);
      if (Traits::kHasMin) min[i] = -half_value(p + 2);
    }
    u.scale[0] = _mm256_load_ps(scale);
    u.min[0] = _mm256_load_ps(min);
  }
};

struct Q8_0 : Blocks32<Q8_0, FormatTraits<8 * 34, 32, 32, 0, true, false>> {
  static __m256i codes(const uint8_t* p) { return bytes32(p + 2); }
};

struct Q4_0 : Blocks32<Q4_0, FormatTraits<8 * 18, 32, 32, 8, false, false>> {
  static __m256i codes(const uint8_t* p) { return nibbles32(p + 2); }
};

struct Q4_1 : Blocks32<Q4_1, FormatTraits<8 * 20, 32, 32, 0, false, true>> {
  static __m256i codes(const uint8_t* p) { return nibbles32(p + 4); }
};

struct Q5_0 : Blocks32<Q5_0, FormatTraits<8 * 22, 32, 32, 16, false, false>> {
  static __m256i codes(const uint8_t* p) { return _mm256_or_si256(nibbles32(p + 6), fifth_bits(p + 2)); }
};

struct Q5_1 : Blocks32<Q5_1, FormatTraits<8 * 24, 32, 32, 0, false, true>> {
  static __m256i codes(const uint8_t* p) { return _mm256_or_si256(nibbles32(p + 8), fifth_bits(p + 4)); }
};

struct Iq4Nl : Blocks32<Iq4Nl, FormatTraits<8 * 18, 32, 32, 0, true, false>> {
  static __m256i codes(const uint8_t* p) { return codebook(nibbles32(p + 2)); }
};

// Blocks of 64, whose scales are small floats: one for each 16 weights.
inline __m128i e2m1_values() { return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }
// Halves of sixteen UE4M3 numbers, because codes are doubled. A half has another bias for its exponent.
inline void half_ue4m3(__m128i bytes, __m256* out) {
  const __m128i numbers = _mm_andnot_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x7F)), _mm_and_si128(bytes, _mm_set1_epi8(0x7F)));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(numbers), 7);
  out[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_set1_ps(128.0f));
  out[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), _mm256_set1_ps(128.0f));
}

struct Nvfp4 : FormatTraits<4 * 36, 64, 16, 0, true, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int i = 0; i < 4; ++i) codes(p + 36 * i, u.q + 2 * i);
    const auto scales = [&](int i) { return word<int32_t>(p + 36 * i); };
    half_ue4m3(_mm_setr_epi32(scales(0), scales(1), scales(2), scales(3)), u.scale);
  }
  // The last n < 4 blocks of a row, then zeros.
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    alignas(16) int32_t scales[4] = {};
    for (__m256i& q : u.q) q = _mm256_setzero_si256();
    for (int i = 0; i < n; ++i, p += 36) {
      codes(p, u.q + 2 * i);
      scales[i] = word<int32_t>(p);
    }
    half_ue4m3(bytes16(reinterpret_cast<const uint8_t*>(scales)), u.scale);
  }

 private:
  // Of a block: eight bytes for each 16 codes, the first eight in the low nibbles.
  static void codes(const uint8_t* p, __m256i* q) {
    const __m256i x = bytes32(p + 4), low = low_nibbles(x), high = high_nibbles(x);
    const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);  // groups 0 and 2, 1 and 3
    const __m256i values = _mm256_broadcastsi128_si256(e2m1_values());
    q[0] = _mm256_shuffle_epi8(values, _mm256_permute2x128_si256(even, odd, 0x20));
    q[1] = _mm256_shuffle_epi8(values, _mm256_permute2x128_si256(even, odd, 0x31));
  }
};

// Eight powers 2^(e - 128), from e in dwords.
inline __m256 halved_powers(__m256i e) {
  const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e),
                normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, denormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

// The values are doubled, and 12 more: codes of five bits without a sign, whose products are summed in 16 bits.
struct Mxfp4 : FormatTraits<8 * 17, 32, 32, 12, false, false> {
  static __m128i table() { return _mm_add_epi8(e2m1_values(), _mm_set1_epi8(12)); }
  static __m256i values(__m256i nibbles) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table()), nibbles); }
  static void unpack(const uint8_t* p, Unpacked& u) { unpack_part(p, 8, u); }
  // The last n <= 8 blocks of a row, then zeros.
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    alignas(32) int32_t e[8] = {};
    for (int i = 0; i < n; ++i, p += 17) e[i] = p[0], u.q[i] = values(nibbles32(p + 1));
    for (int i = n; i < 8; ++i) u.q[i] = _mm256_set1_epi8(12);
    u.scale[0] = halved_powers(_mm256_load_si256(reinterpret_cast<const __m256i*>(e)));
    u.min[0] = _mm256_setzero_ps();
  }
};

struct Q2K : FormatTraits<84, 256, 16, 0, false, true> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const __m256i three = _mm256_set1_epi8(3);
    for (int half = 0; half < 2; ++half) {
      const __m256i x = bytes32(p + 16 + 32 * half);
      u.q[4 * half] = _mm256_and_si256(x, three);
      u.q[4 * half + 1] = _mm256_and_si256(_mm256_srli_epi16(x, 2), three);
      u.q[4 * half + 2] = _mm256_and_si256(_mm256_srli_epi16(x, 4), three);
      u.q[4 * half + 3] = _mm256_and_si256(_mm256_srli_epi16(x, 6), three);
    }
    const __m128i s = bytes16(p), nibble = _mm_set1_epi8(15);
    u.scale8 = _mm_and_si128(s, nibble);
    u.min8 = _mm_and_si128(_mm_srli_epi16(s, 4), nibble);
    u.d = half_value(p + 80);
    u.dmin = half_value(p + 82);
    scaled_signed_bytes(u.scale8, u.d, u.scale);
    scaled_signed_bytes(u.min8, u.dmin, u.min);
  }
};

struct Q3K : FormatTraits<110, 256, 16, 4, false, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const __m256i three = _mm256_set1_epi8(3), high = bytes32(p), low = bytes32(p + 32), top = bytes32(p + 64);
    const auto with = [](__m256i two, __m256i third) { return _mm256_or_si256(two, third); };
    u.q[0] = with(_mm256_and_si256(low, three), bit<0, 2>(high));
    u.q[1] = with(_mm256_and_si256(_mm256_srli_epi16(low, 2), three), bit<1, 2>(high));
    u.q[2] = with(_mm256_and_si256(_mm256_srli_epi16(low, 4), three), bit<2, 2>(high));
    u.q[3] = with(_mm256_and_si256(_mm256_srli_epi16(low, 6), three), bit<3, 2>(high));
    u.q[4] = with(_mm256_and_si256(top, three), bit<4, 2>(high));
    u.q[5] = with(_mm256_and_si256(_mm256_srli_epi16(top, 2), three), bit<5, 2>(high));
    u.q[6] = with(_mm256_and_si256(_mm256_srli_epi16(top, 4), three), bit<6, 2>(high));
    u.q[7] = with(_mm256_and_si256(_mm256_srli_epi16(top, 6), three), bit<7, 2>(high));
    // 6-bit scales: lower nibbles in 8 bytes, then 4 bytes with the upper two bits of four scales each.
    const __m128i nibbles = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 96));
    const __m128i lower = _mm_and_si128(_mm_unpacklo_epi64(nibbles, _mm_srli_epi16(nibbles, 4)), _mm_set1_epi8(15));
    const __m128i two = _mm_srlv_epi32(_mm_set1_epi32(word<int32_t>(p + 104)), _mm_setr_epi32(0, 2, 4, 6));
    const __m128i upper = _mm_slli_epi16(_mm_and_si128(two, _mm_set1_epi8(3)), 4);
    u.scale8 = _mm_sub_epi8(_mm_or_si128(lower, upper), _mm_set1_epi8(32));
    u.d = half_value(p + 108);
    scaled_signed_bytes(u.scale8, u.d, u.scale);
  }
};

// The twelve bytes that hold eight 6-bit scales and minima of Q4_K and Q5_K.
inline void scales_k4(const uint8_t* p, Unpacked& u) {
  const uint32_t a = word<uint32_t>(p + 4), b = word<uint32_t>(p + 8), c = word<uint32_t>(p + 12);
  const uint64_t scale_high = (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030);
  const uint64_t min_high = (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030);
  u.scale[0] = scaled_bytes((a & 0x3F3F3F3F) | scale_high << 32, half_value(p));
  u.min[0] = scaled_bytes((b & 0x3F3F3F3F) | min_high << 32, half_value(p + 2));
}

struct Q4K : FormatTraits<144, 256, 32, 0, false, true> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int i = 0; i < 4; ++i) {
      const __m256i x = bytes32(p + 16 + 32 * i);
      u.q[2 * i] = low_nibbles(x);
      u.q[2 * i + 1] = high_nibbles(x);
    }
    scales_k4(p, u);
  }
};

struct Q5K : FormatTraits<176, 256, 32, 0, false, true> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const __m256i high = bytes32(p + 16);
    const auto nibbles = [&](int i) {
      const __m256i x = bytes32(p + 48 + 32 * i);
      u.q[2 * i] = low_nibbles(x);
      u.q[2 * i + 1] = high_nibbles(x);
    };
    for (int i = 0; i < 4; ++i) nibbles(i);
    u.q[0] = _mm256_or_si256(u.q[0], bit<0, 4>(high));
    u.q[1] = _mm256_or_si256(u.q[1], bit<1, 4>(high));
    u.q[2] = _mm256_or_si256(u.q[2], bit<2, 4>(high));
    u.q[3] = _mm256_or_si256(u.q[3], bit<3, 4>(high));
    u.q[4] = _mm256_or_si256(u.q[4], bit<4, 4>(high));
    u.q[5] = _mm256_or_si256(u.q[5], bit<5, 4>(high));
    u.q[6] = _mm256_or_si256(u.q[6], bit<6, 4>(high));
    u.q[7] = _mm256_or_si256(u.q[7], bit<7, 4>(high));
    scales_k4(p, u);
  }
};

struct Q6K : FormatTraits<210, 256, 16, 32, false, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const __m256i upper = _mm256_set1_epi8(0x30);
    for (int half = 0; half < 2; ++half) {
      const __m256i a = bytes32(p + 64 * half), b = bytes32(p + 64 * half + 32), h = bytes32(p + 128 + 32 * half);
      u.q[4 * half] = _mm256_or_si256(low_nibbles(a), _mm256_and_si256(_mm256_slli_epi16(h, 4), upper));
      u.q[4 * half + 1] = _mm256_or_si256(low_nibbles(b), _mm256_and_si256(_mm256_slli_epi16(h, 2), upper));
      u.q[4 * half + 2] = _mm256_or_si256(high_nibbles(a), _mm256_and_si256(h, upper));
      u.q[4 * half + 3] = _mm256_or_si256(high_nibbles(b), _mm256_and_si256(_mm256_srli_epi16(h, 2), upper));
    }
    u.scale8 = bytes16(p + 192);
    u.d = half_value(p + 208);
    scaled_signed_bytes(u.scale8, u.d, u.scale);
  }
};

struct Iq4Xs : FormatTraits<136, 256, 32, 0, true, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int i = 0; i < 8; ++i) u.q[i] = codebook(nibbles32(p + 8 + 16 * i));
    // Scale g: its low nibble is nibble g of a 32-bit word, its upper two bits are at bit 2 g of a 16-bit word.
    const __m256i g = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(word<int32_t>(p + 4)), _mm256_slli_epi32(g, 2));
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(word<uint16_t>(p + 2)), _mm256_slli_epi32(g, 1));
    const __m256i s =
        _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)), _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
    u.scale[0] = scaled_words(_mm256_sub_epi32(s, _mm256_set1_epi32(32)), half_value(p));
  }
};

// Bits of a code; unsigned codes without a line of their own have at most 4.
template <class Format>
constexpr int kCodeBits = Format::kSigned ? 8 : 4;  // at most 4 for unsigned codes
template <>
constexpr int kCodeBits<Q5_0> = 5;
template <>
constexpr int kCodeBits<Q5_1> = 5;
template <>
constexpr int kCodeBits<Q5K> = 5;
template <>
constexpr int kCodeBits<Mxfp4> = 5;
template <>
constexpr int kCodeBits<Q6K> = 6;

}  // namespace
}  // namespace orrery::cpu
