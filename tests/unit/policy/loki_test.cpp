// Loki and keycodes on made-up attention: the tokens of their heads step by step; how much of a budget low-rank keys and key codes leave;
// ranks and bits.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/policy/made_up.h"

namespace orrery::policy::loki_test {
namespace {

constexpr uint32_t kContext = 400, kDim = 64;
const int32_t kNoWindows[] = {0, 0, 0}, kMixed[] = {0, 24, 0};

Shape shape_of(Span<const int32_t> window, uint32_t n_kv_heads = 4, uint32_t n_context = kContext, uint32_t dim = kDim) {
  return {static_cast<uint32_t>(window.size()), n_kv_heads, n_context, window, 4 * dim, 4 * dim, dim};  // F16
}
Budget budget_of(const Shape& shape, double share) { return {share, slots_for_share(shape, share)}; }

// Tokens first .. first + n - 1 of a head, best first by a position's query.
std::vector<uint32_t> best_tokens(uint32_t head, uint32_t position, uint32_t first, uint32_t n, bool max) {
  const std::vector<float> logits = restless(head, position, position + 1);
  std::vector<double> scores(n);
  for (uint32_t q = 0; q < kGroup; ++q) {
    const float* row = logits.data() + q * (position + 1) + first;
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i]));
    for (uint32_t i = 0; i < n; ++i) {
      const double weight = std::exp(static_cast<double>(row[i])) / sum;
      scores[i] = max ? std::max(scores[i], weight) : scores[i] + weight;
    }
  }
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a - first] > scores[b - first] * (1 + 1e-6); });
  return order;
}

struct Case {
  const char* policy;
  Options options;
  uint32_t sinks, window, n_full_layers;
  bool max;
};
const Case kCases[] = {
    {"loki", {}, 0, 32, 0, false},
    {"loki", {{"reduce", "max"}, {"window", "1"}}, 0, 1, 0, true},
    {"loki", {{"sinks", "6"}, {"window", "9"}, {"rank", "4"}}, 6, 9, 0, false},
    {"loki", {{"first_layers", "1"}, {"rank", "8"}}, 0, 32, 1, false},
    {"keycodes", {{"heads", "uniform"}, {"stay", "1"}}, 4, 8, 0, true},
    {"keycodes", {{"reduce", "mean"}, {"window", "1"}, {"sinks", "0"}, {"bits", "4"}, {"heads", "uniform"}, {"stay", "1"}}, 0, 1, 0, false},
    {"keycodes", {{"first_layers", "1"}, {"bits", "1"}, {"heads", "uniform"}, {"stay", "1"}}, 4, 8, 1, true}};

// A head's tokens after a step: sinks, the last tokens with the step's own, and the best of the others by the step's query.
void check_held(const FakeSession& s, uint32_t head, const Case& c) {
  const Tokens& held = s.held()[head];
  const uint32_t n = s.n_tokens(), capacity = s.capacity(head);
  ASSERT_EQ(held.size(), capacity);
  const uint32_t n_first = std::min(c.sinks, capacity / 4), n_last = std::max(std::min(c.window, capacity / 4), 2u),
                 k = capacity - n_first - n_last;
  std::set<uint32_t> expected;
  for (uint32_t p = 0; p < n_first; ++p) expected.insert(p);
  for (uint32_t p = n - n_last; p < n; ++p) expected.insert(p);
  const auto order = best_tokens(head, n - 1, n_first, n - n_last - n_first, c.max);
  expected.insert(order.begin(), order.begin() + k);
  ASSERT_EQ(std::set<uint32_t>(held.begin(), held.end()), expected) << "head " << head << " of " << n;
}

