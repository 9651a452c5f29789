// The sampler with shortlists against the sampler with all logits: the same tokens, log-probabilities and draws, for any options and
// strange logits. And shortlists decide where they should.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/base/sum_exp.h"
#include "runtime/engine/answer/sampler.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shortlist_reference.h"

namespace orrery::engine::shortlist_test {
namespace {

using namespace orrery::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Samplers of the same options, under the same mask: one chooses by the definition, one by the host's row, and one sees a device's
// shortlists first.
class Pair {
 public:
  Pair(const SamplingOptions& o, size_t n_vocab)
      : whole_(o, static_cast<int32_t>(n_vocab)), by_row_(o, static_cast<int32_t>(n_vocab)), by_list_(o, static_cast<int32_t>(n_vocab)) {}

  // off: by how much of themselves the tempered sums are wrong, blocks and bands in both directions. n_looks: how often the row is still
  // there when more of it is wanted. Returns the token, -1 where there is none.
  int32_t step(const std::vector<float>& logits, const std::vector<int32_t>& tokens, double off = 0.0, int n_looks = 2,
               const std::vector<uint32_t>& mask = {}) {
    for (Sampler* sampler : {&whole_, &by_row_, &by_list_}) sampler->set_mask(mask);
    Result<Choice> expected = whole_.choose_of_all(logits, tokens);
    Result<Choice> by_row = by_row_.choose(logits, tokens);
    EXPECT_EQ(by_row.ok(), expected.ok());
    if (by_row.ok() && expected.ok()) expect_same(*by_row, *expected);
    Choice choice;
    bool decided = false;
    if (Shortlist* list = by_list_.ask(tokens)) {
      ++n_asked;
      const ShortlistRequest request = list->request();
      n_masks += !request.mask.empty();
      EXPECT_LE(request.n_best, ShortlistRequest::kMostBest);
      EXPECT_LE(request.tokens.size(), size_t{ShortlistRequest::kMostTokens});
      ShortlistResult result = expected_shortlist(logits, request);
      result.head.tempered_sum *= 1 + off;
      for (size_t i = 0; i < result.sums.size(); ++i) result.sums[i] *= 1 + (i % 3 == 1 ? -off : off);
      write_shortlist(result, request, list->result());
      list->arrived();
      Sampler::Outcome outcome = by_list_.choose(tokens, &choice);
      for (; outcome == Sampler::Outcome::wants_more && n_looks > 0; --n_looks) {
        look(list, logits, off);
        outcome = by_list_.choose(tokens, &choice);
      }
      EXPECT_TRUE(outcome != Sampler::Outcome::wants_more || n_looks < 2) << "two looks are enough";
      decided = outcome == Sampler::Outcome::chosen;
    }
    EXPECT_EQ(by_list_.choose(tokens, &choice), Sampler::Outcome::open) << "a shortlist serves once";
    n_decided += decided;
    ++n_steps;
    if (!decided) {
      Result<Choice> all = by_list_.choose_of_all(logits, tokens);
      EXPECT_EQ(all.ok(), expected.ok());
      if (!all.ok()) return -1;
      choice = *all;
    }
    EXPECT_TRUE(expected.ok());
    if (!expected.ok()) return -1;
    expect_same(choice, *expected);
    return expected->token;
  }

  int n_steps = 0, n_asked = 0, n_decided = 0, n_blocks = 0, n_tails = 0, n_masks = 0;

