// The sampler against distributions computed from their definitions, and against worked numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "runtime/engine/answer/sampler.h"
#include "tests/support/random_blocks.h"

namespace orrery::engine::sampler_test {
namespace {

using orrery::testing::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Choice choose(Sampler* sampler, const std::vector<float>& logits, const std::vector<int32_t>& tokens = {}) {
  auto choice = sampler->choose(logits, tokens);
  EXPECT_TRUE(choice.ok()) << choice.status().message();
  return choice.ok() ? *choice : Choice();
}
int32_t greedy(SamplingOptions options, const std::vector<float>& logits, const std::vector<int32_t>& tokens = {}) {
  Sampler sampler(std::move(options), static_cast<int32_t>(logits.size()));
  return choose(&sampler, logits, tokens).token;
}

TEST(EngineSampler, GreedyTakesTheHighestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(greedy({}, {1, 3, 2, 3}), 1);
  EXPECT_EQ(greedy({}, {0, 0, 0}), 0);
  EXPECT_EQ(greedy({}, {-0.0f, 0.0f}), 0);
  EXPECT_EQ(greedy({}, {-5, -4, -4}), 1);
  EXPECT_EQ(greedy({}, {7}), 0);
}

// What the options leave of a distribution, from the definitions: temperature, the k likeliest, of those the
// fewest that hold p, of those the ones with at least min_p of the likeliest.
std::vector<double> expected_distribution(const SamplingOptions& o, const std::vector<float>& logits) {
  std::vector<size_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (o.top_k > 0) ids.resize(std::min<size_t>(ids.size(), o.top_k));
  std::vector<double> p(logits.size());
  double sum = 0;
  for (const size_t i : ids)
    sum += p[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[ids[0]])) / static_cast<double>(o.temperature));
  double held = 0;
  size_t keep = 0;
  while (keep < ids.size() && held < static_cast<double>(o.top_p) * sum * (1 - 1e-12)) held += p[ids[keep++]];
  for (size_t i = keep; i < ids.size(); ++i) p[ids[i]] = 0;
  for (double& x : p)
    if (x < static_cast<double>(o.min_p)) x = 0;
  sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

TEST(EngineSampler, DrawsFollowTheDistributionThatTheOptionsLeave) {
  Random random(1);
  for (int trial = 0; trial < 24; ++trial) {
    SCOPED_TRACE(trial);
    const size_t n = 4 + random.below(trial % 4 == 0 ? 900 : 40);
    std::vector<float> logits(n);
    for (float& x : logits) x = 2.0f * random.normal();
    if (trial % 5 == 0) logits[n / 2] = logits[0];
    SamplingOptions o;
    o.temperature = 0.5f + random.uniform();
    if (trial & 1) o.top_k = static_cast<uint32_t>(1 + random.below(n));
    if (trial & 2) o.top_p = 0.3f + 0.69f * random.uniform();
    if (trial & 4) o.min_p = 0.2f * random.uniform();
    o.seed = random.bits();
    const std::vector<double> expected = expected_distribution(o, logits);
    Sampler sampler(o, static_cast<int32_t>(n));
    constexpr int kDraws = 20000;
    std::vector<int> found(n);
    for (int i = 0; i < kDraws; ++i) ++found[static_cast<size_t>(choose(&sampler, logits).token)];
    // Chi-square over the tokens expected five times or more, the rest as one.
    double chi = 0, rest_expected = 0;
    int cells = 0, rest = 0;
    for (size_t i = 0; i < n; ++i) {
      const double e = expected[i] * kDraws;
      if (expected[i] == 0.0) {
        EXPECT_EQ(found[i], 0) << "token " << i << " is outside";
      } else if (e < 5) {
        rest_expected += e, rest += found[i];
      } else {
        chi += (found[i] - e) * (found[i] - e) / e, ++cells;
      }
    }
    if (rest_expected >= 5) chi += (rest - rest_expected) * (rest - rest_expected) / rest_expected, ++cells;
    // A chi-square of k cells has mean k - 1 and deviation sqrt(2 (k - 1)): five deviations, for fixed seeds.
    EXPECT_LE(chi, (cells - 1) + 5 * std::sqrt(2.0 * std::max(cells - 1, 1)) + 1e-9) << cells << " cells";
  }
}

TEST(EngineSampler, TheEdgesOfTopKTopPAndMinP) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f), std::log(2.0f)};  // .1 .2 .5 .2
  const auto support = [&](uint32_t top_k, float top_p, float min_p) {
    SamplingOptions o;
    o.temperature = 1.0f;
    o.top_k = top_k, o.top_p = top_p, o.min_p = min_p;
    Sampler sampler(o, 4);
    std::vector<int32_t> seen;
    for (int i = 0; i < 400; ++i) seen.push_back(choose(&sampler, logits).token);
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    return seen;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(support(0, 1, 0), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(support(1, 1, 0), (Ids{2}));
  EXPECT_EQ(support(2, 1, 0), (Ids{1, 2}));  // of equals the lower id
  EXPECT_EQ(support(9, 1, 0), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(support(0, 0.01f, 0), (Ids{2}));
  EXPECT_EQ(support(0, 0.6f, 0), (Ids{1, 2}));
  EXPECT_EQ(support(0, 0.8f, 0), (Ids{1, 2, 3}));
  EXPECT_EQ(support(0, 0.95f, 0), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(support(0, 1, 0.3f), (Ids{1, 2, 3}));  // .2 is .4 of .5
  EXPECT_EQ(support(0, 1, 0.5f), (Ids{2}));
  EXPECT_EQ(support(0, 1, 1.0f), (Ids{2}));
  EXPECT_EQ(support(3, 0.75f, 0.3f), (Ids{1, 2}));
}

// A hook sees the logits after bias and penalties.
struct Seen {
  std::vector<float> logits;
  std::vector<int32_t> tokens;
  int32_t answer = 0;
};
int32_t see(void* user, float* logits, size_t n_vocab, const int32_t* tokens, size_t n_tokens) {
  Seen& seen = *static_cast<Seen*>(user);
  seen.logits.assign(logits, logits + n_vocab);
  seen.tokens.assign(tokens, tokens + n_tokens);
  logits[0] = 100.0f;
  return seen.answer;
}

TEST(EngineSampler, PenaltiesWorkedByHand) {
  Seen seen;
  SamplingOptions o;
  o.repetition_penalty = 2.0f;
  o.frequency_penalty = 0.5f;
  o.presence_penalty = 0.25f;
  o.penalty_tokens = 5;
  o.bias = {{2, 1.0f}, {3, -kInfinity}, {2, 0.5f}};  // those of one token add up
  o.hook = see;
  o.hook_user = &seen;
  const std::vector<float> logits = {4, -4, 1, 9, 2};
  const std::vector<int32_t> tokens = {4, 4, 0, 1, 2, 0, 0};  // the last five: 0 three times, 1 and 2 once
  EXPECT_EQ(greedy(o, logits, tokens), 0);
  // 0: 4 / 2 - 3 * .5 - .25;  1: -4 * 2 - .5 - .25;  2: (1 + 1.5) / 2 - .75;  3: banned;  4: too long ago
  EXPECT_EQ(seen.logits, (std::vector<float>{0.25f, -8.75f, 0.5f, -kInfinity, 2.0f}));
  EXPECT_EQ(seen.tokens, tokens);
  o.penalty_tokens = 0;
  greedy(o, logits, tokens);
  EXPECT_EQ(seen.logits, (std::vector<float>{4, -4, 2.5f, -kInfinity, 2.0f}));
}

TEST(EngineSampler, PenaltiesLeaveNothingBehindForTheNextToken) {
  SamplingOptions o;
  o.presence_penalty = 10.0f;
  Sampler sampler(o, 3);
  EXPECT_EQ(choose(&sampler, {3, 2, 1}, {0}).token, 1);
  EXPECT_EQ(choose(&sampler, {3, 2, 1}, {0, 1}).token, 2);
  EXPECT_EQ(choose(&sampler, {3, 2, 1}, {}).token, 0);
}

TEST(EngineSampler, BansAndHooksHold) {
  SamplingOptions o;
  o.temperature = 1.0f;
  o.bias = {{1, -kInfinity}};
  Sampler sampler(o, 3);
  for (int i = 0; i < 500; ++i) EXPECT_NE(choose(&sampler, {0, 50, 0}).token, 1);
  o.bias = {{0, -kInfinity}, {1, -kInfinity}, {2, -kInfinity}};
  Sampler none(o, 3);
  EXPECT_EQ(none.choose(std::vector<float>{0, 0, 0}, {}).status().code(), Code::invalid_argument);

  Seen seen;
  seen.answer = 1;
  SamplingOptions hooked;
  hooked.hook = see;
  hooked.hook_user = &seen;
  Sampler cancelled(hooked, 3);
  EXPECT_EQ(cancelled.choose(std::vector<float>{0, 1, 2}, {}).status().code(), Code::cancelled);
  seen.answer = 0;
  EXPECT_EQ(greedy(hooked, {0, 1, 2}), 0);  // it raised token 0
}

int32_t spoil(void*, float* logits, size_t n_vocab, const int32_t*, size_t) {
  for (size_t i = 0; i < n_vocab; ++i) logits[i] = i == 1 ? kInfinity : kNan;
  return 0;
}

TEST(EngineSampler, WhatIsNoNumberIsNeverChosen) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingOptions o;
    o.temperature = temperature;
    Sampler sampler(o, 4);
    EXPECT_EQ(choose(&sampler, {kNan, 1, -kInfinity, kNan}).token, 1);
    EXPECT_EQ(choose(&sampler, {kNan, 1, kInfinity, 5}).token, 2);
    for (const std::vector<float>& logits :
         {std::vector<float>{kNan, 1, 2, 5}, {kNan, 1, kInfinity, 5}, {kInfinity, kInfinity, 0, -kInfinity}}) {
      const float logprob = choose(&sampler, logits).logprob;
      EXPECT_TRUE(std::isfinite(logprob) && logprob <= 0) << logprob;
    }
    EXPECT_EQ(sampler.choose(std::vector<float>(4, kNan), {}).status().code(), Code::bad_model);
    EXPECT_EQ(sampler.choose(std::vector<float>(4, -kInfinity), {}).status().code(), Code::bad_model);
    o.hook = spoil;
    Sampler hooked(o, 4);
    EXPECT_EQ(choose(&hooked, {1, 2, 3, 4}).token, 1);
  }
}

TEST(EngineSampler, LogprobsAreTheModelsOwnLogSoftmax) {
  Random random(2);
  for (const size_t n : {1u, 7u, 8u, 1000u, 32003u}) {
    std::vector<float> logits(n);
    for (float& x : logits) x = 5.0f * random.normal();
    double sum = 0, most = logits[0];
    for (const float x : logits) most = std::max(most, static_cast<double>(x));
    for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
    const auto logprob = [&](int32_t t) { return static_cast<double>(logits[static_cast<size_t>(t)]) - most - std::log(sum); };
    SamplingOptions o;
    o.temperature = 0.7f, o.top_k = 40, o.n_logprobs = 20;
    o.bias = {{0, 3.0f}};
    o.presence_penalty = 1.0f;
    Sampler sampler(o, static_cast<int32_t>(n));
    const Choice choice = choose(&sampler, logits, {0});
    EXPECT_NEAR(static_cast<double>(choice.logprob), logprob(choice.token), 1e-5);
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
    ASSERT_EQ(choice.top.size(), std::min<size_t>(20, n));
    for (size_t i = 0; i < choice.top.size(); ++i) {
      EXPECT_EQ(choice.top[i].token, order[i]);
      EXPECT_NEAR(static_cast<double>(choice.top[i].logprob), logprob(order[i]), 1e-5);
    }
  }
}

TEST(EngineSampler, LogitsFarApartAreExactToo) {
  SamplingOptions o;
  o.n_logprobs = 2;
  Sampler sampler(o, 2);
  const Choice choice = choose(&sampler, {0.0f, 500.0f});
  EXPECT_EQ(choice.logprob, 0.0f);
  EXPECT_EQ(choice.top[1].logprob, -500.0f);
}

// The generator is splitmix64 into xoshiro256**, 53 bits a draw: carried out here once more, and pinned, so
// that the tokens of a seed are the same on every platform and in every version.
TEST(EngineSampler, ASeedGivesItsOwnSequenceForEver) {
  std::vector<float> logits(64, 0.0f);
  const auto sequence = [&](uint64_t seed, size_t n) {
    SamplingOptions o;
    o.temperature = 1.0f;
    o.seed = seed;
    Sampler sampler(o, 64);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < n; ++i) ids.push_back(choose(&sampler, logits).token);
    return ids;
  };
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{12345}, UINT64_MAX}) {
    uint64_t mix = seed, s[4];
    for (uint64_t& word : s) {
      uint64_t z = mix += 0x9E3779B97F4A7C15u;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      word = z ^ (z >> 31);
    }
    std::vector<int32_t> expected;
    for (int i = 0; i < 50; ++i) {
      const auto rotl = [](uint64_t x, int k) { return (x << k) | (x >> (64 - k)); };
      const uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
      s[2] ^= s[0], s[3] ^= s[1], s[1] ^= s[2], s[0] ^= s[3], s[2] ^= t, s[3] = rotl(s[3], 45);
      expected.push_back(static_cast<int32_t>(result >> 58));  // 64 equal weights: the top six bits
    }
    EXPECT_EQ(sequence(seed, 50), expected);
  }
  EXPECT_NE(sequence(1, 50), sequence(2, 50));
  EXPECT_EQ(sequence(42, 12), (std::vector<int32_t>{5, 24, 43, 59, 63, 49, 46, 54, 48, 37, 43, 18}));
}

