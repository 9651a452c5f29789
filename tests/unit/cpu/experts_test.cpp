// Mixtures of experts on every instruction set of this machine: the router against its definition in double precision, the products against
// the backend's own product of each row with its expert's matrix, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/tensor_type.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::experts_test {
namespace {

using namespace orrery::testing;

StepLimits limits_of(const RouterShape& router, int32_t max_rows, int64_t max_in) {
  StepLimits limits;
  limits.max_rows = max_rows, limits.max_context = 64, limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 32;
  limits.max_in = limits.max_expert_in = max_in;
  limits.n_experts = router.n_experts, limits.n_used_experts = router.n_used;
  return limits;
}

RouterShape router_of(int32_t n_experts, int32_t n_used, Gating gating = Gating::softmax, bool normalised = false, float scale = 1.0f) {
  RouterShape r;
  r.n_experts = n_experts, r.n_used = n_used, r.gating = gating, r.normalised = normalised, r.scale = scale;
  return r;
}

// What route() writes for n rows.
struct Routed {
  Routed(const RouterShape& r, int32_t n)
      : n_rows(n), shape(r), memory(RoutedRows::bytes(n, r)), rows(RoutedRows::at(memory.ptr(), n, r)) {}
  const float* weights() const { return reinterpret_cast<const float*>(memory.data()); }
  const int32_t* integers(int part) const {
    return reinterpret_cast<const int32_t*>(memory.data()) + static_cast<ptrdiff_t>(part) * n_rows * shape.n_used;
  }
  const int32_t* experts() const { return integers(1); }
  const int32_t* slots() const { return integers(2); }
  const int32_t* row_of() const { return integers(3); }
  const int32_t* owners() const { return integers(4); }
  const int32_t* first_slots() const { return integers(5); }
  int32_t n_slots() const { return n_rows * shape.n_used; }
  int32_t n_rows;
  RouterShape shape;
  Guarded<std::byte> memory;
  RoutedRows rows;
};

void route(Rig& rig, const Guarded<float>& logits, const Guarded<float>* bias, const Routed& to, Phase phase = Phase::prefill,
           const Guarded<float>* scales = nullptr) {
  rig.begin(phase, to.n_rows);
  rig->experts()->route(logits.cptr(), bias ? bias->cptr() : Ptr<const float>{}, scales ? scales->cptr() : Ptr<const float>{}, to.shape,
                        to.rows);
  rig.end();
}

// The definition, in double.
struct Choice {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};
Choice expected(const float* logits, const float* bias, const RouterShape& r) {
  const auto n = static_cast<size_t>(r.n_experts), k = static_cast<size_t>(r.n_used);
  std::vector<double> p(logits, logits + n);
  if (r.gating == Gating::softmax) {
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x);
    for (double& x : p) x /= sum;
  } else if (r.gating == Gating::sigmoid) {
    for (double& x : p) x = 1 / (1 + std::exp(-x));
  }
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](int32_t e) { return p[static_cast<size_t>(e)] + (bias ? static_cast<double>(bias[e]) : 0.0); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
  order.resize(k);
  Choice c{order, {}};
  double sum = 0;
  for (const int32_t e : order) {
    const double x = p[static_cast<size_t>(e)];
    c.weights.push_back(r.gating == Gating::softmax_of_chosen ? std::exp(x) : x);
    sum += c.weights.back();
  }
  for (double& w : c.weights) {
    if (r.gating == Gating::softmax_of_chosen || r.normalised) w /= r.gating == Gating::softmax_of_chosen ? sum : std::max(sum, 0x1p-14);
    w *= static_cast<double>(r.scale);
  }
  return c;
}

class CpuExperts : public ::testing::TestWithParam<std::string> {};

TEST(CpuRouter, ChoosesAndWeighsAsDefined) {
  constexpr int32_t kRows = 9;
  for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_of_chosen})
    for (const bool normalised : {false, true})
      for (const bool biased : {false, true})
        for (const auto& [n, k] : {std::pair{1, 1}, std::pair{8, 3}, std::pair{5, 5}, std::pair{130, 8}, std::pair{1024, 64}}) {
          SCOPED_TRACE(::testing::Message() << static_cast<int>(gating) << normalised << biased << " " << n);
          const RouterShape r = router_of(n, k, gating, normalised, 2.5f);
          Rig rig("plain", 2, limits_of(r, kRows, 32));
          Guarded<float> logits(static_cast<size_t>(kRows) * static_cast<size_t>(n)), bias(static_cast<size_t>(n));
          fill_normal(logits, 3, 2.0f), fill_normal(bias, 4, 0.7f);
          const Routed found(r, kRows);
          route(rig, logits, biased ? &bias : nullptr, found);
          for (int32_t row = 0; row < kRows; ++row) {
            const Choice c = expected(logits.data() + row * n, biased ? bias.data() : nullptr, r);
            for (int32_t j = 0; j < k; ++j) {
              EXPECT_EQ(found.experts()[row * k + j], c.experts[static_cast<size_t>(j)]) << row << " " << j;
              EXPECT_NEAR(found.weights()[row * k + j], c.weights[static_cast<size_t>(j)],
                          1e-6 * std::max(1.0, c.weights[static_cast<size_t>(j)]));
            }
          }
        }
}

