// Mixtures of experts on the device: the router against the CPU backend's, the products against the device's own product of each slot's
// input with its expert's matrix.
#include "tests/gpu/device_fixture.h"

namespace orrery::experts_test {
namespace {

using namespace testing;

StepLimits limits_of(const RouterShape& router, int32_t max_rows, int64_t max_in) {
  StepLimits limits = product_limits(max_rows, max_in);
  limits.n_experts = router.n_experts, limits.n_used_experts = router.n_used, limits.max_expert_in = max_in;
  return limits;
}
RouterShape router_of(int32_t n_experts, int32_t n_used, Gating gating = Gating::softmax, bool normalised = false, float scale = 1.0f) {
  RouterShape r;
  r.n_experts = n_experts, r.n_used = n_used, r.gating = gating, r.normalised = normalised, r.scale = scale;
  return r;
}

// What route() writes for n rows.
struct Routed {
  Routed(Machine* m, const RouterShape& r, int32_t n)
      : n_slots(static_cast<size_t>(n) * static_cast<size_t>(r.n_used)), n_experts(static_cast<size_t>(r.n_experts)),
        memory(m, RoutedRows::bytes(n, r) / 4), rows(RoutedRows::at({memory.address()}, n, r)) {}
  // Weights; then experts, slots, rows, owners, first slots.
  std::vector<float> weights() const {
    const std::vector<int32_t> all = memory.get();
    std::vector<float> w(n_slots);
    std::memcpy(w.data(), all.data(), n_slots * sizeof(float));
    return w;
  }
  std::vector<int32_t> numbers() const {
    const std::vector<int32_t> all = memory.get();
    return {all.begin() + static_cast<ptrdiff_t>(n_slots), all.end()};
  }
  size_t n_slots, n_experts;
  Buffer<int32_t> memory;
  RoutedRows rows;
};

TEST(GpuExperts, ChoosesAsTheCpu) {
  struct Case {
    RouterShape router;
    bool biased;
    int32_t n_rows;
  };
  std::vector<Case> cases;
  for (const Gating gating : {Gating::softmax, Gating::sigmoid, Gating::softmax_of_chosen})
    for (const bool more : {false, true}) {
      cases.push_back({router_of(8, 3, gating, more, 2.5f), more, 5});
      cases.push_back({router_of(130, 8, gating, !more), more, 3});
    }
  cases.push_back({router_of(1, 1), false, 4});
  cases.push_back({router_of(33, 33, Gating::softmax, true), true, 2});
  cases.push_back({router_of(1024, 64, Gating::sigmoid, true), true, 2});
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.router.n_experts << " " << static_cast<int>(c.router.gating));
    const auto n = static_cast<size_t>(c.router.n_experts);
    const auto [expected, got] = on_both(limits_of(c.router, c.n_rows, 64), [&](Machine* m) {
      const Buffer<float> logits(m, normal_values(static_cast<size_t>(c.n_rows) * n, 3, 2.0f)), bias(m, normal_values(n, 4, 0.5f)),
          scales(m, normal_values(n, 5));
      const Routed routed(m, c.router, c.n_rows);
      m->begin(Phase::prefill, c.n_rows);
      (*m)->experts()->route(logits.cptr(), c.biased ? bias.cptr() : Ptr<const float>{},
                             c.router.normalised ? scales.cptr() : Ptr<const float>{}, c.router, routed.rows);
      m->end();
      return std::make_pair(routed.weights(), routed.numbers());
    });
    EXPECT_EQ(got.second, expected.second);
    expect_near(got.first, expected.first, 2e-6);
  }
}

TEST(GpuExperts, EqualOnesByIndexAndNoNumbersLast) {
  const float nan = std::nanf(""), inf = INFINITY;
  const std::vector<float> logits = {1,   2, 2,   1,    2, 2, 0,   -0.0f, 0,   0,   -0.0f, 0,   3,    1,   3,    1,    1,    2,
                                     nan, 1, nan, -inf, 2, 1, nan, nan,   nan, nan, nan,   nan, -inf, nan, -inf, -inf, -inf, 0};
  const RouterShape r = router_of(6, 3, Gating::softmax, true);
  const auto [expected, got] = on_both(limits_of(r, 6, 64), [&](Machine* m) {
    const Buffer<float> x(m, logits);
    const Routed routed(m, r, 6);
    m->begin(Phase::decode, 6);
    (*m)->experts()->route(x.cptr(), {}, {}, r, routed.rows);
    m->end();
    return routed.numbers();
  });
  EXPECT_EQ(got, expected);
  EXPECT_EQ(std::vector<int32_t>(got.begin(), got.begin() + 18),
            (std::vector<int32_t>{1, 2, 4, 0, 1, 2, 0, 2, 5, 4, 1, 5, 0, 1, 2, 5, 0, 1}));
}