 private:
  static void expect_same(const Choice& choice, const Choice& expected) {
    EXPECT_EQ(choice.token, expected.token);
    EXPECT_EQ(std::memcmp(&choice.logprob, &expected.logprob, sizeof(float)), 0) << choice.logprob << ", expected " << expected.logprob;
    EXPECT_EQ(choice.top.size(), expected.top.size());
    for (size_t i = 0; i < std::min(choice.top.size(), expected.top.size()); ++i) {
      EXPECT_EQ(choice.top[i].token, expected.top[i].token) << i;
      EXPECT_EQ(std::memcmp(&choice.top[i].logprob, &expected.top[i].logprob, sizeof(float)), 0) << i;
    }
  }
  void look(Shortlist* list, const std::vector<float>& logits, double off) {
    switch (list->wanted()) {
      case Shortlist::Stage::block:
        ++n_blocks;
        EXPECT_LE(list->block().size(), 256u);
        for (size_t i = 0; i < list->block().size(); ++i) list->block()[i] = logits.at(list->first_of_block() + i);
        break;
      case Shortlist::Stage::bands: {
        const std::vector<uint64_t> sums = expected_band_sums(logits, list->tail());
        for (size_t i = 0; i < sums.size(); ++i) {
          const double sum = static_cast<double>(sums[i]);
          list->bands()[i] = static_cast<uint64_t>(std::max(0.0, sum + std::round((i % 3 == 1 ? -off : off) * sum)));
        }
        break;
      }
      default: ++n_tails, expected_entries(logits, list->tail(), list->band(), list->other_band(), list->tail_entries());
    }
    list->more_arrived();
  }

