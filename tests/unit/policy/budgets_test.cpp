// Budgets over layers and heads: the methods' worked numbers, exact totals and bounds over random cases; CAKE's moments against their
// definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/allocate/over_layers.h"
#include "runtime/policy/score/moments.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fixture.h"

namespace orrery::policy::budgets_test {
namespace {

using Counts = std::vector<uint64_t>;

uint64_t sum(const Counts& x) { return std::accumulate(x.begin(), x.end(), uint64_t{0}); }

// cap 40, window 8, four layers: the code's whole-number steps give 63, 43, 23 and 3, 4 too many.
TEST(PolicyBudgets, PyramidsWorkedNumbers) {
  EXPECT_EQ(must(pyramid(4, 1, 128, 1000, 1000, 20)), (Counts{63, 42, 22, 1}));
  EXPECT_EQ(sum(must(pyramid(4, 8, 8 * 128, 1000, 1000, 20))), 8 * 128u);
  EXPECT_EQ(must(pyramid(1, 1, 77, 1000, 1000, 20)), (Counts{77}));            // no division by zero
  EXPECT_EQ(must(pyramid(3, 1, 300, 400, 199, 20)), (Counts{100, 100, 100}));  // S < 2 b
  EXPECT_EQ(must(pyramid(3, 1, 300, 150, 200, 20)), (Counts{150, 100, 50}));   // the first layer is at the cap
  EXPECT_EQ(must(pyramid(3, 1, 0, 150, 200, 20)), (Counts{0, 0, 0}));
}

// P = (1, 2, 5), total 80, cap 40: the excess of 10 in equal parts.
TEST(PolicyBudgets, PreferencesWorkedNumbers) {
  EXPECT_EQ(must(by_preference(std::vector<double>{1, 2, 5}, 80, 40)), (Counts{15, 25, 40}));
  EXPECT_EQ(must(by_preference(std::vector<double>{1, 2, 5}, 80, 80)), (Counts{10, 20, 50}));
  EXPECT_EQ(must(by_preference(std::vector<double>{0, 0, 0}, 80, 40)), (Counts{27, 27, 26}));
  EXPECT_EQ(must(by_preference(std::vector<double>{9, 1, 0}, 110, 50)), (Counts{50, 36, 24}));  // of (99, 11, 0), 49 in equal parts
  EXPECT_FALSE(by_preference(std::vector<double>{1, -1}, 10, 10).ok());
  EXPECT_FALSE(by_preference(std::vector<double>{1, NAN}, 10, 10).ok());
}

// Scores of three heads in eighths of an octave. Of the best 7, three are above the last bin, which holds 5: each counts 4 / 5.
TEST(OverHeads, BestAreCountedByBins) {
  const std::vector<std::vector<float>> scores = {{.5f, .26f, .25f, .1f}, {.27f, .26f, .9f, 0}, {.05f, .26f, .6f, -1}};
  std::vector<uint32_t> bins(3 * kScoreBins);
  for (size_t h = 0; h < 3; ++h)
    for (const float x : scores[h]) ++bins[h * kScoreBins + score_bin(x)];
  std::vector<double> counts = {10, 0, 0};
  add_best_counts(bins, 7, counts);
  EXPECT_EQ(counts, (std::vector<double>{10 + 1 + 2 * .8, 1 + 2 * .8, 1 + .8}));
  counts = {0, 0, 0};
  add_best_counts(bins, 100, counts);  // all, with those that weigh nothing
  EXPECT_EQ(counts, (std::vector<double>{4, 4, 4}));
  EXPECT_EQ(score_bin(0), 0u);
  EXPECT_EQ(score_bin(-1), 0u);
  EXPECT_EQ(score_bin(NAN), 0u);
  EXPECT_EQ(score_bin(1), 1016u);
  EXPECT_EQ(score_bin(INFINITY), kScoreBins - 1);
}

TEST(PolicyBudgets, AdaKvsWorkedNumbers) {
  const std::vector<float> scores = {.9f, .02f, .02f, .02f, .02f, .02f, .25f, .2f, .2f, .15f, .12f, .08f};
  EXPECT_EQ(must(count_best(scores, 2, 6, 0)), (Counts{1, 5}));
  EXPECT_EQ(must(count_best(scores, 2, 6, 2)), (Counts{2, 4}));
  EXPECT_EQ(with_floor(Counts{1, 5}, {1, 5}), (Counts{1, 5}));                // the code's rounding: (1, 4)
  EXPECT_EQ(with_floor(Counts{1, 1, 1, 37}, {1, 5}), (Counts{3, 3, 3, 31}));  // the code's: 41 in all
  EXPECT_EQ(with_floor(Counts{0, 10}, {1, 1}), (Counts{5, 5}));
  EXPECT_EQ(with_floor(Counts{0, 10}, {0, 1}), (Counts{0, 10}));
  EXPECT_EQ(must(count_best(std::vector<float>(12, .5f), 3, 5, 0)), (Counts{4, 1, 0}));  // ties: lower head, then lower key
}

Counts best_of_layers(Span<const float> scores, const std::vector<double>& weights, uint64_t total) {
  BestOfLayers best = must(BestOfLayers::make(scores, weights, total));
  for (uint32_t round = 0; round < BestOfLayers::kRounds; ++round, best.end_round())
    for (size_t i = weights.size(); i-- > 0;) best.count(i);
  return best.counts();
}

// Weights 4 and 2: .8 .8 .1 of the second layer count for half, .4 .4 .05.
TEST(PolicyBudgets, LayersCompeteWorkedNumbers) {
  const std::vector<float> scores = {.9f, .5f, .1f, .8f, .8f, .1f};
  const Counts firsts[] = {{0, 0}, {1, 0}, {2, 0}, {2, 1}, {2, 2}, {3, 2}, {3, 3}};
  for (uint64_t total = 0; total <= 6; ++total) EXPECT_EQ(best_of_layers(scores, {4, 2}, total), firsts[total]) << total;
  EXPECT_EQ(best_of_layers(scores, {1, 1}, 3), (Counts{1, 2}));
  EXPECT_EQ(best_of_layers(scores, {0, 1}, 4), (Counts{1, 3}));  // a layer of weight 0 gets what the others leave
  EXPECT_EQ(best_of_layers(scores, {0, 0}, 5), (Counts{3, 2}));  // all weights 0: evenly
  EXPECT_EQ(best_of_layers(std::vector<float>(9, .25f), {2, 2, 2}, 5), (Counts{3, 2, 0}));  // ties: lower layer
  EXPECT_EQ(best_of_layers(std::vector<float>{NAN, NAN, 1e-30f, NAN}, {1, 1}, 2), (Counts{1, 1}));
  EXPECT_FALSE(BestOfLayers::make(scores, std::vector<double>{1, -1}, 1).ok());
  EXPECT_FALSE(BestOfLayers::make(scores, std::vector<double>{1, NAN}, 1).ok());
  EXPECT_FALSE(BestOfLayers::make(scores, std::vector<double>{1, 1}, 7).ok());
  EXPECT_FALSE(BestOfLayers::make(scores, std::vector<double>{1, 1, 1, 1}, 1).ok());
}

// Against sorting everything; a larger total never takes from a layer.
TEST(PolicyBudgets, LayersHaveTheirPartOfTheBest) {
  testing::Random random(11);
  for (int i = 0; i < 500; ++i) {
    const size_t n_layers = 1 + random.below(6), n = random.below(50);
    std::vector<float> scores(n_layers * n);
    for (float& s : scores) s = random.below(3) == 0 ? static_cast<float>(random.below(4)) / 8 : std::exp(-30 * random.uniform());
    std::vector<double> weights(n_layers, 1);  // at least 1: the first is not always the largest
    for (double& w : weights) w += 3 * static_cast<double>(random.uniform());
    const double largest = *std::max_element(weights.begin(), weights.end());
    std::vector<std::pair<float, size_t>> all;  // (-weighted score, layer)
    for (size_t k = 0; k < scores.size(); ++k) all.emplace_back(-scores[k] * static_cast<float>(weights[k / n] / largest), k / n);
    std::sort(all.begin(), all.end());
    Counts expected(n_layers);
    for (size_t total = 0;; ++total) {
      if (random.below(8) == 0 || total == all.size()) {
        ASSERT_EQ(best_of_layers(scores, weights, total), expected) << total;
      }
      if (total == all.size()) break;
      ++expected[all[total].second];
    }
  }
}

TEST(PolicyBudgets, TotalsAreExactAndBoundsHold) {
  testing::Random random(7);
  for (int i = 0; i < 3000; ++i) {
    const uint64_t n_layers = 1 + random.below(40), n_heads = 1 + random.below(9), highest = 1 + random.below(500);
    const uint64_t most = n_layers * n_heads * highest, total = i % 10 == 0 ? most : random.below(most + 1);
    const Counts layers =
        must(pyramid(n_layers, n_heads, total, highest, highest + random.below(20), 1 + static_cast<uint32_t>(random.below(30))));
    ASSERT_EQ(sum(layers), total);
    for (size_t l = 0; l < n_layers; ++l) ASSERT_LE(layers[l], n_heads * highest);
    ASSERT_GE(layers.front() + 1, layers.back());
    std::vector<double> preference(n_layers);
    for (double& p : preference) p = random.below(5) == 0 ? 0 : std::exp(20 * static_cast<double>(random.uniform()));
    const Counts preferred = must(by_preference(preference, total, n_heads * highest));
    ASSERT_EQ(sum(preferred), total);
    for (size_t l = 0; l < n_layers; ++l) ASSERT_LE(preferred[l], n_heads * highest);

    const uint64_t n = 1 + random.below(60), of_layer = random.below(n_heads * n + 1), n_protected = random.below(of_layer / n_heads + 1);
    std::vector<float> scores(n_heads * n);
    for (float& s : scores) s = static_cast<float>(random.below(20)) / 16;
    const Counts counts = must(count_best(scores, n_heads, of_layer, n_protected));
    ASSERT_EQ(sum(counts), of_layer);
    const Counts mixed = with_floor(counts, {random.below(101), 100});
    ASSERT_EQ(sum(mixed), of_layer);
    for (size_t h = 0; h < n_heads; ++h) {
      ASSERT_GE(counts[h], n_protected);
      ASSERT_LE(counts[h], n);
      ASSERT_LE(mixed[h], n);
    }
  }
  EXPECT_FALSE(pyramid(2, 2, 41, 10, 100, 20).ok());
  EXPECT_FALSE(by_preference(std::vector<double>{1}, 41, 10).ok());
  EXPECT_FALSE(count_best(std::vector<float>(6), 2, 7, 0).ok());
  EXPECT_FALSE(count_best(std::vector<float>(6), 2, 3, 2).ok());
  EXPECT_FALSE(count_best(std::vector<float>(7), 2, 3, 0).ok());
}

// Two rows of two query heads over two keys; the third key is not measured.
TEST(PolicyBudgets, CakesMeasures) {
  const std::vector<float> rows = {.5f, .25f, 9, .1f, .2f, 9, .25f, .25f, 9, .3f, .4f, 9};
  Moments m, single;
  m.measure({rows.data(), 2, 2, 2, 3});
  Dispersion d;
  d.add(m);
  double entropy = 0;
  for (const double a : {.5, .25, .1, .2, .25, .25, .3, .4}) entropy -= a * std::log(a);
  EXPECT_NEAR(d.entropy, entropy, 1e-6);
  EXPECT_NEAR(d.variance, .03125 + 0 + .02 + .02, 1e-7);  // of two values: half the square of their difference
  EXPECT_NEAR(d.preference(1, 1), d.entropy * d.variance, 1e-12);
  EXPECT_NEAR(d.preference(.5, 2), std::pow(d.entropy, 2) * std::sqrt(d.variance), 1e-12);
  std::vector<float> of_heads(4), scores(2);
  m.scores(200, of_heads);
  ASSERT_TRUE(pool_then_mean(of_heads, 2, Pooling::none, 1, scores).ok());
  EXPECT_FALSE(pool_then_mean(of_heads, 3, Pooling::none, 1, scores).ok());
  EXPECT_NEAR(scores[0], ((.375 + 200 * .03125) + (.2 + 200 * .02)) / 2, 1e-5);
  EXPECT_NEAR(scores[1], (.25 + (.3 + 200 * .02)) / 2, 1e-5);
  Dispersion one;  // a single row has no variance
  single.measure({rows.data(), 1, 2, 2, 3});
  one.add(single);
  EXPECT_EQ(one.variance, 0.0);
  EXPECT_EQ(one.preference(1, 1), 0.0);
}

// Rows longer than a part, with their parts in any order, against the definitions.
TEST(PolicyBudgets, MomentsOfManyKeysInAnyOrder) {
  constexpr uint64_t kRows = 5, kHeads = 3, kKeys = 4101, kStride = 4110;
  std::vector<float> rows(kRows * kHeads * kStride);
  testing::Random random(12);
  for (float& x : rows) x = random.below(4) == 0 ? 0.0f : std::exp(-25 * random.uniform());
  const WindowWeights window{rows.data(), kRows, kHeads, kKeys, kStride};
  Moments m, backwards;
  m.measure(window);
  for (size_t part = backwards.begin(window); part-- > 0;) backwards.measure_part(window, part);
  backwards.finish();
  EXPECT_EQ(m.entropy, backwards.entropy);
  EXPECT_EQ(m.mean, backwards.mean);
  EXPECT_EQ(m.variance, backwards.variance);
  double entropy = 0;
  for (uint64_t h = 0; h < kHeads; ++h)
    for (uint64_t key = 0; key < kKeys; ++key) {
      double mean = 0, variance = 0;
      const auto at = [&](uint64_t r) { return static_cast<double>(rows[(r * kHeads + h) * kStride + key]); };
      for (uint64_t r = 0; r < kRows; ++r) mean += at(r) / kRows, entropy -= at(r) * std::log(at(r) + 1e-10);
      for (uint64_t r = 0; r < kRows; ++r) variance += (at(r) - mean) * (at(r) - mean) / (kRows - 1);
      ASSERT_NEAR(m.mean[h * kKeys + key], mean, 1e-12) << h << ", " << key;
      ASSERT_NEAR(m.variance[h * kKeys + key], variance, 1e-12) << h << ", " << key;
    }
  EXPECT_NEAR(m.entropy, entropy, 1e-6 * entropy);
}

}  // namespace
}  // namespace orrery::policy::budgets_test