TEST(PolicyLoki, HeadsHoldTheBestTokensAndTheLast) {
  uint64_t n_checked = 0, n_refills = 0;
  for (const Span<const int32_t> window :
       {Span<const int32_t>(kNoWindows, 3), Span<const int32_t>(kMixed, 3), Span<const int32_t>(kNoWindows, 1)})
    for (const Case& c : kCases)
      for (const double share : {.3, .5, .8, 1.0}) {
        const Shape shape = shape_of(window);
        const Budget budget = budget_of(shape, share);
        auto made = make_policy(c.policy, shape, budget, c.options);
        if (!made.ok()) {
          EXPECT_TRUE(c.n_full_layers > 0 && share * static_cast<double>(window.size()) < 1.6) << made.status().message();
          continue;
        }
        FakeSession s(std::move(made).value(), shape.n_layers * 4, kGroup, kContext, restless);
        const PageDigests digests = s.policy().digests();
        uint64_t rows = digests.heads.size() * digests.rank * 2 * (kContext + kDim);
        if (digests.kind ==
            PageDigest::codes)  // 448 tokens in whole tiles: bits of 64 dimensions, a factor; a mean key and a mean value of floats
          rows = digests.heads.size() * (448 * (digests.bits * 8 + 2) + 512);
        EXPECT_EQ(digests.heads.empty(), share >= 1.0);
        for (const uint32_t n_prompt : {1u, 40u, 250u}) {
          s.settle(n_prompt);
          ASSERT_LE(s.total_capacity() * shape.slot_bytes + rows, budget.max_slots * shape.slot_bytes);
          for (uint32_t t = 0; t < 100; ++t) {
            const uint64_t before = s.policy().report().n_settled;
            const bool again = s.step(shape.n_layers);
            EXPECT_EQ(s.policy().report().n_settled, before + again);
            for (const uint32_t head : digests.heads)
              if (n_prompt == 250) check_held(s, head, c), ++n_checked;
            EXPECT_TRUE(n_prompt < 250 || !again) << "tokens come and go: nothing is chosen again";
            if (HasFatalFailure()) return;
          }
        }
        n_refills += s.n_refills();
      }
  EXPECT_GT(n_checked, 20000u);
  EXPECT_GT(n_refills, 20000u);
}

// Weights of the last 16 queries, of all candidates but the k that weigh the most; k: the head's selected tokens.
TEST(PolicyKeyCodes, MeanValuesAreByTheLastQueries) {
  const Shape shape = shape_of({kNoWindows, 3});
  FakeSession s(must(make_policy("keycodes", shape, budget_of(shape, .4), {{"sinks", "5"}, {"window", "9"}})), 12, kGroup, kContext,
                restless);
  constexpr uint32_t kPrompt = 300;
  s.settle(kPrompt);
  for (uint32_t head = 0; head < 12; ++head) {
    EXPECT_TRUE(s.policy().compensates_by_codes(head));
    std::vector<double> mean(kPrompt);
    for (uint32_t position = kPrompt - 16; position < kPrompt; ++position) {
      const std::vector<float> logits = restless(head, position, position + 1);
      for (uint32_t g = 0; g < kGroup; ++g) {
        double sum = 0;
        for (uint32_t i = 0; i <= position; ++i) sum += std::exp(static_cast<double>(logits[g * (position + 1) + i]));
        for (uint32_t i = 0; i <= position; ++i) mean[i] += std::exp(static_cast<double>(logits[g * (position + 1) + i])) / sum;
      }
    }
    std::vector<uint32_t> order(kPrompt - 5 - 8);  // between the first and the last tokens; a slot is free for the step's own
    std::iota(order.begin(), order.end(), 5u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return mean[a] > mean[b]; });
    const uint32_t k = s.capacity(head) - 5 - 9;
    double left = 0;
    for (size_t i = k; i < order.size(); ++i) left += mean[order[i]];
    std::vector<double> expected(kPrompt);
    for (size_t i = k; i < order.size(); ++i) expected[order[i]] = mean[order[i]] / left;
    ASSERT_EQ(s.mean_shares(head).size(), expected.size());
    for (uint32_t i = 0; i < kPrompt; ++i) ASSERT_NEAR(static_cast<double>(s.mean_shares(head)[i]), expected[i], 1e-6) << head << ", " << i;
  }
  FakeSession without(must(make_policy("keycodes", shape, budget_of(shape, .4), {{"compensation", "0"}})), 12, kGroup, kContext, restless);
  without.settle(kPrompt);
  EXPECT_FALSE(without.policy().compensates_by_codes(0) || without.policy().digests().values);
  s.settle(10);  // everything fits
  EXPECT_FALSE(s.policy().compensates_by_codes(0));
}