  Sampler whole_, by_row_, by_list_;
};

// A language model's logits, more or less: a few far above the rest.
std::vector<float> peaked_logits(Random* random, size_t n, float scale) {
  std::vector<float> logits(n);
  for (float& x : logits) x = scale * random->normal();
  for (int i = 0; i < 6; ++i) logits[random->below(n)] += 3 * scale;
  return logits;
}

// Bans none, some, half, most or all tokens, one by one or in stretches; and sometimes all behind the last word.
std::vector<uint32_t> any_mask(Random* random, size_t n) {
  std::vector<uint32_t> mask((n + 31) / 32, 0);
  const size_t percent[] = {0, 3, 50, 97, 100}, banned = percent[random->below(random->below(4) ? 3 : 5)],
               stretch = random->below(2) ? 1 : 1 + random->below(400);
  bool allows = true;
  for (size_t i = 0; i < 32 * mask.size(); ++i) {
    if (i % stretch == 0) allows = random->below(100) >= banned;
    if (allows) mask[i / 32] |= 1u << (i % 32);
  }
  if (random->below(6) == 0) mask.resize(mask.size() - random->below(mask.size()) / 4);
  return mask;
}
// Bans the best tokens, by far.
std::vector<uint32_t> ban_above(const std::vector<float>& logits, float most) {
  std::vector<uint32_t> mask((logits.size() + 31) / 32, 0);
  for (size_t i = 0; i < logits.size(); ++i)
    if (!(logits[i] > most)) mask[i / 32] |= 1u << (i % 32);
  return mask;
}

TEST(EngineShortlist, AnyOptionsGiveTheSameTokens) {
  Random random(1);
  int n_steps = 0, n_decided = 0, n_masks = 0;
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    const size_t sizes[] = {1, 7, 300, 1024, 1025, 2500, 6000, 9000};
    const size_t n = sizes[random.below(8)];
    SamplingOptions o;
    if (random.below(4) > 0) o.temperature = random.below(8) == 0 ? 1e-3f : 0.2f + 1.5f * random.uniform();
    if (random.below(2)) o.top_k = static_cast<uint32_t>(1 + random.below(random.below(3) ? 60 : 3000));
    if (random.below(2)) o.top_p = random.below(6) == 0 ? 1e-4f : 0.2f + 0.8f * random.uniform();
    if (random.below(2)) o.min_p = random.below(6) == 0 ? 1.0f : 0.3f * random.uniform();
    if (random.below(2)) o.repetition_penalty = 0.5f + random.uniform();
    if (random.below(3) == 0) o.frequency_penalty = 2 * random.normal();
    if (random.below(3) == 0) o.presence_penalty = 2 * random.normal();
    if (random.below(4) == 0) o.penalty_tokens = static_cast<uint32_t>(random.below(700));
    if (random.below(2)) o.n_logprobs = static_cast<uint32_t>(random.below(kMaxLogprobs + 1));
    for (size_t i = random.below(3) ? 0 : random.below(40); i > 0; --i)
      o.bias.push_back({static_cast<int32_t>(random.below(n)), random.below(5) == 0 ? -kInfinity : 5 * random.normal()});
    o.seed = random.bits();
    ASSERT_TRUE(o.validate(static_cast<int32_t>(n)).ok());
    Pair pair(o, n);
    std::vector<int32_t> tokens;
    for (size_t i = random.below(100); i > 0; --i) tokens.push_back(static_cast<int32_t>(random.below(n)));
    for (int i = 0; i < 8; ++i) {
      std::vector<float> logits = peaked_logits(&random, n, 0.5f + 3 * random.uniform());
      if (random.below(4) == 0)  // many equals
        for (float& x : logits) x = std::round(x);
      if (random.below(8) == 0) logits[random.below(n)] = kNan, logits[random.below(n)] = kInfinity, logits[random.below(n)] = -kInfinity;
      const std::vector<uint32_t> mask = random.below(2) ? any_mask(&random, n) : std::vector<uint32_t>();
      const int32_t token = pair.step(logits, tokens, i % 2 ? 9e-13 : -9e-13, i == 3 ? trial % 2 : 2, mask);
      if (token >= 0) tokens.push_back(token);
    }
    n_steps += pair.n_steps, n_decided += pair.n_decided, n_masks += pair.n_masks;
  }
  EXPECT_GT(n_masks, n_steps / 20);
  EXPECT_GT(n_decided, n_steps / 2) << "the shortlists' way is hardly gone";
}

// Top-p that reaches beyond the best of the shortlist, far and near.
TEST(EngineShortlist, FlatTopPGivesTheSameTokens) {
  Random random(2);
  int n_steps = 0, n_decided = 0, n_tails = 0, n_masks = 0;
  for (int trial = 0; trial < 120; ++trial) {
    SCOPED_TRACE(trial);
    const size_t sizes[] = {1100, 2500, 6000, 15000};
    const size_t n = sizes[random.below(4)];
    SamplingOptions o;
    o.temperature = 0.4f + 2.0f * random.uniform();
    o.top_p = 1.0f - 0.5f * random.uniform() * random.uniform();
    if (random.below(3) == 0) o.repetition_penalty = 0.5f + random.uniform();
    if (random.below(3) == 0) o.presence_penalty = 2 * random.normal();
    if (random.below(4) == 0) o.penalty_tokens = 300;
    o.n_logprobs = static_cast<uint32_t>(random.below(3));
    for (size_t i = random.below(2) ? 0 : random.below(60); i > 0; --i)
      o.bias.push_back({static_cast<int32_t>(random.below(n)), random.below(5) == 0 ? -kInfinity : 4 * random.normal()});
    o.seed = random.bits();
    Pair pair(o, n);
    std::vector<int32_t> tokens;
    for (size_t i = random.below(400); i > 0; --i) tokens.push_back(static_cast<int32_t>(random.below(n)));
    for (int i = 0; i < 5; ++i) {
      std::vector<float> logits = peaked_logits(&random, n, 0.2f + 1.5f * random.uniform());
      if (random.below(4) == 0)  // many equals
        for (float& x : logits) x = std::round(16 * x) / 16;
      if (random.below(6) == 0) logits[random.below(n)] = kNan, logits[random.below(n)] = -kInfinity;
      const std::vector<uint32_t> mask = random.below(3) == 0 ? any_mask(&random, n) : std::vector<uint32_t>();
      const int32_t token = pair.step(logits, tokens, i % 2 ? 9e-13 : -9e-13, i == 3 ? trial % 2 : 2, mask);
      if (token >= 0) tokens.push_back(token);
    }
    n_steps += pair.n_steps, n_decided += pair.n_decided, n_tails += pair.n_tails, n_masks += pair.n_masks;
  }
  EXPECT_GT(n_masks, n_steps / 20);
  EXPECT_GT(n_tails, n_steps / 3);
  EXPECT_GT(n_decided, n_steps / 2);
}

TEST(EngineShortlist, OddRows) {
  const std::vector<std::vector<float>> rows = {
      std::vector<float>(2000, 0.0f),
      std::vector<float>(2000, kInfinity),
      std::vector<float>(2000, -kInfinity),
      std::vector<float>(2000, kNan),
      [] {
        std::vector<float> x(2000, -kInfinity);
        return x[1999] = -3.0f, x;
      }(),
      [] {
        std::vector<float> x(2000, -0.0f);
        return x[7] = 0.0f, x;
      }(),
      [] {
        std::vector<float> x(2000, -1e38f);
        return x[5] = 3e38f, x[9] = kNan, x;
      }(),
  };
  for (const float temperature : {0.0f, 0.7f})
    for (const uint32_t top_k : {0u, 40u})
      for (const float top_p : {1.0f, 0.9f})
        for (const float penalty : {1.0f, 1.3f, 0.5f}) {
          SamplingOptions o;
          o.temperature = temperature, o.top_k = top_k, o.top_p = top_p, o.repetition_penalty = penalty, o.n_logprobs = 3;
          o.bias = {{3, 1e38f}, {3, 3e38f}, {0, -kInfinity}};
          for (size_t i = 0; i < rows.size(); ++i) {
            SCOPED_TRACE(i);
            Pair pair(o, 2000);
            for (int step = 0; step < 3; ++step) pair.step(rows[i], {5, 7, 7, 1999});
          }
        }
}

// Of a language model's logits a shortlist decides all but a few draws, of the common options; and nothing is asked in vain.
TEST(EngineShortlist, DecidesCommonOptions) {
  const auto run = [](SamplingOptions o, float scale) {
    Random random(3);
    Pair pair(o, 20000);
    std::vector<int32_t> tokens(70, 5);
    for (int i = 0; i < 40; ++i) tokens.push_back(pair.step(peaked_logits(&random, 20000, scale), tokens));
    EXPECT_EQ(pair.n_asked, 40);
    return pair.n_decided;
  };
  SamplingOptions o;
  EXPECT_EQ(run(o, 1), 40);
  o.repetition_penalty = 1.2f, o.presence_penalty = 0.5f, o.n_logprobs = 5, o.bias = {{9, 2.0f}};
  EXPECT_EQ(run(o, 1), 40);
  o.temperature = 0.8f, o.top_k = 40, o.top_p = 0.95f;
  EXPECT_EQ(run(o, 1), 40);
  o.top_k = 0, o.top_p = 0.9f;
  EXPECT_GE(run(o, 3.5f), 38);
  o.min_p = 0.05f;
  EXPECT_GE(run(o, 3.5f), 38);
  o.top_p = 1.0f;
  EXPECT_EQ(run(o, 3.5f), 40);
  EXPECT_EQ(run(o, 1e-4f), 0) << "what is hardly a choice at all takes all logits";
  o.top_p = 0.95f;  // more than the best hold: min-p's part
  EXPECT_GE(run(o, 2.5f), 38);
  o.min_p = 0.0f, o.temperature = 1.2f;  // far beyond the best
  EXPECT_GE(run(o, 1.5f), 35);
  EXPECT_GE(run(o, 0.5f), 35);
  EXPECT_EQ(run(o, 1e-4f), 0) << "more in a band than is fetched";
  o.top_p = 1.0f;  // among all tokens
  EXPECT_EQ(run(o, 3.5f), 40);
  EXPECT_EQ(run(o, 1e-4f), 40);
}

// As above under a mask that bans the best tokens: the others lie so far below that their weights would be none beside the best's.
TEST(EngineShortlist, DecidesUnderAMask) {
  const auto run = [](SamplingOptions o, float scale) {
    Random random(3);
    Pair pair(o, 20000);
    std::vector<int32_t> tokens(70, 5);
    for (int i = 0; i < 40; ++i) {
      std::vector<float> logits = peaked_logits(&random, 20000, scale);
      const std::vector<uint32_t> mask = ban_above(logits, scale);
      for (float& x : logits)
        if (x > scale) x += 2000.0f;
      tokens.push_back(pair.step(logits, tokens, 0.0, 2, mask));
    }
    EXPECT_EQ(pair.n_asked, 40);
    EXPECT_EQ(pair.n_masks, 40);
    return pair.n_decided;
  };
  SamplingOptions o;
  EXPECT_EQ(run(o, 1), 40);
  o.repetition_penalty = 1.2f, o.presence_penalty = 0.5f, o.bias = {{9, 2.0f}, {11, -kInfinity}};
  EXPECT_EQ(run(o, 1), 40);
  o.temperature = 0.8f, o.top_k = 40, o.top_p = 0.95f;
  EXPECT_EQ(run(o, 1), 40);
  o.top_k = 0;
  EXPECT_GE(run(o, 1.5f), 35);
  o.temperature = 0.05f, o.top_p = 0.5f;
  EXPECT_GE(run(o, 2.0f), 38);
  o.temperature = 0.8f, o.top_p = 1.0f;
  EXPECT_EQ(run(o, 2), 40);
  o.min_p = 0.6f;
  EXPECT_GE(run(o, 3.5f), 35);
}

// A mask's request keeps its words, and lists no banned token.
TEST(EngineShortlist, AsksUnderAMask) {
  constexpr size_t kN = 5003;
  SamplingOptions o;
  o.temperature = 1.0f, o.bias = {{2, 1.0f}, {8, 1.0f}};
  std::vector<uint32_t> mask(kN / 32, ~0u);  // a word too few
  mask[0] = ~4u;
  const auto request_of = [&](const SamplingOptions& options) {
    static std::unique_ptr<Sampler> sampler;
    sampler = std::make_unique<Sampler>(options, static_cast<int32_t>(kN));
    sampler->set_mask(mask);
    Shortlist* list = sampler->ask(std::vector<int32_t>{});
    return list ? list->request() : ShortlistRequest{-1};
  };
  const ShortlistRequest request = request_of(o);
  mask[1] = 0;
  ASSERT_EQ(request.mask.size(), 157u);
  EXPECT_EQ(request.mask[0], ~4u);
  EXPECT_EQ(request.mask[1], ~0u) << "a copy";
  EXPECT_EQ(request.mask[156], 0u);
  ASSERT_EQ(request.tokens.size(), 1u);
  EXPECT_EQ(request.tokens[0], 8);
  o.n_logprobs = 1;
  EXPECT_EQ(request_of(o).n_best, -1) << "log-probabilities are the model's own";
  o.temperature = 0.0f;
  EXPECT_EQ(request_of(o).n_best, 1024);
  EXPECT_TRUE(request_of(o).mask.empty());
  o.n_logprobs = 0;
  EXPECT_EQ(request_of(o).n_best, 2);
  mask.assign(mask.size(), 0);
  mask[3] = 5;
  EXPECT_TRUE(request_of(o).mask.empty()) << "a few tokens, all fetched";
  EXPECT_EQ(request_of(o).tokens.size(), 2u);
}

// Penalties that look far back, at more tokens than come as the best.
TEST(EngineShortlist, DecidesBehindManyPenalties) {
  for (const float temperature : {0.0f, 0.8f})
    for (const uint32_t top_k : {0u, 40u}) {
      SamplingOptions o;
      o.temperature = temperature, o.top_k = top_k, o.top_p = top_k > 0 ? 0.95f : 1.0f;
      o.repetition_penalty = 1.2f, o.frequency_penalty = 0.3f, o.penalty_tokens = 4000;
      Random random(4);
      Pair pair(o, 20000);
      std::vector<int32_t> tokens(1900);
      std::iota(tokens.begin(), tokens.end(), 100);
      for (int i = 0; i < 20; ++i) tokens.push_back(pair.step(peaked_logits(&random, 20000, 3.0f), tokens));
      EXPECT_EQ(pair.n_asked, 20);
      EXPECT_EQ(pair.n_decided, 20);
    }
}

// A cut exactly between two tokens, of many alike; and of more than are fetched, though those that come hold enough.
TEST(EngineShortlist, CutsAtTheBorder) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SamplingOptions o;
    o.temperature = 0.7f, o.top_p = 0.1001f, o.seed = seed;
    Pair pair(o, 20000);
    pair.step(std::vector<float>(20000, 0.0f), {});
    EXPECT_EQ(pair.n_decided, 0);
  }
  for (uint64_t seed = 1; seed <= 12; ++seed)
    for (const double off : {0.0, 9e-13, -9e-13})
      for (const float top_p : {0.5f, 0.499f}) {
        SamplingOptions o;
        o.temperature = 0.7f, o.top_p = top_p, o.seed = seed;
        Pair pair(o, 4000);
        pair.step(std::vector<float>(4000, 0.0f), {}, off);
        EXPECT_EQ(pair.n_decided, top_p < 0.5f);
      }
}

