// Tests products with every weight type, in both phases (cuda/kernels/matmul_decode.cu, matmul_prefill.cu), and the quantization of their
// input.
//
// The oracle is a product in double of dequantized weights with activations that the test quantizes itself, as in
// tests/unit/cpu/matmul_test.cpp. So integers must be exact, and only float rounding may differ.
#include "runtime/gguf/dequantize.h"
#include "tests/gpu/device_fixture.h"
#include "tests/support/doubles.h"
#include "tests/support/quantized_activations.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/threads.h"
#endif

namespace orrery::matmul_test {
namespace {

using namespace testing;

constexpr Phase kPhases[] = {Phase::decode, Phase::prefill};
#ifdef ORRERY_EMULATED  // where launches are counted
bool has_large_tile(TensorType type) {
  return type != TensorType::q2_k && type != TensorType::q3_k && type != TensorType::iq2_xs && type != TensorType::iq2_s &&
         type != TensorType::nvfp4;
}
#endif
const char* name(Phase phase) { return phase == Phase::decode ? "decode" : "prefill"; }
bool float_type(TensorType type) { return type_traits(type)->block_elements == 1; }

struct Matrix {
  Matrix(Machine* m, TensorType type, int64_t n_rows, int64_t n_cols, const std::vector<std::byte>& file)
      : device(m, (*m)->weight_bytes(type, n_rows, n_cols)), values(static_cast<size_t>(n_rows * n_cols)) {
    gguf::dequantize_row(type, file.data(), values.data(), values.size());
    EXPECT_TRUE((*m)->place_weight(type, n_rows, n_cols, file.data(), device.ptr(), &weight).ok());
  }
  Matrix(Machine* m, TensorType type, int64_t n_rows, int64_t n_cols, uint64_t seed)
      : Matrix(m, type, n_rows, n_cols, random_blocks(type, static_cast<uint64_t>(n_rows * n_cols), seed, 1.0f)) {}
  const float* row(int64_t o) const { return values.data() + o * weight.n_cols; }

