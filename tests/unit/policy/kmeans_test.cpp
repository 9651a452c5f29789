// SyncKV: clusters against a K-means in fractions, worked sets, the steps of anticipations.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/policy/heads/clusters.h"
#include "runtime/policy/heads/roles.h"
#include "runtime/policy/published/engines/representatives.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fixture.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::kmeans_test {
namespace {

using orrery::testing::Random;

std::vector<double> symmetric(uint32_t n, const std::vector<double>& upper) {
  std::vector<double> s(size_t{n} * n, 1);
  size_t k = 0;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t j = i + 1; j < n; ++j) s[i * n + j] = s[j * n + i] = upper[k++];
  }
  return s;
}

TEST(PolicyKMeans, TwoGroupsAreFoundAndRepresentedByTheirMiddle) {
  // {0, 2, 4} are alike, 2 is in the middle; {1, 3} are alike.
  const std::vector<double> s = symmetric(5, {.1, .9, .1, .7, .1, .9, .1, .1, .9, .1});
  const LayerClusters c = must(cluster_heads(s, 5, 2));
  EXPECT_EQ(c.cluster_of, (std::vector<uint32_t>{0, 1, 0, 1, 0}));
  EXPECT_EQ(c.representatives, (std::vector<uint32_t>{2, 1}));  // 1 and 3 are equally near: the lower
  EXPECT_EQ(c.n_representatives(), 2u);
}

TEST(PolicyKMeans, ClustersOfTwoAreRepresentedByTheLower) {
  // Both heads of a cluster of two are equally far from its centre, whatever rounds.
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    const double s = static_cast<double>(random.uniform());
    const LayerClusters c = must(cluster_heads(symmetric(2, {s}), 2, 1));
    EXPECT_EQ(c.representatives, (std::vector<uint32_t>{0}));
  }
}

TEST(PolicyKMeans, EveryHeadOfItsOwnAndHeadsAllAlike) {
  const LayerClusters own = must(cluster_heads(symmetric(3, {.1, .2, .3}), 3, 3));
  std::vector<uint32_t> clusters = own.cluster_of;
  std::sort(clusters.begin(), clusters.end());
  EXPECT_EQ(clusters, (std::vector<uint32_t>{0, 1, 2}));
  for (uint32_t h = 0; h < 3; ++h) EXPECT_EQ(own.representatives[own.cluster_of[h]], h);
  // All rows are equal: the second cluster stays empty, and no head represents it.
  const LayerClusters alike = must(cluster_heads(symmetric(3, {1, 1, 1}), 3, 2));
  EXPECT_EQ(alike.cluster_of, (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(alike.representatives, (std::vector<uint32_t>{0, kNoHead}));
  EXPECT_EQ(alike.n_representatives(), 1u);
}

TEST(PolicyKMeans, OfHeadsEquallyFarTheLowestStartsACluster) {
  EXPECT_EQ(must(cluster_heads(symmetric(3, {.1, .1, .1}), 3, 2)).cluster_of, (std::vector<uint32_t>{0, 1, 0}));
}

TEST(PolicyKMeans, WrongSimilaritiesAreRefused) {
  const std::vector<double> s = symmetric(2, {.5});
  EXPECT_FALSE(cluster_heads(s, 2, 0).ok());
  EXPECT_FALSE(cluster_heads(s, 2, 3).ok());
  EXPECT_FALSE(cluster_heads(s, 3, 2).ok());
  EXPECT_FALSE(cluster_heads(std::vector<double>{}, 0, 0).ok());
  EXPECT_FALSE(cluster_heads(std::vector<double>{1, .5, .6, 1}, 2, 1).ok());
  EXPECT_FALSE(cluster_heads(symmetric(2, {1.5}), 2, 1).ok());
  EXPECT_FALSE(cluster_heads(symmetric(2, {std::nan("")}), 2, 1).ok());
}

// A fixed point of Lloyd's steps: every head is in the cluster of its nearest centroid; every representative is nearest to its centroid.
TEST(PolicyKMeans, ClustersAreAFixedPoint) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const auto n = static_cast<uint32_t>(1 + random.below(12));
    const auto k = static_cast<uint32_t>(1 + random.below(n));
    std::vector<double> upper(size_t{n} * (n - 1) / 2);
    for (double& x : upper) x = static_cast<double>(random.uniform());
    const std::vector<double> s = symmetric(n, upper);
    const LayerClusters c = must(cluster_heads(s, n, k));
    std::vector<std::vector<double>> centre(k, std::vector<double>(n, 0));
    std::vector<double> count(k, 0);
    for (uint32_t h = 0; h < n; ++h) {
      count[c.cluster_of[h]] += 1;
      for (uint32_t j = 0; j < n; ++j) centre[c.cluster_of[h]][j] += 1 - s[h * n + j];
    }
    const auto distance = [&](uint32_t h, uint32_t g) {
      double d = 0;
      for (uint32_t j = 0; j < n; ++j) d += std::pow(1 - s[h * n + j] - centre[g][j] / count[g], 2);
      return d;
    };
    for (uint32_t h = 0; h < n; ++h) {
      const uint32_t own = c.cluster_of[h];
      for (uint32_t g = 0; g < k; ++g) {
        if (count[g] > 0) {
          EXPECT_LE(distance(h, own), distance(h, g) + 1e-5);
        }
      }
      EXPECT_LE(distance(c.representatives[own], own), distance(h, own) + 1e-5);
      EXPECT_EQ(c.cluster_of[c.representatives[own]], own);
    }
  }
}

