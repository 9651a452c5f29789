// Scores and sets: worked numbers, and random rows against naive definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "runtime/policy/score/pooling.h"
#include "runtime/policy/score/score.h"
#include "runtime/policy/select/sets.h"
#include "runtime/policy/select/top_k.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::score_test {
namespace {

using orrery::testing::Random;
using Floats = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Floats pooled(const Floats& in, uint32_t width, bool avg) {
  Floats out(in.size());
  const Status status = pool1d(in, avg ? Pooling::avg : Pooling::max, width, out);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}
Floats reduced(const Floats& rows, uint32_t n_query_heads, GroupReduce reduce) {
  Floats out(rows.size() / n_query_heads);
  EXPECT_TRUE(group_reduce(rows, n_query_heads, reduce, out).ok());
  return out;
}
void expect_near(const Floats& a, const Floats& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6) << i;
}
Tokens best(const Floats& scores, size_t k) {
  Tokens out;
  top_k(scores, k, &out);
  return out;
}

TEST(PolicyScore, PoolingCountsZerosInTheMeanAndPadsTheMaximumWithNothing) {
  expect_near(pooled({1, 0, 0, 0, 0, 0}, 5, true), {.2f, .2f, .2f, 0, 0, 0});
  expect_near(pooled({1, 0, 0, 0, 0, 0}, 5, false), {1, 1, 1, 0, 0, 0});
  expect_near(pooled({-1, -2, -3}, 3, false), {-1, -1, -2});  // a padding of zeros would win
  expect_near(pooled({3, 6}, 7, true), {9 / 7.f, 9 / 7.f});   // wider than the row
  expect_near(pooled({3, 6}, 1, true), {3, 6});
  expect_near(pooled({}, 3, true), {});
}

TEST(PolicyScore, PoolingIsTheDefinitionOnRandomRows) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t n = 1 + random.below(40);
    const auto width = static_cast<uint32_t>(1 + 2 * random.below(8));
    const int half = static_cast<int>(width / 2);
    Floats in(n), avg(n), max(n);
    for (float& x : in) x = random.normal();
    for (int i = 0; i < static_cast<int>(n); ++i) {
      double sum = 0;
      float largest = -kInf;
      for (int j = i - half; j <= i + half; ++j) {
        const bool inside = j >= 0 && j < static_cast<int>(n);
        sum += inside ? static_cast<double>(in[static_cast<size_t>(j)]) : 0;
        largest = std::max(largest, inside ? in[static_cast<size_t>(j)] : -kInf);
      }
      avg[static_cast<size_t>(i)] = static_cast<float>(sum / width);
      max[static_cast<size_t>(i)] = largest;
    }
    expect_near(pooled(in, width, true), avg);
    EXPECT_EQ(pooled(in, width, false), max);
  }
}

TEST(PolicyScore, AnEvenOrWrongShapeIsRefused) {
  Floats in(6), out(6), small(5);
  for (const uint32_t width : {0u, 2u, 4u}) {
    EXPECT_EQ(pool1d(in, Pooling::avg, width, out).code(), Code::invalid_argument);
    EXPECT_EQ(pool1d(in, Pooling::max, width, out).code(), Code::invalid_argument);
  }
  EXPECT_EQ(pool1d(in, Pooling::avg, 3, small).code(), Code::invalid_argument);
  EXPECT_EQ(group_reduce(in, 4, GroupReduce::max, small).code(), Code::invalid_argument);
  EXPECT_EQ(group_reduce(in, 0, GroupReduce::max, small).code(), Code::invalid_argument);
  ScoreScratch scratch;
  ScoreRule even;
  even.pool_width = 4;
  EXPECT_EQ(head_scores(in, 1, even, &scratch, out).code(), Code::invalid_argument);
  EXPECT_EQ(head_scores(in, 4, {}, &scratch, small).code(), Code::invalid_argument);
}

