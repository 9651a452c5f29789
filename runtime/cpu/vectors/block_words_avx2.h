// 16-bit words for decode attention over Q8_0 and Q4_0 (attention/attend_blocks.h), 256 bits wide. AVX2 and AVX-VNNI share these
// functions: the ByteProducts of both inherit them. vectors/avx512.h has the same functions, 512 bits wide.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace orrery::cpu {
namespace {

struct BlockWords {
  using F = __m256;
  using I = __m256i;
  // words_of_*(): 16 codes of part `part` of a block, as words. low_in_turns() and high_in_turns() interleave the words of two tokens.
  static I words_of_bytes(const uint8_t* codes, int part) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * part)));
  }
  static I words_of_nibbles(const uint8_t* codes, int part) {
    __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    if (part == 1) x = _mm_srli_epi16(x, 4);
    return _mm256_cvtepi8_epi16(_mm_sub_epi8(_mm_and_si128(x, _mm_set1_epi8(15)), _mm_set1_epi8(8)));
  }
  static I low_in_turns(I a, I b) { return _mm256_unpacklo_epi16(a, b); }
  static I high_in_turns(I a, I b) { return _mm256_unpackhi_epi16(a, b); }
  template <int G>
  static F each(const float* p) {
    if (G == 2) return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
    if (G == 4) return _mm256_insertf128_ps(_mm256_set1_ps(p[0]), _mm_set1_ps(p[1]), 1);
    return _mm256_set1_ps(p[0]);
  }
  static F larger(F a, F b) {
    const I mask = _mm256_set1_epi32(0x7FFFFFFF);
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a), mask), _mm256_and_si256(_mm256_castps_si256(b), mask)));
  }
  static F fold_larger(F x, int period) {
    const I lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int step = period; step < 8; step *= 2)
      x = larger(x, _mm256_permutevar8x32_ps(x, _mm256_xor_si256(lanes, _mm256_set1_epi32(step))));
    return x;
  }
  static I nearest_i(F x) { return _mm256_cvtps_epi32(x); }
  static I word_pairs(F low, F high) { return _mm256_blend_epi16(nearest_i(low), _mm256_slli_epi32(nearest_i(high), 16), 0xAA); }
};

}  // namespace
}  // namespace orrery::cpu
