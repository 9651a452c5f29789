// Precedes the compiler's own header when kernels_avx512bf16.cpp is compiled for machines without AVX-512 BF16: the instructions of bf16.
// Other vectors come from avx512/immintrin.h, which this header includes.
#pragma once

#include_next <immintrin.h>

namespace emulated {
namespace {

// Sixteen floats of a and sixteen of b as bf16, b's in the lower half: rounded to nearest, ties to even. Subnormal numbers count as zero.
inline __m512i halves_of(__m512 a, __m512 b) {
  const Lanes<uint32_t, __m512> upper(a), lower(b);
  Lanes<uint16_t, __m512i> out;
  for (int i = 0; i < 32; ++i) {
    const uint32_t x = i < 16 ? lower.x[i] : upper.x[i - 16], magnitude = x & 0x7FFFFFFF;
    const bool nan = magnitude > 0x7F800000, tiny = magnitude < 0x00800000;
    out.x[i] = static_cast<uint16_t>(nan ? x >> 16 | 0x40 : tiny ? x >> 31 << 15 : (x + 0x7FFF + (x >> 16 & 1)) >> 16);
  }
  return out.vector();
}

// c + a b, two bf16 in each dword; the product of the upper ones is added first. Subnormal numbers count as zero, before and after.
inline __m512 dots_of(__m512 c, __m512i a, __m512i b) {
  const Lanes<uint32_t, __m512i> x(a), y(b);
  Lanes<float, __m512> out(c);
  const auto flushed = [](float v) { return __builtin_fabsf(v) < 0x1p-126f ? 0.0f * v : v; };
  const auto upper = [&](uint32_t bits) { return flushed(__builtin_bit_cast(float, bits & 0xFFFF0000)); };
  for (int i = 0; i < 16; ++i) {
    const float odd = flushed(__builtin_fmaf(upper(x.x[i]), upper(y.x[i]), flushed(out.x[i])));
    out.x[i] = flushed(__builtin_fmaf(upper(x.x[i] << 16), upper(y.x[i] << 16), odd));
  }
  return out.vector();
}

}  // namespace
}  // namespace emulated

#undef _mm512_cvtne2ps_pbh
#undef _mm512_dpbf16_ps
#define _mm512_cvtne2ps_pbh(a, b) emulated::halves_of(a, b)
#define _mm512_dpbf16_ps(c, a, b) emulated::dots_of(c, __builtin_bit_cast(__m512i, a), __builtin_bit_cast(__m512i, b))
