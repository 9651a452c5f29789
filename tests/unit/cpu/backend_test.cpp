// The small operations, the choice of an instruction set, and BackendInfo.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "runtime/cpu/paths/processor.h"
#include "runtime/cpu/step_cost.h"
#include "runtime/gguf/dequantize.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::backend_test {
namespace {

using namespace orrery::testing;

class CpuOps : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuOps, EmbedGivesTheTokensRows) {
  Rig rig(GetParam(), 2, {9, 64, 1, 1, 32, 512});
  for (const TypeTraits& type : kTypeTraits)
    for (const int32_t n_tokens : {50, 56}) {
      const uint64_t n_values = static_cast<uint64_t>(n_tokens) * 512;
      Guarded<std::byte> bytes(row_bytes(type.type, n_values));
      fill_random_blocks(type.type, bytes.data(), n_values, 3, 1.0f);
      std::vector<float> values(n_values);
      gguf::dequantize_row(type.type, bytes.data(), values.data(), values.size());
      const Weight table = rig.place({type.type, n_tokens, 512, bytes.cptr()});
      const std::vector<Row> rows = {{0, 0, 0}, {n_tokens - 1, 1, 0}, {7, 2, 0}, {7, 3, 0}};
      Guarded<float> out(4 * 512);
      rig->begin_step({Phase::prefill, rows, {}, {}});
      rig->embed(table, 1.0f, out.ptr());
      rig->end_step();
      for (size_t r = 0; r < 4; ++r)
        EXPECT_TRUE(same_bits(out.data() + r * 512, values.data() + static_cast<size_t>(rows[r].token) * 512, 512)) << type.name;
      rig->begin_step({Phase::prefill, rows, {}, {}});
      rig->embed(table, 25.3f, out.ptr());
      rig->end_step();
      for (size_t i = 0; i < 4 * 512; ++i)
        ASSERT_EQ(out[i], values[static_cast<size_t>(rows[i / 512].token) * 512 + i % 512] * 25.3f) << type.name;
    }
}

TEST_P(CpuOps, RowsThatTheHostWrites) {
  constexpr int64_t kWidth = 300;
  const RowReader read = [](const void* context, int32_t token, float* row) {
    for (int64_t i = 0; i < kWidth; ++i) row[i] = static_cast<float>(token) * *static_cast<const float*>(context) + static_cast<float>(i);
  };
  const float factor = 0.5f;
  for (const int32_t n_threads : {1, 3}) {
    Rig rig(GetParam(), n_threads, {4, 64, 1, 1, 32, 512});
    const std::vector<Row> rows = {{0, 0, 0}, {99, 1, 0}, {7, 2, 0}, {7, 3, 0}};
    Guarded<float> out(4 * kWidth);
    rig->begin_step({Phase::prefill, rows, {}, {}});
    rig->read_rows(read, &factor, kWidth, out.ptr());
    rig->end_step();
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(out[i], static_cast<float>(rows[i / kWidth].token) * 0.5f + static_cast<float>(i % kWidth));
  }
}

