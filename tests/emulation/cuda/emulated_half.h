// Half-precision numbers (IEEE binary16) for the emulated build: storage, and conversions that round to nearest even.
#pragma once

#include "emulated_words.h"
#include "runtime/base/half.h"

struct __half {
  uint16_t bits;
};
struct __align__(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

// The processor's conversions have the bits of half.h's.
inline float __half2float(__half h) {
#if defined(__F16C__)
  typedef short Halves __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps(Halves{static_cast<short>(h.bits)})[0];
#else
  return orrery::half_to_float(h.bits);
#endif
}
inline __half __float2half_rn(float x) {
#if defined(__F16C__)
  typedef float Floats __attribute__((vector_size(16)));
  return {static_cast<uint16_t>(__builtin_ia32_vcvtps2ph(Floats{x}, 0)[0])};
#else
  return {orrery::float_to_half(x)};
#endif
}
inline __half __float2half_ru(float x) { return {orrery::float_to_half_up(x)}; }
inline __half __float2half_rd(float x) { return {orrery::float_to_half_down(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) * __half2float(b.x), __half2float(a.y) * __half2float(b.y));
}