  Buffer<std::byte> device;
  std::vector<float> values;  // (n_rows, n_cols)
  Weight weight;
};

// The share of |w x| by which a product with float weights may differ. Prefill splits x into two halves of 11 bits each (BF16: 8 bits).
double share(TensorType type, Phase phase) { return type == TensorType::bf16 && phase == Phase::prefill ? 0x1p-16 : 0x1p-21; }

// out (n_rows, n_out) of one product. `out` is NaN before.
std::vector<float> multiply(Machine* m, Phase phase, const Matrix& matrix, const Buffer<float>& x, int64_t x_stride, int32_t n_rows) {
  Buffer<float> out(m, static_cast<size_t>(n_rows * matrix.weight.n_rows));
  const Product product{&matrix.weight, {}, out.ptr(), matrix.weight.n_rows, false};
  m->begin(phase, n_rows);
  (*m)->matmul({&product, 1}, x.cptr(), x_stride, n_rows);
  m->end();
  return out.get();
}

void expect_double_product(Machine* m, TensorType type, int64_t n_out, int64_t n_in, int32_t n_rows, int64_t stride) {
  const Matrix matrix(m, type, n_out, n_in, 7);
  const std::vector<float> values = normal_values(static_cast<size_t>(stride * (n_rows - 1) + n_in), 11);
  const Buffer<float> x(m, values);
  std::vector<double> largest(static_cast<size_t>(n_out));  // of each output's weights
  for (int64_t o = 0; o < n_out; ++o)
    for (int64_t c = 0; c < n_in; ++c)
      largest[static_cast<size_t>(o)] = std::max(largest[static_cast<size_t>(o)], std::fabs(static_cast<double>(matrix.row(o)[c])));
  for (const Phase phase : kPhases) {
    const std::vector<float> out = multiply(m, phase, matrix, x, stride, n_rows);
    for (int32_t r = 0; r < n_rows; ++r) {
      const float* row = values.data() + r * stride;
      const std::vector<double> seen = float_type(type) ? std::vector<double>(row, row + n_in) : quantized(row, n_in);
      double size = 0;
      for (const double s : seen) size += std::fabs(s);
      for (int64_t o = 0; o < n_out; ++o) {
        const double expected = dot(matrix.row(o), seen.data(), seen.size()), magnitude = largest[static_cast<size_t>(o)] * size;
        const double bound = float_type(type) ? share(type, phase) : 4e-7;
        ASSERT_NEAR(out[static_cast<size_t>(r * n_out + o)], expected, bound * magnitude)
            << type_traits(type)->name << " " << n_out << "x" << n_in << ", " << name(phase) << ", row " << r << " of " << n_rows
            << ", out " << o;
      }
    }
  }
}

class GpuMatmul : public ::testing::TestWithParam<TensorType> {};

TEST_P(GpuMatmul, MatchesTheDoubleProduct) {
  struct Shape {
    int64_t n_out, n_in;
    int32_t n_rows;
  };
  Machine m(true, product_limits(240, 4352));
  for (const Shape s : {Shape{1, 256, 1},
                        {5, 512, 2},
                        {33, 768, 3},
                        {65, 256, 7},
                        {17, 1280, 33},
                        {7, 32, 1},
                        {31, 96, 2},
                        {40, 288, 9},
                        {2, 4096, 5},
                        {130, 512, 4},
                        {250, 256, 240},
                        {3, 4352, 1}})
    if (s.n_in % type_traits(GetParam())->block_elements == 0)  // rows side by side, or with gaps and unaligned
      expect_double_product(&m, GetParam(), s.n_out, s.n_in, s.n_rows, s.n_in + s.n_out % 2 * 3);
}

// Each weight is at its place: row i of the input picks column 11 i. (formats_test.cpp checks every position.)
TEST_P(GpuMatmul, EveryWeightIsWhereItShouldBe) {
  const int32_t n_in = 512, n_rows = 47;
  Machine m(true, product_limits(n_rows, n_in));
  const Matrix matrix(&m, GetParam(), 19, n_in, 1);
  std::vector<float> values(n_rows * n_in);
  for (size_t i = 0; i < n_rows; ++i) values[i * n_in + 11 * i] = -3.0f;
  const Buffer<float> x(&m, values);
  // A prompt's sums of a group with two scales are rounded where they start (kStart), 18 times the largest product of IQ2: by 2^-24 of 18 *
  // 12.
  const bool iq2 = GetParam() == TensorType::iq2_xs || GetParam() == TensorType::iq2_s;
  const float bound = iq2 ? 1.3e-5f : 1e-5f;
  for (const Phase phase : kPhases) {
    const std::vector<float> out = multiply(&m, phase, matrix, x, n_in, n_rows);
    for (int64_t i = 0; i < n_rows; ++i)
      for (int64_t o = 0; o < 19; ++o)
        ASSERT_NEAR(out[static_cast<size_t>(i * 19 + o)], -3.0f * matrix.row(o)[11 * i], bound)
            << name(phase) << " weight " << o << ", " << 11 * i;
  }
}

// Rows [first, first + count) of `values`, multiplied alone, have the bits that they have in `all`, the product of every row.
void expect_same_bits_alone(Machine* m, Phase phase, const Matrix& matrix, const std::vector<float>& values, const std::vector<float>& all,
                            int32_t first, int32_t count) {
  const int64_t n_in = matrix.weight.n_cols;
  const Buffer<float> part(m, std::vector<float>(values.begin() + first * n_in, values.begin() + (first + count) * n_in));
  const std::vector<float> some = multiply(m, phase, matrix, part, n_in, count);
  ASSERT_TRUE(same_bits(some.data(), all.data() + first * matrix.weight.n_rows, some.size()))
      << name(phase) << ", rows " << first << " + " << count;
}

// A row's bits depend neither on other rows nor on its index.
TEST_P(GpuMatmul, BitsDoNotDependOnTheOtherRows) {
  const int64_t n_in = 512, n_out = 20;
  const int32_t n = 40;
  Machine m(true, product_limits(n, n_in));
  const Matrix matrix(&m, GetParam(), n_out, n_in, 9);
  const std::vector<float> values = normal_values(static_cast<size_t>(n * n_in), 23);
  const Buffer<float> x(&m, values);
  for (const Phase phase : kPhases) {
    const std::vector<float> all = multiply(&m, phase, matrix, x, n_in, n);
    for (const int32_t first : {0, 31})
      for (const int32_t count : {1, 2, 3, 8, 9}) expect_same_bits_alone(&m, phase, matrix, values, all, first, count);
  }
}

// At decode two whole rounds of units, the rest behind them, and the units of a block of eight rows: a row has the same bits.
TEST_P(GpuMatmul, RoundsOfUnitsGiveTheSameBits) {
  const int64_t n_in = 8448, n_out = 3;
  const int32_t n = 8;
  Machine m(true, product_limits(n, n_in));
  const Matrix matrix(&m, GetParam(), n_out, n_in, 17);
  const std::vector<float> values = normal_values(static_cast<size_t>(n * n_in), 31);
  const std::vector<float> all = multiply(&m, Phase::decode, matrix, Buffer<float>(&m, values), n_in, n);
  for (const int32_t count : {1, 2, 3}) expect_same_bits_alone(&m, Phase::decode, matrix, values, all, n - count, count);
}

// A prompt's row has the same bits in tiles of every size. On a device of four SMs 240 rows of 500 outputs take large tiles, 60 rows take
// tiles of middle size, and 20 rows small ones.
TEST_P(GpuMatmul, TilesOfEverySizeGiveTheSameBits) {
  const int64_t n_in = 256, n_out = 500;
  const int32_t n = 240;
  Machine m(true, product_limits(n, n_in));
  const Matrix matrix(&m, GetParam(), n_out, n_in, 13);
  const std::vector<float> values = normal_values(static_cast<size_t>(n * n_in), 29);
#ifdef ORRERY_EMULATED
  const bool floats = float_type(GetParam()), no_large = !has_large_tile(GetParam());
  const auto taken = [&](int32_t rows) {  // launches with tiles of this many rows so far
    return emulated::launches_of("matmul_blocks_kernel<orrery::cuda::matmul_prefill_cu::Tile<" + std::to_string(rows) + ",");
  };
  const auto expect_tile = [&](int32_t rows, uint64_t before) {
    if (!floats) {
      EXPECT_EQ(taken(rows), before + 1) << "tiles of " << rows << " rows";
    }
  };
  const uint64_t large = taken(no_large ? 64 : 128);
#endif
  const std::vector<float> all = multiply(&m, Phase::prefill, matrix, Buffer<float>(&m, values), n_in, n);
#ifdef ORRERY_EMULATED
  expect_tile(no_large ? 64 : 128, large);
  const uint64_t middle = taken(64), small = taken(32);
#endif
  for (const int32_t count : {60, 20}) expect_same_bits_alone(&m, Phase::prefill, matrix, values, all, n - count, count);
#ifdef ORRERY_EMULATED
  expect_tile(64, middle), expect_tile(32, small);
#endif
}

// Codes, sub-scales and activations at the ends of their ranges: no integer sum saturates or wraps.
TEST_P(GpuMatmul, ExtremeCodesDoNotOverflow) {
  const TypeTraits& type = *type_traits(GetParam());
  if (float_type(type.type)) return;
  const int64_t n_in = 512, n_out = 9;
  Machine m(true, product_limits(3, n_in));
  std::vector<float> values(static_cast<size_t>(3 * n_in));
  for (size_t i = 0; i < n_in; ++i) values[i] = 2.0f, values[n_in + i] = -2.0f, values[2 * n_in + i] = i % 2 ? 2.0f : -2.0f;
  const Buffer<float> x(&m, values);
  const std::vector<std::byte> before = random_blocks(type.type, static_cast<uint64_t>(n_out * n_in), 3, 1.0f);
  // The places of halves in a block, which stay as they are: up to two.
  const auto halves = [&]() -> std::vector<size_t> {
    switch (type.type) {
      case TensorType::q2_k: return {80, 82};
      case TensorType::q3_k: return {108};
      case TensorType::q6_k: return {208};
      case TensorType::q4_1:
      case TensorType::q5_1:
      case TensorType::q4_k:
      case TensorType::q5_k: return {0, 2};
      default: return {0};
    }
  }();
  for (const int fill : {0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0}) {
    std::vector<std::byte> file(before.size(), static_cast<std::byte>(fill));
    for (size_t b = 0; b < file.size(); b += type.block_bytes)
      for (const size_t at : halves) std::memcpy(file.data() + b + at, before.data() + b + at, 2);
    const Matrix matrix(&m, type.type, n_out, n_in, file);
    for (const Phase phase : kPhases) {
      const std::vector<float> out = multiply(&m, phase, matrix, x, n_in, 3);
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t o = 0; o < n_out; ++o) {
          double expected = 0, magnitude = 0;
          for (int64_t c = 0; c < n_in; ++c) {
            const double term = static_cast<double>(matrix.row(o)[c]) * values[static_cast<size_t>(r * n_in + c)];
            expected += term;
            magnitude += std::fabs(term);
          }
          // Minima are as large as the scaled codes, so the bound allows for both.
          ASSERT_NEAR(out[static_cast<size_t>(r * n_out + o)], expected, 4e-6 * magnitude + 4e-4) << name(phase) << " " << fill;
        }
    }
  }
}

// Activations that cannot be quantized: zeros stay zeros, the smallest numbers become zero, infinities and NaNs give NaN.
TEST_P(GpuMatmul, StrangeActivations) {
  const size_t n_in = 512, n_out = 9;
  Machine m(true, product_limits(5, n_in));
  const Matrix matrix(&m, GetParam(), n_out, n_in, 1);
  std::vector<float> values(5 * n_in);
  values[n_in + 40] = 1e-42f;
  values[2 * n_in + 300] = std::numeric_limits<float>::infinity();
  values[3 * n_in + 511] = std::numeric_limits<float>::quiet_NaN();
  values[4 * n_in + 7] = 1e30f;
  const Buffer<float> x(&m, values);
  for (const Phase phase : kPhases) {
    const std::vector<float> out = multiply(&m, phase, matrix, x, n_in, 5);
    for (size_t o = 0; o < n_out; ++o) {
      EXPECT_EQ(out[o], 0.0f);
      EXPECT_NEAR(out[n_out + o], 0.0f, 1e-40f);
      EXPECT_FALSE(std::isfinite(out[2 * n_out + o]));
      EXPECT_TRUE(std::isnan(out[3 * n_out + o]));
      const float w = matrix.row(static_cast<int64_t>(o))[7];
      EXPECT_NEAR(out[4 * n_out + o] / 1e30f, w, 1e-5f) << name(phase);
    }
  }
}

std::vector<TensorType> all_types() {
  std::vector<TensorType> types;
  for (const TypeTraits& traits : kTypeTraits) types.push_back(traits.type);
  return types;
}
struct TypeName {
  std::string operator()(const ::testing::TestParamInfo<TensorType>& tested) const { return type_traits(tested.param)->name; }
};
INSTANTIATE_TEST_SUITE_P(Types, GpuMatmul, ::testing::ValuesIn(all_types()), TypeName());

TEST(GpuMatmulFloats, AnyNumberOfColumns) {
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16})
    for (const int64_t n_in : {1, 3, 8, 15, 17, 31, 33, 64, 65, 127, 257}) {
      Machine m(true, product_limits(5, n_in));
      expect_double_product(&m, type, 35, n_in, 5, n_in);
    }
}