class GpuExpertProducts : public ::testing::TestWithParam<TensorType> {};

TEST_P(GpuExpertProducts, AreThoseOfEachSlotAlone) {
  constexpr int64_t kOut = 21, kExperts = 5;
  const int64_t n_in = 1056 % type_traits(GetParam())->block_elements == 0 ? 1056 : 512;  // a round of units and more
  const RouterShape r = router_of(kExperts, 2);
  for (const int32_t n_rows : {1, 23}) {
    Machine m(true, limits_of(r, n_rows, n_in));
    const uint64_t stride = m->weight_bytes(GetParam(), kOut, n_in);
    Buffer<std::byte> memory(&m, kExperts * stride);
    const uint64_t of_file = row_bytes(GetParam(), static_cast<uint64_t>(kOut * n_in));
    const std::vector<std::byte> file = random_blocks(GetParam(), static_cast<uint64_t>(kExperts * kOut * n_in), 7, 1.0f);
    Weight experts[kExperts];
    for (uint64_t e = 0; e < kExperts; ++e)
      ASSERT_TRUE(m->place_weight(GetParam(), kOut, n_in, file.data() + e * of_file, memory.ptr() + e * stride, &experts[e]).ok());
    const ExpertWeights weights{experts[0], stride};
    std::vector<float> scores = normal_values(static_cast<size_t>(n_rows * kExperts), 3);
    for (size_t row = 0; row < static_cast<size_t>(n_rows); ++row)
      scores[row * kExperts + 1] += 2.0f;  // more slots than a thread block has
    const Buffer<float> logits(&m, scores), x(&m, normal_values(static_cast<size_t>(n_rows * n_in), 4)),
        bias(&m, normal_values(kExperts * kOut, 5));
    const Routed routed(&m, r, n_rows);
    const Buffer<float> of_rows(&m, routed.n_slots * kOut), of_slots(&m, routed.n_slots * kOut);
    m.begin(Phase::decode, n_rows);
    m->experts()->route(logits.cptr(), {}, {}, r, routed.rows);
    const ExpertProduct p[] = {{&weights, bias.cptr(), of_rows.ptr()}, {&weights, {}, of_slots.ptr()}};
    m->experts()->multiply_experts({p, 2}, r, routed.rows, x.cptr(), true);
    m.end();
    const std::vector<int32_t> numbers = routed.numbers();
    const int32_t *rows = &numbers[2 * routed.n_slots], *owners = &numbers[3 * routed.n_slots];
    const std::vector<float> biased = of_rows.get(), plain = of_slots.get();
    const Buffer<float> slots(&m, normal_values(routed.n_slots * static_cast<size_t>(n_in), 6)), alone(&m, kOut), alone_biased(&m, kOut),
        slot_alone(&m, kOut);
    m.begin(Phase::decode, n_rows);
    const ExpertProduct q{&weights, bias.cptr(), of_slots.ptr()};
    m->experts()->multiply_experts({&q, 1}, r, routed.rows, slots.cptr(), false);
    m.end();
    const std::vector<float> of_own = of_slots.get();
    // The same matrices by a table of their places, some bytes behind the places.
    constexpr uint64_t kOffset = 256;
    std::vector<uint64_t> places;
    for (uint64_t e = 0; e < kExperts; ++e) places.push_back((memory.ptr() + e * stride).address - kOffset);
    const Buffer<uint64_t> table(&m, places);
    ExpertWeights in_units{experts[0], 0, table.cptr(), kOffset};
    in_units.first.data = {1};  // nobody reads it
    const Buffer<float> by_units(&m, routed.n_slots * kOut);
    m.begin(Phase::decode, n_rows);
    const ExpertProduct u{&in_units, bias.cptr(), by_units.ptr()};
    m->experts()->multiply_experts({&u, 1}, r, routed.rows, slots.cptr(), false);
    m.end();
    ASSERT_TRUE(same_bits(by_units.get().data(), of_own.data(), of_own.size())) << n_rows << " rows";
    for (size_t s = 0; s < routed.n_slots; ++s) {
      const auto e = static_cast<uint64_t>(owners[s]);
      m.begin(Phase::decode, 1);
      const Product own[] = {{&experts[e], {}, alone.ptr(), kOut, false},
                             {&experts[e], bias.cptr() + e * kOut, alone_biased.ptr(), kOut, false}};
      m->matmul({own, 2}, x.cptr() + static_cast<uint64_t>(rows[s] * n_in), n_in, 1);
      const Product of_slot{&experts[e], bias.cptr() + e * kOut, slot_alone.ptr(), kOut, false};
      m->matmul({&of_slot, 1}, slots.cptr() + s * static_cast<uint64_t>(n_in), n_in, 1);
      m.end();
      ASSERT_TRUE(same_bits(&plain[s * kOut], alone.get().data(), kOut)) << n_rows << " rows, slot " << s;
      ASSERT_TRUE(same_bits(&biased[s * kOut], alone_biased.get().data(), kOut)) << n_rows << " rows, slot " << s;
      ASSERT_TRUE(same_bits(&of_own[s * kOut], slot_alone.get().data(), kOut)) << n_rows << " rows, slot " << s;
    }
  }
}