TEST_P(CpuOps, RmsNorm) {
  for (int64_t dim : {1, 7, 8, 31, 64, 100, 128, 1000, 4096, 8191}) {
    for (int32_t n_vectors : {1, 3}) {
      const int32_t n = 5;
      const int64_t stride = n_vectors * dim + 2;
      Guarded<float> x(static_cast<size_t>((n - 1) * stride + n_vectors * dim)), weight(static_cast<size_t>(dim));
      Guarded<float> out(x.size());
      fill_normal(x, 2, 3.0f);
      fill_normal(weight, 3);
      std::vector<float> first;
      for (int32_t n_threads : {1, 3}) {
        Rig rig(GetParam(), n_threads, {n, 64, 1, 1, 32, 64});
        rig.begin(Phase::prefill, n);
        rig->rms_norm(x.cptr(), stride, weight.cptr(), out.ptr(), stride, n_vectors, dim, 1e-5f);
        rig.end();
        if (first.empty()) first.assign(out.data(), out.data() + out.size());
        Guarded<float> ones(static_cast<size_t>(dim)), same(out.size()), bare(out.size());  // no weights are those of 1
        for (size_t i = 0; i < ones.size(); ++i) ones[i] = 1.0f;
        for (size_t i = 0; i < out.size(); ++i) same[i] = bare[i] = 0.0f;
        rig.begin(Phase::prefill, n);
        rig->rms_norm(x.cptr(), stride, ones.cptr(), same.ptr(), stride, n_vectors, dim, 1e-5f);
        rig->rms_norm(x.cptr(), stride, {}, bare.ptr(), stride, n_vectors, dim, 1e-5f);
        rig.end();
        EXPECT_TRUE(same_bits(same.data(), bare.data(), same.size()));
        for (int64_t r = 0; r < n; ++r)
          for (int64_t v = 0; v < n_vectors; ++v) {
            const size_t at = static_cast<size_t>(r * stride + v * dim);
            double squares = 0;
            for (size_t i = 0; i < static_cast<size_t>(dim); ++i) squares += static_cast<double>(x[at + i]) * x[at + i];
            const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
            ASSERT_TRUE(same_bits(out.data() + at, first.data() + at, static_cast<size_t>(dim)));
            for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
              const double e = x[at + i] * scale * weight[i];
              ASSERT_NEAR(out[at + i], e, 3e-7 * std::fabs(e)) << dim;
            }
          }
        // Between the rows nothing is written; in place the result is the same.
        if (n > 1) {
          EXPECT_TRUE(std::isnan(out[static_cast<size_t>(n_vectors * dim)]));
        }
        Guarded<float> in_place(x.size());
        std::memcpy(in_place.data(), x.data(), x.size() * sizeof(float));
        rig.begin(Phase::decode, n);
        rig->rms_norm(in_place.cptr(), stride, weight.cptr(), in_place.ptr(), stride, n_vectors, dim, 1e-5f);
        rig.end();
        for (int64_t r = 0; r < n; ++r)
          ASSERT_TRUE(same_bits(in_place.data() + r * stride, first.data() + r * stride, static_cast<size_t>(n_vectors * dim)));
      }
    }
  }
}

TEST_P(CpuOps, Rope) {
  for (bool interleaved : {false, true})
    for (int32_t head_dim : {8, 24, 64, 80, 128, 256, 512})
      for (int32_t n_rot : {head_dim, head_dim / 2, head_dim / 4}) {
        const int32_t n = 6, n_heads = 3, position = 100000;
        const int64_t stride = n_heads * head_dim + 1;
        std::vector<float> frequencies;
        for (int32_t i = 0; i < n_rot / 2; ++i) frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / n_rot)));
        Guarded<float> x(static_cast<size_t>((n - 1) * stride + n_heads * head_dim));
        fill_normal(x, 5);
        const std::vector<float> before(x.data(), x.data() + x.size());
        Rig rig(GetParam(), 2, {n, 64, n_heads, n_heads, head_dim, 64});
        rig.begin(Phase::prefill, n, position);
        rig->prepare_rope({interleaved, n_rot, frequencies.data(), 1.25f});
        rig->rope(x.ptr(), stride, n_heads, head_dim);
        rig.end();
        std::vector<double> want(before.begin(), before.end());
        for (int32_t r = 0; r < n; ++r)
          for (int32_t h = 0; h < n_heads; ++h)
            for (int32_t i = 0; i < n_rot / 2; ++i) {
              const size_t start = static_cast<size_t>(r * stride + h * head_dim);
              const size_t a = start + static_cast<size_t>(interleaved ? 2 * i : i);
              const size_t b = start + static_cast<size_t>(interleaved ? 2 * i + 1 : i + n_rot / 2);
              const double angle = (position + r) * static_cast<double>(frequencies[static_cast<size_t>(i)]);
              const double c = std::cos(angle) * 1.25, s = std::sin(angle) * 1.25;
              want[a] = before[a] * c - before[b] * s;
              want[b] = before[a] * s + before[b] * c;
            }
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(x[i], want[i], 1e-6) << head_dim << " " << n_rot;
      }
}

// cos and sin grow by 1 + .1 ln(1 + floor(position / 8)): at positions 0 to 15 by 1 and 1 + .1 ln 2, at 100 by 1 + .1 ln 13.
TEST_P(CpuOps, RopeWithATemperature) {
  const float one = 0.0f;  // of a pair that does not turn
  for (const int32_t position : {0, 7, 8, 15, 100}) {
    Guarded<float> x(2);
    x[0] = 3.0f, x[1] = -2.0f;
    Rig rig(GetParam(), 1, {1, 64, 1, 1, 8, 64});
    rig.begin(Phase::prefill, 1, position);
    rig->prepare_rope({false, 2, &one, 1.25f, 0.1f, 8});
    rig->rope(x.ptr(), 2, 1, 2);
    rig.end();
    const double grown = 1.25 * (1 + 0.1 * std::log(1.0 + position / 8));
    EXPECT_NEAR(x[0], 3 * grown, 1e-6) << position;
    EXPECT_NEAR(x[1], -2 * grown, 1e-6) << position;
  }
}