// Values beyond the range of half precision, beside values that are as small.
TEST(GpuMatmulFloats, LargeAndSmallActivations) {
  const size_t n_in = 96;
  Machine m(true, product_limits(3, n_in));
  for (const TensorType type : {TensorType::f16, TensorType::bf16}) {
    const Matrix matrix(&m, type, 20, n_in, 3);
    std::vector<float> values = normal_values(3 * n_in, 5);
    for (size_t i = 0; i < n_in; ++i) values[i] *= 1e9f, values[n_in + i] *= 1e-12f;
    const Buffer<float> x(&m, values);
    for (const Phase phase : kPhases) {
      const std::vector<float> out = multiply(&m, phase, matrix, x, n_in, 3);
      for (size_t r = 0; r < 3; ++r)
        for (size_t o = 0; o < 20; ++o) {
          double expected = 0, magnitude = 0;
          for (size_t c = 0; c < n_in; ++c) {
            const double term = static_cast<double>(matrix.row(static_cast<int64_t>(o))[c]) * values[r * n_in + c];
            expected += term, magnitude += std::fabs(term);
          }
          ASSERT_NEAR(out[r * 20 + o], expected, 2 * share(type, phase) * magnitude) << type_traits(type)->name << " " << name(phase);
        }
    }
  }
}