// Draws that fall on a token's border, as exactly as float logits can be set: what rounding decides of all logits, sums leave open.
TEST(EngineShortlist, DrawsAtTheBorder) {
  int n_open = 0, n_decided = 0;
  for (const size_t behind : {256u, 5u})  // whose token has the rest: in another block, or in the same one
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      SamplingOptions o;
      o.temperature = 1.0f, o.seed = seed;
      std::vector<float> logits(700, -kInfinity);
      logits[behind] = 0.0f, logits[650] = -3.0f;
      float least = 0, most = 0;
      // Tokens in front, each finer than the one before: as much as still leaves the draw to those behind.
      const auto is_behind = [&] { return Sampler(o, 700).choose_of_all(logits, {})->token >= static_cast<int32_t>(behind); };
      for (const auto& [low, high, token] :
           {std::make_tuple(-9.0f, 9.0f, 0), std::make_tuple(-60.0f, -5.0f, 1), std::make_tuple(-80.0f, -20.0f, 2)}) {
        least = low, most = high;
        float& x = logits[static_cast<size_t>(token)];
        for (int i = 0; i < 60; ++i) {
          x = least + (most - least) / 2;
          (is_behind() ? least : most) = x;
        }
        x = least;
      }
      if (!is_behind()) continue;  // the seed's draw has no such border
      for (const double off : {0.0, 9e-13, -9e-13})
        for (const float finest : {least, most, -15.0f}) {  // this side of the border, beyond it, and far beyond
          Pair pair(o, 700);
          logits[2] = finest;
          pair.step(logits, {}, off);
          (finest == -15.0f ? n_decided : n_open) += pair.n_decided == (finest == -15.0f);
        }
    }
  EXPECT_GE(n_open, 48);
  EXPECT_GE(n_decided, 24);
}

