// IEEE binary16 and bfloat16, by their definitions: conversions with every rounding that kernels use.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

namespace orrery::ptx {

template <class To, class From>
To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

enum class Rounding { nearest, down, up, zero };

inline float half_value(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return bits_of<float>(sign | 0x7F800000u | fraction << 13);
  const float magnitude = exponent ? std::ldexp(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25)
                                   : std::ldexp(static_cast<float>(fraction), -24);
  return sign ? -magnitude : magnitude;
}

// Finite numbers beyond the largest become infinity where the rounding says so, else the largest.
inline uint16_t half_of(float x, Rounding rounding) {
  const uint16_t sign = static_cast<uint16_t>(bits_of<uint32_t>(x) >> 16 & 0x8000u);
  if (std::isnan(x)) return 0x7FFF;
  const double magnitude = std::fabs(static_cast<double>(x));
  if (std::isinf(x) || magnitude == 0) return static_cast<uint16_t>(sign | (magnitude == 0 ? 0 : 0x7C00));
  // In units of the last place of the result: below 2^-14 that is 2^-24.
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude < 2^exponent
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const double units = std::ldexp(magnitude, -unit);
  double whole = std::floor(units);
  const double rest = units - whole;
  const bool up = rounding == Rounding::nearest ? rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0)
                  : rounding == Rounding::up    ? rest > 0 && !sign
                  : rounding == Rounding::down  ? rest > 0 && sign
                                                : false;
  if (up) whole += 1;
  const double rounded = std::ldexp(whole, unit);
  if (rounded > 65504.0) {
    const bool infinite = rounding == Rounding::nearest || up;
    return static_cast<uint16_t>(sign | (infinite ? 0x7C00 : 0x7BFF));
  }
  if (rounded < std::ldexp(1.0, -14)) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::ldexp(rounded, 24)));
  std::frexp(rounded, &exponent);  // rounded = f 2^exponent, f in [1/2, 1)
  const uint32_t fraction = static_cast<uint32_t>(std::ldexp(rounded, 11 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent + 14) << 10 | fraction);
}

inline float bfloat_value(uint16_t h) { return bits_of<float>(static_cast<uint32_t>(h) << 16); }

// n values, a multiple of 8.
inline void half_values(const uint16_t* in, float* out, unsigned n) {
#if defined(__F16C__)
  for (unsigned i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
#else
  for (unsigned i = 0; i < n; ++i) out[i] = half_value(in[i]);
#endif
}
inline void nearest_halves(const float* in, uint16_t* out, unsigned n) {
#if defined(__F16C__)
  for (unsigned i = 0; i < n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  for (unsigned i = 0; i < n; ++i) out[i] = half_of(in[i], Rounding::nearest);
#endif
}

}  // namespace orrery::ptx
