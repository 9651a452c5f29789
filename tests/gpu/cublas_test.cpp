// Tests a prompt's products through cuBLAS (cuda/kernels/matmul_cublas.cu, cuda/device/cublas.cpp), and the choice of these products. In
// emulation, tests/emulation/cuda/cublas.cpp defines cuBLAS. On a GPU the tests use the machine's cuBLAS, and are skipped without one.
//
// The oracle is a product in double of dequantized weights and exact activations. Differences come from float sums, and from rounding:
// activations and quantized weights become halves (2^-12 of each value) or BF16 (2^-9).
#include <limits>

#include "cuda/device/tuning.h"
#include "runtime/gguf/dequantize.h"
#include "tests/gpu/device_fixture.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/dlfcn.h"
#endif

namespace orrery::cublas_test {
namespace {

using namespace testing;
using orrery::cuda::Options;

bool available() {
  const auto made = orrery::cuda::make_backend({0, Options::Products::cublas});
  return made.ok() && orrery::cuda::has_cublas(*made.value());
}

struct Matrix {
  Matrix(Machine* m, TensorType type, int64_t n_rows, int64_t n_cols, uint64_t seed)
      : device(m, (*m)->weight_bytes(type, n_rows, n_cols)), values(static_cast<size_t>(n_rows * n_cols)) {
    const std::vector<std::byte> file = random_blocks(type, static_cast<uint64_t>(n_rows * n_cols), seed, 1.0f);
    gguf::dequantize_row(type, file.data(), values.data(), values.size());
    EXPECT_TRUE((*m)->place_weight(type, n_rows, n_cols, file.data(), device.ptr(), &weight).ok());
  }
  Buffer<std::byte> device;
  std::vector<float> values;  // (n_rows, n_cols)
  Weight weight;
};

double share(TensorType type) { return type == TensorType::bf16 ? 0x1p-9 : type == TensorType::f16 ? 0x1p-12 : 0x1p-11; }

// One product of rows `stride` apart; `before`: the bias and the present output. Row r's bound is share() of its |w x|.
void expect_product(const Matrix& matrix, const std::vector<float>& x, int64_t stride, const std::vector<float>& before, double of_before,
                    const std::vector<float>& got, int32_t n_rows) {
  const int64_t n_in = matrix.weight.n_cols, n_out = matrix.weight.n_rows;
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t o = 0; o < n_out; ++o) {
      double sum = before[static_cast<size_t>(r * n_out + o)], magnitude = 0;
      for (int64_t c = 0; c < n_in; ++c) {
        const double term = static_cast<double>(matrix.values[static_cast<size_t>(o * n_in + c)]) *
                            static_cast<double>(x[static_cast<size_t>(r * stride + c)]);
        sum += term, magnitude += std::fabs(term);
      }
      const double bound = share(matrix.weight.type) * magnitude + of_before * std::fabs(sum);
      ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(r * n_out + o)]), sum, bound)
          << type_traits(matrix.weight.type)->name << ", row " << r << ", out " << o;
    }
}

class GpuCublas : public ::testing::TestWithParam<TensorType> {
 protected:
  void SetUp() override {
    if (!available()) GTEST_SKIP() << "there is no cuBLAS here";
  }
};

TEST_P(GpuCublas, MatchesTheDoubleProduct) {
  struct Shape {
    int64_t n_out, n_in;
    int32_t n_rows;
  };
  Machine m(true, product_limits(70, 1024), Options::Products::cublas);
  for (const Shape s : {Shape{1, 256, 1}, {33, 768, 3}, {70, 512, 70}, {5, 1024, 9}, {7, 96, 2}, {9, 32, 5}}) {
    if (s.n_in % type_traits(GetParam())->block_elements != 0) continue;
    const Matrix matrix(&m, GetParam(), s.n_out, s.n_in, 7);
    const int64_t stride = s.n_in + 3;
    const std::vector<float> values = normal_values(static_cast<size_t>(stride * s.n_rows), 11);
    const Buffer<float> x(&m, values);
    const Buffer<float> out(&m, static_cast<size_t>(s.n_rows * s.n_out));  // poison: a product that is not accumulated does not read it
    const Product product{&matrix.weight, {}, out.ptr(), s.n_out, false};
    m.begin(Phase::prefill, s.n_rows);
    m->matmul({&product, 1}, x.cptr(), stride, s.n_rows);
    m.end();
    expect_product(matrix, values, stride, std::vector<float>(static_cast<size_t>(s.n_rows * s.n_out)), 1e-6, out.get(), s.n_rows);
  }
}