// Tables of different sizes, orders of pairs and magnitudes in one step: each rotates as it does alone.
TEST_P(CpuOps, RopeByOneOfSeveralTables) {
  const int32_t n = 4, head_dim = 64;
  std::vector<std::vector<float>> frequencies(3);
  const int32_t n_rot[] = {64, 24, 2};
  std::vector<RopeSpec> specs;
  for (size_t t = 0; t < 3; ++t) {
    for (int32_t i = 0; i < n_rot[t] / 2; ++i)
      frequencies[t].push_back(static_cast<float>(std::pow(1000.0 * static_cast<double>(t + 1), -2.0 * i / n_rot[t])));
    specs.push_back({t == 1, n_rot[t], frequencies[t].data(), 1.0f + 0.25f * static_cast<float>(t)});
  }
  StepLimits limits{n, 64, 2, 2, head_dim, 64};
  limits.rope_floats = 64 + 24 + 2;
  Rig all(GetParam(), 2, limits), alone(GetParam(), 1, {n, 64, 2, 2, head_dim, 64});
  for (int32_t t = 0; t < 3; ++t) {
    Guarded<float> x(static_cast<size_t>(n * 2 * head_dim)), same(x.size());
    fill_normal(x, 5);
    std::memcpy(same.data(), x.data(), x.size() * sizeof(float));
    all.begin(Phase::prefill, n, 1000);
    all->prepare_ropes(specs);
    all->rope(x.ptr(), 2 * head_dim, 2, head_dim, t);
    all.end();
    alone.begin(Phase::prefill, n, 1000);
    alone->prepare_rope(specs[static_cast<size_t>(t)]);
    alone->rope(same.ptr(), 2 * head_dim, 2, head_dim);
    alone.end();
    EXPECT_TRUE(same_bits(x.data(), same.data(), x.size())) << t;
  }
}

// T's row i and column j: 1 / sqrt(block), negative where i and j have an odd number of common bits; 0 between blocks.
double hadamard_entry(int32_t i, int32_t j, int32_t block) {
  if (i / block != j / block) return 0;
  int bits = 0;
  for (int32_t common = i & j & (block - 1); common != 0; common &= common - 1) ++bits;
  return (bits % 2 == 0 ? 1 : -1) / std::sqrt(static_cast<double>(block));
}

TEST_P(CpuOps, TransformHeads) {
  EXPECT_EQ(hadamard_block(64), 64);
  EXPECT_EQ(hadamard_block(96), 32);
  EXPECT_EQ(hadamard_block(80), 16);
  Rig rig(GetParam(), 2, {5, 64, 8, 2, 512, 64}), plain("plain", 1, {5, 64, 8, 2, 512, 64});
  for (const int32_t dim : {8, 36, 64, 80, 96, 128, 256, 512})
    for (const bool rotate : {false, true})
      for (const bool shifted : {false, true}) {
        SCOPED_TRACE(std::to_string(dim) + (rotate ? " rotated" : "") + (shifted ? " shifted" : ""));
        const int32_t n = 5, n_heads = 3, width = n_heads * dim;
        const int64_t stride = width + 1;
        Guarded<float> x(static_cast<size_t>((n - 1) * stride + width)), same(x.size()), shift(static_cast<size_t>(width));
        fill_normal(x, 1, 3.0f);
        fill_normal(shift, 2, 5.0f);
        const std::vector<float> before(x.data(), x.data() + x.size());
        std::memcpy(same.data(), x.data(), x.size() * sizeof(float));
        const Ptr<const float> by = shifted ? shift.cptr() : Ptr<const float>();
        for (Rig* r : {&rig, &plain}) {
          r->begin(Phase::decode, n);
          (*r)->transform_heads((r == &rig ? x : same).ptr(), stride, n_heads, dim, by, rotate);
          r->end();
        }
        EXPECT_TRUE(same_bits(x.data(), same.data(), x.size())) << "every instruction set gives the plain kernel's bits";
        const int32_t block = rotate ? hadamard_block(dim) : 1;
        for (int32_t r = 0; r < n; ++r)
          for (int32_t i = 0; i < width; ++i) {
            double want = 0;
            for (int32_t j = i / block * block; j < i / block * block + block; ++j) {
              const double value = static_cast<double>(before[static_cast<size_t>(r * stride + j)]) -
                                   (shifted ? static_cast<double>(shift[static_cast<size_t>(j)]) : 0.0);
              want += hadamard_entry(i % dim, j % dim, block) * value;
            }
            ASSERT_NEAR(x[static_cast<size_t>(r * stride + i)], want, 1e-5) << r << " " << i;
          }
        if (!shifted) {  // its own inverse
          rig.begin(Phase::decode, n);
          rig->transform_heads(x.ptr(), stride, n_heads, dim, {}, rotate);
          rig.end();
          for (size_t i = 0; i < before.size(); ++i)
            if (static_cast<int64_t>(i) % stride < width) {
              ASSERT_NEAR(x[i], before[i], 1e-5);
            }
        }
      }
}