// An expert's scale multiplies its weight after all else: it moves neither the choice nor the other weights.
TEST(CpuRouter, ScalesMultiplyTheWeightsLast) {
  const RouterShape r = router_of(8, 3, Gating::softmax, true, 2.5f);
  constexpr int32_t kRows = 5;
  Rig rig("plain", 2, limits_of(r, kRows, 32));
  Guarded<float> logits(kRows * 8), scales(8);
  fill_normal(logits, 3, 2.0f), fill_normal(scales, 4);
  const Routed plain(r, kRows), scaled(r, kRows);
  route(rig, logits, nullptr, plain);
  route(rig, logits, nullptr, scaled, Phase::decode, &scales);
  for (int32_t i = 0; i < kRows * 3; ++i) {
    ASSERT_EQ(scaled.experts()[i], plain.experts()[i]);
    EXPECT_EQ(scaled.weights()[i], plain.weights()[i] * scales[static_cast<size_t>(plain.experts()[i])]);
  }
}

// A sum of weights that is tiny is not divided by: sigmoids of very negative logits.
TEST(CpuRouter, ATinySumIsNotDividedBy) {
  const RouterShape r = router_of(4, 2, Gating::sigmoid, true);
  Rig rig("plain", 1, limits_of(r, 1, 32));
  Guarded<float> logits(4);
  for (size_t i = 0; i < 4; ++i) logits[i] = -20.0f - static_cast<float>(i);
  const Routed found(r, 1);
  route(rig, logits, nullptr, found);
  EXPECT_NEAR(found.weights()[0], std::exp(-20.0) * 0x1p14, 1e-9);
}

TEST(CpuRouter, EqualOnesByIndexAndNoNumbersLast) {
  const float nan = std::nanf(""), inf = INFINITY;
  const struct {
    std::vector<float> logits;
    std::vector<int32_t> chosen;
  } cases[] = {{{1, 2, 2, 1, 2, 2}, {1, 2, 4}},
               {{0, 0, 0, 0, 0, 0}, {0, 1, 2}},
               {{3, 1, 3, 1, 1, 2}, {0, 2, 5}},
               {{nan, 1, nan, -inf, 2, 1}, {4, 1, 5}},
               {{nan, nan, nan, nan, nan, nan}, {0, 1, 2}},
               {{-inf, nan, -inf, -inf, -inf, 0}, {5, 0, 1}}};
  const RouterShape r = router_of(6, 3, Gating::softmax, true);
  Rig rig("plain", 1, limits_of(r, 1, 32));
  for (const auto& c : cases) {
    Guarded<float> logits(6);
    std::copy(c.logits.begin(), c.logits.end(), logits.data());
    const Routed found(r, 1);
    route(rig, logits, nullptr, found);
    EXPECT_EQ(std::vector<int32_t>(found.experts(), found.experts() + 3), c.chosen);
  }
}

TEST(CpuRouter, SlotsAreSortedByExpertThenRow) {
  const RouterShape r = router_of(7, 3);
  constexpr int32_t kRows = 40;
  Rig rig("plain", 2, limits_of(r, kRows, 32));
  Guarded<float> logits(kRows * 7);
  fill_normal(logits, 5);
  for (size_t row = 0; row < kRows; ++row) logits[row * 7 + 2] = -9.0f;  // nobody's
  const Routed found(r, kRows);
  route(rig, logits, nullptr, found);
  EXPECT_EQ(found.first_slots()[0], 0);
  EXPECT_EQ(found.first_slots()[2], found.first_slots()[3]);
  EXPECT_EQ(found.first_slots()[7], found.n_slots());
  std::vector<int32_t> times(static_cast<size_t>(found.n_slots()));
  for (int32_t i = 0; i < found.n_slots(); ++i) {
    const int32_t slot = found.slots()[i], expert = found.experts()[i];
    ++times[static_cast<size_t>(slot)];
    EXPECT_GE(slot, found.first_slots()[expert]);
    EXPECT_LT(slot, found.first_slots()[expert + 1]);
    EXPECT_EQ(found.row_of()[slot], i / 3);
    EXPECT_EQ(found.owners()[slot], expert);
    if (slot > found.first_slots()[expert]) {
      EXPECT_LT(found.row_of()[slot - 1], found.row_of()[slot]);
    }
  }
  EXPECT_EQ(times, std::vector<int32_t>(times.size(), 1));
}