// Room in proportion to the tokens that a head has among the best of all heads, for each of the last 16 queries; at least `floor` of the
// average.
TEST(PolicyKeyCodes, HeadsShareByTheirBestTokens) {
  const Shape shape = shape_of({kNoWindows, 3});
  constexpr uint32_t kPrompt = 380, kHeads = 12;
  for (const double floor : {0.0, .75}) {
    FakeSession s(must(make_policy("keycodes", shape, budget_of(shape, .4), {{"floor", std::to_string(floor)}})), kHeads, kGroup, kContext,
                  restless);
    s.settle(kPrompt);
    const uint32_t n = kPrompt - 4 - 7;  // candidates: between 4 sinks and the window, in which a slot is free for the step's own token
    double total = 0;
    for (uint32_t head = 0; head < kHeads; ++head) total += s.capacity(head) - 4 - 8;
    std::vector<double> counts(kHeads);
    for (uint32_t position = kPrompt - 16; position < kPrompt; ++position) {
      std::vector<std::pair<double, uint32_t>> all;
      for (uint32_t head = 0; head < kHeads; ++head) {
        const std::vector<float> logits = restless(head, position, position + 1);
        std::vector<double> mean(position + 1);
        for (uint32_t g = 0; g < kGroup; ++g) {
          double sum = 0;
          for (uint32_t i = 0; i <= position; ++i) sum += std::exp(static_cast<double>(logits[g * (position + 1) + i]));
          for (uint32_t i = 0; i <= position; ++i) mean[i] += std::exp(static_cast<double>(logits[g * (position + 1) + i])) / sum;
        }
        for (uint32_t i = 4; i < 4 + n; ++i) all.emplace_back(i <= position ? mean[i] : 0, head);
      }
      std::sort(all.rbegin(), all.rend());
      for (size_t i = 0; i < static_cast<size_t>(total); ++i) counts[all[i].second] += 1. / 16;
    }
    uint32_t n_uneven = 0;
    for (uint32_t head = 0; head < kHeads; ++head) {
      const double room = s.capacity(head) - 4. - 8, average = total / kHeads;
      EXPECT_GE(room, floor * average - 1);
      n_uneven += std::fabs(counts[head] - average) > .03 * average;
      if (floor == 0) {
        EXPECT_NEAR(room, counts[head], .01 * average + 1) << head;
      }
    }
    EXPECT_GT(n_uneven, 2u);
  }
}

// A resident token's score counts `stay` times: 4, or 1 where heads hold less than an eighth of the candidates. The first selection has
// none.
TEST(PolicyKeyCodes, ScoresOfResidentTokensCountMore) {
  const Shape shape = shape_of({kNoWindows, 3});
  const struct {
    double share;
    Options options;
    float stay;
  } cases[] = {{.4, {}, 4}, {.25, {}, 4}, {.15, {}, 1}, {.15, {{"stay", "3"}}, 3}, {.4, {{"stay", "1"}}, 1}};
  for (const auto& c : cases) {
    FakeSession s(must(make_policy("keycodes", shape, budget_of(shape, c.share), c.options)), 12, kGroup, kContext, restless);
    s.settle(380);
    for (const auto& asked : s.asked_pages()) EXPECT_TRUE(asked.query.held.empty());
    const size_t before = s.asked_pages().size();
    s.prepare();
    s.ask_layers(1);  // of layer 0: its heads have been asked for, and their tokens have changed
    ASSERT_EQ(s.asked_pages().size(), before + 4);
    for (uint32_t head = 0; head < 4; ++head) {
      const PageQuery& query = s.asked_pages()[before + head].query;
      EXPECT_EQ(c.stay > 1 ? query.stay : 1.0f, c.stay) << c.share;
      const uint32_t window = c.share < .2 ? 7 : 8;  // a quarter of a head's slots at most
      EXPECT_EQ(query.held.size(), c.stay > 1 ? s.capacity(head) - 4 - window : 0u) << c.share;
    }
  }
  EXPECT_FALSE(make_policy("keycodes", shape, budget_of(shape, .4), {{"stay", "0.5"}}).ok());
  EXPECT_FALSE(make_policy("keycodes", shape, budget_of(shape, .4), {{"stay", "65"}}).ok());
}

// Tokens stay where others are not `stay` times as good.
TEST(PolicyKeyCodes, FewerTokensAreFetched) {
  const Shape shape = shape_of({kNoWindows, 3});
  uint64_t missed[2] = {};
  for (const int stays : {0, 1}) {
    FakeSession s(must(make_policy("keycodes", shape, budget_of(shape, .5), {{"stay", stays ? "4" : "1"}})), 12, kGroup, kContext,
                  restless);
    s.settle(250);
    for (int t = 0; t < 30; ++t) s.step(3);
    missed[stays] = s.policy().report().missed_tokens;
  }
  EXPECT_GT(missed[1], 0u);
  EXPECT_LT(missed[1], missed[0] * 3 / 4);
}