// Worked by hand: blocks of four, 1 / sqrt(4) = .5; one-hot inputs give the columns.
TEST_P(CpuOps, TransformedOneHots) {
  Rig rig(GetParam(), 1, {1, 64, 4, 1, 256, 64});
  Guarded<float> x(2 * 12);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0;
  x[0] = 1, x[4 + 1] = 1, x[8 + 2] = 2, x[12 + 3] = 4, x[23] = -2;
  rig.begin(Phase::decode, 1);
  rig->transform_heads(x.ptr(), 24, 2, 12, {}, true);
  rig.end();
  const float want[] = {.5f, .5f, .5f, .5f, .5f, -.5f, .5f, -.5f, 1, 1, -1, -1, 2, -2, -2, 2, 0, 0, 0, 0, -1, 1, 1, -1};
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(x[i], want[i]) << i;
}

TEST_P(CpuOps, Swiglu) {
  for (int64_t n : {1, 5, 16, 33, 2047, 2049, 6000}) {
    const int32_t rows = 3;
    const int64_t stride = 2 * n + 1;
    Guarded<float> x(static_cast<size_t>((rows - 1) * stride + 2 * n)), out(static_cast<size_t>(rows * n));
    fill_normal(x, 6, 8.0f);
    const float special[] = {0.0f, -0.0f, 88.0f, -88.0f, 104.0f, -104.0f, 1e30f, -1e30f};
    for (int64_t i = 0; i < std::min<int64_t>(n, 8); ++i) x[static_cast<size_t>(i)] = special[i];
    Rig rig(GetParam(), 2, {rows, 64, 1, 1, 32, 64});
    rig.begin(Phase::decode, rows);
    rig->swiglu(x.cptr(), x.cptr() + static_cast<uint64_t>(n), stride, out.ptr(), n, n);
    rig.end();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i) {
        const double gate = x[static_cast<size_t>(r * stride + i)], up = x[static_cast<size_t>(r * stride + n + i)];
        const double e = gate / (1 + std::exp(-gate)) * up;
        ASSERT_NEAR(out[static_cast<size_t>(r * n + i)], e, 4e-7 * std::fabs(e) + 1e-36) << gate;
      }
  }
}

TEST_P(CpuOps, Geglu) {
  for (int64_t n : {1, 5, 33, 2049}) {
    const int32_t rows = 3;
    const int64_t stride = 2 * n + 1;
    Guarded<float> x(static_cast<size_t>((rows - 1) * stride + 2 * n)), out(static_cast<size_t>(rows * n));
    fill_normal(x, 6, 3.0f);
    const float special[] = {0.0f, -0.0f, 9.0f, -9.0f, 60.0f, -60.0f, 1e9f, -1e9f};
    for (int64_t i = 0; i < std::min<int64_t>(n, 8); ++i) x[static_cast<size_t>(i)] = special[i];
    Rig rig(GetParam(), 2, {rows, 64, 1, 1, 32, 64});
    rig.begin(Phase::decode, rows);
    rig->activate(Activation::gelu, x.cptr(), x.cptr() + static_cast<uint64_t>(n), stride, out.ptr(), n, n);
    rig.end();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i) {
        const double gate = x[static_cast<size_t>(r * stride + i)], up = x[static_cast<size_t>(r * stride + n + i)];
        const double e = gate / 2 * (1 + std::tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
        ASSERT_NEAR(out[static_cast<size_t>(r * n + i)], e, 2e-6 * std::fabs(e) + 2e-7 * std::fabs(up)) << gate;
      }
  }
}

