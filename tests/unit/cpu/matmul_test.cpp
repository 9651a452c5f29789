// matmul of every weight type on every instruction set of this machine.
//
// The oracle is a double-precision product of gguf's own dequantized weights with activations that the test
// quantizes itself, from the definition in kernels.h: the integers of a kernel must then be exactly right,
// and only float rounding remains.  The distance to the product with the float activations is held to the
// bound stated there.  Matrices are placed as the backend wants them: where a path wants bands of eight rows, those of
// other numbers of rows are used as they lie, so there are both.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/gguf/dequantize.h"
#include "tests/support/bf16.h"
#include "tests/support/doubles.h"
#include "tests/support/quantized_activations.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::matmul_test {
namespace {

using namespace orrery::testing;

bool float_type(TensorType type) { return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16; }

// Whether what is multiplied is bf16.
bool rounds(const std::string& path, Phase phase, TensorType type) { return phase == Phase::prefill && rounds_weights(path, type); }
template <class Floats>
std::vector<float> seen(const std::string& path, Phase phase, TensorType type, const Floats& x) {
  std::vector<float> out(x.data(), x.data() + x.size());
  if (rounds(path, phase, type))
    for (float& v : out) v = to_bf16(v);
  return out;
}

struct Matrix {
  Matrix(TensorType type, int64_t n_rows, int64_t n_cols, uint64_t seed)
      : bytes(row_bytes(type, static_cast<uint64_t>(n_rows * n_cols))), values(static_cast<size_t>(n_rows * n_cols)) {
    fill_random_blocks(type, bytes.data(), values.size(), seed, 1.0f);
    gguf::dequantize_row(type, bytes.data(), values.data(), values.size());
    weight = {type, n_rows, n_cols, bytes.cptr()};
  }
  Guarded<std::byte> bytes;
  std::vector<float> values;  // (n_rows, n_cols)
  Weight weight;
};

// out (n_rows, n_out) of one product; poison before.
std::vector<float> multiply(Rig& rig, Phase phase, const Matrix& m, const Guarded<float>& x, int64_t x_stride, int32_t n_rows) {
  const size_t n_out = static_cast<size_t>(m.weight.n_rows);
  Guarded<float> out(static_cast<size_t>(n_rows) * n_out);
  rig.begin(phase, n_rows);
  const Weight weight = rig.place(m.weight);
  const Product product{&weight, {}, out.ptr(), weight.n_rows, false};
  rig->matmul({&product, 1}, x.cptr(), x_stride, n_rows);
  rig.end();
  return std::vector<float>(out.data(), out.data() + out.size());
}

class CpuMatmul : public ::testing::TestWithParam<std::string> {};

// Every weight position: row i of the input picks column i.
TEST_P(CpuMatmul, EveryWeightIsWhereItShouldBe) {
  const int32_t n = 512;
  Rig rig(GetParam(), 2, {n, 64, 1, 1, 32, n});
  Guarded<float> x(static_cast<size_t>(n) * n);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i / n == i % n ? -3.0f : 0.0f;
  for (const TypeTraits& type : kTypeTraits)
    for (const size_t n_out : {size_t{37}, size_t{40}}) {
      const Matrix m(type.type, static_cast<int64_t>(n_out), n, 1);
      for (Phase phase : {Phase::prefill, Phase::decode}) {
        const std::vector<float> out = multiply(rig, phase, m, x, n, n), w = seen(GetParam(), phase, type.type, m.values);
        for (size_t c = 0; c < static_cast<size_t>(n); ++c)
          for (size_t o = 0; o < n_out; ++o) {
            const float expected = -3.0f * w[o * static_cast<size_t>(n) + c];
            // Scale and minimum are rounded apart: relative to the larger of them, bounded by the type's
            // largest value.
            ASSERT_NEAR(out[c * n_out + o], expected, 1e-5f) << type.name << " weight " << o << ", " << c;
          }
      }
    }
}

TEST_P(CpuMatmul, MatchesTheDoubleProduct) {
  struct Shape {
    int64_t n_out, n_in;
    int32_t n_rows;
  };
  const Shape shapes[] = {{1, 256, 1}, {5, 512, 2}, {33, 768, 3},   {64, 256, 7},   {17, 1280, 33}, {95, 512, 5},
                          {7, 32, 1},  {31, 96, 2}, {40, 288, 9},   {2, 4096, 70},  {130, 1024, 4}, {70, 512, 263},
                          {8, 32, 2},  {24, 96, 1}, {88, 1280, 33}, {136, 512, 263}};  // 263 rows: beyond a tile
  Rig rig(GetParam(), 2, {263, 64, 1, 1, 32, 4096});
  for (const TypeTraits& type : kTypeTraits)
    for (const Shape& s : shapes) {
      if (s.n_in % type.block_elements != 0) continue;
      const Matrix m(type.type, s.n_out, s.n_in, 7);
      const int64_t stride = s.n_in + 3;
      Guarded<float> x(static_cast<size_t>(stride * (s.n_rows - 1) + s.n_in));
      fill_normal(x, 11);
      // Of each output's weights: the largest, and the sums over blocks of 32. Of each row's activations: the largest of each block.
      const auto n_blocks = static_cast<size_t>((s.n_in + 31) / 32);
      std::vector<double> largest(static_cast<size_t>(s.n_out)), of_weights(largest.size() * n_blocks);
      for (size_t o = 0; o < largest.size(); ++o)
        for (size_t c = 0; c < static_cast<size_t>(s.n_in); ++c) {
          const double weight = std::fabs(static_cast<double>(m.values[o * static_cast<size_t>(s.n_in) + c]));
          largest[o] = std::max(largest[o], weight);
          of_weights[o * n_blocks + c / 32] += weight;
        }
      for (Phase phase : {Phase::prefill, Phase::decode}) {
        const std::vector<float> out = multiply(rig, phase, m, x, stride, s.n_rows),
                                 seen_weights = seen(GetParam(), phase, type.type, m.values),
                                 seen_rows = seen(GetParam(), phase, type.type, x);
        const bool rounds_both = rounds(GetParam(), phase, type.type);
        for (int32_t r = 0; r < s.n_rows; ++r) {
          const float *row = x.data() + r * stride, *as_seen = seen_rows.data() + r * stride;
          const std::vector<double> activations =
              float_type(type.type) || rounds_both ? std::vector<double>(as_seen, as_seen + s.n_in) : quantized(row, s.n_in);
          std::vector<double> of_row(n_blocks);
          for (size_t c = 0; c < static_cast<size_t>(s.n_in); ++c)
            of_row[c / 32] = std::max(of_row[c / 32], std::fabs(static_cast<double>(row[c])));
          double size = 0;
          for (const double activation : activations) size += std::fabs(activation);
          for (int64_t o = 0; o < s.n_out; ++o) {
            const float *w = m.values.data() + o * s.n_in, *seen_w = seen_weights.data() + o * s.n_in;
            const auto n_in = static_cast<size_t>(s.n_in);
            const double expected = dot(seen_w, activations.data(), n_in), exact = dot(w, row, n_in),
                         magnitude = size * largest[static_cast<size_t>(o)];
            double bound = rounds_both ? dot_of_sizes(w, row, n_in) / 255 : 0;  // 2^-9 of each
            for (size_t b = 0; b < n_blocks && !float_type(type.type) && !rounds_both; ++b)
              bound += of_row[b] / 254 * of_weights[static_cast<size_t>(o) * n_blocks + b];
            const double got = out[static_cast<size_t>(r * s.n_out + o)];
            ASSERT_NEAR(got, expected, 4e-7 * magnitude) << type.name << " " << s.n_out << "x" << s.n_in << " row " << r << " of "
                                                         << s.n_rows << " out " << o << (phase == Phase::prefill ? " prefill" : " decode");
            ASSERT_NEAR(got, exact, 1.01 * bound + 1e-6 * magnitude) << type.name;
          }
        }
      }
    }
}

// Quantized weights likewise: tiles of several of a task's outputs, over more rows than are summed at once; outputs on lines of their own,
// which go past the caches, and others.
TEST_P(CpuMatmul, QuantizedWeightsBeyondATile) {
  const int32_t n_rows = 515;
  const int64_t n_in = 512;
  Rig rig(GetParam(), 1, {n_rows, 64, 1, 1, 32, n_in});
  Guarded<float> x(static_cast<size_t>(n_rows * n_in));
  fill_normal(x, 5);
  for (const TensorType type : {TensorType::q8_0, TensorType::q4_k, TensorType::q6_k})
    for (const int64_t n_out : {int64_t{1552}, int64_t{1549}}) {
      const Matrix m(type, n_out, n_in, 3);
      const std::vector<float> out = multiply(rig, Phase::prefill, m, x, n_in, n_rows),
                               w = seen(GetParam(), Phase::prefill, type, m.values);
      for (const int64_t r : {0, 1, 200, 255, 256, 510, 511, 512, 514}) {
        const float* row = x.data() + r * n_in;
        std::vector<double> activations = quantized(row, n_in);
        for (size_t c = 0; c < activations.size() && rounds(GetParam(), Phase::prefill, type); ++c)
          activations[c] = static_cast<double>(to_bf16(row[c]));
        for (int64_t o = 0; o < n_out; ++o) {
          const double expected = dot(w.data() + o * n_in, activations.data(), activations.size());
          double magnitude = 0, largest = 0;
          for (int64_t c = 0; c < n_in; ++c) {
            magnitude += std::fabs(activations[static_cast<size_t>(c)]);
            largest = std::max(largest, std::fabs(static_cast<double>(m.values[static_cast<size_t>(o * n_in + c)])));
          }
          ASSERT_NEAR(out[static_cast<size_t>(r * n_out + o)], expected, 4e-7 * magnitude * largest)
              << type_traits(type)->name << " row " << r << " out " << o << " of " << n_out;
        }
      }
    }
}

// Float weights in more outputs, columns and rows than a tile has of each, asked for by one thread, whose tasks are the largest.
TEST_P(CpuMatmul, FloatWeightsBeyondATile) {
  const int64_t n_out = 1050, n_in = 291;
  const int32_t n_rows = 257;
  Rig rig(GetParam(), 1, {n_rows, 64, 1, 1, 32, n_in});
  Guarded<float> x(static_cast<size_t>(n_rows * n_in));
  fill_normal(x, 5);
  for (TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16}) {
    const Matrix m(type, n_out, n_in, 3);
    const std::vector<float> out = multiply(rig, Phase::prefill, m, x, n_in, n_rows), w = seen(GetParam(), Phase::prefill, type, m.values),
                             rows = seen(GetParam(), Phase::prefill, type, x);
    for (int64_t r = 0; r < n_rows; ++r)
      for (int64_t o = 0; o < n_out; ++o) {
        const float *w_row = w.data() + o * n_in, *x_row = rows.data() + r * n_in;
        const double expected = dot(w_row, x_row, static_cast<size_t>(n_in)),
                     magnitude = dot_of_sizes(w_row, x_row, static_cast<size_t>(n_in));
        ASSERT_NEAR(out[static_cast<size_t>(r * n_out + o)], expected, 1e-6 * magnitude) << "row " << r << " out " << o;
      }
  }
}

