// Precedes the compiler's own header when kernels_avx2vnni.cpp is compiled for machines without AVX-VNNI: its two instructions, computed
// with AVX2. Even and odd bytes are multiplied apart, because a sum of two products may not saturate in 16 bits.
#pragma once

#include_next <immintrin.h>

namespace emulated {
namespace {

// Each dword of a + the sum of four products of unsigned bytes of u and signed bytes of s.
inline __m256i add_dots(__m256i a, __m256i u, __m256i s) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(a, _mm256_add_epi32(even, odd));
}

// Each dword of a + the sum of two products of signed words.
inline __m256i add_word_dots(__m256i a, __m256i x, __m256i y) { return _mm256_add_epi32(a, _mm256_madd_epi16(x, y)); }

}  // namespace
}  // namespace emulated

#undef _mm256_dpbusd_avx_epi32  // a macro in builds without optimization
#undef _mm256_dpwssd_avx_epi32
#define _mm256_dpbusd_avx_epi32 emulated::add_dots
#define _mm256_dpwssd_avx_epi32 emulated::add_word_dots