TEST(EngineSampler, OptionsOutOfRangeAreNamed) {
  const auto refused = [](SamplingOptions o, const char* word) {
    const Status status = o.validate(10);
    EXPECT_EQ(status.code(), Code::invalid_argument) << word;
    EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status.message();
  };
  SamplingOptions o;
  EXPECT_TRUE(o.validate(10).ok());
  for (const float bad : {-0.1f, 1001.0f, kNan, kInfinity}) o.temperature = bad, refused(o, "temperature");
  o = {};
  for (const float bad : {0.0f, -1.0f, 1.01f, kNan}) o.top_p = bad, refused(o, "top_p");
  o = {};
  for (const float bad : {-0.1f, 1.1f, kNan}) o.min_p = bad, refused(o, "min_p");
  o = {};
  for (const float bad : {0.0f, -1.0f, kInfinity, kNan}) o.repetition_penalty = bad, refused(o, "repetition_penalty");
  o = {};
  for (const float bad : {-kInfinity, 1001.0f, kNan}) o.frequency_penalty = bad, refused(o, "frequency_penalty");
  o = {};
  for (const float bad : {kInfinity, -1001.0f, kNan}) o.presence_penalty = bad, refused(o, "presence_penalty");
  o = {};
  o.n_logprobs = 21, refused(o, "n_logprobs is 21");
  o = {};
  for (const int32_t bad : {-1, 10}) o.bias = {{bad, 0.0f}}, refused(o, "logit bias names token");
  for (const float bad : {kNan, kInfinity}) o.bias = {{3, bad}}, refused(o, "logit bias");
  o.bias = {{9, -kInfinity}};
  EXPECT_TRUE(o.validate(10).ok());
}

}  // namespace
}  // namespace orrery::engine::sampler_test