// Any number of columns for float weights.
TEST_P(CpuMatmul, FloatWeightsOfOddWidth) {
  Rig rig(GetParam(), 1, {5, 64, 1, 1, 32, 600});
  for (TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16})
    for (int64_t n_in : {1, 3, 8, 15, 17, 31, 33, 64, 65, 127, 255, 257, 599}) {
      const Matrix m(type, 35, n_in, 3);
      Guarded<float> x(static_cast<size_t>(5 * n_in));
      fill_normal(x, 5);
      for (Phase phase : {Phase::prefill, Phase::decode}) {
        const std::vector<float> out = multiply(rig, phase, m, x, n_in, 5), w = seen(GetParam(), phase, type, m.values),
                                 rows = seen(GetParam(), phase, type, x);
        for (int64_t r = 0; r < 5; ++r)
          for (int64_t o = 0; o < 35; ++o) {
            const float *w_row = w.data() + o * n_in, *x_row = rows.data() + r * n_in;
            const double expected = dot(w_row, x_row, static_cast<size_t>(n_in)),
                         magnitude = dot_of_sizes(w_row, x_row, static_cast<size_t>(n_in));
            ASSERT_NEAR(out[static_cast<size_t>(r * 35 + o)], expected, 1e-6 * magnitude + 1e-30) << n_in;
          }
      }
    }
}

