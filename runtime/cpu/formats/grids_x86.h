// IQ3 and IQ2 in AVX2 registers, as blocks_x86.h has the other formats. A code is a magnitude of a codebook (runtime/base/grids.h) with a
// sign. The codes of IQ3 have an offset, because products of unsigned codes are faster: IQ3_S 15, IQ3_XXS 31, of halved magnitudes.
//
// The look-ups are most of the work: eight of IQ3 or four of IQ2 for 32 weights. So the codebooks are expanded to bytes here. IQ3's entries
// stand in the upper half of eight bytes, zeros in the lower half: a load at the entry and a load four bytes behind another entry,
// combined, are eight magnitudes, with half of the shuffles that inserting each entry takes.
#pragma once

#include <immintrin.h>

#include "runtime/base/grids.h"
#include "runtime/cpu/formats/blocks_x86.h"

namespace orrery::cpu {
namespace {

// Four magnitudes of each entry between zeros: [0, entry 0, 0, entry 1, ...] in words, and enough zeros for a load of 16 bytes at the end.
template <size_t n>
struct SpacedFours {
  uint32_t word[2 * n + 4] = {};
  constexpr SpacedFours(const uint16_t (&grid)[n], uint8_t (*magnitude)(uint32_t, int)) {
    for (size_t e = 0; e < n; ++e)
      for (int i = 0; i < 4; ++i) word[2 * e + 1] |= static_cast<uint32_t>(magnitude(grid[e], i)) << (8 * i);
  }
};
constexpr grids::Eights<256> kIq2XxsEights(grids::kIq2XxsGrid, grids::iq2_magnitude);
constexpr grids::Eights<512> kIq2XsEights(grids::kIq2XsGrid, grids::iq2_magnitude);
constexpr grids::Eights<1024> kIq2SEights(grids::kIq2SGrid, grids::iq2_magnitude);
constexpr uint8_t half_iq3_xxs_magnitude(uint32_t entry, int i) { return grids::iq3_xxs_magnitude(entry, i) / 2; }
constexpr SpacedFours<256> kIq3XxsFours(grids::kIq3XxsGrid, half_iq3_xxs_magnitude);
constexpr SpacedFours<512> kIq3SFours(grids::kIq3SGrid, grids::iq3_s_magnitude);

// Magnitudes of 32 weights. entry(i): the index of entry i.
template <size_t n, class Entry>
[[gnu::always_inline]] inline __m256i look_up(const SpacedFours<n>& fours, const Entry& entry) {
  const auto at = [&](uint32_t words) { return bytes16(reinterpret_cast<const uint8_t*>(fours.word + words)); };
  // The lower eight bytes are the two entries; the upper ones are of no use.
  const auto two = [&](int i) { return _mm_or_si128(at(2 * entry(i) + 1), at(2 * entry(i + 1))); };
  const auto four = [&](int i) { return _mm_unpacklo_epi64(two(i), two(i + 2)); };
  return _mm256_set_m128i(four(4), four(0));
}
template <size_t n, class Entry>
[[gnu::always_inline]] inline __m256i look_up(const grids::Eights<n>& eights, const Entry& entry) {
  const auto at = [&](int i) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(eights.entry + entry(i))); };
  return _mm256_set_m128i(_mm_unpacklo_epi64(at(2), at(3)), _mm_unpacklo_epi64(at(0), at(1)));
}

