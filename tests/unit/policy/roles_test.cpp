// Roles: the worked example; clusters against a naive version of the definition on random graphs; demotion; the search for thresholds.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/policy/heads/overlaps.h"
#include "runtime/policy/heads/roles.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fixture.h"

namespace orrery::policy::roles_test {
namespace {

using orrery::testing::Random;

// Similarity 1 on edges, .1 elsewhere.
LayerStatistics graph(uint32_t n, const std::vector<std::pair<uint32_t, uint32_t>>& edges, std::vector<double> stability) {
  LayerStatistics s{std::move(stability), std::vector<double>(size_t{n} * n, .1)};
  for (uint32_t i = 0; i < n; ++i) s.similarity[i * n + i] = 1;
  for (const auto& [i, j] : edges) s.similarity[i * n + j] = s.similarity[j * n + i] = .8;
  return s;
}

LayerStatistics random_layer(Random& random, uint32_t n) {
  LayerStatistics s;
  for (uint32_t i = 0; i < n; ++i) s.stability.push_back(static_cast<double>(random.uniform()));
  s.similarity.assign(size_t{n} * n, 1);
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t j = 0; j < i; ++j) {
      s.similarity[i * n + j] = s.similarity[j * n + i] = static_cast<double>(random.uniform());
    }
  }
  return s;
}

LayerRoles roles_of(const LayerStatistics& s, const Thresholds& t = {}) {
  Result<LayerRoles> roles = classify(s, t);
  EXPECT_TRUE(roles.ok()) << (roles.ok() ? "" : roles.status().message());
  return roles.ok() ? std::move(roles).value() : LayerRoles{};
}

TEST(PolicyRoles, TheWorkedExample) {
  const LayerRoles r = roles_of(graph(6, {{0, 1}, {0, 2}, {3, 4}}, {.9, .9, .9, .9, .9, .3}));
  EXPECT_EQ(r.roles, (std::vector<Role>{Role::pivot, Role::satellite, Role::satellite, Role::pivot, Role::satellite, Role::volatile_head}));
  EXPECT_EQ(r.satellites_of(0), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(r.satellites_of(3), (std::vector<uint32_t>{4}));
  EXPECT_EQ(r.satellites_of(5), (std::vector<uint32_t>{}));
  EXPECT_EQ(r.pivot_of[5], kNoHead);
  const RoleCounts counts = count_roles(std::vector<LayerRoles>{r, r});
  EXPECT_EQ(counts.pivot, 4u);
  EXPECT_EQ(counts.satellite, 6u);
  EXPECT_EQ(counts.volatile_heads, 2u);
  EXPECT_EQ(counts.full(), 6u);
  EXPECT_EQ(counts.all(), 12u);
}

TEST(PolicyRoles, ThresholdsAreMetByEquality) {
  LayerStatistics s = graph(3, {}, {.5, .499, .5});
  s.similarity[1] = s.similarity[3] = .5;
  EXPECT_EQ(roles_of(s).roles, (std::vector<Role>{Role::pivot, Role::satellite, Role::anchor}));
  s.similarity[1] = s.similarity[3] = .499;
  EXPECT_EQ(roles_of(s).roles, (std::vector<Role>{Role::anchor, Role::volatile_head, Role::anchor}));
  EXPECT_STREQ(role_name(Role::volatile_head), "volatile");
}

// The definition, naively. Returns whether a choice was a tie.
LayerRoles naive(const LayerStatistics& s, const Thresholds& t, bool* tied) {
  const auto n = static_cast<uint32_t>(s.stability.size());
  LayerRoles out{std::vector<Role>(n), std::vector<uint32_t>(n, kNoHead)};
  std::set<uint32_t> open;
  for (uint32_t i = 0; i < n; ++i) open.insert(i);
  *tied = false;
  for (;;) {
    std::vector<std::set<uint32_t>> neighbours(n);
    size_t most = 0;
    for (const uint32_t i : open) {
      for (const uint32_t j : open) {
        if (i != j && s.similarity[i * n + j] >= t.tau_sim) neighbours[i].insert(j);
      }
      most = std::max(most, neighbours[i].size());
    }
    if (most == 0) break;
    std::vector<uint32_t> best;
    for (const uint32_t i : open) {
      if (neighbours[i].size() == most) best.push_back(i);
    }
    *tied |= best.size() > 1;
    out.roles[best[0]] = Role::pivot;
    open.erase(best[0]);
    for (const uint32_t j : neighbours[best[0]]) {
      out.roles[j] = Role::satellite;
      out.pivot_of[j] = best[0];
      open.erase(j);
    }
  }
  for (const uint32_t i : open) out.roles[i] = s.stability[i] >= t.tau_stable ? Role::anchor : Role::volatile_head;
  return out;
}

TEST(PolicyRoles, ClustersAreTheDefinitionAndFollowTheirHeads) {
  Random random(7);
  int permuted = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto n = static_cast<uint32_t>(1 + random.below(10));
    const LayerStatistics s = random_layer(random, n);
    const Thresholds t{static_cast<double>(random.uniform()), static_cast<double>(random.uniform())};
    bool tied = false;
    const LayerRoles expected = naive(s, t, &tied);
    const LayerRoles roles = roles_of(s, t);
    EXPECT_EQ(roles.roles, expected.roles);
    EXPECT_EQ(roles.pivot_of, expected.pivot_of);
    for (uint32_t h = 0; h < n; ++h) {
      if (roles.roles[h] == Role::pivot) {
        EXPECT_FALSE(roles.satellites_of(h).empty());
      }
      EXPECT_EQ(roles.pivot_of[h] != kNoHead, roles.roles[h] == Role::satellite);
    }
    if (tied) continue;
    ++permuted;
    std::vector<uint32_t> to(n);
    for (uint32_t i = 0; i < n; ++i) to[i] = i;
    for (uint32_t i = n; i > 1; --i) std::swap(to[i - 1], to[random.below(i)]);
    LayerStatistics moved = s;
    for (uint32_t i = 0; i < n; ++i) {
      moved.stability[to[i]] = s.stability[i];
      for (uint32_t j = 0; j < n; ++j) moved.similarity[to[i] * n + to[j]] = s.similarity[i * n + j];
    }
    const LayerRoles other = roles_of(moved, t);
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_EQ(other.roles[to[i]], roles.roles[i]);
      EXPECT_EQ(other.pivot_of[to[i]], roles.pivot_of[i] == kNoHead ? kNoHead : to[roles.pivot_of[i]]);
    }
  }
  EXPECT_GT(permuted, 200);
}