// Bias, accumulation, both; rows of ordinary values beside rows that F16 cannot represent.
TEST_P(GpuCublas, BiasAccumulationAndRowsThatHalvesDoNotHold) {
  const int64_t n_in = 256, n_out = 40;
  const int32_t n_rows = 5;
  Machine m(true, product_limits(n_rows, n_in), Options::Products::cublas);
  const Matrix matrix(&m, GetParam(), n_out, n_in, 5);
  std::vector<float> values = normal_values(static_cast<size_t>(n_rows * n_in), 3);
  const float sizes[] = {1.0f, 1e9f, 1e-12f, 300.0f, 1.0f};
  for (size_t i = 0; i < values.size(); ++i) values[i] *= sizes[i / static_cast<size_t>(n_in)];
  values.back() = 0x1p30f;  // the row's last value decides its scale; F16 holds it exactly
  const Buffer<float> x(&m, values);
  const std::vector<float> biases = normal_values(static_cast<size_t>(n_out), 4),
                           held = normal_values(static_cast<size_t>(n_rows * n_out), 6);
  const Buffer<float> bias(&m, biases);
  for (const bool biased : {false, true})
    for (const bool accumulate : {false, true}) {
      const Buffer<float> out(&m, held);
      const Product product{&matrix.weight, biased ? bias.cptr() : Ptr<const float>{}, out.ptr(), n_out, accumulate};
      m.begin(Phase::prefill, n_rows);
      m->matmul({&product, 1}, x.cptr(), n_in, n_rows);
      m.end();
      std::vector<float> before(held.size());
      for (size_t i = 0; i < before.size(); ++i)
        before[i] = (accumulate ? held[i] : 0.0f) + (biased ? biases[i % static_cast<size_t>(n_out)] : 0.0f);
      expect_product(matrix, values, n_in, before, 4e-7, out.get(), n_rows);
    }
}

TEST_P(GpuCublas, StrangeActivationsStayStrange) {
  const size_t n_in = 256, n_out = 9;
  Machine m(true, product_limits(3, n_in), Options::Products::cublas);
  const Matrix matrix(&m, GetParam(), n_out, n_in, 1);
  std::vector<float> values(3 * n_in);
  values[n_in + 40] = std::numeric_limits<float>::infinity();
  values[2 * n_in + 255] = std::numeric_limits<float>::quiet_NaN();
  const Buffer<float> x(&m, values);
  const Buffer<float> out(&m, 3 * n_out);
  const Product product{&matrix.weight, {}, out.ptr(), static_cast<int64_t>(n_out), false};
  m.begin(Phase::prefill, 3);
  m->matmul({&product, 1}, x.cptr(), n_in, 3);
  m.end();
  const std::vector<float> got = out.get();
  for (size_t o = 0; o < n_out; ++o) {
    EXPECT_EQ(got[o], 0.0f);
    EXPECT_FALSE(std::isfinite(got[n_out + o]));
    EXPECT_TRUE(std::isnan(got[2 * n_out + o]));
  }
}

std::vector<TensorType> types() {
  std::vector<TensorType> all;
  for (const TypeTraits& traits : kTypeTraits)
    if (cuda::least_cublas_rows(cuda::tuning_of(90), traits.type) > 0) all.push_back(traits.type);  // F32 and MXFP4 have our own kernel
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, GpuCublas, ::testing::ValuesIn(types()),
                         [](const auto& tested) { return std::string(type_traits(tested.param)->name); });