TEST(EngineShortlist, AsksForNoMoreThanItNeeds) {
  const auto asked = [](const SamplingOptions& o, const std::vector<int32_t>& tokens) {
    Sampler sampler(o, 5000);
    const Shortlist* list = sampler.ask(tokens);
    return list ? std::make_pair(list->request().n_best, static_cast<int32_t>(list->request().tokens.size())) : std::make_pair(-1, -1);
  };
  using Asked = std::pair<int32_t, int32_t>;
  SamplingOptions o;
  EXPECT_EQ(asked(o, {1, 2, 3}), Asked(1, 0));
  o.n_logprobs = 4;
  EXPECT_EQ(asked(o, {1, 2, 3}), Asked(4, 0));
  o.repetition_penalty = 1.1f, o.bias = {{2, 1.0f}, {2, 1.0f}, {8, 1.0f}};
  EXPECT_EQ(asked(o, {1, 2, 2, 3}), Asked(5, 4)) << "each token once";
  o.temperature = 1.0f;
  EXPECT_EQ(asked(o, {}), Asked(4, 2)) << "any token may be drawn: sums, and logprobs";
  EXPECT_EQ(Sampler(o, 5000).ask(std::vector<int32_t>{})->request().n_sums, 20);
  EXPECT_EQ(Sampler(o, 256 * 2048 + 1).ask(std::vector<int32_t>{}), nullptr) << "more sums than there are";
  o.top_k = 50;
  EXPECT_EQ(asked(o, {1}), Asked(53, 3));
  o.top_k = 2000;
  EXPECT_EQ(asked(o, {1}), Asked(-1, -1));
  o.top_k = 0, o.top_p = 0.5f;
  EXPECT_EQ(asked(o, {1}), Asked(1024, 3));
  o.hook = [](void*, float*, size_t, const int32_t*, size_t) { return 0; };
  EXPECT_EQ(asked(o, {1}), Asked(-1, -1)) << "a hook sees all";
  o.hook = nullptr, o.penalty_tokens = 5000;
  std::vector<int32_t> many(2045);
  std::iota(many.begin(), many.end(), 10);
  EXPECT_EQ(asked(o, many), Asked(1024, 2047));
  many.resize(2600);
  std::iota(many.begin(), many.end(), 10);
  EXPECT_EQ(asked(o, many), Asked(-1, -1)) << "more tokens than are fetched one by one";
  EXPECT_EQ(asked(o, {1}), Asked(1024, 3)) << "and nothing of it stays";
}

