// Budgets: worked numbers; random numbers against water-filling in long doubles, and exact totals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/allocate/tailed_budget.h"
#include "runtime/policy/heads/overlaps.h"
#include "runtime/policy/heads/roles.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/select/rings.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fixture.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::allocate_test {
namespace {

using orrery::testing::Random;
using Lengths = std::vector<uint64_t>;

std::vector<double> weights_of(const std::vector<double>& stability) {
  std::vector<double> w;
  for (const double s : stability) w.push_back(stability_weight(s, 1024));
  return w;
}
Ratio ratio(double x) { return must(Ratio::from(x)); }
uint64_t sum(const Lengths& l) { return std::accumulate(l.begin(), l.end(), uint64_t{0}); }

void expect_refused(const Status& status, const char* part) {
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
}

TEST(PolicyAllocate, TheWorkedHeteroBudgets) {
  HeteroBudget b = must(hetero_budget(ratio(.8), 3, weights_of({.5, .25, .5}), 100));
  EXPECT_EQ(b.l_base, 60u);
  EXPECT_EQ(b.lengths, (Lengths{45, 90, 45}));
  b = must(hetero_budget(ratio(.8), 3, weights_of({.5, .1, .5}), 100));
  EXPECT_EQ(b.lengths, (Lengths{40, 100, 40}));
  // The cap would drop 128.6 - 100.
  const std::vector<double> w = weights_of({.5, .1, .5});
  EXPECT_NEAR(180 * w[1] / (w[0] + w[1] + w[2]), 128.6, .05);
  const Result<HeteroBudget> refused = hetero_budget(ratio(.4), 3, weights_of({.5, .1, .5}), 100);
  ASSERT_FALSE(refused.ok());
  expect_refused(refused.status(), "at least 0.505");
}

TEST(PolicyAllocate, NoCompressedHeadIsLeftWithoutAToken) {
  // Four tokens for four heads, twenty times as much for one by its weight: 1 each.
  const std::vector<double> w = weights_of({1, 1, .01, 1});
  EXPECT_EQ(must(hetero_budget({1, 100}, 0, w, 100)).lengths, (Lengths{1, 1, 1, 1}));
  EXPECT_EQ(must(hetero_budget({2, 100}, 0, w, 100)).lengths, (Lengths{1, 1, 5, 1}));
}

TEST(PolicyAllocate, TheLeastBudgetThatIsNamedDoes) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const uint64_t n_full = random.below(20), n_tokens = 1 + random.below(3000);
    const std::vector<double> w(1 + random.below(50), 1.0);
    const Result<HeteroBudget> refused = hetero_budget({n_full * 1000 / (n_full + w.size()), 1000}, n_full, w, n_tokens);
    if (refused.ok()) continue;
    const std::string message = refused.status().message();
    const double least = std::stod(message.substr(message.find("at least ") + 9));
    if (least > 1) continue;
    EXPECT_TRUE(hetero_budget(ratio(least), n_full, w, n_tokens).ok()) << message;
    if (least > .002) {
      EXPECT_FALSE(hetero_budget(ratio(least - .002), n_full, w, n_tokens).ok()) << message;
    }
  }
}

TEST(PolicyAllocate, ABudgetOfOneKeepsEverything) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> w(random.below(30));
    for (double& x : w) x = .05 + static_cast<double>(random.uniform());
    const uint64_t n_tokens = 1 + random.below(100000);
    const uint64_t n_full = w.empty() ? 1 + random.below(9) : random.below(9);
    const HeteroBudget b = must(hetero_budget({1, 1}, n_full, w, n_tokens));
    EXPECT_EQ(b.l_base, n_tokens);
    EXPECT_EQ(b.lengths, Lengths(w.size(), n_tokens));
    const uint64_t h = 2 + random.below(8);
    EXPECT_EQ(must(sync_budget({1, 1}, h, 1 + random.below(h - 1), n_tokens)), n_tokens);
  }
  const Result<HeteroBudget> all_full = hetero_budget(ratio(.9), 4, std::vector<double>{}, 100);
  ASSERT_FALSE(all_full.ok());
  expect_refused(all_full.status(), "takes 1");
}

TEST(PolicyAllocate, RatiosLoseNoToken) {
  // .29 * 100 and 10 * (1 - .9) are one short in doubles.
  EXPECT_EQ(hetero_budget(ratio(.29), 0, std::vector<double>{1}, 100)->l_base, 29u);
  EXPECT_EQ(hetero_budget(ratio(.1), 0, std::vector<double>{1}, 10)->l_base, 1u);
  EXPECT_EQ(ratio(.3).num, 300000u);
  EXPECT_EQ(ratio(static_cast<double>(.3f)).num, 300000u);
  EXPECT_FALSE(Ratio::from(std::nan("")).ok());
  EXPECT_FALSE(Ratio::from(1.01).ok());
  EXPECT_FALSE(Ratio::from(-.01).ok());
}