// The signs of 256 weights: bit i of byte b belongs to weight 8 b + i.
struct Signs {
  alignas(32) uint32_t words[8];
  explicit Signs(__m256i bits) { _mm256_store_si256(reinterpret_cast<__m256i*>(words), bits); }
  // Magnitudes of group g with their signs, plus an offset.
  template <int kOffset = 0>
  __m256i codes(int g, __m256i magnitudes) const {
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(words[g])),
                                              _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i each = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const __m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
    return _mm256_add_epi8(_mm256_xor_si256(magnitudes, minus), _mm256_sub_epi8(_mm256_set1_epi8(kOffset), minus));
  }
};
// Sets bit 7 of each byte if bits 0 to 6 have an odd number of ones: the sign of the eighth weight, which the format does not store.
inline __m256i odd_bits(__m256i sevens) {
  const __m256i odd = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0, 0, -128, -128, 0, -128, 0, 0,
                                       -128, -128, 0, 0, -128, 0, -128, -128, 0);
  return _mm256_xor_si256(_mm256_shuffle_epi8(odd, low_nibbles(sevens)), _mm256_shuffle_epi8(odd, high_nibbles(sevens)));
}
// The low 28 bits of each word are four times seven signs.
inline __m256i all_signs(__m256i words) {
  const auto field = [&](__m256i moved, int l) { return _mm256_and_si256(moved, _mm256_set1_epi32(0x7F << (8 * l))); };
  const __m256i low = _mm256_or_si256(field(words, 0), field(_mm256_slli_epi32(words, 1), 1));
  const __m256i high = _mm256_or_si256(field(_mm256_slli_epi32(words, 2), 2), field(_mm256_slli_epi32(words, 3), 3));
  const __m256i sevens = _mm256_or_si256(low, high);
  return _mm256_or_si256(sevens, odd_bits(sevens));
}

// A scale is d * (2 s + 1), of which IQ3_XXS takes half, because its magnitudes are halved, and IQ2 an eighth: exact in a float.
inline __m256 odd_scales(__m256i s, float d) { return scaled_words(_mm256_or_si256(_mm256_add_epi32(s, s), _mm256_set1_epi32(1)), d); }
// The nibbles of eight bytes: 16 of them, in order.
inline __m128i nibbles16(const uint8_t* p) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_and_si128(_mm_unpacklo_epi8(x, _mm_srli_epi16(x, 4)), _mm_set1_epi8(15));
}

// Codes, with their offset, of the indices that bands hold (formats/bands.h): bit 3 is the sign.
inline __m256i indexed_codes(__m128i codes, __m256i indices) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), indices); }

struct Iq3Xxs : FormatTraits<98, 256, 32, 31, false, false> {
  static __m128i index_codes() { return _mm_setr_epi8(33, 37, 41, 45, 49, 53, 57, 62, 29, 25, 21, 17, 13, 9, 5, 0); }
  static constexpr float kScaleUnit = 0.5f;
  static void unpack(const uint8_t* p, Unpacked& u) {
    const __m256i words = bytes32(p + 66);
    const Signs signs(all_signs(words));
    for (int g = 0; g < 8; ++g) {
      const uint64_t entries = word<uint64_t>(p + 2 + 8 * g);
      u.q[g] = signs.codes<kOffset>(
          g, look_up(
                 kIq3XxsFours, [&](int i) __attribute__((always_inline)) { return static_cast<uint32_t>(entries >> (8 * i) & 255); }));
    }
    u.scale[0] = odd_scales(_mm256_srli_epi32(words, 28), half_value(p) * kScaleUnit);
  }
};

struct Iq3S : FormatTraits<110, 256, 32, 15, false, false> {
  static __m128i index_codes() { return _mm_setr_epi8(16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0); }
  static constexpr float kScaleUnit = 1.0f;
  static void unpack(const uint8_t* p, Unpacked& u) {
    const Signs signs(bytes32(p + 74));
    for (int g = 0; g < 8; g += 2) {
      // Entries of two groups: their low bytes, and a bit of 16 for the ninth one.
      alignas(32) uint16_t entries[16];
      const __m256i each = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
      const __m256i bits = _mm256_and_si256(_mm256_set1_epi16(word<int16_t>(p + 66 + g)), each);
      const __m256i ninth = _mm256_and_si256(_mm256_cmpeq_epi16(bits, each), _mm256_set1_epi16(256));
      _mm256_store_si256(reinterpret_cast<__m256i*>(entries), _mm256_or_si256(_mm256_cvtepu8_epi16(bytes16(p + 2 + 8 * g)), ninth));
      for (int k = 0; k < 2; ++k)
        u.q[g + k] = signs.codes<kOffset>(
            g + k, look_up(
                       kIq3SFours, [&](int i) __attribute__((always_inline)) { return static_cast<uint32_t>(entries[8 * k + i]); }));
    }
    const __m256i eight = _mm256_set1_epi32(word<int32_t>(p + 106)), shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    u.scale[0] = odd_scales(_mm256_and_si256(_mm256_srlv_epi32(eight, shifts), _mm256_set1_epi32(15)), half_value(p));
  }
};

