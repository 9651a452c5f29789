// Products of heads (cuda/kernels/experts.cu): each head of a row has the bits of its own product at decode, and the inputs that the
// product leaves out follow it.
#include <algorithm>

#include "tests/gpu/device_fixture.h"

namespace orrery::head_products_test {
namespace {

using namespace testing;

class GpuHeadProducts : public ::testing::TestWithParam<TensorType> {};

TEST_P(GpuHeadProducts, AreThoseOfEachHeadAlone) {
  constexpr int64_t kHeads = 3;
  struct Shape {
    int64_t n_in, n_out, x_dim, out_dim;
  };
  const int64_t n_in = 1056 % type_traits(GetParam())->block_elements == 0 ? 1056 : 512;  // a round of units and more
  for (const Shape& s : {Shape{n_in, 24, n_in + 16, 40}, Shape{n_in, 21, n_in, 21}, Shape{n_in, 9, n_in + 3, 16}})
    for (const int32_t n_rows : {1, 5, 19}) {
      Machine m(true, product_limits(n_rows, kHeads * ((n_in + 255) / 256 * 256)));
      Buffer<std::byte> memory(&m, m->weight_bytes(GetParam(), kHeads * s.n_out, n_in));
      const std::vector<std::byte> file = random_blocks(GetParam(), static_cast<uint64_t>(kHeads * s.n_out * n_in), 7, 1.0f);
      Weight weight;
      ASSERT_TRUE(m->place_weight(GetParam(), kHeads * s.n_out, n_in, file.data(), memory.ptr(), &weight).ok());
      const auto n = static_cast<uint64_t>(n_rows * kHeads), out_dim = static_cast<uint64_t>(s.out_dim);
      const std::vector<float> values = normal_values(n * static_cast<uint64_t>(s.x_dim), 4);
      const Buffer<float> x(&m, values), out(&m, std::vector<float>(n * out_dim, 7.0f)), all(&m, static_cast<uint64_t>(kHeads * s.n_out));
      m.begin(Phase::decode, n_rows);
      m->head_products()->multiply_heads(weight, kHeads, x.cptr(), s.x_dim, out.ptr(), s.out_dim);
      m.end();
      const std::vector<float> got = out.get();
      for (uint64_t i = 0; i < n; ++i) {
        m.begin(Phase::decode, 1);  // the vector with the matrices of all heads
        const Product product{&weight, {}, all.ptr(), kHeads * s.n_out, false};
        m->matmul({&product, 1}, x.cptr() + i * static_cast<uint64_t>(s.x_dim), s.x_dim, 1);
        m.end();
        const std::vector<float> expected = all.get();
        const auto n_out = static_cast<uint64_t>(s.n_out), n_copied = static_cast<uint64_t>(std::min(s.x_dim - n_in, s.out_dim - s.n_out));
        ASSERT_TRUE(same_bits(&got[i * out_dim], &expected[i % kHeads * n_out], n_out)) << n_rows << " rows, head " << i;
        ASSERT_TRUE(same_bits(got.data() + i * out_dim + n_out,
                              values.data() + i * static_cast<uint64_t>(s.x_dim) + static_cast<uint64_t>(n_in), n_copied))
            << i;
        for (uint64_t j = n_out + n_copied; j < out_dim; ++j) ASSERT_EQ(got[i * out_dim + j], 7.0f) << i;
      }
    }
}

std::vector<TensorType> all_types() {
  std::vector<TensorType> types;
  for (const TypeTraits& type : kTypeTraits) types.push_back(type.type);
  return types;
}
INSTANTIATE_TEST_SUITE_P(Types, GpuHeadProducts, ::testing::ValuesIn(all_types()),
                         [](const auto& tested) { return std::string(type_traits(tested.param)->name); });

}  // namespace
}  // namespace orrery::head_products_test