// The shortlist of a row on the host, against its definition: of any length, with many equals, and of strange logits.
TEST(EngineShortlist, ARowsShortlistIsThatOfTheDefinition) {
  Random random(6);
  for (const size_t n : {1u, 31u, 32u, 33u, 300u, 1024u, 5000u, 40000u})
    for (int trial = 0; trial < 12; ++trial) {
      SCOPED_TRACE(::testing::Message() << n << ", " << trial);
      std::vector<float> logits = peaked_logits(&random, n, 0.5f + 2 * random.uniform());
      if (trial % 3 == 1)
        for (float& x : logits) x = std::round(x);
      if (trial % 4 == 2) logits[random.below(n)] = kNan, logits[random.below(n)] = -kInfinity, logits[0] = kNan;
      if (trial == 10) std::fill(logits.begin(), logits.end(), trial % 2 ? kNan : 0.0f);
      if (trial == 11) logits[random.below(n)] = kInfinity;
      std::vector<int32_t> tokens;
      for (size_t i = random.below(20); i > 0; --i) tokens.push_back(static_cast<int32_t>(random.below(n)));
      const int32_t n_best = trial == 0 ? 0 : trial == 1 ? 1 : static_cast<int32_t>(random.below(1024)) + 1;
      const int32_t n_sums = trial % 2 ? static_cast<int32_t>((n + 255) / 256) : 0;
      const bool tempered = trial % 3 != 0;
      std::vector<uint32_t> mask;
      if (trial % 2) mask = any_mask(&random, n), mask.resize((n + 31) / 32, random.below(2) ? ~0u : 0u);
      if (trial == 9) mask = ban_above(logits, -0.5f), logits[n / 2] += 3000.0f;  // most of it far above what is allowed
      const ShortlistRequest request = {n_best, tokens, tempered ? 1.0 / (0.2 + static_cast<double>(random.uniform())) : 0.0,
                                        tempered ? n_sums : 0, mask};
      std::vector<std::byte> bytes(shortlist_result_bytes(request));
      std::vector<int32_t> candidates(n);
      RowShortlist row(n);
      row.make(logits, request, {candidates.data(), n}, bytes.data());
      const ShortlistResult expected = expected_shortlist(logits, request), got = read_shortlist(bytes.data(), request);
      EXPECT_EQ(std::memcmp(&got.head.most, &expected.head.most, sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(&got.head.most_allowed, &expected.head.most_allowed, sizeof(float)), 0);
      ASSERT_EQ(got.head.n_best, expected.head.n_best);
      for (size_t i = 0; i < expected.best.size(); ++i) {
        ASSERT_EQ(got.best[i].token, expected.best[i].token) << i;
        EXPECT_EQ(std::memcmp(&got.best[i].logit, &expected.best[i].logit, sizeof(float)), 0) << i;
      }
      EXPECT_EQ(std::memcmp(got.logits.data(), expected.logits.data(), got.logits.size() * sizeof(float)), 0);
      if (std::isinf(expected.head.most)) continue;
      EXPECT_EQ(got.head.sum, expected.head.sum);
      EXPECT_NEAR(got.head.tempered_sum, expected.head.tempered_sum, 5e-13 * expected.head.tempered_sum);
      for (size_t i = 0; i < expected.sums.size(); ++i) EXPECT_NEAR(got.sums[i], expected.sums[i], 5e-13 * expected.sums[i] + 1e-300) << i;
      if (expected.best.empty() || std::isinf(expected.best.back().logit) || std::isnan(expected.best.back().logit)) continue;
      const ShortlistTail tail = {expected.best.back(), 128.0f, 1.0, mask};
      std::vector<uint64_t> bands(ShortlistTail::kBands);
      RowShortlist::bands(logits, tail, bands.data());
      const std::vector<uint64_t> expected_bands = expected_band_sums(logits, tail);
      for (size_t i = 0; i < bands.size(); ++i)
        EXPECT_NEAR(static_cast<double>(bands[i]), static_cast<double>(expected_bands[i]),
                    1e-12 * static_cast<double>(expected_bands[i]) + static_cast<double>(n))
            << i;
      auto entries = std::make_unique<ShortlistTailEntries>(), its = std::make_unique<ShortlistTailEntries>();
      RowShortlist::entries(logits, tail, 3, 900, entries.get());
      expected_entries(logits, tail, 3, 900, its.get());
      ASSERT_EQ(entries->n, its->n);
      const int32_t kept = std::min(its->n, ShortlistTail::kMostEntries);
      if (kept < its->n) continue;
      for (int32_t i = 0; i < kept; ++i)
        EXPECT_EQ(entries->entries[i].token, its->entries[kept - 1 - i].token) << "in the order of ids here";
    }
}

// One value after another, in the order that the header states.
double sum_by_definition(const std::vector<float>& x, float most) {
  double shares[SumExp::kShares] = {};
  const auto fold = [](double* sums, size_t n) {
    for (n /= 2; n > 0; n /= 2)
      for (size_t i = 0; i < n; ++i) sums[i] += sums[i + n];
    return sums[0];
  };
  for (size_t from = 0; from < x.size(); from += SumExp::kBlock) {
    double lanes[SumExp::kLanes] = {};
    for (size_t i = from; i < std::min(x.size(), from + SumExp::kBlock); ++i) {
      const float d = std::max(x[i] - most, SumExp::kLeast);
      const float n = static_cast<float>(static_cast<int32_t>(d * SumExp::kLog2E - 0.5f));
      const float r = (d - n * SumExp::kLn2High) - n * SumExp::kLn2Low;
      float p = SumExp::kTerm6;
      for (const float term : {SumExp::kTerm5, SumExp::kTerm4, SumExp::kTerm3, SumExp::kTerm2, 1.0f, 1.0f}) p = p * r + term;
      lanes[(i - from) % SumExp::kLanes] += static_cast<double>(std::ldexp(p, static_cast<int>(n)));
    }
    shares[from / SumExp::kBlock % SumExp::kShares] += fold(lanes, SumExp::kLanes);
  }
  return fold(shares, SumExp::kShares);
}

TEST(EngineShortlist, TheSumIsThatOfTheDefinition) {
  Random random(5);
  for (const size_t n : {1u, 7u, 8u, 255u, 256u, 257u, 9000u, 70001u}) {
    std::vector<float> x(n);
    for (float& v : x) v = 4 * random.normal();
    const float most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(static_cast<double>(v) - static_cast<double>(most));
    EXPECT_NEAR(SumExp::sum(x, most) / sum, 1.0, 1e-6) << n;
    EXPECT_EQ(SumExp::sum(x, most), sum_by_definition(x, most)) << n;
  }
  const float odd[] = {1.0f, kNan, std::numeric_limits<float>::max(), kInfinity};
  EXPECT_EQ(SumExp::sum(Span<const float>(odd, 4), std::numeric_limits<float>::max()),
            SumExp::sum(std::vector<float>{1.0f, -kInfinity, std::numeric_limits<float>::max(), std::numeric_limits<float>::max()},
                        std::numeric_limits<float>::max()));
  EXPECT_GT(SumExp::sum(std::vector<float>{0.0f, -kInfinity}, 0.0f), 0.99);
}

}  // namespace
}  // namespace orrery::engine::shortlist_test
