// Half and bfloat16 conversions, over every bit pattern, against oracles that do not share their bit tricks:
// values built with ldexp, and rounding by comparing distances in double precision.
#include "runtime/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/random_blocks.h"

namespace orrery::half_test {
namespace {

double half_value(uint16_t h) {  // from the definition of the format
  const double sign = h & 0x8000 ? -1 : 1;
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double bfloat16_value(uint16_t b) {
  const double sign = b & 0x8000 ? -1 : 1;
  const int exponent = b >> 7 & 255, fraction = b & 127;
  if (exponent == 255) return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134));
}

// Is `got` the nearest to x of all values, ties to the even pattern, overflow as if the exponent had no end?
void expect_nearest(float x, uint16_t got, double (*value)(uint16_t), uint16_t infinity) {
  const auto magnitude = static_cast<uint16_t>(got & 0x7FFF);
  ASSERT_EQ(got & 0x8000, std::signbit(x) ? 0x8000 : 0) << x;
  ASSERT_LE(magnitude, infinity) << x;
  // Infinity stands for the value that would follow the largest finite one.
  const auto at = [&](int m) {
    const auto largest = static_cast<uint16_t>(infinity - 1), before = static_cast<uint16_t>(infinity - 2);
    return m == infinity ? 2 * value(largest) - value(before) : value(static_cast<uint16_t>(m));
  };
  const double target = std::fabs(static_cast<double>(x));
  if (std::isinf(target)) {
    ASSERT_EQ(magnitude, infinity);
    return;
  }
  const double mine = std::fabs(at(magnitude) - target);
  if (magnitude > 0) {
    const double below = std::fabs(at(magnitude - 1) - target);
    ASSERT_TRUE(mine < below || (mine == below && magnitude % 2 == 0)) << x << " gave " << got;
  }
  if (magnitude < infinity) {
    const double above = std::fabs(at(magnitude + 1) - target);
    ASSERT_TRUE(mine < above || (mine == above && magnitude % 2 == 0)) << x << " gave " << got;
  } else {
    ASSERT_GE(target, (at(infinity - 1) + at(infinity)) / 2) << x;
  }
}

TEST(Half, EveryPatternToFloatIsExact) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float got = half_to_float(static_cast<uint16_t>(h));
    const double want = half_value(static_cast<uint16_t>(h));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << h;
      ASSERT_EQ(float_bits(got) & 0x00400000u, 0x00400000u) << h;  // quiet
    } else {
      ASSERT_EQ(static_cast<double>(got), want) << h;
    }
    ASSERT_EQ(std::signbit(got), (h & 0x8000) != 0) << h;
  }
}

TEST(Half, EveryPatternComesBack) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const uint16_t back = float_to_half(half_to_float(static_cast<uint16_t>(h)));
    const bool nan = (h & 0x7FFF) > 0x7C00;
    ASSERT_EQ(back, nan ? (h | 0x200) : h);
  }
}

TEST(Half, RoundsToNearestEven) {
  // Around every half, and halfway to the next: the tie itself and one float to either side of it.
  for (uint32_t h = 0; h < 0x7C00; ++h) {
    const float x = half_to_float(static_cast<uint16_t>(h));
    const float next = h == 0x7BFF ? 65536.0f : half_to_float(static_cast<uint16_t>(h + 1));
    const float tie = x + (next - x) / 2;
    for (const float y : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e30f), std::nextafter(x, 1e30f)})
      for (const float signed_y : {y, -y}) ASSERT_NO_FATAL_FAILURE(expect_nearest(signed_y, float_to_half(signed_y), half_value, 0x7C00));
  }
}

TEST(Half, RandomFloatsRoundToNearest) {
  testing::Random random(11);
  for (int i = 0; i < 2000000; ++i) {
    const float x = float_from_bits(static_cast<uint32_t>(random.bits() >> 32));
    if (std::isnan(x)) {
      ASSERT_GT(float_to_half(x) & 0x7FFF, 0x7C00);
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(expect_nearest(x, float_to_half(x), half_value, 0x7C00));
  }
}

TEST(Half, Corners) {
  EXPECT_EQ(float_to_half(0.0f), 0x0000);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_EQ(float_to_half(1.0f), 0x3C00);
  EXPECT_EQ(float_to_half(65504.0f), 0x7BFF);
  EXPECT_EQ(float_to_half(65519.99f), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_half(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(float_to_half(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(float_to_half(float_from_bits(0x7F800001)),
            0x7E00);                                              // a signalling NaN whose payload does not fit
  EXPECT_EQ(float_to_half(float_from_bits(0xFFC02000)), 0xFE01);  // payload and sign stay
}

TEST(Half, NextUpAndDown) {
  for (uint32_t h = 0; h < 0x7C00; ++h)
    for (const float sign : {1.0f, -1.0f}) {
      const float x = sign * half_to_float(static_cast<uint16_t>(h));
      for (const float y : {x, std::nextafter(x, -INFINITY), std::nextafter(x, INFINITY)}) {
        const float up = half_to_float(float_to_half_up(y)), down = half_to_float(float_to_half_down(y));
        ASSERT_GE(up, y);
        ASSERT_LE(down, y);
        if (y == x) {
          ASSERT_EQ(up, x);
          ASSERT_EQ(down, x);
        } else {  // neighbours
          ASSERT_TRUE(up == x || down == x) << y;
          ASSERT_LT(down, up);
          ASSERT_LE(float_to_half_up(std::fabs(y)) - float_to_half_down(std::fabs(y)), 1) << y;
        }
      }
    }
  EXPECT_EQ(float_to_half_up(70000.0f), 0x7C00);
  EXPECT_EQ(float_to_half_down(70000.0f), 0x7BFF);
  EXPECT_EQ(float_to_half_up(-70000.0f), 0xFBFF);
}

TEST(BFloat16, EveryPatternIsExactAndComesBack) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const float x = bfloat16_to_float(static_cast<uint16_t>(b));
    const double want = bfloat16_value(static_cast<uint16_t>(b));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(x)) << b;
      ASSERT_EQ(float_to_bfloat16(x), b | 0x40) << b;
    } else {
      ASSERT_EQ(static_cast<double>(x), want) << b;
      ASSERT_EQ(float_to_bfloat16(x), b);
    }
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  for (uint32_t b = 0; b < 0x7F80; ++b)
    for (const uint32_t low : {0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = float_from_bits(b << 16 | low);
      ASSERT_NO_FATAL_FAILURE(expect_nearest(x, float_to_bfloat16(x), bfloat16_value, 0x7F80));
      ASSERT_NO_FATAL_FAILURE(expect_nearest(-x, float_to_bfloat16(-x), bfloat16_value, 0x7F80));
    }
  EXPECT_EQ(float_to_bfloat16(float_from_bits(0x7F7FFFFF)),
            0x7F80);  // the largest float is past the largest bfloat16
}

}  // namespace
}  // namespace orrery::half_test