// Water-filling by bisection on the level.
std::vector<long double> filled(const std::vector<double>& w, uint64_t total, uint64_t lowest, uint64_t highest) {
  long double low = 0, high = 1e30L;
  std::vector<long double> share(w.size());
  for (int i = 0; i < 300; ++i) {
    const long double level = (low + high) / 2;
    long double s = 0;
    for (size_t h = 0; h < w.size(); ++h) {
      share[h] = std::min<long double>(std::max<long double>(level * w[h], lowest), highest);
      s += share[h];
    }
    (s < static_cast<long double>(total) ? low : high) = level;
  }
  return share;
}

TEST(PolicyAllocate, SharesAreExactBoundedAndProportional) {
  Random random(3);
  int capped = 0, raised = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t n = 1 + random.below(40);
    std::vector<double> w(n);
    for (double& x : w) x = .01 + std::pow(static_cast<double>(random.uniform()), 3) * 20;
    if (random.below(3) == 0) w[random.below(n)] = w[0];
    const uint64_t highest = 1 + random.below(5000);
    const uint64_t lowest = random.below(std::min<uint64_t>(highest, 50) + 1);
    const uint64_t total = n * lowest + random.below(n * (highest - lowest) + 1);
    const Lengths shares = must(apportion(w, total, lowest, highest));
    EXPECT_EQ(sum(shares), total);
    const std::vector<long double> expected = filled(w, total, lowest, highest);
    for (size_t h = 0; h < n; ++h) {
      EXPECT_GE(shares[h], lowest);
      EXPECT_LE(shares[h], highest);
      EXPECT_LT(std::fabs(static_cast<long double>(shares[h]) - expected[h]), 1.0001L) << round;
      capped += shares[h] == highest;
      raised += shares[h] == lowest;
    }
    // Heads that change places take their shares with them, except for equal remainders.
    std::vector<double> reversed(w.rbegin(), w.rend());
    Lengths other = must(apportion(reversed, total, lowest, highest));
    std::reverse(other.begin(), other.end());
    std::vector<double> unique = w;
    std::sort(unique.begin(), unique.end());
    if (std::adjacent_find(unique.begin(), unique.end()) == unique.end()) {
      EXPECT_EQ(other, shares);
    }
  }
  EXPECT_GT(capped, 1000);
  EXPECT_GT(raised, 1000);
}

TEST(PolicyAllocate, LargestRemaindersThenLowestIndex) {
  EXPECT_EQ(must(apportion(std::vector<double>{1, 1, 1}, 5, 0, 9)), (Lengths{2, 2, 1}));
  EXPECT_EQ(must(apportion(std::vector<double>{1, 2, 1}, 5, 0, 9)), (Lengths{1, 3, 1}));  // 1.25, 2.5, 1.25
  EXPECT_EQ(must(apportion(std::vector<double>{1e-30, 1}, 10, 1, 100)), (Lengths{1, 9}));
  EXPECT_EQ(must(apportion(std::vector<double>{}, 0, 0, 5)), Lengths{});
  EXPECT_EQ(must(apportion(std::vector<double>{3}, 7, 7, 7)), Lengths{7});
  EXPECT_EQ(must(apportion(std::vector<double>{3, 4}, 0, 0, 0)), (Lengths{0, 0}));
  EXPECT_EQ(must(apportion_evenly(3, 8, 3)), (Lengths{3, 3, 2}));
  EXPECT_EQ(must(apportion_evenly(3, 9, 3)), (Lengths{3, 3, 3}));
  EXPECT_EQ(must(apportion_evenly(0, 0, 3)), Lengths{});
  EXPECT_FALSE(apportion_evenly(3, 10, 3).ok());
  EXPECT_FALSE(apportion_evenly(0, 1, 3).ok());
}

TEST(PolicyAllocate, WhatCannotBeDealtIsRefused) {
  const std::vector<double> w = {1, 2};
  expect_refused(apportion(w, 21, 0, 10).take_status(), "21 tokens cannot be dealt to 2 heads with 0 to 10");
  expect_refused(apportion(w, 1, 1, 10).take_status(), "cannot be dealt");
  expect_refused(apportion(w, 10, 0, UINT64_MAX).take_status(), "cannot be dealt");
  expect_refused(apportion(w, 10, 9, 3).take_status(), "cannot be dealt");
  for (const double bad : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    expect_refused(apportion(std::vector<double>{1, bad}, 10, 0, 10).take_status(), "weight 1");
  }
  expect_refused(hetero_budget({1, 0}, 1, w, 10).take_status(), "budget of 1/0");
  expect_refused(hetero_budget({3, 2}, 1, w, 10).take_status(), "budget of 3/2");
  expect_refused(hetero_budget({1, 2}, UINT64_MAX, w, 10).take_status(), "too many");
  expect_refused(hetero_budget({1, 2}, 1, w, 0).take_status(), "0 tokens");
  expect_refused(hetero_budget({1, 2}, 1, w, UINT64_MAX).take_status(), "tokens");
}