// Each slot has the bits of the product of its input alone with its expert's matrix: for all types, numbers of rows below and above those
// that kernels take at once, and inputs that need several waves; whatever the threads.
TEST_P(CpuExperts, ProductsAreThoseOfEachRowAlone) {
  constexpr int64_t kIn = 288, kOut = 24, kExperts = 6;
  constexpr int32_t kUsed = 3, kMostRows = 40;
  const RouterShape r = router_of(kExperts, kUsed);
  for (const TypeTraits& type : kTypeTraits) {
    const int64_t n_in = kIn % type.block_elements == 0 ? kIn : 512;
    Guarded<std::byte> bytes(row_bytes(type.type, static_cast<uint64_t>(kExperts * kOut * n_in)));
    fill_random_blocks(type.type, bytes.data(), static_cast<uint64_t>(kExperts * kOut * n_in), 17, 1.0f);
    Guarded<float> bias(kExperts * kOut);
    fill_normal(bias, 8);
    for (const int32_t n_threads : {1, 3}) {
      Rig rig(GetParam(), n_threads, limits_of(r, kMostRows, n_in));
      const Weight all = rig.place({type.type, kExperts * kOut, n_in, bytes.cptr()});
      const uint64_t placed = rig->weight_bytes(type.type, kOut, n_in);
      const uint64_t stride = placed ? placed : row_bytes(type.type, static_cast<uint64_t>(kOut * n_in));
      const ExpertWeights weights{{type.type, kOut, n_in, all.data, all.repacked}, stride};
      for (const Phase phase : {Phase::prefill, Phase::decode})
        for (const int32_t n_rows : {1, 4, kMostRows}) {
          Guarded<float> logits(static_cast<size_t>(n_rows * kExperts)), x(static_cast<size_t>(n_rows * n_in));
          fill_normal(logits, 21), fill_normal(x, 22);
          for (int32_t row = 0; row < n_rows; ++row) logits[static_cast<size_t>(row * kExperts + 1)] += 2.0f;  // one expert has many rows
          const Routed routed(r, n_rows);
          route(rig, logits, nullptr, routed, phase);
          const auto n_slots = static_cast<size_t>(routed.n_slots());
          Guarded<float> of_rows(n_slots * kOut), again(n_slots * kOut), of_slots(n_slots * kOut),
              slots(n_slots * static_cast<size_t>(n_in));
          fill_normal(slots, 23);
          rig.begin(phase, n_rows);
          const ExpertProduct p[] = {{&weights, bias.cptr(), of_rows.ptr()}, {&weights, {}, again.ptr()}};
          rig->experts()->multiply_experts({p, 2}, r, routed.rows, x.cptr(), true);
          const ExpertProduct q{&weights, bias.cptr(), of_slots.ptr()};
          rig->experts()->multiply_experts({&q, 1}, r, routed.rows, slots.cptr(), false);
          rig.end();
          Guarded<float> alone(kOut), unbiased(kOut), slot_alone(kOut);
          for (int32_t e = 0; e < kExperts; ++e) {
            const Weight own{type.type, kOut, n_in, all.data + static_cast<uint64_t>(e) * stride, all.repacked};
            for (int32_t s = routed.first_slots()[e]; s < routed.first_slots()[e + 1]; ++s) {
              rig.begin(phase, 1);
              const Product product[] = {{&own, bias.cptr() + static_cast<uint64_t>(e * kOut), alone.ptr(), kOut, false},
                                         {&own, {}, unbiased.ptr(), kOut, false}};
              const Product of_slot{&own, bias.cptr() + static_cast<uint64_t>(e * kOut), slot_alone.ptr(), kOut, false};
              rig->matmul({product, 2}, x.cptr() + static_cast<uint64_t>(routed.row_of()[s] * n_in), n_in, 1);
              rig->matmul({&of_slot, 1}, slots.cptr() + static_cast<uint64_t>(s * n_in), n_in, 1);
              rig.end();
              const int64_t at = s * kOut;
              ASSERT_TRUE(same_bits(of_rows.data() + at, alone.data(), kOut)) << type.name << " " << n_rows << " rows, slot " << s;
              ASSERT_TRUE(same_bits(again.data() + at, unbiased.data(), kOut)) << type.name;
              ASSERT_TRUE(same_bits(of_slots.data() + at, slot_alone.data(), kOut)) << type.name << " " << n_rows << " rows, slot " << s;
            }
          }
        }
    }
  }
}

