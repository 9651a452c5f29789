// Precedes the compiler's own header when kernels_avx512.cpp is compiled for machines without AVX-512. SIMDe computes the 512-bit
// intrinsics with narrower ones. Intrinsics that SIMDe lacks are computed lane by lane below.
#pragma once

#include_next <immintrin.h>

#define SIMDE_X86_AVX512F_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512BW_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512VL_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512DQ_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512VBMI_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512VNNI_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cstdint>
#include <type_traits>

namespace emulated {
namespace {

// A vector as an array of T.
template <class T, class Vector>
struct Lanes {
  static constexpr int kCount = sizeof(Vector) / sizeof(T);
  T x[kCount];
  Lanes() = default;
  explicit Lanes(Vector v) { __builtin_memcpy(x, &v, sizeof v); }
  Vector vector() const {
    Vector v;
    __builtin_memcpy(&v, x, sizeof v);
    return v;
  }
};

// Converts every lane to another type. `From` and `To` are Lanes of the same number.
template <class From, class To, class Vector>
auto converted(Vector v) {
  const From from(v);
  To to;
  for (int i = 0; i < To::kCount; ++i) to.x[i] = static_cast<std::remove_reference_t<decltype(to.x[0])>>(from.x[i]);
  return to.vector();
}
using Words = Lanes<int32_t, __m512i>;
using Floats = Lanes<float, __m512>;

inline __m512i from_i16(__m256i v) { return converted<Lanes<int16_t, __m256i>, Words>(v); }
inline __m512i from_u16(__m256i v) { return converted<Lanes<uint16_t, __m256i>, Words>(v); }
inline __m512i from_i8(__m128i v) { return converted<Lanes<int8_t, __m128i>, Words>(v); }
inline __m512i from_u8(__m128i v) { return converted<Lanes<uint8_t, __m128i>, Words>(v); }
inline __m256i to_i16(__m512i v) { return converted<Words, Lanes<int16_t, __m256i>>(v); }
inline __m128i to_i8(__m512i v) { return converted<Words, Lanes<int8_t, __m128i>>(v); }
inline __m512 to_floats(__m512i v) { return converted<Words, Floats>(v); }
inline __m512d to_doubles(__m256 v) { return converted<Lanes<float, __m256>, Lanes<double, __m512d>>(v); }

// Computes both halves with the 256-bit instruction.
template <class From, class To, class Vector, class F>
auto by_halves(Vector v, const F& f) {
  const From from(v);
  To to;
  for (int i = 0; i < 2; ++i) to.x[i] = f(from.x[i]);
  return to.vector();
}
using FloatHalves = Lanes<__m256, __m512>;
inline __m512i to_words(__m512 v) {
  return by_halves<FloatHalves, Lanes<__m256i, __m512i>>(v, [](__m256 h) { return _mm256_cvtps_epi32(h); });
}
inline __m512 from_half_floats(__m256i v) {
  return by_halves<Lanes<__m128i, __m256i>, FloatHalves>(v, [](__m128i h) { return _mm256_cvtph_ps(h); });
}
inline __m256i to_half_floats(__m512 v) {
  return by_halves<FloatHalves, Lanes<__m128i, __m256i>>(v, [](__m256 h) { return _mm256_cvtps_ph(h, _MM_FROUND_TO_NEAREST_INT); });
}
inline __m256 half(__m512 v, int i) { return FloatHalves(v).x[i]; }
inline __m512 with_zeros(__m256 v) {
  FloatHalves to;
  to.x[0] = v;
  to.x[1] = _mm256_setzero_ps();
  return to.vector();
}

// The memory of lanes outside of the mask is not touched.
template <class T, class Vector>
Vector load_masked(unsigned mask, const void* p) {
  Lanes<T, Vector> to;
  for (int i = 0; i < Lanes<T, Vector>::kCount; ++i) {
    to.x[i] = 0;
    if (mask >> i & 1) __builtin_memcpy(&to.x[i], static_cast<const char*>(p) + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  }
  return to.vector();
}
inline void store_masked(void* p, unsigned mask, __m512 v) {
  const Floats from(v);
  for (int i = 0; i < Floats::kCount; ++i)
    if (mask >> i & 1) __builtin_memcpy(static_cast<char*>(p) + i * 4, &from.x[i], 4);
}

inline __m512 permute(__m512 v, int control) {
  const Floats from(v);
  Floats to;
  for (int i = 0; i < Floats::kCount; ++i) to.x[i] = from.x[i / 4 * 4 + (control >> (2 * (i % 4)) & 3)];
  return to.vector();
}
inline __m512 shuffle_quarters(__m512 a, __m512 b, int control) {
  const Floats low(a), high(b);
  Floats to;
  for (int i = 0; i < Floats::kCount; ++i) to.x[i] = (i < 8 ? low : high).x[4 * (control >> (i / 4 * 2) & 3) + i % 4];
  return to.vector();
}

// SIMDe's own is a macro with a mask.
inline __m512i add_pairs(__m512i a, __m512i b) {
  using Halves = Lanes<__m256i, __m512i>;
  const Halves x(a), y(b);
  Halves to;
  for (int i = 0; i < 2; ++i) to.x[i] = _mm256_madd_epi16(x.x[i], y.x[i]);
  return to.vector();
}

inline int32_t sum(__m512i v) {
  uint32_t total = 0;
  for (int32_t x : Words(v).x) total += static_cast<uint32_t>(x);
  return static_cast<int32_t>(total);
}
inline int32_t largest(__m512i v) {
  const Words from(v);
  int32_t most = from.x[0];
  for (int32_t x : from.x) most = x > most ? x : most;
  return most;
}

}  // namespace
}  // namespace emulated

// Some of these are macros in the compiler's header in builds without optimization.
#undef _mm256_maskz_loadu_epi64
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_extractf32x8_ps
#undef _mm512_madd_epi16
#undef _mm512_maskz_loadu_epi64
#undef _mm512_permute_ps
#undef _mm512_shuffle_f32x4
#define _mm256_maskz_loadu_epi16 (emulated::load_masked<int16_t, __m256i>)
#define _mm256_maskz_loadu_epi64 (emulated::load_masked<int64_t, __m256i>)
#define _mm512_cvtepi16_epi32 emulated::from_i16
#define _mm512_cvtepu16_epi32 emulated::from_u16
#define _mm512_cvtepi8_epi32 emulated::from_i8
#define _mm512_cvtepu8_epi32 emulated::from_u8
#define _mm512_cvtepi32_epi16 emulated::to_i16
#define _mm512_cvtepi32_epi8 emulated::to_i8
#define _mm512_cvtepi32_ps emulated::to_floats
#define _mm512_cvtps_epi32 emulated::to_words
#define _mm512_cvtps_pd emulated::to_doubles
#define _mm512_cvtph_ps emulated::from_half_floats
#define _mm512_cvtps_ph(v, rounding) emulated::to_half_floats(v)
#define _mm512_extractf32x8_ps emulated::half
#define _mm512_zextps256_ps512 emulated::with_zeros
#define _mm512_madd_epi16 emulated::add_pairs
#define _mm512_mask_storeu_ps emulated::store_masked
#define _mm512_maskz_loadu_epi64 (emulated::load_masked<int64_t, __m512i>)
#define _mm512_maskz_loadu_ps (emulated::load_masked<float, __m512>)
#define _mm512_permute_ps emulated::permute
#define _mm512_shuffle_f32x4 emulated::shuffle_quarters
#define _mm512_reduce_add_epi32 emulated::sum
#define _mm512_reduce_max_epi32 emulated::largest