TEST(PolicyScore, PoolingAndReductionCommuteOnlyForLikes) {
  const Floats rows = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0};  // h0 = e0, h1 = e4
  const auto pool_first = [&](bool avg, GroupReduce reduce) {
    Floats both = pooled({rows.begin(), rows.begin() + 6}, 5, avg);
    const Floats second = pooled({rows.begin() + 6, rows.end()}, 5, avg);
    both.insert(both.end(), second.begin(), second.end());
    return reduced(both, 2, reduce);
  };
  const auto reduce_first = [&](bool avg, GroupReduce reduce) { return pooled(reduced(rows, 2, reduce), 5, avg); };
  expect_near(pool_first(true, GroupReduce::max), {.2f, .2f, .2f, .2f, .2f, .2f});
  expect_near(reduce_first(true, GroupReduce::max), {.2f, .2f, .4f, .2f, .2f, .2f});
  expect_near(pool_first(false, GroupReduce::mean), {.5f, .5f, 1, .5f, .5f, .5f});
  expect_near(reduce_first(false, GroupReduce::mean), {.5f, .5f, .5f, .5f, .5f, .5f});
  expect_near(pool_first(true, GroupReduce::mean), reduce_first(true, GroupReduce::mean));
  expect_near(pool_first(false, GroupReduce::max), reduce_first(false, GroupReduce::max));
}

TEST(PolicyScore, HeadScoresGoTheWayTheRuleNames) {
  // Logits whose softmax is nearly a unit vector: e0 and e4 again.
  Floats logits(12, 0);
  logits[0] = logits[10] = 100;
  ScoreScratch scratch;
  Floats out(6);
  ScoreRule rule;
  rule.reduce = GroupReduce::max;
  ASSERT_TRUE(head_scores(logits, 2, rule, &scratch, out).ok());
  expect_near(out, {.2f, .2f, .2f, .2f, .2f, .2f});
  rule.pool_first = false;
  ASSERT_TRUE(head_scores(logits, 2, rule, &scratch, out).ok());
  expect_near(out, {.2f, .2f, .4f, .2f, .2f, .2f});
  rule = {GroupReduce::mean, Pooling::max, 5, true};
  ASSERT_TRUE(head_scores(logits, 2, rule, &scratch, out).ok());
  expect_near(out, {.5f, .5f, 1, .5f, .5f, .5f});
  rule = {GroupReduce::max, Pooling::none, 0, true};
  ASSERT_TRUE(head_scores(logits, 2, rule, &scratch, out).ok());
  expect_near(out, {1, 0, 0, 0, 1, 0});
}

TEST(PolicyScore, SoftmaxIsTheDefinitionAndSurvivesAnything) {
  Random random(2);
  Floats logits(50), out(50);
  for (float& x : logits) x = 30 * random.normal();
  softmax(logits, out);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  for (size_t i = 0; i < 50; ++i) EXPECT_NEAR(out[i], std::exp(static_cast<double>(logits[i])) / sum, 1e-6);
  softmax(logits, logits);  // in place
  EXPECT_EQ(logits, out);

  const auto of = [](Floats in) {
    softmax(in, in);
    return in;
  };
  EXPECT_EQ(of({}), Floats{});
  EXPECT_EQ(of({-kInf, -kInf}), (Floats{0, 0}));
  EXPECT_EQ(of({1, -kInf, 1}), (Floats{.5f, 0, .5f}));
  EXPECT_EQ(of({kInf, 3, kInf, -kInf}), (Floats{.5f, 0, .5f, 0}));
  EXPECT_EQ(of({kNaN, 2, 2}), (Floats{0, .5f, .5f}));
  EXPECT_EQ(of({kNaN, kNaN}), (Floats{0, 0}));
}

TEST(PolicyScore, SharesAndAsHowManyTheyAreSpreadOut) {
  const auto expect_shares = [](Floats weights, double n, const Floats& shares) {
    EXPECT_NEAR(normalize(weights), n, 1e-6 * n);
    expect_near(weights, shares);
  };
  expect_shares({.1f, .1f, 0, .1f, .1f}, 4, {.25f, .25f, 0, .25f, .25f});  // equal weights: their number
  expect_shares({0, 7, 0}, 1, {0, 1, 0});
  expect_shares({.2f, .1f, .1f}, std::pow(2, 1.5), {.5f, .25f, .25f});  // e^entropy: an entropy of 1.5 bits
  expect_shares({}, 0, {});
  expect_shares({0, 0}, 0, {0, 0});
  expect_shares({1, kNaN}, 0, {0, 0});
  expect_shares({1, kInf}, 0, {0, 0});
  expect_shares({1e-38f, 3e-38f}, std::exp(.25 * std::log(4) + .75 * std::log(4. / 3)), {.25f, .75f});
}

