// Tests norms, RoPE and the gate (cuda/kernels/rows.cu) against the CPU backend's plain kernels.
#include "tests/gpu/device_fixture.h"

namespace orrery::rows_test {
namespace {

using namespace testing;

StepLimits limits(int32_t rows, int32_t head_dim = 128) {
  StepLimits l;
  l.max_rows = rows;
  l.max_context = 256;
  l.n_heads = 8, l.n_kv_heads = 2, l.head_dim = head_dim;
  l.max_in = 1024;
  return l;
}

TEST(GpuRows, NormIsThePlainOne) {
  struct Case {
    int32_t rows, vectors;
    int64_t dim;
  };
  for (const Case c : {Case{1, 1, 2048}, Case{3, 1, 96}, Case{2, 5, 64}, Case{1, 1, 33}, Case{4, 2, 1000}}) {
    const auto [expected, got] = on_both(limits(8), [&](Machine* m) {
      const size_t width = static_cast<size_t>(c.vectors) * static_cast<size_t>(c.dim), stride = width + 7;
      Buffer<float> x(m, normal_values(static_cast<size_t>(c.rows - 1) * stride + width, 1)),
          w(m, normal_values(static_cast<size_t>(c.dim), 2)), out(m, static_cast<size_t>(c.rows) * width);
      m->begin(Phase::decode, c.rows);
      (*m)->rms_norm(x.cptr(), static_cast<int64_t>(stride), w.cptr(), out.ptr(), static_cast<int64_t>(width), c.vectors, c.dim, 1e-5f);
      m->end();
      return out.get();
    });
    SCOPED_TRACE(c.dim);
    expect_near(got, expected, 1e-6);
  }
}

TEST(GpuRows, RopeIsThePlainOneAtAnyPosition) {
  for (const bool interleaved : {false, true})
    for (const int32_t n_rot : {64, 48, 2}) {
      std::vector<float> frequencies;
      for (int32_t i = 0; i < n_rot / 2; ++i)
        frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(n_rot)));
      const auto [expected, got] = on_both(limits(4, 64), [&](Machine* m) {
        Buffer<float> x(m, normal_values(4 * 3 * 64, 3));
        m->begin(Phase::prefill, 4, 100000);
        (*m)->prepare_rope({interleaved, n_rot, frequencies.data(), 1.25f});
        (*m)->rope(x.ptr(), 3 * 64, 3, 64);
        m->end();
        return x.get();
      });
      expect_near(got, expected, 1e-6);
    }
}

TEST(GpuRows, TransformedHeadsHaveThePlainBits) {
  for (const int32_t dim : {32, 64, 80, 96, 128, 256})
    for (const bool rotate : {false, true})
      for (const bool shifted : {false, true}) {
        SCOPED_TRACE(dim);
        const auto [expected, got] = on_both(limits(4, dim), [&](Machine* m) {
          const int64_t stride = 3 * dim + 5;
          Buffer<float> x(m, normal_values(static_cast<size_t>(4 * stride), 3)), shift(m, normal_values(static_cast<size_t>(3 * dim), 4));
          m->begin(Phase::prefill, 4);
          (*m)->transform_heads(x.ptr(), stride, 3, dim, shifted ? shift.cptr() : Ptr<const float>(), rotate);
          m->end();
          return x.get();
        });
        ASSERT_EQ(got.size(), expected.size());
        EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
      }
}

TEST(GpuRows, RopeByOneOfSeveralTables) {
  std::vector<std::vector<float>> frequencies(3);
  std::vector<RopeSpec> specs;
  const int32_t n_rot[] = {64, 24, 2};
  for (size_t t = 0; t < 3; ++t) {
    for (int32_t i = 0; i < n_rot[t] / 2; ++i)
      frequencies[t].push_back(std::pow(1000.0f * static_cast<float>(t + 1), -2.0f * static_cast<float>(i) / static_cast<float>(n_rot[t])));
    specs.push_back({t == 1, n_rot[t], frequencies[t].data(), 1.0f + 0.25f * static_cast<float>(t), t == 2 ? 0.1f : 0.0f, 100});
  }
  StepLimits several = limits(4, 64);
  several.rope_floats = 64 + 24 + 2;
  const auto [expected, got] = on_both(several, [&](Machine* m) {
    Buffer<float> x(m, normal_values(4 * 3 * 64, 3));
    m->begin(Phase::prefill, 4, 1000);
    (*m)->prepare_ropes(specs);
    for (int32_t head = 0; head < 3; ++head) (*m)->rope(x.ptr() + static_cast<uint64_t>(64 * head), 3 * 64, 1, 64, head);
    m->end();
    return x.get();
  });
  expect_near(got, expected, 1e-6);
}

TEST(GpuRows, GateAndSum) {
  for (const Activation activation : {Activation::silu, Activation::gelu}) {
    const auto [expected, got] = on_both(limits(3), [&](Machine* m) {
      Buffer<float> x(m, normal_values(3 * 2 * 300, 4, 4.0f)), out(m, 3 * 300);
      m->begin(Phase::decode, 3);
      (*m)->activate(activation, x.cptr(), x.cptr() + 300, 600, out.ptr(), 300, 300);
      (*m)->add(out.ptr(), x.cptr(), 300);
      m->end();
      return out.get();
    });
    expect_near(got, expected, 1e-6);
  }
}

TEST(GpuRows, SoftCap) {
  const auto [expected, got] = on_both(limits(3), [&](Machine* m) {
    Buffer<float> x(m, normal_values(2 * 300, 4, 40.0f));
    m->begin(Phase::decode, 3);
    (*m)->soft_cap(x.ptr(), 1, 300, 0.7f, 30.0f);
    (*m)->soft_cap(x.ptr() + 300, 1, 300, 0.7f, 0.0f);
    m->end();
    return x.get();
  });
  expect_near(got, expected, 1e-6);
}

}  // namespace
}  // namespace orrery::rows_test
