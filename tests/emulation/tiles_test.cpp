// Tests of tiles.h, which the tests of AMX's kernels rely on: against products of whole matrices, and with uses that the processor refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/emulation/tiles.h"
#include "tests/support/random_blocks.h"

namespace orrery {
namespace {

using emulated::Tiles;
using orrery::testing::Random;

struct Config {
  uint8_t bytes[64] = {1};
  void shape(int tile, int rows, int row_bytes) {
    bytes[16 + 2 * tile] = static_cast<uint8_t>(row_bytes);
    bytes[48 + tile] = static_cast<uint8_t>(rows);
  }
};

// A product's three tiles: sums (m, n), a (m, 4 k bytes), b (k, 4 n bytes).
Config product_config(int m, int n, int k) {
  Config config;
  config.shape(0, m, 4 * n);
  config.shape(1, m, 4 * k);
  config.shape(2, k, 4 * n);
  return config;
}

struct Shape {
  int m, n, k;
};
const Shape kShapes[] = {{16, 16, 16}, {16, 16, 8}, {16, 16, 4}, {1, 1, 1}, {3, 5, 7}, {16, 1, 16}};

// Column c of row r of the right matrix lies in row c / 4 (c / 2) of its tile, at its place among four (two) of row r.
TEST(Tiles, MultiplyBytes) {
  for (const Shape& s : kShapes) {
    Tiles tiles;
    const Config config = product_config(s.m, s.n, s.k);
    tiles.load_config(config.bytes);
    const int columns = 4 * s.k, stride = columns + 5;
    Random random(1);
    const auto byte = [&] { return static_cast<int8_t>(std::lround(60 * random.normal())); };
    std::vector<int8_t> left(static_cast<size_t>(s.m * stride)), right(static_cast<size_t>(s.n * columns));
    for (int8_t& v : left) v = byte();
    for (int8_t& v : right) v = byte();
    left[0] = right[0] = -128;
    std::vector<int8_t> b(right.size());
    for (int r = 0; r < s.n; ++r)
      for (int c = 0; c < columns; ++c)
        b[static_cast<size_t>(c / 4 * 4 * s.n + 4 * r + c % 4)] = right[static_cast<size_t>(r * columns + c)];
    std::vector<int32_t> sums(static_cast<size_t>(s.m * 20), 7);
    tiles.load(0, sums.data(), 80);
    tiles.load(1, left.data(), stride);
    tiles.load(2, b.data(), 4 * s.n);
    tiles.dot_bytes(0, 1, 2);
    tiles.dot_bytes(0, 1, 2);
    tiles.store(0, sums.data(), 80);
    for (int i = 0; i < s.m; ++i)
      for (int o = 0; o < 20; ++o) {
        int32_t expected = 7;
        for (int c = 0; o < s.n && c < columns; ++c)
          expected += 2 * left[static_cast<size_t>(i * stride + c)] * right[static_cast<size_t>(o * columns + c)];
        ASSERT_EQ(sums[static_cast<size_t>(i * 20 + o)], expected) << s.m << " " << s.n << " " << s.k;
      }
  }
}

TEST(Tiles, MultiplyHalves) {
  for (const Shape& s : kShapes) {
    Tiles tiles;
    const Config config = product_config(s.m, s.n, s.k);
    tiles.load_config(config.bytes);
    const int columns = 2 * s.k;
    Random random(2);
    const auto bf16 = [&] {
      const float x = random.normal();
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      return static_cast<uint16_t>(bits >> 16);
    };
    const auto value = [](uint16_t upper) {
      const uint32_t bits = uint32_t{upper} << 16;
      float x;
      std::memcpy(&x, &bits, sizeof x);
      return static_cast<double>(x);
    };
    std::vector<uint16_t> left(static_cast<size_t>(s.m * columns)), right(static_cast<size_t>(s.n * columns));
    for (uint16_t& v : left) v = bf16();
    for (uint16_t& v : right) v = bf16();
    std::vector<uint16_t> b(right.size());
    for (int r = 0; r < s.n; ++r)
      for (int c = 0; c < columns; ++c)
        b[static_cast<size_t>(c / 2 * 2 * s.n + 2 * r + c % 2)] = right[static_cast<size_t>(r * columns + c)];
    std::vector<float> sums(static_cast<size_t>(s.m * s.n), 0.5f);
    tiles.load(0, sums.data(), 4 * s.n);
    tiles.load(1, left.data(), 2 * columns);
    tiles.load(2, b.data(), 4 * s.n);
    tiles.dot_halves(0, 1, 2);
    tiles.store(0, sums.data(), 4 * s.n);
    for (int i = 0; i < s.m; ++i)
      for (int o = 0; o < s.n; ++o) {
        double expected = 0.5, magnitude = 0.5;
        for (int c = 0; c < columns; ++c) {
          const double term = value(left[static_cast<size_t>(i * columns + c)]) * value(right[static_cast<size_t>(o * columns + c)]);
          expected += term;
          magnitude += std::fabs(term);
        }
        ASSERT_NEAR(sums[static_cast<size_t>(i * s.n + o)], expected, 1e-6 * magnitude);
      }
  }
}

// Subnormal operands count as zero, and so do subnormal sums.
TEST(Tiles, HalvesFlushSubnormalNumbers) {
  Tiles tiles;
  const Config config = product_config(1, 1, 1);
  const auto product = [&](uint16_t x, uint16_t y) {
    tiles.load_config(config.bytes);
    const uint16_t a[2] = {x, 0}, b[2] = {y, 0};
    float sum = 0;
    tiles.load(1, a, 4);
    tiles.load(2, b, 4);
    tiles.dot_halves(0, 1, 2);
    tiles.store(0, &sum, 4);
    return sum;
  };
  const uint16_t one = 0x3F80, smallest = 0x0080, below = 0x0040, half = 0x3F00;
  EXPECT_EQ(product(one, smallest), 0x1p-126f);
  EXPECT_EQ(product(one, below), 0.0f);
  EXPECT_EQ(product(half, smallest), 0.0f);
}

TEST(Tiles, LoadsClearWhatIsBeyondTheirShape) {
  Tiles tiles;
  Config config = product_config(2, 2, 1);
  tiles.load_config(config.bytes);
  const int32_t from[4] = {1, 2, 3, 4};
  int32_t to[4] = {9, 9, 9, 9};
  tiles.load(0, from, 4);  // rows overlap
  tiles.store(0, to, 8);
  EXPECT_EQ(to[0], 1);
  EXPECT_EQ(to[1], 2);
  EXPECT_EQ(to[2], 2);
  EXPECT_EQ(to[3], 3);
  tiles.zero(0);
  tiles.store(0, to, 8);
  EXPECT_EQ(to[3], 0);
}

TEST(Tiles, RefuseWhatTheProcessorDoes) {
  Tiles tiles;
  EXPECT_THROW(tiles.zero(0), std::logic_error) << "not configured";
  Config config = product_config(16, 16, 16);
  tiles.load_config(config.bytes);
  tiles.dot_bytes(0, 1, 2);
  EXPECT_THROW(tiles.dot_bytes(0, 1, 1), std::logic_error) << "twice the same";
  EXPECT_THROW(tiles.zero(3), std::logic_error) << "not configured";
  config.shape(2, 8, 64);
  tiles.load_config(config.bytes);
  EXPECT_THROW(tiles.dot_bytes(0, 1, 2), std::logic_error) << "16 dwords meet 8 rows";
  EXPECT_THROW(tiles.dot_halves(0, 1, 2), std::logic_error);
  config.shape(2, 17, 64);
  EXPECT_THROW(tiles.load_config(config.bytes), std::logic_error) << "17 rows";
  config.shape(2, 16, 64);
  config.bytes[0] = 2;
  EXPECT_THROW(tiles.load_config(config.bytes), std::logic_error) << "palette 2";
  config.bytes[0] = 1;
  config.bytes[40] = 1;
  EXPECT_THROW(tiles.load_config(config.bytes), std::logic_error) << "a reserved byte";
  tiles.release();
  EXPECT_FALSE(tiles.configured());
  EXPECT_THROW(tiles.load(0, config.bytes, 64), std::logic_error) << "released";
}

}  // namespace
}  // namespace orrery