// Values at the ends of every format's range, and activations at theirs: no integer sum may saturate or wrap.
TEST_P(CpuMatmul, ExtremeCodesDoNotOverflow) {
  const int64_t n_in = 1024;
  Rig rig(GetParam(), 1, {3, 64, 1, 1, 32, n_in});
  for (const TypeTraits& type : kTypeTraits)
    for (const int64_t n_out : {39, 40}) {
      if (float_type(type.type)) continue;
      for (int fill : {0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0}) {
        Matrix m(type.type, n_out, n_in, 3);
        // All codes and sub-scales the same; the halves stay as they were.
        const std::vector<std::byte> before(m.bytes.data(), m.bytes.data() + m.bytes.size());
        std::memset(m.bytes.data(), fill, m.bytes.size());
        for (size_t b = 0; b < m.bytes.size(); b += type.block_bytes) {
          const auto keep = [&](size_t at) { std::memcpy(m.bytes.data() + b + at, before.data() + b + at, 2); };
          switch (type.type) {
            case TensorType::q4_1:
            case TensorType::q5_1:
            case TensorType::q4_k:
            case TensorType::q5_k:
              keep(0);
              keep(2);
              break;
            case TensorType::q2_k:
              keep(80);
              keep(82);
              break;
            case TensorType::q3_k: keep(108); break;
            case TensorType::q6_k: keep(208); break;
            default: keep(0); break;
          }
        }
        gguf::dequantize_row(type.type, m.bytes.data(), m.values.data(), m.values.size());
        Guarded<float> x(static_cast<size_t>(3 * n_in));
        for (int64_t i = 0; i < n_in; ++i) {
          x[static_cast<size_t>(i)] = 2.0f;
          x[static_cast<size_t>(n_in + i)] = -2.0f;
          x[static_cast<size_t>(2 * n_in + i)] = i % 2 ? 2.0f : -2.0f;
        }
        for (Phase phase : {Phase::prefill, Phase::decode}) {
          const std::vector<float> out = multiply(rig, phase, m, x, n_in, 3), w = seen(GetParam(), phase, type.type, m.values);
          for (int64_t r = 0; r < 3; ++r)
            for (int64_t o = 0; o < n_out; ++o) {
              const float *w_row = w.data() + o * n_in, *x_row = x.data() + r * n_in;
              const double expected = dot(w_row, x_row, static_cast<size_t>(n_in)),
                           magnitude = dot_of_sizes(w_row, x_row, static_cast<size_t>(n_in));
              // Minima are as large as the scaled codes: room for both.
              ASSERT_NEAR(out[static_cast<size_t>(r * n_out + o)], expected, 4e-6 * magnitude + 4e-4) << type.name << " " << fill;
            }
        }
      }
    }
}