TEST(PolicyRoles, WrongStatisticsAreRefused) {
  const auto refused = [](const LayerStatistics& s, const Thresholds& t, const char* part) {
    const Result<LayerRoles> r = classify(s, t);
    ASSERT_FALSE(r.ok()) << part;
    EXPECT_EQ(r.status().code(), Code::invalid_argument);
    EXPECT_NE(std::string(r.status().message()).find(part), std::string::npos) << r.status().message();
  };
  const double nan = std::nan("");
  LayerStatistics s = graph(2, {}, {.5, .5});
  refused({}, {}, "KV heads");
  refused({{.5, .5}, {1, 1, 1}}, {}, "expected 2 x 2");
  refused(s, {nan, .5}, "tau_sim");
  refused(s, {.5, 1.5}, "tau_stable");
  s.stability[1] = nan;
  refused(s, {}, "stability of head 1");
  s = graph(2, {}, {.5, .5});
  s.similarity[1] = .7;
  refused(s, {}, "heads 0 and 1");
  s.similarity[1] = s.similarity[2] = nan;
  refused(s, {}, "heads 0 and 1");
}

TEST(PolicyRoles, OverlapsAreTakenOverTextsFirstThenOverSteps) {
  LayerOverlaps overlaps = must(LayerOverlaps::make(2, 2));
  EXPECT_FALSE(overlaps.stability().ok());
  using Sets = std::vector<Tokens>;
  // Head 0 overlaps its prompt set by 1, .5 in the first text, by 0, .5 in the second: means .5, .5.
  ASSERT_TRUE(overlaps.add(0, Sets{{0, 1}, {2, 3}}).ok());
  EXPECT_FALSE(overlaps.add(2, Sets{{0, 1}, {2, 3}}).ok());
  EXPECT_FALSE(overlaps.add(1, Sets{{0, 1}}).ok());
  ASSERT_TRUE(overlaps.add(1, Sets{{1, 0}, {2, 3}}).ok());
  EXPECT_FALSE(overlaps.stability().ok());
  ASSERT_TRUE(overlaps.add(2, Sets{{1, 2}, {3, 2}}).ok());
  EXPECT_EQ(must(overlaps.stability()), (std::vector<double>{.75, 1}));
  EXPECT_EQ(must(overlaps.similarity()), (std::vector<double>{1, .25, .25, 1}));  // 0 and .5
  ASSERT_TRUE(overlaps.add(0, Sets{{0, 1}, {2, 3}}).ok());
  ASSERT_TRUE(overlaps.add(1, Sets{{5, 6}, {5, 6}}).ok());
  ASSERT_TRUE(overlaps.add(2, Sets{{1, 2}, {1, 2}}).ok());
  EXPECT_EQ(must(overlaps.stability()), (std::vector<double>{.5, .625}));           // head 1: .5 and .75
  EXPECT_EQ(must(overlaps.similarity()), (std::vector<double>{1, .625, .625, 1}));  // .5 and .75
  EXPECT_EQ(must(overlaps.mean_similarity()), (std::vector<double>{1, .625, .625, 1}));
  EXPECT_FALSE(LayerOverlaps::make(0, 2).ok());
  EXPECT_FALSE(LayerOverlaps::make(2, 0).ok());
  EXPECT_FALSE(LayerOverlaps::make(kMaxKvHeads + 1, 2).ok());
}