// By default auto goes by codes where tokens can be found by them; an option without `by` is one of the window's.
TEST(PolicyAuto, GoesByCodesWhereItCan) {
  const auto bits = [](bool finds, const Options& options, uint32_t dim = kDim, double share = .4) {
    Shape shape = shape_of({kNoWindows, 3}, 4, 4096, dim);
    shape.finds_by_codes = finds;
    return must(make_policy("auto", shape, budget_of(shape, share), options))->digests().bits;
  };
  EXPECT_EQ(bits(true, {}), 2u);
  EXPECT_EQ(bits(false, {}), 0u);
  EXPECT_EQ(bits(true, {}, 516), 0u) << "too wide for codes of 2 bits";
  EXPECT_EQ(bits(true, {}, 512), 2u);
  EXPECT_EQ(bits(true, {}, 192), 2u);
  EXPECT_EQ(bits(true, {}, 96), 0u) << "rotated in blocks of 32";
  // 64 tiles * 1,152 + 512 bytes a head are 3 / 4 of 386.7 tokens' 256 bytes.
  EXPECT_EQ(bits(true, {}, kDim, .0945), 2u);
  EXPECT_EQ(bits(true, {}, kDim, .094), 0u) << "codes of 2 bits take too much";
  Shape near = shape_of({kNoWindows, 3}, 4, 4096, kDim);
  near.finds_by_codes = near.in_place = true;
  EXPECT_EQ(must(make_policy("auto", near, budget_of(near, .05), {}))->digests().bits, 1u);
  EXPECT_EQ(must(make_policy("auto", near, budget_of(near, .08), {}))->digests().bits, 2u);
  EXPECT_EQ(must(make_policy("auto", near, budget_of(near, .039), {}))->digests().bits, 0u) << "codes of 1 bit do not fit";
  EXPECT_EQ(bits(true, {{"by", "window"}}), 0u);
  EXPECT_EQ(bits(true, {{"tail", "16"}}), 0u);
  EXPECT_EQ(bits(true, {{"by", "codes"}, {"bits", "4"}}), 4u);
  EXPECT_EQ(bits(false, {{"by", "codes"}}), 2u);
  const Shape shape = shape_of({kNoWindows, 3});
  EXPECT_FALSE(make_policy("auto", shape, budget_of(shape, .4), {{"by", "codes"}, {"tail", "16"}}).ok());
  EXPECT_FALSE(make_policy("auto", shape, budget_of(shape, .4), {{"bits", "2"}}).ok());
  EXPECT_FALSE(make_policy("auto", shape, budget_of(shape, .4), {{"by", "pages"}}).ok());
}

TEST(PolicyLoki, AForkGoesOnAlike) {
  const Shape shape = shape_of({kNoWindows, 3});
  FakeSession s(must(make_policy("loki", shape, budget_of(shape, .4), {})), 12, kGroup, kContext, restless);
  s.settle(200);
  for (int t = 0; t < 11; ++t) s.step(3);
  FakeSession other = s.fork(restless);
  EXPECT_EQ(other.policy().report().missed_tokens, 0u);
  for (int t = 0; t < 50; ++t) {
    s.step(3), other.step(3);
    ASSERT_EQ(s.held(), other.held()) << t;
  }
}