// A row's bits do not depend on the rows beside it, on its place among them, nor on the number of threads.
TEST_P(CpuMatmul, BitsDoNotDependOnRowsOrThreads) {
  const int64_t n_in = 768;
  const int32_t n = 70;
  Guarded<float> x(static_cast<size_t>(n * n_in));
  fill_normal(x, 23);
  for (const TypeTraits& type : kTypeTraits)
    for (const int64_t n_out : {83, 88}) {  // more weight rows than a tile has
      const Matrix m(type.type, n_out, n_in, 9);
      for (Phase phase : {Phase::prefill, Phase::decode}) {
        std::vector<float> expected;
        for (int32_t n_threads : {1, 2, 3, 4}) {
          Rig rig(GetParam(), n_threads, {n, 64, 1, 1, 32, n_in});
          const std::vector<float> all = multiply(rig, phase, m, x, n_in, n);
          if (expected.empty()) expected = all;
          ASSERT_TRUE(same_bits(all.data(), expected.data(), all.size())) << type.name << " threads " << n_threads;
          for (int32_t first : {0, 1, 13, 69})
            for (int32_t count : {1, 2, 3, 4, 5, 6, 7, 8, 33}) {
              if (first + count > n || (n_threads > 1 && count > 2)) continue;
              Guarded<float> part(static_cast<size_t>(count * n_in));
              std::memcpy(part.data(), x.data() + first * n_in, part.size() * sizeof(float));
              const std::vector<float> some = multiply(rig, phase, m, part, n_in, count);
              ASSERT_TRUE(same_bits(some.data(), expected.data() + first * n_out, some.size()))
                  << type.name << " rows " << first << "+" << count << " threads " << n_threads;
            }
        }
      }
    }
}