TEST(PolicySync, OddBudgetsFavourTheStaticSet) {
  const auto split = [](uint64_t k, Ratio rho) { return must(sync_split(k, rho)); };
  EXPECT_EQ(split(10, {1, 2}).n_dynamic, 5u);
  EXPECT_EQ(split(11, {1, 2}).n_dynamic, 5u);
  EXPECT_EQ(split(11, {1, 2}).n_static, 6u);
  EXPECT_EQ(split(1, {1, 2}).n_static, 1u);
  EXPECT_EQ(split(10, must(Ratio::from(.9))).n_dynamic, 1u);  // int(10 * (1 - .9)) is 0
  EXPECT_EQ(split(10, {0, 1}).n_dynamic, 10u);
  EXPECT_EQ(split(10, {1, 1}).n_dynamic, 0u);
  EXPECT_FALSE(sync_split(10, {1, 0}).ok());
  EXPECT_FALSE(sync_split(10, {2, 1}).ok());
}

TEST(PolicySync, StaticTokensStayAndAreNeverChosenAgain) {
  const SyncSets sets = sync_initial(std::vector<float>{.1f, .9f, .3f, .8f, .2f, .7f}, {2, 2});
  EXPECT_EQ(sets.fixed, (Tokens{1, 3}));
  EXPECT_EQ(sets.dynamic, (Tokens{5, 2}));
  // 1 is still the best, but it is static.
  EXPECT_EQ(sync_dynamic(std::vector<float>{.8f, .9f, .1f, .2f, .7f, .3f}, sets.fixed, 2), (Tokens{0, 4}));
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const size_t n = 1 + random.below(60);
    const uint64_t k = random.below(n + 1);
    std::vector<float> scores(n);
    const auto shuffle = [&] {
      for (float& x : scores) x = static_cast<float>(random.below(9));
    };
    shuffle();
    const SyncSplit split = must(sync_split(k, {random.below(11), 10}));
    const SyncSets first = sync_initial(scores, split);
    EXPECT_EQ(first.fixed.size(), split.n_static);
    for (int step = 0; step < 5; ++step) {
      shuffle();
      const Tokens dynamic = sync_dynamic(scores, first.fixed, split.n_dynamic);
      std::set<uint32_t> all(first.fixed.begin(), first.fixed.end());
      all.insert(dynamic.begin(), dynamic.end());
      EXPECT_EQ(all.size(), k);  // no token twice, every slot used
    }
  }
}

TEST(PolicySync, AFullBudgetHoldsEverything) {
  const std::vector<float> scores = {3, 1, 2, 5, 4};
  const SyncSets sets = sync_initial(scores, must(sync_split(5, {1, 2})));
  const Tokens dynamic = sync_dynamic(scores, sets.fixed, 2);
  std::set<uint32_t> all(sets.fixed.begin(), sets.fixed.end());
  all.insert(dynamic.begin(), dynamic.end());
  EXPECT_EQ(all.size(), 5u);
}

TEST(PolicySync, AnticipationHappensEveryMSteps) {
  std::vector<uint64_t> anticipations;
  for (uint64_t t = 1; t <= 12; ++t) {
    if (is_anticipation(t, 5)) anticipations.push_back(t);
  }
  EXPECT_EQ(anticipations, (std::vector<uint64_t>{5, 10}));
  EXPECT_FALSE(is_anticipation(0, 5));
  EXPECT_FALSE(is_anticipation(5, 0));
}

}  // namespace
}  // namespace orrery::policy::kmeans_test