struct Iq2Xxs : FormatTraits<66, 256, 32, 0, true, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    // The second words of eight groups.
    const __m256 first = _mm256_castsi256_ps(bytes32(p + 2)), second = _mm256_castsi256_ps(bytes32(p + 34));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xDD)), 0xD8);
    const Signs signs(all_signs(words));
    for (int g = 0; g < 8; ++g) {
      const uint8_t* entries = p + 2 + 8 * g;
      u.q[g] = signs.codes(g, look_up(
                                  kIq2XxsEights, [&](int i) __attribute__((always_inline)) { return entries[i]; }));
    }
    u.scale[0] = odd_scales(_mm256_srli_epi32(words, 28), half_value(p) * 0.125f);
  }
};

// The scales of IQ2_XS and IQ2_S, one for each 16 weights.
inline void iq2_scales(const uint8_t* p, const uint8_t* nibbles, Unpacked& u) {
  const __m128i s = nibbles16(nibbles);
  u.scale8 = _mm_or_si128(_mm_add_epi8(s, s), _mm_set1_epi8(1));
  u.d = half_value(p) * 0.125f;
  scaled_signed_bytes(u.scale8, u.d, u.scale);
}

struct Iq2Xs : FormatTraits<74, 256, 16, 0, true, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    // Words of an entry, nine bits, and seven signs.
    const auto sevens = [&](int i) { return _mm256_srli_epi16(bytes32(p + 2 + 32 * i), 9); };
    const auto four = [&](int i) { return _mm256_permute4x64_epi64(_mm256_packus_epi16(sevens(i), sevens(i + 1)), 0xD8); };
    const __m256i bits = four(0);
    const Signs signs(_mm256_or_si256(bits, odd_bits(bits)));
    for (int g = 0; g < 8; ++g)
      u.q[g] = signs.codes(
          g, look_up(
                 kIq2XsEights, [&](int i) __attribute__((always_inline)) { return word<uint16_t>(p + 2 + 8 * g + 2 * i) & 511; }));
    iq2_scales(p, p + 66, u);
  }
};

struct Iq2S : FormatTraits<82, 256, 16, 0, true, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const Signs signs(bytes32(p + 34));
    for (int g = 0; g < 8; g += 4) {
      // Entries of four groups: their low bytes, and bits 8 and 9 from a byte of each group.
      alignas(32) uint16_t entries[16];
      const __m256i order =
          _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1);
      const __m256i high = _mm256_shuffle_epi8(_mm256_set1_epi32(word<int32_t>(p + 66 + g)), order);
      const __m256i moved = _mm256_mullo_epi16(high, _mm256_set1_epi64x(0x0004001000400100));
      const __m256i upper = _mm256_and_si256(moved, _mm256_set1_epi16(0x300));
      _mm256_store_si256(reinterpret_cast<__m256i*>(entries), _mm256_or_si256(_mm256_cvtepu8_epi16(bytes16(p + 2 + 4 * g)), upper));
      for (int k = 0; k < 4; ++k)
        u.q[g + k] = signs.codes(g + k, look_up(
                                            kIq2SEights, [&](int i) __attribute__((always_inline)) { return entries[4 * k + i]; }));
    }
    iq2_scales(p, p + 74, u);
  }
};

template <>
constexpr int kCodeBits<Iq3Xxs> = 6;
template <>
constexpr int kCodeBits<Iq3S> = 5;

}  // namespace
}  // namespace orrery::cpu