// Several products of one input, with bias, with accumulation, into rows that lie apart; what lies between
// stays.
TEST_P(CpuMatmul, ProductsBiasAndAccumulation) {
  const int64_t n_in = 512;
  const int32_t n_rows = 3;
  Rig rig(GetParam(), 2, {n_rows, 64, 1, 1, 32, n_in});
  const Matrix a(TensorType::q4_k, 45, n_in, 1), b(TensorType::f16, 20, n_in, 2), c(TensorType::q6_k, 45, n_in, 3);
  Guarded<float> x(static_cast<size_t>(n_rows * n_in)), bias(45);
  fill_normal(x, 3);
  fill_normal(bias, 4);
  for (Phase phase : {Phase::prefill, Phase::decode}) {
    const std::vector<float> alone_a = multiply(rig, phase, a, x, n_in, n_rows), alone_b = multiply(rig, phase, b, x, n_in, n_rows),
                             alone_c = multiply(rig, phase, c, x, n_in, n_rows);
    const int64_t stride = 100;
    Guarded<float> out(static_cast<size_t>(stride * n_rows)), more(static_cast<size_t>(45 * n_rows));
    std::fill_n(out.data(), out.size(), 77.0f);
    std::fill_n(more.data(), more.size(), 0.5f);
    const Product products[] = {{&a.weight, bias.cptr(), out.ptr(), stride, false},
                                {&b.weight, {}, out.ptr() + 50, stride, false},
                                {&c.weight, {}, more.ptr(), 45, true}};
    rig.begin(phase, n_rows);
    rig->matmul({products, 3}, x.cptr(), n_in, n_rows);
    rig.end();
    for (int64_t r = 0; r < n_rows; ++r)
      for (int64_t i = 0; i < stride; ++i) {
        const size_t at = static_cast<size_t>(r * stride + i);
        if (i < 45) {
          ASSERT_EQ(out[at], alone_a[static_cast<size_t>(r * 45 + i)] + bias[static_cast<size_t>(i)]);
          ASSERT_EQ(more[static_cast<size_t>(r * 45 + i)], alone_c[static_cast<size_t>(r * 45 + i)] + 0.5f);
        } else if (i >= 50 && i < 70) {
          ASSERT_EQ(out[at], alone_b[static_cast<size_t>(r * 20 + i - 50)]);
        } else {
          ASSERT_EQ(out[at], 77.0f);
        }
      }
  }
}

// What cannot be quantized: zeros stay zeros, the smallest numbers vanish, infinities and NaNs come out as
// NaN, or infinities as such where they are multiplied as they are.
TEST_P(CpuMatmul, StrangeActivations) {
  const int64_t n_in = 512;
  Rig rig(GetParam(), 1, {5, 64, 1, 1, 32, n_in});
  for (TensorType type : {TensorType::q8_0, TensorType::q4_0, TensorType::q4_k, TensorType::q6_k}) {
    const Matrix m(type, 9, n_in, 1);
    Guarded<float> x(static_cast<size_t>(5 * n_in));
    std::fill_n(x.data(), x.size(), 0.0f);
    x[static_cast<size_t>(n_in + 40)] = 1e-42f;
    x[static_cast<size_t>(2 * n_in + 300)] = std::numeric_limits<float>::infinity();
    x[static_cast<size_t>(3 * n_in + 511)] = std::numeric_limits<float>::quiet_NaN();
    x[static_cast<size_t>(4 * n_in + 7)] = 1e30f;
    for (Phase phase : {Phase::prefill, Phase::decode}) {
      const std::vector<float> out = multiply(rig, phase, m, x, n_in, 5);
      for (size_t o = 0; o < 9; ++o) {
        EXPECT_EQ(out[o], 0.0f);
        EXPECT_EQ(out[9 + o], 0.0f);
        EXPECT_TRUE(std::isnan(out[18 + o]) || (rounds(GetParam(), phase, type) && std::isinf(out[18 + o])));
        EXPECT_TRUE(std::isnan(out[27 + o]));
        const bool bf16 = rounds(GetParam(), phase, type);
        const float weight = m.values[o * static_cast<size_t>(n_in) + 7], w = bf16 ? to_bf16(weight) : weight;
        if (std::fabs(w) < 1) {
          EXPECT_NEAR(out[36 + o] / (bf16 ? to_bf16(1e30f) : 1e30f), w, 1e-5f);
        }
      }
    }
  }
}