TEST(PolicyScore, TiesGoToTheLowerIndex) {
  EXPECT_EQ(best({.2f, .1f, .5f, .3f}, 2), (Tokens{2, 3}));
  EXPECT_EQ(best({.2f, .1f, .5f, .3f}, 3), (Tokens{2, 3, 0}));
  EXPECT_EQ(best({1, 2, 1, 2, 1}, 3), (Tokens{1, 3, 0}));
  EXPECT_EQ(best({1, 1}, 9), (Tokens{0, 1}));
  EXPECT_EQ(best({}, 3), Tokens{});
  EXPECT_EQ(best({0.f, -0.f, 0.f}, 2), (Tokens{0, 1}));
  EXPECT_EQ(best({kNaN, -kInf, kNaN, 1}, 3), (Tokens{3, 1, 0}));
}

TEST(PolicyScore, TopKIsTheHeadOfAFullSort) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const size_t n = 1 + random.below(200);
    Floats scores(n);
    for (float& x : scores) x = static_cast<float>(random.below(20));  // many ties
    Tokens sorted(n);
    for (uint32_t i = 0; i < n; ++i) sorted[i] = i;
    std::stable_sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    const size_t k = random.below(n + 3);
    EXPECT_EQ(best(scores, k), Tokens(sorted.begin(), sorted.begin() + static_cast<long>(std::min(k, n))));
  }
}

// Numbers of all kinds, some of which differ in the last digits only.
TEST(PolicyScore, TopKAscendingIsTheSameSet) {
  Random random(5);
  for (int round = 0; round < 400; ++round) {
    const size_t n = 1 + random.below(round % 39 == 0 ? 40000 : 300);
    Floats scores(n);
    for (float& x : scores) {
      const float strange[] = {kNaN, -kNaN, kInf, -kInf, 0.0f, -0.0f, 1e-45f, -1e-45f, 3e38f, -3e38f};
      switch (round % 5) {
        case 0: x = random.normal(); break;
        case 1: x = static_cast<float>(random.below(7)) - 3; break;
        case 2: x = -random.uniform(); break;
        case 3: x = strange[random.below(10)]; break;
        default: x = std::nextafter(-2.0f, random.below(2) ? 0.0f : -3.0f);
      }
    }
    for (const size_t k : {size_t{0}, size_t{1}, static_cast<size_t>(random.below(n + 1)), n, n + 3}) {
      Tokens expected = best(scores, k), found;
      std::sort(expected.begin(), expected.end());
      top_k_ascending(scores, k, &found);
      ASSERT_EQ(found, expected) << k << " of " << n << ", round " << round;
    }
  }
}

// For every policy the kept keys' scores are the sorted best, at every budget.
TEST(PolicyScore, KeptScoresAreTheBestAtEveryBudget) {
  Random random(4);
  Floats scores(500);
  for (float& x : scores) x = random.normal();
  Floats sorted = scores;
  std::sort(sorted.rbegin(), sorted.rend());
  for (const size_t k : {500u, 400u, 300u, 200u, 100u}) {
    const Tokens kept = best(scores, k);
    ASSERT_EQ(kept.size(), k);
    EXPECT_EQ(std::set<uint32_t>(kept.begin(), kept.end()).size(), k);
    for (size_t i = 0; i < k; ++i) EXPECT_EQ(scores[kept[i]], sorted[i]);
  }
}

TEST(PolicyScore, OverlapIsOfTheFirstSet) {
  EXPECT_DOUBLE_EQ(overlap(Tokens{4, 1, 3}, Tokens{3, 9, 4, 7}), 2. / 3);
  EXPECT_DOUBLE_EQ(overlap(Tokens{3, 9, 4, 7}, Tokens{4, 1, 3}), .5);
  EXPECT_DOUBLE_EQ(overlap(Tokens{}, Tokens{1}), 1);
  EXPECT_DOUBLE_EQ(overlap(Tokens{1}, Tokens{}), 0);
}

TEST(PolicyScore, TheMedianOfAnEvenNumberIsTheMiddleTwosMean) {
  EXPECT_DOUBLE_EQ(median(std::vector<double>{.9, .1, .5, .4, .8}), .5);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{.4, .1, .3, .2}), .25);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{.7}), .7);
  EXPECT_TRUE(reaches((.1 + .7) / 2, .4));
  EXPECT_FALSE(reaches(.3999, .4));
}

}  // namespace
}  // namespace orrery::policy::score_test
