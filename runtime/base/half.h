// Conversions between float and the two 16-bit float formats of weights and KV. Plain integer arithmetic, so that every machine
// gives the same bits. To float is exact. From float rounds to nearest, ties to even. A NaN stays a NaN and becomes quiet, as in
// hardware conversions.
#pragma once

#include <cstdint>
#include <cstring>

namespace orrery {

inline uint32_t float_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}
inline float float_from_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// IEEE binary16: 1 sign, 5 exponent, 10 fraction bits.
inline float half_to_float(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7FFFu;
  if (magnitude >= 0x7C00) {  // infinity or NaN
    const uint32_t quiet = magnitude > 0x7C00 ? 0x00400000u : 0;
    return float_from_bits(sign | 0x7F800000u | quiet | (magnitude & 0x3FF) << 13);
  }
  if (magnitude >= 0x0400) return float_from_bits(sign | ((magnitude << 13) + ((127 - 15) << 23)));
  // Subnormal or zero: an integer count of 2^-24, exact in a float.
  return float_from_bits(sign | float_bits(static_cast<float>(magnitude) * 0x1p-24f));
}

inline uint16_t float_to_half(float f) {
  const uint32_t bits = float_bits(f);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t h;
  if (magnitude > 0x7F800000) {
    h = 0x7E00 | (magnitude >> 13 & 0x1FF);
  } else if (magnitude >= 0x477FF000) {  // 65520 and above: halfway from the largest half to 2^16 rounds up to infinity
    h = 0x7C00;
  } else if (magnitude >= 0x38800000) {  // 2^-14 and above: normal
    const uint32_t rebased = magnitude - ((127 - 15) << 23);
    h = (rebased + 0xFFF + (rebased >> 13 & 1)) >> 13;  // a carry out of the fraction raises the exponent, as it should
  } else if (magnitude > 0x33000000) {                  // above 2^-25, half of the smallest subnormal
    const uint32_t exponent = magnitude >> 23;
    const uint32_t fraction = (magnitude & 0x7FFFFF) | 0x800000;
    const uint32_t shift = 126 - exponent;  // 14 to 24; the shifted fraction counts 2^-24
    const uint32_t kept = fraction >> shift;
    const uint32_t rest = fraction & ((1u << shift) - 1), tie = 1u << (shift - 1);
    h = kept + (rest > tie || (rest == tie && (kept & 1)) ? 1 : 0);
  } else {
    h = 0;
  }
  return static_cast<uint16_t>(sign | h);
}

// The nearest half that is not smaller than f, and the nearest half that is not larger.
inline uint16_t float_to_half_up(float f) {
  const uint16_t h = float_to_half(f);
  if (!(half_to_float(h) < f)) return h;
  return h == 0 || h == 0x8000 ? 0x0001 : static_cast<uint16_t>(h & 0x8000 ? h - 1 : h + 1);
}
inline uint16_t float_to_half_down(float f) { return static_cast<uint16_t>(float_to_half_up(-f) ^ 0x8000); }

// bfloat16: the upper half of a float.
inline float bfloat16_to_float(uint16_t b) { return float_from_bits(static_cast<uint32_t>(b) << 16); }

inline uint16_t float_to_bfloat16(float f) {
  const uint32_t bits = float_bits(f);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// UE4M3: four exponent bits, three fraction bits, of a byte whose highest bit counts for nothing. 0x7F is zero. Exact.
inline float ue4m3_to_float(uint8_t x) { return x == 0x7F ? 0.0f : half_to_float(static_cast<uint16_t>((x & 0x7F) << 7)) * 256.0f; }

}  // namespace orrery