// Of several products of one input, some use cuBLAS. The others have the bits that they have without it.
TEST(GpuCublasProducts, EachGoesItsOwnWay) {
  if (!available()) GTEST_SKIP() << "there is no cuBLAS here";
  const int64_t n_in = 256;
  const int32_t n_rows = 5;
  Machine m(true, product_limits(n_rows, n_in), Options::Products::cublas), own(true, product_limits(n_rows, n_in));
  const std::vector<float> values = normal_values(static_cast<size_t>(n_rows * n_in), 3);
  const auto run = [&](Machine* machine, TensorType type) {
    const Matrix a(machine, TensorType::q4_k, 45, n_in, 1), b(machine, type, 20, n_in, 2), c(machine, TensorType::bf16, 30, n_in, 3);
    const Buffer<float> x(machine, values), out(machine, std::vector<float>(100 * static_cast<size_t>(n_rows), 77.0f));
    const Product products[] = {
        {&a.weight, {}, out.ptr(), 100, false}, {&b.weight, {}, out.ptr() + 50, 100, false}, {&c.weight, {}, out.ptr() + 70, 100, false}};
    machine->begin(Phase::prefill, n_rows);
    (*machine)->matmul({products, 3}, x.cptr(), n_in, n_rows);
    machine->end();
    return out.get();
  };
  for (const TensorType type : {TensorType::f32, TensorType::mxfp4}) {
    SCOPED_TRACE(type_traits(type)->name);
    const std::vector<float> got = run(&m, type), expected = run(&own, type);
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t at = i % 100;
      if (at >= 45 && at < 70) EXPECT_EQ(got[i], expected[i]) << at;  // this type, and the gaps
      else EXPECT_NEAR(got[i], expected[i], 0.5f) << at;
    }
  }
}

#ifdef ORRERY_EMULATED
class Cublas : public ::testing::Test {
 protected:
  void TearDown() override { emulated::has_cublas = true; }
  static std::vector<float> product(Options::Products products, TensorType type, Phase phase, int32_t n_rows) {
    Machine m(true, product_limits(n_rows, 256), products);
    const Matrix matrix(&m, type, 33, 256, 7);
    const Buffer<float> x(&m, normal_values(static_cast<size_t>(n_rows) * 256, 11)), out(&m, static_cast<size_t>(n_rows) * 33);
    const Product p{&matrix.weight, {}, out.ptr(), 33, false};
    m.begin(phase, n_rows);
    m->matmul({&p, 1}, x.cptr(), 256, n_rows);
    m.end();
    return out.get();
  }
  // The number of products that cuBLAS computes in the body.
  template <class F>
  static size_t counted(const F& f) {
    const size_t before = emulated::cublas_products();
    f();
    return emulated::cublas_products() - before;
  }
};

TEST_F(Cublas, TheTableSaysWhatGoesThere) {
  const auto n = [&](TensorType type, Phase phase, int32_t rows) {
    return counted([&] { product(Options::Products::tuned, type, phase, rows); });
  };
  EXPECT_EQ(n(TensorType::f16, Phase::prefill, 64), 1u);  // an emulated device is an sm_86
  EXPECT_EQ(n(TensorType::bf16, Phase::prefill, 65), 1u);
  EXPECT_EQ(n(TensorType::f16, Phase::prefill, 63), 0u);
  EXPECT_EQ(n(TensorType::f16, Phase::decode, 64), 0u);
  EXPECT_EQ(n(TensorType::f32, Phase::prefill, 64), 0u);
  EXPECT_EQ(n(TensorType::q4_k, Phase::prefill, 64), 0u);
}

TEST_F(Cublas, WithoutItAllIsComputedByOurOwnKernels) {
  const std::vector<float> expected = product(Options::Products::own, TensorType::f16, Phase::prefill, 64);
  EXPECT_NE(product(Options::Products::tuned, TensorType::f16, Phase::prefill, 64), expected);
  emulated::has_cublas = false;
  EXPECT_EQ(product(Options::Products::tuned, TensorType::f16, Phase::prefill, 64), expected);
}

// A stripe takes as many outputs as fit. The last stripe here has a single output.
TEST_F(Cublas, LongMatricesGoInStripes) {
  const int64_t n_in = 256, n_out = 2 * 65535 + 1;
  Machine m(true, product_limits(1, n_in), Options::Products::cublas);
  const Matrix matrix(&m, TensorType::q8_0, n_out, n_in, 7);
  const std::vector<float> values = normal_values(static_cast<size_t>(n_in), 11);
  const Buffer<float> x(&m, values), out(&m, static_cast<size_t>(n_out));
  const Product p{&matrix.weight, {}, out.ptr(), n_out, false};
  EXPECT_EQ(counted([&] {
              m.begin(Phase::prefill, 1);
              m->matmul({&p, 1}, x.cptr(), n_in, 1);
              m.end();
            }),
            3u);
  expect_product(matrix, values, n_in, std::vector<float>(static_cast<size_t>(n_out)), 1e-6, out.get(), 1);
}
#endif

}  // namespace
}  // namespace orrery::cublas_test