TEST(PolicyRoles, MedianAndMeanDiffer) {
  LayerOverlaps overlaps = must(LayerOverlaps::make(2, 3));
  using Sets = std::vector<Tokens>;
  ASSERT_TRUE(overlaps.add(0, Sets{{0}, {1}}).ok());
  ASSERT_TRUE(overlaps.add(1, Sets{{0}, {1}}).ok());
  ASSERT_TRUE(overlaps.add(2, Sets{{0}, {1}}).ok());
  ASSERT_TRUE(overlaps.add(3, Sets{{1}, {1}}).ok());
  EXPECT_EQ((must(overlaps.similarity()))[1], 0);
  EXPECT_NEAR((must(overlaps.mean_similarity()))[1], 1. / 3, 1e-12);
}

TEST(PolicyRoles, TheMostStableVolatileHeadsAreDemoted) {
  const LayerStatistics a = graph(4, {{0, 1}}, {.9, .9, .2, .4});
  const LayerStatistics b = graph(3, {}, {.4, .1, .8});
  std::vector<LayerRoles> layers = {roles_of(a), roles_of(b)};
  const std::vector<std::vector<double>> stability = {a.stability, b.stability};
  ASSERT_EQ(count_roles(layers).full(), 5u);
  EXPECT_EQ(demote_volatile(&layers, stability, 5)->size(), 0u);
  const std::vector<Demotion> gone = must(demote_volatile(&layers, stability, 2));
  ASSERT_EQ(gone.size(), 3u);
  EXPECT_EQ(gone[0].id, (HeadId{0, 3}));
  EXPECT_EQ(gone[1].id, (HeadId{1, 0}));
  EXPECT_EQ(gone[2].id, (HeadId{0, 2}));
  EXPECT_EQ(gone[2].stability, .2);
  EXPECT_EQ(count_roles(layers).full(), 2u);
  EXPECT_EQ(layers[0].roles[3], Role::anchor);
  EXPECT_EQ(layers[1].roles[1], Role::volatile_head);
  const Result<std::vector<Demotion>> refused = demote_volatile(&layers, stability, 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("1 pivot"), std::string::npos) << refused.status().message();
  EXPECT_EQ(count_roles(layers).full(), 2u);
  EXPECT_FALSE(demote_volatile(&layers, Span<const std::vector<double>>(stability).first(1), 9).ok());
  const std::vector<std::vector<double>> damaged = {a.stability, {.4, std::nan(""), .8}};
  EXPECT_FALSE(demote_volatile(&layers, damaged, 1).ok());
}

TEST(PolicyRoles, TheNearestThresholdsThatFitAreFound) {
  Random random(9);
  int found = 0, refused = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<LayerStatistics> layers;
    for (int l = 0; l < 3; ++l) layers.push_back(random_layer(random, 6));
    const Thresholds preferred{.6, .5};
    const auto full = [&](const Thresholds& t) {
      std::vector<LayerRoles> roles;
      for (const LayerStatistics& s : layers) roles.push_back(roles_of(s, t));
      return count_roles(roles).full();
    };
    const auto distance = [&](const Thresholds& t) {
      return std::fabs(t.tau_sim - preferred.tau_sim) + std::fabs(t.tau_stable - preferred.tau_stable);
    };
    const auto max_full = static_cast<uint32_t>(1 + random.below(8));
    double nearest = full(preferred) <= max_full ? 0 : 10;
    for (int i = 1; i < 20; ++i) {
      for (int j = 1; j < 20; ++j) {
        const Thresholds t{i * .05, j * .05};
        if (full(t) <= max_full) nearest = std::min(nearest, distance(t));
      }
    }
    const Result<Thresholds> t = find_thresholds(layers, max_full, preferred);
    ASSERT_EQ(t.ok(), nearest < 10);
    (t.ok() ? found : refused)++;
    if (!t.ok()) continue;
    EXPECT_LE(full(t.value()), max_full);
    EXPECT_NEAR(distance(t.value()), nearest, 1e-9);
  }
  EXPECT_GT(found, 5);
  EXPECT_GT(refused, 5);
}

TEST(PolicyRoles, AHeadThatNeverOverlapsStarvesNobody) {
  EXPECT_DOUBLE_EQ(stability_weight(.5, 1024), 1 / .500001);
  EXPECT_DOUBLE_EQ(stability_weight(0, 1024), 1 / .050001);
  EXPECT_DOUBLE_EQ(stability_weight(.06, 1024), 1 / .060001);
  EXPECT_DOUBLE_EQ(stability_weight(.06, 8), 1 / .125001);
  EXPECT_DOUBLE_EQ(stability_weight(.06, 0), 1 / 1.000001);
}

}  // namespace
}  // namespace orrery::policy::roles_test