std::vector<TensorType> all_types() {
  std::vector<TensorType> types;
  for (const TypeTraits& type : kTypeTraits) types.push_back(type.type);
  return types;
}
INSTANTIATE_TEST_SUITE_P(Types, GpuExpertProducts, ::testing::ValuesIn(all_types()),
                         [](const auto& tested) { return std::string(type_traits(tested.param)->name); });

TEST(GpuExperts, SumsAndGatesAsOnTheCpu) {
  const RouterShape r = router_of(5, 2, Gating::softmax, true);
  constexpr int32_t kRows = 3;
  constexpr int64_t kWidth = 300;
  const auto [expected, got] = on_both(limits_of(r, kRows, kWidth), [&](Machine* m) {
    const Buffer<float> logits(m, normal_values(kRows * 5, 1)), y(m, normal_values(kRows * 2 * kWidth, 2)),
        gates(m, normal_values(kRows, 3)), x(m, normal_values(kRows * kWidth, 4)), sums(m, std::vector<float>(kRows * kWidth, NAN));
    std::vector<float> wide = normal_values(kRows * kWidth, 5, 8.0f);  // beyond the clamps
    wide[3] = 7.0f, wide[4] = -7.0f;
    const Buffer<float> gate(m, wide), up(m, normal_values(kRows * kWidth, 6, 8.0f)), clamped(m, kRows * kWidth),
        squared(m, normal_values(kRows * kWidth, 7));
    const Routed routed(m, r, kRows);
    m->begin(Phase::prefill, kRows);
    (*m)->experts()->route(logits.cptr(), {}, {}, r, routed.rows);
    (*m)->experts()->add_experts(x.ptr(), y.cptr(), kWidth, r, routed.rows, true);
    (*m)->experts()->add_experts(sums.ptr(), y.cptr(), kWidth, r, routed.rows, false);
    (*m)->experts()->gate_rows(x.ptr(), gates.cptr(), kWidth);
    (*m)->experts()->clamped_swiglu(gate.cptr(), up.cptr(), clamped.ptr(), kWidth);
    (*m)->experts()->squared_relu(squared.ptr(), kWidth);
    m->end();
    std::vector<float> all = x.get();
    for (const float v : clamped.get()) all.push_back(v / 16);
    for (const float v : squared.get()) all.push_back(v);
    for (const float v : sums.get()) all.push_back(v);
    return all;
  });
  expect_near(got, expected, 2e-6);
}

TEST(GpuExperts, MoreExpertsThanAThreadBlockHasAreRefused) {
  Machine cuda(true, product_limits(1, 64));
  EXPECT_TRUE(cuda->check_experts(router_of(1024, 8)).ok());
  EXPECT_EQ(cuda->check_experts(router_of(1025, 8)).code(), Code::unsupported);
}

}  // namespace
}  // namespace orrery::experts_test