// Several products of one input: different types, bias, accumulation, output rows with gaps. The gaps stay unchanged.
TEST(GpuMatmulProducts, BiasAccumulationAndOtherTypes) {
  const int64_t n_in = 512, stride = 100;
  const int32_t n_rows = 3;
  Machine m(true, product_limits(n_rows, n_in));
  for (const TensorType second : {TensorType::f16, TensorType::q4_k}) {
    const Matrix a(&m, TensorType::q4_k, 45, n_in, 1), b(&m, second, 20, n_in, 2), c(&m, TensorType::q6_k, 45, n_in, 3);
    const Buffer<float> x(&m, normal_values(n_rows * n_in, 3));
    const std::vector<float> biases = normal_values(45, 4);
    const Buffer<float> bias(&m, biases);
    for (const Phase phase : kPhases) {
      const std::vector<float> alone_a = multiply(&m, phase, a, x, n_in, n_rows), alone_b = multiply(&m, phase, b, x, n_in, n_rows),
                               alone_c = multiply(&m, phase, c, x, n_in, n_rows);
      const Buffer<float> out(&m, std::vector<float>(stride * n_rows, 77.0f)), more(&m, std::vector<float>(45 * n_rows, 0.5f));
      const Product products[] = {{&a.weight, bias.cptr(), out.ptr(), stride, false},
                                  {&b.weight, {}, out.ptr() + 50, stride, false},
                                  {&c.weight, {}, more.ptr(), 45, true}};
      m.begin(phase, n_rows);
      m->matmul({products, 3}, x.cptr(), n_in, n_rows);
      m.end();
      const std::vector<float> got = out.get(), got_more = more.get();
      for (size_t r = 0; r < n_rows; ++r)
        for (size_t i = 0; i < stride; ++i) {
          const float value = got[r * stride + i];
          if (i < 45) {
            ASSERT_EQ(value, alone_a[r * 45 + i] + biases[i]) << name(phase);
            ASSERT_EQ(got_more[r * 45 + i], alone_c[r * 45 + i] + 0.5f) << name(phase);
          } else if (i >= 50 && i < 70) {
            ASSERT_EQ(value, alone_b[r * 20 + i - 50]) << name(phase);
          } else {
            ASSERT_EQ(value, 77.0f) << name(phase);
          }
        }
    }
  }
}