TEST_P(CpuOps, SoftCap) {
  for (int64_t n : {1, 7, 2048, 5003}) {
    Guarded<float> x(static_cast<size_t>(2 * n));
    fill_normal(x, 6, 20.0f);
    x[0] = 0.0f, x[1] = -1e30f;
    const std::vector<float> before(x.data(), x.data() + x.size());
    Rig rig(GetParam(), 2, {4, 64, 1, 1, 32, 64});
    rig.begin(Phase::prefill, 4);
    rig->soft_cap(x.ptr(), 2, n, 1.5f, 30.0f);
    rig.end();
    for (size_t i = 0; i < before.size(); ++i)
      ASSERT_NEAR(x[i], 30 * std::tanh(1.5 * static_cast<double>(before[i]) / 30), 1e-5) << before[i];
    std::memcpy(x.data(), before.data(), x.size() * sizeof(float));
    rig.begin(Phase::prefill, 4);
    rig->soft_cap(x.ptr(), 2, n, 1.5f, 0.0f);
    rig.end();
    for (size_t i = 0; i < before.size(); ++i) ASSERT_EQ(x[i], 1.5f * before[i]);
  }
}

// How far silu is from the true one, in units of the result's last place, over everything that is not flat:
// the exponential's own error is the larger part of it, and attention uses the same.
TEST_P(CpuOps, SiluWithinThreeUnitsInTheLastPlace) {
  const int32_t n = 1 << 20;
  Guarded<float> gate(n), up(n), out(n);
  for (int32_t i = 0; i < n; ++i) {
    gate[static_cast<size_t>(i)] = -80.0f + 160.0f * static_cast<float>(i) / static_cast<float>(n);
    up[static_cast<size_t>(i)] = 1.0f;
  }
  Rig rig(GetParam(), 1, {1, 64, 1, 1, 32, 64});
  rig.begin(Phase::prefill, 1);
  rig->swiglu(gate.cptr(), up.cptr(), n, out.ptr(), n, n);
  rig.end();
  double worst = 0;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    const double x = gate[i], exact = x / (1 + std::exp(-x));
    const float nearest = std::fabs(static_cast<float>(exact));
    const double unit = static_cast<double>(std::nextafter(nearest, INFINITY)) - static_cast<double>(nearest);
    worst = std::max(worst, std::fabs(out[i] - exact) / unit);
  }
  RecordProperty("worst_units", std::to_string(worst));
  EXPECT_LE(worst, 3.0);
}

TEST_P(CpuOps, Add) {
  for (int64_t n : {1, 17, 4096, 5000}) {
    Guarded<float> x(static_cast<size_t>(3 * n)), y(static_cast<size_t>(3 * n));
    fill_normal(x, 1);
    fill_normal(y, 2);
    const std::vector<float> before(x.data(), x.data() + x.size());
    Rig rig(GetParam(), 2, {3, 64, 1, 1, 32, 64});
    rig.begin(Phase::decode, 3);
    rig->add(x.ptr(), y.cptr(), n);
    rig.end();
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], before[i] + y[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuOps, ::testing::ValuesIn(paths()), PathName());

TEST(CpuBackend, ChoosesPathsByName) {
  const std::vector<std::string> names = paths();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "plain");
  auto best = cpu::make_backend({1, "auto"});
  ASSERT_TRUE(best.ok());
  // The first, but not bf16 where floats are quicker.
  const bool slow = names.front() == "avx512bf16" && !cpu::has_quick_bf16();
  EXPECT_EQ(best.value()->info().instruction_set, names[slow ? 1 : 0]);
  for (const std::string& name : names) {
    auto made = cpu::make_backend({3, name});
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made.value()->info().instruction_set, name);
    EXPECT_STREQ(made.value()->info().name, "cpu");
    EXPECT_EQ(made.value()->info().n_threads, 3);
    EXPECT_TRUE(made.value()->info().computes_on_host && made.value()->info().reads_host_memory);
    EXPECT_FALSE(made.value()->info().has_link);
    EXPECT_EQ(made.value()->info().has_key_codes, made.value()->key_codes() != nullptr);
    EXPECT_FALSE(made.value()->info().fetches);
  }
  auto unknown = cpu::make_backend({1, "mmx"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), Code::invalid_argument);
  EXPECT_NE(std::string(unknown.status().message()).find("plain"), std::string::npos);
  EXPECT_EQ(cpu::make_backend({-1, "auto"}).status().code(), Code::invalid_argument);
  EXPECT_EQ(cpu::make_backend({1 << 30, "auto"}).status().code(), Code::invalid_argument);
  auto automatic = cpu::make_backend({0, "auto"});
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic.value()->info().n_threads, cpu::default_threads(os::processors()));
}