// Without accumulation, what lay there is not read.
TEST(CpuRouter, SumsReplaceWhatLayThere) {
  const RouterShape r = router_of(5, 2, Gating::softmax, true);
  constexpr int32_t kRows = 3;
  constexpr size_t kWidth = 1100;  // more than a stretch
  Rig rig("plain", 2, limits_of(r, kRows, 32));
  Guarded<float> logits(kRows * 5), y(kRows * 2 * kWidth), sums(kRows * kWidth), x(kRows * kWidth);
  fill_normal(logits, 1), fill_normal(y, 3);
  for (size_t i = 0; i < x.size(); ++i) sums[i] = 0.0f, x[i] = NAN;
  const Routed routed(r, kRows);
  route(rig, logits, nullptr, routed);
  rig.begin(Phase::prefill, kRows);
  rig->experts()->add_experts(sums.ptr(), y.cptr(), kWidth, r, routed.rows, true);
  rig->experts()->add_experts(x.ptr(), y.cptr(), kWidth, r, routed.rows, false);
  rig.end();
  EXPECT_TRUE(same_bits(x.data(), sums.data(), x.size()));
}

TEST_P(CpuExperts, SumsAndGates) {
  const RouterShape r = router_of(5, 2, Gating::softmax, true);
  for (const int32_t n_rows : {1, 33})
    for (const int64_t n : {int64_t{1}, int64_t{100}, int64_t{2100}}) {
      Rig rig(GetParam(), 2, limits_of(r, n_rows, 32));
      Guarded<float> logits(static_cast<size_t>(n_rows) * 5), x(static_cast<size_t>(n_rows * n)), y(static_cast<size_t>(n_rows * 2 * n)),
          gates(static_cast<size_t>(n_rows));
      fill_normal(logits, 1), fill_normal(x, 2), fill_normal(y, 3), fill_normal(gates, 4);
      const std::vector<float> before(x.data(), x.data() + x.size());
      const Routed routed(r, n_rows);
      route(rig, logits, nullptr, routed);
      rig.begin(Phase::prefill, n_rows);
      rig->experts()->add_experts(x.ptr(), y.cptr(), n, r, routed.rows, true);
      rig->experts()->gate_rows(x.ptr(), gates.cptr(), n);
      rig.end();
      for (int64_t row = 0; row < n_rows; ++row)
        for (int64_t i = 0; i < n; ++i) {
          double sum = before[static_cast<size_t>(row * n + i)];
          for (int64_t j = row * 2; j < row * 2 + 2; ++j)
            sum += static_cast<double>(routed.weights()[j]) * static_cast<double>(y[static_cast<size_t>(routed.slots()[j] * n + i)]);
          ASSERT_NEAR(x[static_cast<size_t>(row * n + i)], sum / (1 + std::exp(-static_cast<double>(gates[static_cast<size_t>(row)]))),
                      2e-6);
        }
    }
}

// Values by the definition: below the clamps, at them and beyond. The gate is clamped above alone.
TEST(CpuRouter, ClampedGates) {
  Rig rig("plain", 2, limits_of(router_of(1, 1), 3, 32));
  const std::vector<float> values = {-30, -7.5f, -7, -6.5f, -1, -0.1f, 0, 0.5f, 3, 6.9f, 7, 7.1f, 40};
  const size_t n = values.size() * values.size();
  Guarded<float> gate(3 * n), up(3 * n), out(3 * n);
  for (size_t i = 0; i < 3 * n; ++i) gate[i] = values[i % n / values.size()], up[i] = values[i % values.size()];
  rig.begin(Phase::decode, 3);
  rig->experts()->clamped_swiglu(gate.cptr(), up.cptr(), out.ptr(), static_cast<int64_t>(n));
  rig.end();
  for (size_t i = 0; i < 3 * n; ++i) {
    const double g = std::min(7.0, static_cast<double>(gate[i])), u = std::clamp(static_cast<double>(up[i]), -7.0, 7.0);
    const double expected = g / (1 + std::exp(-1.702 * g)) * (u + 1);
    EXPECT_NEAR(out[i], expected, 2e-6 * std::fabs(expected)) << gate[i] << " " << up[i];
  }
}

TEST(CpuRouter, SquaredRelu) {
  constexpr size_t kN = 5000;
  Rig rig("plain", 2, limits_of(router_of(1, 1), 3, 32));
  Guarded<float> x(3 * kN);
  fill_normal(x, 1);
  x[7] = std::numeric_limits<float>::quiet_NaN(), x[8] = -std::numeric_limits<float>::infinity(), x[9] = 0;
  const std::vector<float> before(x.data(), x.data() + x.size());
  rig.begin(Phase::decode, 3);
  rig->experts()->squared_relu(x.ptr(), kN);
  rig.end();
  for (size_t i = 0; i < 3 * kN; ++i) {
    if (i == 7) EXPECT_TRUE(std::isnan(x[i]));
    else EXPECT_EQ(x[i], before[i] > 0 ? before[i] * before[i] : 0.0f) << before[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuExperts, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::experts_test