TEST(PolicyAllocate, TheWorkedSyncBudgets) {
  EXPECT_EQ(must(sync_budget(ratio(.5), 8, 2, 3000)), 1000u);  // .333
  EXPECT_EQ(must(sync_budget(ratio(.3), 8, 2, 3000)), 200u);   // .067
  EXPECT_EQ(must(sync_budget(ratio(.3), 4, 1, 3000)), 200u);
  EXPECT_EQ(must(sync_budget({1, 1}, 4, 4, 3000)), 3000u);
  expect_refused(sync_budget(ratio(.2), 8, 2, 3000).take_status(), "at least 0.251, or take 1 representatives");
  expect_refused(sync_budget(ratio(.25), 8, 2, 3000).take_status(), "at least 0.251");
  expect_refused(sync_budget(ratio(.25), 4, 1, 3000).take_status(), "at least 0.251");
  expect_refused(sync_budget(ratio(.9), 4, 4, 3000).take_status(), "at least 1.000, or take 3");
  expect_refused(sync_budget(ratio(.9), 4, 0, 3000).take_status(), "0 representatives");
  expect_refused(sync_budget(ratio(.9), 4, 5, 3000).take_status(), "5 representatives");
  // With k tokens the layer stays within its share; with one more it would not.
  Random random(5);
  for (int round = 0; round < 500; ++round) {
    const uint64_t h = 2 + random.below(30), r = 1 + random.below(h - 1), n = 1 + random.below(100000);
    const Ratio memory{random.below(1000) + 1, 1000};
    const Result<uint64_t> k = sync_budget(memory, h, r, n);
    const uint64_t kept = k.ok() ? k.value() : 0;
    const auto takes = [&](uint64_t tokens) { return (r * n + (h - r) * tokens) * memory.den; };
    if (k.ok()) {
      EXPECT_LE(takes(kept), memory.num * h * n);
    }
    EXPECT_GT(takes(kept + 1), memory.num * h * n);
  }
}

TEST(PolicyAllocate, SinksAndRecentTokens) {
  const auto ends = [](uint32_t n_tokens, uint32_t n_sinks, uint32_t n_recent) {
    Tokens tokens;
    sinks_and_recent(n_tokens, n_sinks, n_recent, &tokens);
    return tokens;
  };
  EXPECT_EQ(ends(10, 2, 3), (Tokens{0, 1, 7, 8, 9}));
  EXPECT_EQ(ends(4, 2, 3), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(ends(1, 2, 3), (Tokens{0}));
  EXPECT_EQ(ends(0, 2, 3), Tokens{});
  EXPECT_EQ(ends(5, 0, 2), (Tokens{3, 4}));
  EXPECT_EQ(ends(5, UINT32_MAX, UINT32_MAX), (Tokens{0, 1, 2, 3, 4}));
}

// Tails: a thirty-second of the text, up to 256; or without that bound, and at most a part of what a head may hold.
TEST(PolicyAllocate, TailsGrowWithTheTextWhereAllIsChosenAnewOften) {
  constexpr uint32_t kHeads = 128, kContext = 1u << 20;
  const auto tail = [](uint32_t n_tokens, double share, Tail given) {
    return TailedBudget(kHeads, kContext, share, uint64_t{kHeads} * kContext, given).divide(n_tokens, 0).tail;
  };
  EXPECT_EQ(tail(320, .25, {}), 16u);
  EXPECT_EQ(tail(4096, .25, {}), 128u);
  EXPECT_EQ(tail(32768, .25, {}), 256u);
  EXPECT_EQ(tail(131072, .25, {}), 256u);
  EXPECT_EQ(tail(1024, .1, {0, 16}), 8u);
  EXPECT_EQ(tail(4096, .25, {0, 16}), 64u);
  EXPECT_EQ(tail(1024, .1, {0, 48, 4}), 4u);
  EXPECT_EQ(tail(4096, .25, {0, 48, 4}), 21u);
  EXPECT_EQ(tail(32768, .25, {0, 16}), 512u);
  EXPECT_EQ(tail(131072, .25, {0, 16}), 2048u);
  EXPECT_EQ(tail(131072, .8, {0, 16}), 4096u);  // a thirty-second
  EXPECT_EQ(tail(131072, .25, {77, 16}), 77u);
}

}  // namespace
}  // namespace orrery::policy::allocate_test
