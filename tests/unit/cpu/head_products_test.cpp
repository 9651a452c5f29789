// Products of heads on every instruction set of this machine, against the backend's own product of each head of a row alone, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/tensor_type.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::head_products_test {
namespace {

using namespace orrery::testing;

class CpuHeadProducts : public ::testing::TestWithParam<std::string> {};

struct Shape {
  int64_t n_in, n_out, x_dim, out_dim;
  int64_t n_copied() const { return std::min(x_dim - n_in, out_dim - n_out); }
};

// Whatever the number of rows and threads, and behind the outputs the inputs that the product leaves out. All else stays as it was.
TEST_P(CpuHeadProducts, AreThoseOfEachHeadAlone) {
  constexpr int64_t kHeads = 3, kMostRows = 40;
  for (const TypeTraits& type : kTypeTraits) {
    const int64_t n_in = 96 % type.block_elements == 0 ? 96 : 256;
    for (const Shape& shape : {Shape{n_in, 24, n_in + 8, 32}, Shape{n_in, 16, n_in, 16}, Shape{n_in, 40, n_in + 3, 48}}) {
      const auto matrix = static_cast<uint64_t>(shape.n_out * n_in);
      Guarded<std::byte> bytes(row_bytes(type.type, kHeads * matrix));
      fill_random_blocks(type.type, bytes.data(), kHeads * matrix, 17, 1.0f);
      for (const int32_t n_threads : {1, 3}) {
        StepLimits limits;
        limits.max_rows = kMostRows, limits.max_context = 64, limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 32;
        limits.max_in = kHeads * ((n_in + 255) / 256 * 256);
        Rig rig(GetParam(), n_threads, limits);
        const Weight weight = rig.place({type.type, kHeads * shape.n_out, n_in, bytes.cptr()});
        const uint64_t placed = rig->weight_bytes(type.type, shape.n_out, n_in), stride = placed ? placed : row_bytes(type.type, matrix);
        for (const Phase phase : {Phase::prefill, Phase::decode})
          for (const int64_t n_rows : {int64_t{1}, int64_t{5}, kMostRows}) {
            Guarded<float> x(static_cast<size_t>(n_rows * kHeads * shape.x_dim)), out(static_cast<size_t>(n_rows * kHeads * shape.out_dim));
            fill_normal(x, 22);
            std::fill_n(out.data(), out.size(), 7.0f);
            rig.begin(phase, static_cast<int32_t>(n_rows));
            rig->head_products()->multiply_heads(weight, kHeads, x.cptr(), shape.x_dim, out.ptr(), shape.out_dim);
            rig.end();
            Guarded<float> alone(static_cast<size_t>(shape.n_out));
            for (int64_t i = 0; i < n_rows * kHeads; ++i) {
              const float *in = x.data() + i * shape.x_dim, *got = out.data() + i * shape.out_dim;
              const Weight own{type.type, shape.n_out, n_in, weight.data + static_cast<uint64_t>(i % kHeads) * stride, weight.repacked};
              const Product product{&own, {}, alone.ptr(), shape.n_out, false};
              rig.begin(phase, 1);
              rig->matmul({&product, 1}, x.cptr() + static_cast<uint64_t>(i * shape.x_dim), shape.x_dim, 1);
              rig.end();
              ASSERT_TRUE(same_bits(got, alone.data(), static_cast<size_t>(shape.n_out)))
                  << type.name << ", " << n_rows << " rows, head " << i;
              const int64_t n_copied = shape.n_copied();
              ASSERT_TRUE(same_bits(got + shape.n_out, in + n_in, static_cast<size_t>(n_copied))) << type.name << ", head " << i;
              for (int64_t j = shape.n_out + n_copied; j < shape.out_dim; ++j) ASSERT_EQ(got[j], 7.0f) << type.name << ", head " << i;
            }
          }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuHeadProducts, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::head_products_test