// A fused kernel gives the bits of the separate operations. A download() between two operations sends the list, so nothing is fused
// across it.
TEST(GpuMatmulFusions, NormGateAndProductsAsOneHaveTheSameBits) {
  const int64_t n_ff = 45;
  for (const TensorType type : {TensorType::q4_0, TensorType::q5_1, TensorType::q8_0, TensorType::f16})
    for (const int32_t n_rows : {1, 3, 9})
      for (const bool one_matrix : {false, true})
        for (const Phase phase : kPhases) {
          std::vector<float> act[2], normed[2];
          const int64_t n_in = n_rows == 1 ? 4384 : 288;  // two whole rounds of units, and a rest; or a rest alone
          for (const bool fused : {false, true}) {
            Machine m(true, product_limits(n_rows, n_in));
            const auto rows = static_cast<size_t>(n_rows), width = static_cast<size_t>(n_in);
            const Buffer<float> x(&m, normal_values(rows * width, 3)), w(&m, normal_values(width, 4)), bias(&m, normal_values(2 * n_ff, 5));
            const Buffer<float> norm(&m, rows * width), both(&m, rows * 2 * n_ff), out(&m, rows * n_ff);
            const std::vector<std::byte> file = random_blocks(type, 2 * n_ff * width, 6, 0.1f);
            const Matrix whole(&m, type, 2 * n_ff, n_in, file);
            const std::vector<std::byte> halves[] = {{file.begin(), file.begin() + static_cast<ptrdiff_t>(file.size() / 2)},
                                                     {file.begin() + static_cast<ptrdiff_t>(file.size() / 2), file.end()}};
            const Matrix gate(&m, type, n_ff, n_in, halves[0]), up(&m, type, n_ff, n_in, halves[1]);
            const auto between = [&] {
              float one;
              if (!fused) m->download(&one, {x.address()}, sizeof one);
            };
            m.begin(phase, n_rows);
            m->rms_norm(x.cptr(), n_in, w.cptr(), norm.ptr(), n_in, 1, n_in, 1e-5f);
            between();
            const Product one{&whole.weight, bias.cptr(), both.ptr(), 2 * n_ff, false};
            const Product two[] = {{&gate.weight, bias.cptr(), both.ptr(), 2 * n_ff, false},
                                   {&up.weight, bias.cptr() + n_ff, both.ptr() + n_ff, 2 * n_ff, false}};
            m->matmul(one_matrix ? Span<const Product>(&one, 1) : Span<const Product>(two, 2), norm.cptr(), n_in, n_rows);
            between();
            const Activation activation = type == TensorType::q5_1 || type == TensorType::f16 ? Activation::gelu : Activation::silu;
            m->activate(activation, both.cptr(), both.cptr() + n_ff, 2 * n_ff, out.ptr(), n_ff, n_ff);
            m.end();
            act[fused] = out.get();
            normed[fused] = norm.get();
            ASSERT_EQ(std::isnan(both.get()[0]), fused && phase == Phase::decode) << "fused, or not";
          }
          ASSERT_TRUE(same_bits(act[0].data(), act[1].data(), act[0].size())) << type_traits(type)->name << " " << n_rows << name(phase);
          ASSERT_TRUE(same_bits(normed[0].data(), normed[1].data(), normed[0].size()));
          for (const float v : act[0]) ASSERT_TRUE(std::isfinite(v));
        }
}

