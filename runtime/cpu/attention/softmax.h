// The parts of attention's softmax: powers of two, and weights in units of powers of two. Written over V; include after a file of
// vectors/.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

// For loops over arrays that must stay in registers: fully unrolled, every index is a constant.
#define ORRERY_UNROLL _Pragma("GCC unroll 16")
constexpr int kTile = kPageTokens;
constexpr float kInfinity = __builtin_inff();
// The softmax uses powers of two, so queries are also scaled by log2(e).
constexpr float kLog2E = 1.44269504088896f;

// 2^r for |r| <= 1/2, to 1.2e-7 relative: the polynomial of degree 6 with the least such error.
inline V::F power_of_fraction(V::F r) {
  const V::F r2 = V::mul(r, r);
  const V::F high = V::fma(V::set(1.53533619e-4f), r2, V::fma(V::set(1.33988744e-3f), r, V::set(9.61843736e-3f)));
  const V::F middle = V::fma(V::set(5.55033247e-2f), r, V::set(2.40226479e-1f));
  const V::F low = V::fma(V::set(6.93147203e-1f), r, V::set(1.0f));
  return V::fma(V::fma(high, r2, middle), r2, low);
}

// x + kWhole has the rounded x, plus the bias of an exponent, in its last bits.
constexpr float kWhole = 12582912.0f + 127.0f;

// 2^x for x <= 0, to a few units in the last place; 0 below -126, NaN for NaN.
inline V::F power_of_two(V::F x) {
  const V::F shifted = V::add(x, V::set(kWhole));
  const V::F r = V::sub(x, V::sub(shifted, V::set(kWhole)));
  return V::zero_below(V::mul(power_of_fraction(r), V::exponent(shifted)), x, -126.0f);
}

// 2^(y - unit), unit a whole number. The whole part of y is combined with the unit, so that a unit changes only the exponent. 0
// below -126, NaN for NaN.
inline V::F weight_of(V::F y, V::F unit) {
  const V::F whole = V::nearest(y), z = V::sub(whole, unit);
  return V::zero_below(V::mul(power_of_fraction(V::sub(y, whole)), V::exponent(V::add(z, V::set(kWhole)))), z, -126.0f);
}

}  // namespace
}  // namespace orrery::cpu