// Every path sees the same integers, or of rounded numbers the same bf16: it differs from the plain one only by the order of
// float sums.
TEST_P(CpuMatmul, DiffersFromPlainOnlyByRounding) {
  const int64_t n_in = 2048;
  const int32_t n_rows = 6;
  Rig rig(GetParam(), 1, {n_rows, 64, 1, 1, 32, n_in}), plain("plain", 1, {n_rows, 64, 1, 1, 32, n_in});
  Guarded<float> x(static_cast<size_t>(n_rows * n_in));
  fill_normal(x, 31);
  for (const TypeTraits& type : kTypeTraits)
    for (const int64_t n_out : {63, 64}) {
      const Matrix m(type.type, n_out, n_in, 13);
      for (Phase phase : {Phase::prefill, Phase::decode}) {
        const bool bf16 = rounds(GetParam(), phase, type.type);
        Matrix same(bf16 ? TensorType::f32 : type.type, n_out, n_in, 13);
        Guarded<float> rows(x.size());
        std::memcpy(rows.data(), x.data(), x.size() * sizeof(float));
        if (bf16) {
          for (size_t i = 0; i < m.values.size(); ++i) reinterpret_cast<float*>(same.bytes.data())[i] = to_bf16(m.values[i]);
          for (size_t i = 0; i < rows.size(); ++i) rows[i] = to_bf16(x[i]);
        }
        const std::vector<float> a = multiply(rig, phase, m, x, n_in, n_rows), b = multiply(plain, phase, same, rows, n_in, n_rows);
        double squares = 0, difference = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          squares += static_cast<double>(b[i]) * b[i];
          difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
        }
        EXPECT_LT(std::sqrt(difference / squares), 1e-6) << type.name;
      }
    }
}

// What lies in bands gives a prompt the same bits as what lies as in the file, and takes as much memory; but bands of IQ3 hold four bits
// for each weight, a byte for each 32 and a half for each 256.
TEST_P(CpuMatmul, BandsChangeNoBitOfAPrompt) {
  const int64_t n_in = 768, n_out = 88;
  const int32_t n_rows = 19;
  Rig rig(GetParam(), 2, {n_rows, 64, 1, 1, 32, n_in});
  Guarded<float> x(static_cast<size_t>(n_rows * n_in));
  fill_normal(x, 41);
  for (const TypeTraits& type : kTypeTraits) {
    const Matrix m(type.type, n_out, n_in, 17);
    const uint64_t bytes = rig->weight_bytes(type.type, n_out, n_in);
    const bool indices = type.type == TensorType::iq3_xxs || type.type == TensorType::iq3_s;
    EXPECT_TRUE(bytes == 0 || bytes == (indices ? static_cast<uint64_t>(n_out * n_in / 256 * (128 + 8 + 2)) : m.bytes.size())) << type.name;
    EXPECT_EQ(rig->weight_bytes(type.type, n_out + 1, n_in), 0u) << type.name;
    const std::vector<float> placed = multiply(rig, Phase::prefill, m, x, n_in, n_rows);
    Guarded<float> out(placed.size());
    rig.begin(Phase::prefill, n_rows);
    const Product as_it_lies{&m.weight, {}, out.ptr(), n_out, false};
    rig->matmul({&as_it_lies, 1}, x.cptr(), n_in, n_rows);
    rig.end();
    EXPECT_TRUE(same_bits(out.data(), placed.data(), placed.size())) << type.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuMatmul, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::matmul_test