// A prompt's gate and up in large tiles, which one kernel computes, have the bits of the products and of activate(). Of other tiles and of
// types with two scales nothing is fused.
TEST(GpuMatmulFusions, GateAndUpOfAPromptHaveTheSameBits) {
  struct Case {
    TensorType type;
    int32_t n_rows;
    int64_t n_ff;
    bool fuses;
  };
  for (const Case& tested : {Case{TensorType::q4_k, 250, 280, true},
                             {TensorType::q8_0, 256, 263, true},
                             {TensorType::q5_0, 240, 500, true},
                             {TensorType::q6_k, 240, 280, false},
                             {TensorType::q4_k, 20, 280, false},
                             {TensorType::f16, 240, 280, false}}) {
    const int64_t n_in = 256, n_ff = tested.n_ff;
    std::vector<float> act[2];
    for (const bool fused : {false, true}) {
      Machine m(true, product_limits(tested.n_rows, n_in));
      const auto rows = static_cast<size_t>(tested.n_rows), width = static_cast<size_t>(n_ff);
      const Buffer<float> x(&m, normal_values(rows * n_in, 3)), bias(&m, normal_values(2 * width, 5));
      const Matrix gate(&m, tested.type, n_ff, n_in, 6), up(&m, tested.type, n_ff, n_in, 7);
      const Buffer<float> both(&m, std::vector<float>(rows * 2 * width, std::nanf(""))),
          out(&m, std::vector<float>(rows * (width + 3), 77.0f));
      m.begin(Phase::prefill, tested.n_rows);
      const Product two[] = {{&gate.weight, bias.cptr(), both.ptr(), 2 * n_ff, false},
                             {&up.weight, bias.cptr() + width, both.ptr() + width, 2 * n_ff, false}};
      m->matmul({two, 2}, x.cptr(), n_in, tested.n_rows);
      if (!fused) {
        float one;
        m->download(&one, {x.address()}, sizeof one);  // sends the list
      }
      const Activation activation = tested.type == TensorType::q8_0 ? Activation::gelu : Activation::silu;
      m->activate(activation, both.cptr(), both.cptr() + width, 2 * n_ff, out.ptr(), n_ff + 3, n_ff);
      m.end();
      act[fused] = out.get();
#ifdef ORRERY_EMULATED
      ASSERT_EQ(std::isnan(both.get()[0]), fused && tested.fuses) << type_traits(tested.type)->name << " " << tested.n_rows;
#endif
    }
    ASSERT_TRUE(same_bits(act[0].data(), act[1].data(), act[0].size())) << type_traits(tested.type)->name << " " << tested.n_rows;
    for (const float v : act[0]) ASSERT_TRUE(std::isfinite(v));
    ASSERT_EQ(act[1][static_cast<size_t>(n_ff)], 77.0f) << "the gap behind a row";
  }
}

// The order of a block's threads does not change bits: no barrier is missing. (On a GPU compute-sanitizer checks barriers.)
#ifdef ORRERY_EMULATED
TEST(GpuMatmulRaces, ThreadsMayRunInAnyOrder) {
  struct Shape {
    int64_t n_out;
    int32_t n_rows;
  };
  const int64_t n_in = 256;
  Machine m(true, product_limits(70, n_in));
  for (const TensorType type : {TensorType::q4_k, TensorType::q6_k, TensorType::q8_0, TensorType::f16, TensorType::f32})
    for (const Shape s : {Shape{70, 5}, {140, 70}}) {
      const Matrix matrix(&m, type, s.n_out, n_in, 5);
      const Buffer<float> x(&m, normal_values(static_cast<size_t>(s.n_rows * n_in), 6));
      for (const Phase phase : kPhases) {
        const std::vector<float> forward = multiply(&m, phase, matrix, x, n_in, s.n_rows);
        emulated::set_reversed(true);
        const std::vector<float> backward = multiply(&m, phase, matrix, x, n_in, s.n_rows);
        emulated::set_reversed(false);
        ASSERT_TRUE(same_bits(forward.data(), backward.data(), forward.size())) << type_traits(type)->name << " " << name(phase);
      }
    }
}
#endif

}  // namespace
}  // namespace orrery::matmul_test