// Choices of guessed tokens follow from these numbers, so the same calls make the same choices.
TEST(CpuBackend, SaysWhatStepsCost) {
  const auto products = [](const char* set) {
    const StepCost cost = cpu::step_cost(set, 3);
    EXPECT_EQ(cost.attention, 0.85);
    EXPECT_EQ(cost.operations_per_us, 18e4);
    return std::vector<double>(cost.products.begin(), cost.products.end());
  };
  EXPECT_EQ(products("avx2"), (std::vector<double>{0.15, 0.3, 0.5, 0.75, 1.0, 1.25, 1.5}));
  for (const char* wide : {"avx512", "avx512bf16", "amx"}) {
    const std::vector<double> found = products(wide);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], static_cast<double>(i + 1) * 0.17) << wide;
  }
  for (const char* other : {"plain", "avx2vnni", "neon"})
    EXPECT_EQ(products(other), (std::vector<double>{0.2, 0.7, 0.95, 1.2, 1.45, 1.7, 1.95})) << other;
  for (const std::string& name : paths()) {
    const auto made = cpu::make_backend({2, name});
    EXPECT_EQ(made.value()->step_cost().products, cpu::step_cost(name, 2).products);
    EXPECT_EQ(made.value()->step_cost().operations_per_us, 12e4);
  }
}

#if defined(__x86_64__) && defined(__linux__)
// The system reads the processor's words too.
TEST(CpuBackend, PathsAreThoseThatTheSystemNames) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::set<std::string> flags;
  bool amd = false;
  for (std::string line; flags.empty() && std::getline(cpuinfo, line);) {
    amd = amd || (line.compare(0, 9, "vendor_id") == 0 && line.find("AuthenticAMD") != std::string::npos);
    if (line.compare(0, 5, "flags") != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) flags.insert(word);
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo says nothing";
  const std::map<std::string, std::vector<std::string>> needs = {
      {"avx2", {"avx2", "fma", "f16c"}},
      {"avx2vnni", {"avx2", "fma", "f16c", "avx_vnni"}},
      {"avx512", {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}},
      {"avx512bf16", {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "avx512vbmi"}},
      {"amx", {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"}}};
  EXPECT_EQ(cpu::has_quick_bf16(), amd);
  const std::vector<std::string> available = paths();
  for (const auto& [path, words] : needs)
    EXPECT_EQ(std::count(available.begin(), available.end(), path) == 1,
              std::all_of(words.begin(), words.end(), [&](const std::string& w) { return flags.count(w) > 0; }))
        << path;
}
#endif

TEST(CpuBackend, ArenaAndCopies) {
  auto made = cpu::make_backend({1, "plain"});
  ASSERT_TRUE(made.ok());
  Backend& b = *made.value();
  ASSERT_TRUE(b.reserve_arena(1 << 16).ok());
  const char text[] = "kept on the device";
  char back[sizeof text] = {};
  b.upload(b.arena() + 100, text, sizeof text);
  b.copy(b.arena() + 5000, b.arena() + 100, sizeof text);
  b.download(back, b.arena() + 5000, sizeof text);
  EXPECT_STREQ(back, text);
  EXPECT_TRUE(b.synchronize().ok());
  EXPECT_FALSE(b.reserve_arena(uint64_t{1} << 62).ok());
}

TEST(CpuBackend, RefusesWeightsOfHalfABlock) {
  auto made = cpu::make_backend({1, "plain"});
  ASSERT_TRUE(made.ok());
  Weight weight;
  std::byte data[64] = {};
  EXPECT_EQ(made.value()->weight_bytes(TensorType::q4_k, 10, 256), 0u);
  EXPECT_TRUE(made.value()->place_weight(TensorType::f32, 2, 8, data, {}, &weight).ok());
  EXPECT_EQ(weight.n_cols, 8);
  EXPECT_EQ(made.value()->place_weight(TensorType::q4_k, 1, 128, data, {}, &weight).code(), Code::bad_model);
  EXPECT_EQ(made.value()->place_weight(TensorType::f32, 0, 8, data, {}, &weight).code(), Code::bad_model);
  EXPECT_EQ(made.value()->place_weight(static_cast<TensorType>(4), 1, 32, data, {}, &weight).code(), Code::unsupported_quantization);
}

}  // namespace
}  // namespace orrery::backend_test
