// Drift, satellites and refreshes: worked numbers, bounds, and refreshes against sets on random slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/select/sets.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fixture.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::drift_test {
namespace {

using orrery::testing::Random;

Tokens random_set(Random& random, size_t k, uint32_t n) {
  Tokens all(n);
  for (uint32_t i = 0; i < n; ++i) all[i] = i;
  for (uint32_t i = n; i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
  all.resize(k);
  return all;
}

TEST(PolicyDrift, TheMedianOfTheBlockDecides) {
  const Tokens base = {0, 1, 2, 3};
  const Tokens none = {4, 5, 6, 7}, quarter = {3, 5, 6, 7}, half = {3, 2, 6, 7}, all = {3, 2, 1, 0};
  const auto verdict = [&](std::vector<Tokens> sets, double tau) {
    DriftRule rule;
    rule.tau_drift = tau;
    return must(check_drift(sets, base, rule));
  };
  DriftVerdict v = verdict({none, half, all, quarter, half}, .5);
  EXPECT_EQ(v.overlaps, (std::vector<double>{0, .5, 1, .25, .5}));
  EXPECT_EQ(v.median, .5);
  EXPECT_FALSE(v.triggered);  // below, not at
  EXPECT_TRUE(verdict({none, half, all, quarter, half}, .51).triggered);
  // One step with other keys is noise; three of five are not.
  EXPECT_FALSE(verdict({all, all, all, none, none}, .5).triggered);
  EXPECT_TRUE(verdict({all, all, none, none, none}, .5).triggered);
}

TEST(PolicyDrift, WrongBlocksAreRefused) {
  const std::vector<Tokens> sets(5, Tokens{1, 2});
  EXPECT_TRUE(check_drift(sets, Tokens{1, 2}, {}).ok());
  EXPECT_FALSE(check_drift(Span<const Tokens>(sets).first(4), Tokens{1, 2}, {}).ok());
  EXPECT_FALSE(check_drift(sets, Tokens{1, 2, 3}, {}).ok());
  EXPECT_FALSE(check_drift(std::vector<Tokens>(5), Tokens{}, {}).ok());
  EXPECT_FALSE(check_drift(std::vector<Tokens>{}, Tokens{1}, {0, .5}).ok());
}

TEST(PolicyDrift, SatellitesTakeTheBestAndNotTheEarliest) {
  Tokens order;
  top_k(std::vector<float>{.2f, .1f, .5f, .3f}, 4, &order);
  const auto as_set = [](Result<Tokens> t) { return std::set<uint32_t>(t->begin(), t->end()); };
  EXPECT_EQ(as_set(satellite_set(order, 2)), (std::set<uint32_t>{2, 3}));  // sorted by position first: {0, 2}
  EXPECT_EQ(as_set(satellite_set(order, 3)), (std::set<uint32_t>{0, 2, 3}));
  EXPECT_EQ(must(satellite_set(order, 0)), Tokens{});
  EXPECT_EQ(satellite_set(order, 5).take_status().code(), Code::invalid_argument);
}

TEST(PolicyDrift, BlocksEndEveryWSteps) {
  std::vector<uint64_t> ends;
  for (uint64_t t = 0; t <= 16; ++t) {
    if (ends_block(t, 5)) ends.push_back(t);
  }
  EXPECT_EQ(ends, (std::vector<uint64_t>{5, 10, 15}));
}

TEST(PolicyDrift, OnlyMissesAreFetchedIntoSlotsThatNobodyWants) {
  const std::vector<Replacement> plan = planned_misses({7, 3, 9, 1}, {9, 5, 7, 2});
  EXPECT_EQ(plan, (std::vector<Replacement>{{1, 5}, {3, 2}}));
  EXPECT_TRUE(planned_misses({7, 3}, {3, 7}).empty());
  EXPECT_TRUE(planned_misses({}, {}).empty());
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const size_t k = random.below(30);
    const Tokens before = random_set(random, k, 40), wanted = random_set(random, k, 40);
    Tokens after = before;
    const std::vector<Replacement> changes = planned_misses(before, wanted);
    EXPECT_EQ(changes.size(), k - count_common(before, wanted));
    for (const Replacement& r : changes) after[r.slot] = r.position;
    EXPECT_EQ(std::set<uint32_t>(after.begin(), after.end()), std::set<uint32_t>(wanted.begin(), wanted.end()));
  }
}

}  // namespace
}  // namespace orrery::policy::drift_test