// Bits by default, and the slots that codes leave to a head.
TEST(PolicyKeyCodes, BitsFollowTheBudget) {
  const struct {
    uint32_t dim;
    double share;
    Options options;
    uint32_t bits, slots;                                    // at 4,032 of 4,096 tokens
  } kWorked[] = {{64, .2, {}, 2, 520},                       // 806 - (63 tiles * 1,152 + 512) / 256 = 806 - 285.5
                 {64, .2, {{"compensation", "0"}}, 2, 521},  // 806 - (63 tiles * 1,152 + 256) / 256 = 806 - 284.5
                 {64, .1, {}, 2, 117},
                 {64, .07, {}, 1, 122},  // 282 - (4,032 * 10 + 512) / 256 = 282 - 159.5: two bits would take more than 3 / 4
                 {64, .1, {{"bits", "1"}}, 1, 243},
                 {64, .5, {{"bits", "4"}}, 4, 1478},  // 2,016 - (4,032 * 34 + 512) / 256 = 2,016 - 537.5
                 {128, .2, {}, 2, 536},               // 806 - (4,032 * 34 + 1,024) / 512 = 806 - 269.75
                 {640, .5, {}, 1, 1884}};             // 2,016 - (4,032 * 82 + 5,120) / 2,560 = 2,016 - 131.2: sums must fit in 16 bits
  for (const auto& w : kWorked) {
    const Shape shape = shape_of({kNoWindows, 1}, 1, 4096, w.dim);
    FakeSession s(must(make_policy("keycodes", shape, budget_of(shape, w.share), w.options)), 1, 1, 4096,
                  [](uint32_t, uint32_t, uint32_t n_keys) { return std::vector<float>(n_keys); });
    EXPECT_EQ(s.policy().digests().bits, w.bits);
    s.settle(4032);
    EXPECT_EQ(s.capacity(0), w.slots) << w.dim << " at " << w.share;
  }
  const Shape shape = shape_of({kNoWindows, 1}, 1, 4096, 640);
  const auto refused = make_policy("keycodes", shape, budget_of(shape, .5), {{"bits", "2"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("expected at most 1028 bits together"), std::string::npos)
      << refused.status().message();
}

// In place the budget holds codes alone: bits, and the slots of a head, of which none takes memory.
TEST(PolicyKeyCodes, InPlaceTheBudgetHoldsCodes) {
  const struct {
    double share;
    Options options;
    uint32_t bits, slots, all;             // bits 0: refused; slots at 4,032 of 4,096 tokens, and at 4,096
  } kWorked[] = {{.2, {}, 2, 1008, 1024},  // a quarter of the tokens
                 {.5, {}, 2, 2016, 2048},
                 {.2, {{"least", ".5"}}, 2, 2016, 2048},
                 {.3, {{"least", "0"}}, 2, 1209, 1228},            // the share
                 {.073, {}, 2, 1008, 1024},                        // 300 tokens of 256 bytes: 64 tiles * 1,152 + 512 = 74,240 fit
                 {.0725, {{"compensation", "0"}}, 2, 1008, 1024},  // 297 of 256: 73,984
                 {.07, {}, 1, 1008, 1024},
                 {.04, {}, 1, 1008, 1024},  // 164 of 256: 64 tiles * 640 + 512 = 41,472
                 {.039, {}, 0, 0, 0},
                 {.1, {{"bits", "4"}}, 0, 0, 0},
                 {.2, {{"bits", "4"}, {"first_layers", "0"}}, 4, 1008, 1024},
                 {.2, {{"first_layers", "1"}}, 2, 4096, 4096},  // takes no memory either
                 {.2, {{"copy", "1"}}, 2, 520, 0}};             // as on a device of its own
  for (const auto& w : kWorked) {
    SCOPED_TRACE(w.share);
    Shape shape = shape_of({kNoWindows, 1}, 1, 4096, 64);
    shape.in_place = true;
    auto made = make_policy("keycodes", shape, budget_of(shape, w.share), w.options);
    ASSERT_EQ(made.ok(), w.bits > 0);
    if (w.bits == 0) {
      EXPECT_NE(std::string(made.status().message()).find("which a KV budget of"), std::string::npos) << made.status().message();
      continue;
    }
    EXPECT_EQ((*made)->slots_in_place(), w.all);
    EXPECT_EQ((*made)->refill_share() > 0, w.all == 0) << "nothing is fetched in place";
    FakeSession s(std::move(made).value(), 1, 1, 4096, [](uint32_t, uint32_t, uint32_t n_keys) { return std::vector<float>(n_keys); });
    EXPECT_EQ(s.policy().digests().bits, w.bits);
    s.settle(4032);
    EXPECT_EQ(s.capacity(0), w.slots);
  }
  const auto refusal = [](bool in_place, const Options& options) {
    Shape shape = shape_of({kNoWindows, 1}, 1, 4096, 64);
    shape.in_place = in_place;
    const auto made = make_policy("keycodes", shape, budget_of(shape, .3), options);
    return made.ok() ? std::string() : std::string(made.status().message());
  };
  EXPECT_NE(refusal(false, {{"copy", "0"}}).find("copy=0 needs a device whose memory is the reservoir's"), std::string::npos);
  for (const bool in_place : {false, true})  // with stay a session's shape is not in place
    EXPECT_NE(refusal(in_place, {{"copy", "0"}, {"stay", "2"}}).find("stay needs copy=1"), std::string::npos);
  EXPECT_NE(refusal(true, {{"copy", "1"}, {"skip", "1"}}).find("skip needs copy=0"), std::string::npos);
  EXPECT_NE(refusal(false, {{"least", ".5"}}).find("least needs copy=0"), std::string::npos);
  EXPECT_NE(refusal(true, {{"skip", "65"}}), "");
  EXPECT_EQ(refusal(true, {{"skip", "64"}, {"least", "1"}}), "");
}

// A layer's heads ask for the tokens that weigh enough, and hold them between the first and the last.
TEST(PolicyKeyCodes, InPlaceHeadsHoldWhatWeighsEnough) {
  const struct {
    double share;
    Options options;
    float skip;
  } cases[] = {{.2, {}, 1}, {.25, {}, 1}, {.5, {}, .25f}, {.35, {}, .0625f / (.35f * .35f)}, {.5, {{"skip", "2"}}, 2}};
  for (const auto& c : cases) {
    Shape shape = shape_of({kNoWindows, 3});
    shape.in_place = true;
    FakeSession s(must(make_policy("keycodes", shape, budget_of(shape, c.share), c.options)), 12, kGroup, kContext, restless);
    s.settle(380);
    const size_t before = s.asked_pages().size();
    s.prepare();
    s.ask_layers(1);
    ASSERT_EQ(s.asked_pages().size(), before + 4);
    for (uint32_t head = 0; head < 4; ++head) {
      const PageQuery& query = s.asked_pages()[before + head].query;
      EXPECT_NEAR(query.least, c.skip / static_cast<float>(query.n_pages), 1e-6f) << c.share;
      ASSERT_NE(query.n_found, nullptr);
      EXPECT_TRUE(query.held.empty());
    }
    for (int t = 0; t < 5; ++t) s.step(3);
    EXPECT_EQ(s.policy().report().missed_tokens, s.policy().report().wanted_tokens);
    EXPECT_GT(s.policy().report().wanted_tokens, 0u);
  }
}

// Low-rank keys and bases of the default rank, and the slots that they leave to a head.
TEST(PolicyLoki, RanksFollowWidthAndBudget) {
  const struct {
    uint32_t dim;
    double share;
    uint32_t rank, slots;              // at 4,000 of 4,096 tokens
  } kWorked[] = {{128, .5, 32, 1484},  // 2,000 - (4,000 + 128) * 32 / 256
                 {128, .1, 12, 206},   // 400 - 4,128 * 12 / 256: a thirteenth dimension would take more than half
                 {64, .5, 16, 1492},
                 {32, .05, 4, 0}};  // the smallest rank, 4: 258 slots of 205
  for (const auto& w : kWorked) {
    const Shape shape = shape_of({kNoWindows, 1}, 1, 4096, w.dim);
    auto made = make_policy("loki", shape, budget_of(shape, w.share), {});
    if (w.slots == 0) {
      ASSERT_FALSE(made.ok());
      EXPECT_NE(std::string(made.status().message()).find("must be at least 0.067"), std::string::npos) << made.status().message();
      EXPECT_TRUE(make_policy("loki", shape, budget_of(shape, .067), {}).ok());
      continue;
    }
    FakeSession s(must(std::move(made)), 1, 1, 4096, [](uint32_t, uint32_t, uint32_t n_keys) { return std::vector<float>(n_keys); });
    EXPECT_EQ(s.policy().digests().rank, w.rank);
    s.settle(4000);
    EXPECT_EQ(s.capacity(0), w.slots) << w.dim << " at " << w.share;
  }
  // A given rank: a multiple of 4, at most the dimensions of a key.
  const Shape shape = shape_of({kNoWindows, 1}, 1, 4096, 32);
  for (const auto& [given, rank] : {std::pair("1", 4u), std::pair("4", 4u), std::pair("5", 8u), std::pair("100", 32u)})
    EXPECT_EQ(must(make_policy("loki", shape, budget_of(shape, .9), {{"rank", given}}))->digests().rank, rank) << given;
}

}  // namespace
}  // namespace orrery::policy::loki_test
