// What charts are made of: ticks and ranges against worked numbers, to the last bit; numbers as words; the
// ramp's lightness by CIE's formula.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "samples/orrery/charts/chart.h"
#include "samples/orrery/charts/chart_parts.h"
#include "tests/tool/picture.h"

namespace orrery::tool {
namespace {

// ---- Ticks ----

void expect_ticks(const Ticks& ticks, const std::vector<double>& values, const std::vector<std::string>& labels) {
  EXPECT_EQ(ticks.values, values);  // to the last bit: .3 is .3, not .30000000000000004
  EXPECT_EQ(ticks.labels, labels);
}

TEST(ChartTicks, StandAtRoundNumbers) {
  expect_ticks(linear_ticks({0, 1}, 6, Numbers::plain), {0, .2, .4, .6, .8, 1}, {"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"});
  expect_ticks(linear_ticks({0, 1}, 5, Numbers::percent), {0, .5, 1}, {"0%", "50%", "100%"});
  expect_ticks(linear_ticks({.1, .7}, 8, Numbers::plain), {.1, .2, .3, .4, .5, .6, .7}, {"0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"});
  expect_ticks(linear_ticks({-7, 12}, 5, Numbers::plain), {-5, 0, 5, 10}, {"-5", "0", "5", "10"});
  expect_ticks(linear_ticks({0, 4999}, 4, Numbers::plain), {0, 2000, 4000}, {"0", "2,000", "4,000"});
  expect_ticks(linear_ticks({.0313, .0368}, 4, Numbers::plain), {.032, .034, .036}, {"0.032", "0.034", "0.036"});
  expect_ticks(linear_ticks({.001, .005}, 5, Numbers::percent), {.001, .002, .003, .004, .005}, {"0.1%", "0.2%", "0.3%", "0.4%", "0.5%"});
  expect_ticks(linear_ticks({-3e7, 3e7}, 4, Numbers::plain), {-2e7, 0, 2e7}, {"-2e+07", "0", "2e+07"});
}

TEST(ChartTicks, AreNeverTooManyNorOutside) {
  for (double low : {-1e99, -12345.678, -1.0, 0.0, 1e-12, .07, 3.0, 1e9}) {
    for (double width : {1e-6, .013, 1.0, 7.7, 1024.0, 3e98}) {
      if (width < 1e-8 * std::abs(low)) continue;
      for (size_t most = 2; most < 13; ++most) {
        const Range range{low, low + width};
        const Ticks ticks = linear_ticks(range, most, Numbers::plain);
        ASSERT_LE(ticks.values.size(), most);
        ASSERT_EQ(ticks.values.size(), ticks.labels.size());
        for (size_t i = 0; i < ticks.values.size(); ++i) {
          ASSERT_GE(ticks.values[i], range.min - 1e-8 * width);
          ASSERT_LE(ticks.values[i], range.max + 1e-8 * width);
          if (i > 0) {
            ASSERT_GT(ticks.values[i], ticks.values[i - 1]);
          }
        }
        const Range wide = rounded_out(range, most);
        ASSERT_LE(wide.min, range.min + 1e-8 * width);
        ASSERT_GE(wide.max, range.max - 1e-8 * width);
      }
    }
  }
}

TEST(ChartTicks, RoundOut) {
  const auto expect = [](Range given, size_t most, double min, double max) {
    const Range wide = rounded_out(given, most);
    EXPECT_EQ(wide.min, min);
    EXPECT_EQ(wide.max, max);
  };
  expect({.03, .97}, 6, 0, 1);
  expect({17, 91}, 11, 10, 100);
  expect({-.31, .29}, 9, -.4, .3);
  expect({0, 100}, 6, 0, 100);
}

TEST(ChartTicks, PowersOfTwo) {
  expect_ticks(log2_ticks({1024, 8192}, 8, Numbers::tokens), {1024, 2048, 4096, 8192}, {"1K", "2K", "4K", "8K"});
  expect_ticks(log2_ticks({256, 1 << 20}, 7, Numbers::tokens), {256, 1024, 4096, 16384, 65536, 262144, 1048576},
               {"256", "1K", "4K", "16K", "64K", "256K", "1M"});
  expect_ticks(log2_ticks({.125, 1}, 8, Numbers::plain), {.125, .25, .5, 1}, {"0.125", "0.25", "0.5", "1"});
  expect_ticks(log2_ticks({.125, 1}, 8, Numbers::percent), {.125, .25, .5, 1}, {"12.5%", "25%", "50%", "100%"});
  const Range wide = rounded_out_log2({1000, 5000});
  EXPECT_EQ(wide.min, 512);
  EXPECT_EQ(wide.max, 8192);
  const Range lone = rounded_out_log2({64, 64});
  EXPECT_EQ(lone.min, 64);
  EXPECT_EQ(lone.max, 128);
}

TEST(ChartTicks, RangesAreNeverEmpty) {
  const auto range = [](std::vector<double> values, double min = kMissing, double max = kMissing) {
    const Range r = range_of({&values}, min, max);
    EXPECT_LT(r.min, r.max);
    EXPECT_TRUE(std::isfinite(r.min) && std::isfinite(r.max));
    return std::make_pair(r.min, r.max);
  };
  using Pair = std::pair<double, double>;
  EXPECT_EQ(range({2, kMissing, 5, kInf, -kInf, 1e200}), Pair(2, 5));
  EXPECT_EQ(range({}), Pair(0, 1));
  EXPECT_EQ(range({kMissing}), Pair(0, 1));
  EXPECT_EQ(range({4}), Pair(2, 6));
  EXPECT_EQ(range({0, 0}), Pair(-1, 1));
  EXPECT_EQ(range({.2, .4}, 0, 1), Pair(0, 1));
  EXPECT_EQ(range({.2, .4}, 0), Pair(0, .4));
  EXPECT_EQ(range({.2, .4}, kMissing, .1), Pair(.05, .1));
  EXPECT_EQ(range({.5}, .5), Pair(.5, .75));
  range({5e-324});
  range({1e100, -1e100});
  range({1}, 3, 2);
  range({1e16, std::nextafter(1e16, 2e16)});
}

TEST(ChartNumbers, AreSpelledShort) {
  EXPECT_EQ(spelled(1234567, Numbers::plain, 0), "1,234,567");
  EXPECT_EQ(spelled(-1234.5, Numbers::plain, 1), "-1,234.5");
  EXPECT_EQ(spelled(999, Numbers::plain, 0), "999");
  EXPECT_EQ(spelled(1500, Numbers::tokens, 0), "1,500");
  EXPECT_EQ(spelled(131072, Numbers::tokens, 0), "128K");
  EXPECT_EQ(spelled(kMissing, Numbers::plain, 2), "-");
  EXPECT_EQ(spelled_short(.876, Numbers::percent), "88");
  EXPECT_EQ(spelled_short(.876, Numbers::plain), "0.88");
  EXPECT_EQ(spelled_short(12, Numbers::plain), "12");
  EXPECT_EQ(spelled_short(kMissing, Numbers::plain), "");
}

// ---- The ramp ----

TEST(ChartRamp, LightnessRisesEvenly) {
  // CIE L* of sRGB, which knows nothing of how the ramp is made.
  const auto lightness = [](Rgb c) {
    const auto linear = [](double v) { return v <= .04045 ? v / 12.92 : std::pow((v + .055) / 1.055, 2.4); };
    const double y = .2126 * linear(c.r / 255.0) + .7152 * linear(c.g / 255.0) + .0722 * linear(c.b / 255.0);
    return y > .008856 ? 116 * std::cbrt(y) - 16 : 903.3 * y;
  };
  const double first = lightness(ramp_color(0)), last = lightness(ramp_color(1));
  EXPECT_LT(first, 20);
  EXPECT_GT(last, 88);
  for (int i = 1; i <= 20; ++i) {
    const double here = lightness(ramp_color(i / 20.0));
    EXPECT_GT(here, lightness(ramp_color((i - 1) / 20.0)) + 1) << i;
    EXPECT_NEAR(here, first + (last - first) * i / 20, 6) << i;
  }
  EXPECT_EQ(ramp_color(-5), ramp_color(0));
  EXPECT_EQ(ramp_color(7), ramp_color(1));
  EXPECT_EQ(ramp_color(kMissing), ramp_color(0));
}

}  // namespace
}  // namespace orrery::tool
