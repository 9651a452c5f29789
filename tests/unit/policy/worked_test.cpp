// Worked numbers through the policies themselves, with head profiles and without. One or two slots of a head are its tail: budgets are set
// so that the prompt's part is the worked number.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/policy/select/rings.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fake_session.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::worked_test {
namespace {

const int32_t kNoWindow[] = {0, 0};
Shape shape(uint32_t n_kv_heads, uint32_t n_context, uint32_t n_layers = 1) {
  return {n_layers, n_kv_heads, n_context, {kNoWindow, n_layers}};
}

std::shared_ptr<const HeadProfile> profile(std::vector<Role> roles, std::vector<uint32_t> pivot_of, std::vector<double> stability) {
  HeadProfile p;
  p.top_k = 1024;
  p.layers.resize(1);
  p.layers[0].roles = {std::move(roles), std::move(pivot_of)};
  p.layers[0].stability = std::move(stability);
  const Status status = check_profile(p);
  EXPECT_TRUE(status.ok()) << status.message();
  return std::make_shared<const HeadProfile>(std::move(p));
}

std::vector<float> noise(uint32_t head, uint32_t position, uint32_t n_keys) {
  testing::Random random(uint64_t{head} << 32 | position);
  std::vector<float> out(n_keys);
  for (float& x : out) x = 4 * random.uniform();
  return out;
}

constexpr Role kAnchor = Role::anchor, kVolatile = Role::volatile_head, kPivot = Role::pivot, kSatellite = Role::satellite;
constexpr uint32_t kNo = kNoHead;

// FreeKV: the bounds of three pages are (10, 0, 9) and (0, 4, 3.5) for two query heads. The mean of the softmaxes selects page 0; the mean
// of the bounds would select page 2.
TEST(PolicyWorked, FreeKvsMeanOfSoftmaxes) {
  const std::vector<float> bounds = {10, 0, 9, 0, 4, 3.5f};
  std::vector<float> scores(3);
  ScoreScratch scratch;
  const Status status = head_scores(bounds, 2, {GroupReduce::mean, Pooling::none, 1, true, false}, &scratch, scores);
  ASSERT_TRUE(status.ok()) << status.message();
  const double expected[] = {.371, .308, .321};
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(scores[i], expected[i], 5e-4);
  Tokens best;
  top_k(scores, 1, &best);
  EXPECT_EQ(best, Tokens{0});
}

// The same pages through policies, of 4 tokens: sink tokens, the three pages, and 8 window tokens that always stay. One page has room.
TEST(PolicyWorked, PagesByTheMeanOfSoftmaxesOrOfBounds) {
  const float bounds[2][3] = {{10, 0, 9}, {0, 4, 3.5f}};
  for (const char* score : {"softmax", "raw"}) {
    Shape one = shape(1, 64);
    const Options options = {{"page", "4"}, {"sinks", "4"}, {"window", "8"}, {"first_layers", "0"}, {"tau", "0"}, {"score", score}};
    FakeSession s(must(make_policy("freekv", one, {1.0, 16 + 16}, options)), 1, 2, 64, [&](uint32_t, uint32_t, uint32_t n_keys) {
      std::vector<float> out;
      for (uint32_t q = 0; q < 2; ++q)
        for (uint32_t key = 0; key < n_keys; ++key) out.push_back(key >= 4 && key < 16 ? bounds[q][key / 4 - 1] : -5);
      return out;
    });
    s.settle(22);  // pages 0, three candidates, page 4, and two tokens of page 5
    const uint32_t best = score == std::string("raw") ? 3 : 1;
    EXPECT_EQ(s.held()[0], (Tokens{0, 1, 2, 3, best * 4, best * 4 + 1, best * 4 + 2, best * 4 + 3, 16, 17, 18, 19, 20, 21})) << score;
  }
}

// Ada-KV: two query heads attend to keys 0 and 4; max pooling over 5 keys. The code pools their mean, which makes all six keys equal;
// algorithm 2 takes the mean of the pooled rows, .5 .5 1 .5 .5 .5.
TEST(PolicyWorked, AdaKvsScoresOfTheCodeAndOfAlgorithm2) {
  for (const char* layers : {"uniform", "preference"})
    for (const char* score : {"mean", "each"}) {
      const Options options = {{"width", "5"}, {"window", "1"}, {"tail", "1"}, {"layers", layers}, {"score", score}};
      FakeSession s(must(make_policy("adakv", shape(1, 16), {1.0, 3}, options)), 1, 2, 16, [&](uint32_t, uint32_t, uint32_t n_keys) {
        std::vector<float> out;
        for (uint32_t q = 0; q < 2; ++q)
          for (uint32_t key = 0; key < n_keys; ++key) out.push_back(key == 4 * q ? 0 : -40);
        return out;
      });
      s.settle(7);
      EXPECT_EQ(s.selected(0), score == std::string("each") ? (Tokens{2, 6}) : (Tokens{0, 6})) << score << ", layers " << layers;
    }
}

// ArkVale: a step asks for two of a head's pages, one of them the window's. With estimates 5 1 4 2 3 of pages 0 to 4, pages 0, 2 and 4 are
// selected at first. A step that estimates 1 5 2 3 4 asks for page 1, which replaces the lowest score, page 0.
TEST(PolicyWorked, ArkValesRecalledPageTakesTheLowestsPlace) {
  const float before[] = {5, 1, 4, 2, 3}, after[] = {1, 5, 2, 3, 4};
  const Options options = {{"page", "4"}, {"sinks", "0"}, {"window", "8"}, {"first_layers", "0"}};
  FakeSession s(must(make_policy("arkvale", shape(1, 64), {1.0, 20 + 16}, options)), 1, 1, 64,
                [&](uint32_t, uint32_t position, uint32_t n_keys) {
                  const float* estimates = position < 25 ? before : after;
                  std::vector<float> out;
                  for (uint32_t key = 0; key < n_keys; ++key) out.push_back(key < 20 ? estimates[key / 4] : 0);
                  return out;
                });
  s.settle(25);  // pages 0 to 4 are candidates, 5 the last
  const auto pages = [&] {
    Tokens out;
    for (size_t i = 0; i + 4 <= s.held()[0].size(); i += 4) out.push_back(s.held()[0][i] / 4);
    return out;
  };
  EXPECT_EQ(pages(), (Tokens{0, 2, 4, 5}));
  EXPECT_FALSE(s.prepare());
  EXPECT_EQ(pages(), (Tokens{0, 2, 4, 5}));
  s.ask_layers(1);
  EXPECT_EQ(pages(), (Tokens{1, 2, 4, 5}));  // in its slot
}

// Pages by attention: one head's queries attend to page 3 alone, the other head's to all pages equally. Of eight pages together, at least
// one each, the first head needs no second page.
TEST(PolicyWorked, AHeadThatLooksAtOnePageLeavesItsRoomToTheOther) {
  const auto attention = [](uint32_t head, uint32_t, uint32_t n_keys) {
    std::vector<float> out(n_keys);
    for (uint32_t key = 0; key < n_keys; ++key) out[key] = head == 0 && key / 4 == 3 ? 100.0f : 0.0f;
    return out;
  };
  const auto lengths = [&](const char* heads, const char* floor) {
    const Options options = {{"page", "4"}, {"sinks", "0"}, {"window", "8"}, {"first_layers", "0"}, {"heads", heads}, {"floor", floor}};
    // Two heads of 6 pages, four of them selected, and 2 * 16 digests, each of one slot here.
    FakeSession s(must(make_policy("quest", shape(2, 64), {1.0, 2 * 24 + 32}, options)), 2, 1, 64, attention);
    s.settle(64 - 4);
    EXPECT_EQ(s.total_capacity(), 48u);
    EXPECT_TRUE(std::count(s.held()[0].begin(), s.held()[0].end(), 12u));  // page 3
    return std::pair(s.capacity(0) / 4 - 2, s.capacity(1) / 4 - 2);
  };
  EXPECT_EQ(lengths("uniform", "0"), std::pair(4u, 4u));
  EXPECT_EQ(lengths("adaptive", "0"), std::pair(1u, 7u));
  EXPECT_EQ(lengths("adaptive", ".5"), std::pair(2u, 6u));
}

// OmniKV: two query heads with products 3 1 0 2 and -5 -4 -6 -4.5. The best two of their maximum are 0 and 3; of softmaxes they would be 0
// and 1.
TEST(PolicyWorked, OmniKvsProductsAreNotNormalised) {
  const float products[2][4] = {{3, 1, 0, 2}, {-5, -4, -6, -4.5f}};
  const Options options = {{"filters", "0"}, {"behind", "0"}, {"tail", "1"}};
  FakeSession s(must(make_policy("omnikv", shape(1, 5, 2), {1.0, 5 + 3}, options)), 2, 2, 5, [&](uint32_t, uint32_t, uint32_t n_keys) {
    std::vector<float> out;
    for (uint32_t q = 0; q < 2; ++q)
      for (uint32_t key = 0; key < n_keys; ++key) out.push_back(key < 4 ? products[q][key] : 0);
    return out;
  });
  s.settle(4);
  EXPECT_EQ(s.selected(0), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(s.selected(1).size(), s.capacity(1) - 1u);
  EXPECT_EQ(s.selected(1), (Tokens{0, 3}));
}

// RaaS: pages 0 to 4 of 4 tokens, four of them resident. From then on queries attend to page 1 and the newest page: 0 is evicted first,
// then 2.
TEST(PolicyWorked, RaasKeepsWhatIsLookedAt) {
  const Options options = {{"page", "4"}, {"sinks", "0"}, {"window", "8"}, {"first_layers", "0"}};
  FakeSession s(
      must(make_policy("raas", shape(1, 64), {1.0, 20 + 16}, options)), 1, 1, 64, [&](uint32_t, uint32_t position, uint32_t n_keys) {
        std::vector<float> out;
        for (uint32_t key = 0; key < n_keys; ++key)
          out.push_back(position < 24 ? (key / 4 == 3 || key / 4 == 4 ? -50.f : 0.f) : key / 4 == 1 || key + 4 > n_keys ? 0.f : -50.f);
        return out;
      });
  s.settle(24);  // candidates 0 to 4, of which three have room; 5 is the last
  const auto pages = [&] {
    std::set<uint32_t> out;
    for (const uint32_t position : s.held()[0])
      if (position / 4 < s.n_tokens() / 4) out.insert(position / 4);
    return out;
  };
  EXPECT_EQ(pages(), (std::set<uint32_t>{0, 1, 2, 5}));
  for (int t = 0; t < 4; ++t) s.step();
  EXPECT_EQ(pages(), (std::set<uint32_t>{1, 2, 5, 6}));
  for (int t = 0; t < 4; ++t) s.step();
  EXPECT_EQ(pages(), (std::set<uint32_t>{1, 5, 6, 7}));
}

// ShadowKV: low-rank keys take at most a quarter of a budget. At a rank of all dimensions there are none.
TEST(PolicyWorked, ShadowKvsRanksFollowWidthAndBudget) {
  const auto rank = [](uint32_t head_dim, double share, const Options& options) {
    Shape s = shape(8, 16384, 2);
    s.head_dim = head_dim, s.slot_bytes = s.digest_bytes = 4 * head_dim;
    return must(make_policy("shadowkv", s, {share, slots_for_share(s, share)}, options))->digests().rank;
  };
  EXPECT_EQ(rank(128, .5, {}), 160u);  // the paper's, of 1024 dimensions
  EXPECT_EQ(rank(256, .5, {}), 160u);
  EXPECT_EQ(rank(32, .5, {}), 40u);
  EXPECT_EQ(rank(128, .25, {}), 120u);  // and the bases
  EXPECT_EQ(rank(128, .8, {{"rank", "1023"}}), 1023u);
  EXPECT_EQ(rank(128, .8, {{"rank", "1024"}}), 0u);
  EXPECT_EQ(rank(128, 1, {}), 0u);  // all KV is resident
}

// H2O: weights of five queries over the keys that each sees; the columns add up to 1.9, 1.4, 1.3, .2 and .2. Of three slots two hold heavy
// hitters, 0 and 1; by the mean over the queries that have seen them they would be 2 and 0. Then the answer's weights add to the resident
// tokens.
TEST(PolicyWorked, H2OsColumnSums) {
  const std::vector<std::vector<float>> rows = {{1},
                                                {.5f, .5f},
                                                {.2f, .2f, .6f},
                                                {.1f, .6f, .2f, .1f},
                                                {.1f, .1f, .5f, .1f, .2f},
                                                {.2f, .1f, 0, 0, 0, .7f},  // evicted tokens get nothing
                                                {.1f, .1f, 0, 0, 0, 0, .8f}};
  FakeSession s(must(make_policy("h2o", shape(1, 64), {.05, 3}, {{"recent", ".34"}})), 1, 1, 64,
                [&](uint32_t, uint32_t position, uint32_t n_keys) {
                  std::vector<float> out(n_keys);
                  for (uint32_t key = 0; key < n_keys; ++key) out[key] = std::log(rows[std::min<size_t>(position, 6)][key]);
                  return out;
                });
  s.settle(5);
  const float expected[] = {1.9f, 1.4f, 1.3f, .2f, .2f};
  for (size_t key = 0; key < 5; ++key) EXPECT_NEAR(s.attention_sums(0)[key], expected[key], 1e-6);
  EXPECT_EQ(s.held()[0], (Tokens{0, 1, 4}));
  s.step();  // 4 is no longer recent, and has the smallest sum
  EXPECT_EQ(s.held()[0], (Tokens{0, 1, 5}));
  const float after[] = {2.1f, 1.5f, 1.3f, .2f, .2f, .7f};
  for (size_t key = 0; key < 6; ++key) EXPECT_NEAR(s.attention_sums(0)[key], after[key], 1e-6);
  s.step();
  EXPECT_EQ(s.held()[0], (Tokens{0, 1, 6}));
}

// N = 6, N_full = 3, L = 100, rho = .8 of the prompt: L_base = 60, and eq. 8 divides 180 tokens.
TEST(PolicyWorked, HeteroCachesLengths) {
  const std::vector<Role> roles = {kPivot, kSatellite, kVolatile, kAnchor, kPivot, kSatellite};
  const std::vector<uint32_t> pivot_of = {kNo, 0, kNo, kNo, kNo, 4};
  const struct {
    double stability;
    uint32_t lengths[3];
  } cases[] = {{.25, {45, 90, 45}}, {.1, {40, 100, 40}}};  // 128.6 of 100 tokens: the excess goes to the others
  for (const auto& c : cases) {
    const auto p = profile(roles, pivot_of, {.9, .5, .1, c.stability, .9, .5});
    auto made = make_policy("heterocache", shape(6, 1000), {486.0 / 606, 6000}, {{"tail", "1"}}, p);
    FakeSession s(must(std::move(made)), 6, 1, 1000, noise);
    s.settle(100);
    EXPECT_EQ(s.total_capacity(), 486u);  // 3 * 101 + 180 + 3
    const uint32_t wanted[] = {100, c.lengths[0], 100, c.lengths[1], 100, c.lengths[2]};
    for (uint32_t head = 0; head < 6; ++head) {
      EXPECT_EQ(s.n_selected(head), wanted[head]) << head;
      EXPECT_EQ(s.capacity(head), wanted[head] + 1);
    }
    // K_base of both pivots: the last questions.
    ASSERT_GE(s.asked().size(), 2u);
    for (size_t i = s.asked().size() - 2; i < s.asked().size(); ++i) EXPECT_EQ(s.asked()[i].query.k, 60u);
    EXPECT_EQ(s.asked().back().query.head, 4u);
  }
  const Shape six = shape(6, 1000);
  const auto refused =
      make_policy("heterocache", six, {.4, slots_for_share(six, .4)}, {}, profile(roles, pivot_of, {.9, .5, .1, .25, .9, .5}));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("3 of 6 heads"), std::string::npos) << refused.status().message();
  EXPECT_NE(std::string(refused.status().message()).find("at least 0.501"), std::string::npos) << refused.status().message();
}

// Scores .2 .1 .5 .3: two tokens are {2, 3}, three are {0, 2, 3}, in score order; cut by position they would be {0, 2}.
TEST(PolicyWorked, SatellitesTakeTheirPivotsBestTokens) {
  const auto p = profile({kPivot, kSatellite, kSatellite, kSatellite}, {kNo, 0, 0, 0}, {.9, .3, .2, .6});  // 2 : 3 : 1
  // 6 + 6 slots for the pivot's tokens and the other heads' tails of 2; and 6 tokens.
  auto made = make_policy("heterocache", shape(4, 6), {1.0, 18}, {{"pool", "1"}, {"block", "1"}, {"tau_drift", "0.5"}}, p);
  FakeSession s(must(std::move(made)), 4, 1, 6, [](uint32_t, uint32_t position, uint32_t n_keys) {
    const float before[] = {.5f, .3f, .1f, .1f}, after[] = {.2f, .1f, .5f, .3f};
    std::vector<float> out;
    for (uint32_t key = 0; key < n_keys; ++key) out.push_back(std::log((position < 4 ? before : after)[key]));
    return out;
  });
  s.settle(4);
  EXPECT_EQ(s.selected(1), (Tokens{0, 1}));
  EXPECT_EQ(s.selected(2), (Tokens{0, 1, 2}));
  EXPECT_EQ(s.selected(3), (Tokens{0}));
  s.step();
  EXPECT_EQ(s.policy().report().n_triggers, 1u);
  EXPECT_EQ(s.selected(1), (Tokens{0, 1}));  // not before the next step
  EXPECT_FALSE(s.prepare());
  EXPECT_EQ(sorted(s.selected(1)), (Tokens{2, 3}));
  EXPECT_EQ(sorted(s.selected(2)), (Tokens{0, 2, 3}));
  EXPECT_EQ(sorted(s.selected(3)), (Tokens{2}));
  EXPECT_EQ(s.held()[2][0], 0u);  // a hit keeps its slot
  EXPECT_EQ(s.policy().report().wanted_tokens, 6u);
  EXPECT_EQ(s.policy().report().missed_tokens, 2u + 1u + 1u);  // {2, 3}, {3}, {2}
}

// Two sets of L_base of L tokens share at least 2 - L / L_base: nothing triggers at .5 once L_base is 2 / 3 of L.
TEST(PolicyWorked, LargeSetsCannotDrift) {
  const auto p = profile({kPivot, kSatellite, kSatellite, kSatellite}, {kNo, 0, 0, 0}, {.9, .5, .5, .5});
  for (const uint32_t l_base : {200u, 150u}) {
    auto made = make_policy("heterocache", shape(4, 400), {1.0, 340 + 3 * (l_base + 40)},
                            {{"block", "1"}, {"tau_drift", "0.5"}, {"tail", "40"}, {"pool", "1"}}, p);
    // The prompt's last query attends to its beginning; later queries attend to its end.
    FakeSession s(must(std::move(made)), 4, 1, 400, [](uint32_t, uint32_t position, uint32_t n_keys) {
      std::vector<float> out;
      for (uint32_t key = 0; key < n_keys; ++key) out.push_back(static_cast<float>(key) * (position < 300 ? -.01f : .01f));
      return out;
    });
    s.settle(300);
    EXPECT_EQ(s.n_selected(1), l_base);
    for (int t = 0; t < 20; ++t) s.step();
    EXPECT_EQ(s.policy().report().n_checks, 20u);
    EXPECT_EQ(s.policy().report().n_triggers, l_base == 200 ? 0u : 1u);
  }
}

// k / L = (share H - N_r) / (H - N_r): for 8 heads and two representatives .333 at a share of .5, and .067 at .3. At .2 two do not fit; one
// does, if the option does not ask for two.
TEST(PolicyWorked, SyncKvsShares) {
  const auto settled = [&](double share, const Options& options) {
    FakeSession s(must(make_policy("synckv", shape(8, 4000), {share, 32000}, options)), 8, 1, 4000, noise);
    s.settle(3000);
    return s;
  };
  const struct {
    double share;
    uint32_t k, n_full;
    Options options;
  } cases[] = {{.5, 999, 2, {{"representatives", "2"}, {"tail", "1"}}},  // (12004 - 6002 - 6) / 6
               {.3, 199, 2, {{"representatives", "2"}, {"tail", "1"}}},
               {.5, 999, 2, {{"tail", "1"}}}};
  for (const auto& c : cases) {
    FakeSession s = settled(c.share, c.options);
    uint32_t n_full = 0;
    for (uint32_t head = 0; head < 8; ++head) {
      n_full += s.n_selected(head) == 3000;
      EXPECT_EQ(s.n_selected(head), s.n_selected(head) == 3000 ? 3000 : c.k);
    }
    EXPECT_EQ(n_full, c.n_full);
    const std::vector<Tokens> before = s.held();
    s.settle(3000);
    EXPECT_EQ(s.held(), before) << "the same again";
  }
  const Shape eight = shape(8, 4000);
  const auto refused = make_policy("synckv", eight, {.2, slots_for_share(eight, .2)}, {{"representatives", "2"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(std::string(refused.status().message()).find("2 of 8 heads"), std::string::npos) << refused.status().message();
  EXPECT_NE(std::string(refused.status().message()).find("at least 0.251"), std::string::npos) << refused.status().message();
  const auto lowered = make_policy("synckv", eight, {.2, slots_for_share(eight, .2)}, {});
  ASSERT_TRUE(lowered.ok());
  EXPECT_EQ(lowered.value()->n_full_heads(), 1u);
}

// The other reading of Mem%: the prefetched KV alone. A budget of (N_r + (H - N_r) s) / H holds s of the prompt in each other head.
TEST(PolicyWorked, SyncKvsPrefetchedShares) {
  const struct {
    uint32_t n_heads, representatives;
    double prefetched;
  } cases[] = {{8, 2, .2}, {3, 1, .2}, {2, 1, .5}};
  for (const auto& c : cases) {
    const double share = (c.representatives + (c.n_heads - c.representatives) * c.prefetched) / c.n_heads;
    FakeSession s(must(make_policy("synckv", shape(c.n_heads, 4000), {share, uint64_t{c.n_heads} * 4000},
                                   {{"representatives", std::to_string(c.representatives)}, {"tail", "1"}})),
                  c.n_heads, 1, 4000, noise);
    s.settle(3000);
    uint32_t n_whole = 0;
    for (uint32_t head = 0; head < c.n_heads; ++head)
      if (s.n_selected(head) == 3000) ++n_whole;
      else EXPECT_NEAR(s.n_selected(head) / 3000., c.prefetched, 2 / 3000.) << c.n_heads;
    EXPECT_EQ(n_whole, c.representatives);
  }
}

// The last query attends to the first tokens, the three before it to tokens 200 and after: the mean of four queries prefers these. Pooling
// over three keys adds the neighbours of a key that stands alone.
TEST(PolicyWorked, SyncKvsWindowAndPooling) {
  const auto selected = [](const Options& options) {
    FakeSession s(must(make_policy("synckv", shape(2, 400), {.55, 800}, options)), 2, 1, 400,
                  [](uint32_t, uint32_t position, uint32_t n_keys) {
                    std::vector<float> out(n_keys, 0.0f);
                    for (uint32_t key = 0; key < n_keys; ++key) {
                      if (position == 299 && key < 20) out[key] = 8;
                      if (position < 299 && key >= 200 && key < 220) out[key] = 8;
                      if (key == 100) out[key] = 9;
                    }
                    return out;
                  });
    s.settle(300);
    const uint32_t head = s.n_selected(0) == 300 ? 1 : 0;
    return s.selected(head);
  };
  const auto has = [](const Tokens& tokens, uint32_t first, uint32_t end) {
    uint32_t n = 0;
    for (const uint32_t token : tokens) n += token >= first && token < end;
    return n;
  };
  const Tokens one = selected({{"tail", "1"}}), four = selected({{"tail", "1"}, {"window", "4"}}),
               pooled = selected({{"tail", "1"}, {"pool", "3"}});
  ASSERT_GT(one.size(), 25u);
  EXPECT_EQ(has(one, 0, 20), 20u);
  EXPECT_EQ(has(four, 200, 220), 20u);
  EXPECT_EQ(has(four, 0, 20), std::min<size_t>(20, four.size() - 21)) << "less weight, but more than none";
  EXPECT_EQ(has(one, 99, 102), 1u) << "of the others the first come first";
  EXPECT_EQ(has(pooled, 99, 102), 3u);
}

// Half of 6 heads' 1,000 tokens. A quarter of it gives streaming heads .2 of the context, and (.5 - .2) / (1 - .2) of 6 heads are 2: the
// volatile head, then the least stable one. The others share the rest, and their tail is a ring.
TEST(PolicyWorked, DuoAttentionsHeads) {
  const auto p =
      profile({kAnchor, kAnchor, kVolatile, kAnchor, kAnchor, kAnchor}, {kNo, kNo, kNo, kNo, kNo, kNo}, {.9, .5, .4, .8, .3, .6});
  FakeSession s(must(make_policy("duoattention", shape(6, 1000), {.5, 3000}, {{"tail", "10"}}, p)), 6, 1, 1000, noise);
  EXPECT_EQ(s.policy().n_full_heads(), 2u);
  EXPECT_EQ(s.policy().queries_wanted(), 0u);
  s.settle(390);
  // Slots: .5 * 400 * 6, of which the full heads take 800 and four tails 40: 360 are left, 90 for each.
  for (uint32_t head = 0; head < 6; ++head) {
    const bool full = head == 2 || head == 4;
    EXPECT_EQ(s.capacity(head), full ? 400u : 100u) << head;
    Tokens expected;
    sinks_and_recent(390, 33, full ? 390 : 67, &expected);
    EXPECT_EQ(s.selected(head), expected) << head;
  }
  s.step();  // position 390: in place of the oldest recent one
  EXPECT_EQ(s.held()[0][33], 390u);
  EXPECT_EQ(s.held()[2].size(), 391u);
}

// 3 heads, 15% of 20, keep everything; the others share the rest of half of the tokens. Compensation tokens take four slots each.
TEST(PolicyWorked, RazorAttentionsHeads) {
  std::vector<double> stability(20, .9);
  stability[4] = .2, stability[11] = .3, stability[17] = .1;
  const auto p = profile(std::vector<Role>(20, kAnchor), std::vector<uint32_t>(20, kNo), stability);
  Shape s = shape(20, 1000);
  s.slot_bytes = 64, s.compensation_token_bytes = 256;
  FakeSession razor(must(make_policy("razorattention", s, {.5, 10000}, {{"tail", "10"}}, p)), 20, 1, 1000, noise);
  EXPECT_EQ(razor.policy().n_full_heads(), 3u);
  EXPECT_EQ(razor.policy().max_compensation_tokens(), 17u);
  razor.settle(390);
  // Slots: .5 * 400 * 20, of which the full heads take 1200, tails 170 and compensation tokens 68: 2562 are left, 151 for each but five
  // less.
  uint32_t n_more = 0;
  for (uint32_t head = 0; head < 20; ++head) {
    const bool full = head == 4 || head == 11 || head == 17;
    EXPECT_EQ(razor.policy().has_compensation_token(head), !full) << head;
    if (!full) n_more += razor.capacity(head) - 160;
    EXPECT_TRUE(full ? razor.capacity(head) == 400 : razor.capacity(head) == 160 || razor.capacity(head) == 161) << head;
    Tokens expected;
    sinks_and_recent(390, 4, full ? 390 : razor.capacity(head) - 4, &expected);
    EXPECT_EQ(razor.selected(head), expected) << head;
  }
  EXPECT_EQ(n_more, 2562 - 17 * 150u);
  EXPECT_EQ(razor.total_capacity() + 17 * 4, 4000u);
  razor.step();  // position 390: in place of the oldest recent one
  EXPECT_EQ(razor.held()[0][4], 390u);
  // Full heads take at most half of a small budget. A full head has no compensation token.
  const auto n_full = [&](double share) {
    return must(make_policy("razorattention", s, {share, slots_for_share(s, share)}, {{"rank", "attention"}}))->n_full_heads();
  };
  EXPECT_EQ(n_full(.2), 2u);
  EXPECT_EQ(n_full(.8), 3u);
  EXPECT_EQ(n_full(1), 20u);
}

// A profile's induction scores say which heads retrieve. DuoAttention adds the echo scores; RazorAttention takes one of 15 by echo alone.
// Without a profile there is nothing to go by, and the session is refused.
TEST(PolicyWorked, HeadsThatRetrieveByInductionAndEcho) {
  std::vector<double> induction(100, .01), echo(100, .01);
  for (uint32_t head = 20; head < 40; ++head) induction[head] = .3 + .01 * head;  // 39 before 38 ...
  echo[7] = .6;
  echo[39] = .9;
  std::vector<double> stability(100, .9);
  stability[3] = 0;  // says nothing here
  auto of = profile(std::vector<Role>(100, kAnchor), std::vector<uint32_t>(100, kNo), stability);
  auto changed = std::make_shared<HeadProfile>(*of);
  changed->layers[0].induction = induction, changed->layers[0].echo = echo;
  const auto whole = [&](const char* policy, double share) {
    FakeSession s(must(make_policy(policy, shape(100, 1000), {share, slots_for_share(shape(100, 1000), share)}, {}, changed)), 100, 1, 1000,
                  noise);
    EXPECT_EQ(s.policy().queries_wanted(), 0u);
    s.settle(700);
    Tokens heads;
    for (uint32_t head = 0; head < 100; ++head)
      if (s.n_selected(head) == 700) heads.push_back(head);
    return heads;
  };
  // 15 heads: 14 by induction, and of the others the one with the largest echo.
  EXPECT_EQ(whole("razorattention", .5), (Tokens{7, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39}));
  // Streaming heads get .05 / .85 of the context, and (.2 - .0588) / (1 - .0588) of 100 heads are 15.
  EXPECT_EQ(whole("duoattention", .2), (Tokens{7, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39}));
  changed->layers[0].echo[7] = .5;  // less than .55 of head 25
  EXPECT_EQ(whole("duoattention", .2)[0], 25u);
  EXPECT_EQ(whole("razorattention", .5)[0], 7u);

  for (const char* policy : {"duoattention", "razorattention"}) {
    const auto refused = make_policy(policy, shape(100, 1000), {.5, 50000}, {});
    ASSERT_FALSE(refused.ok()) << policy;
    EXPECT_EQ(refused.status().code(), Code::invalid_argument);
    for (const char* part : {policy, "orrery profile", "orrery_calibrate()", "rank=attention"})
      EXPECT_NE(std::string(refused.status().message()).find(part), std::string::npos) << refused.status().message();
    EXPECT_TRUE(make_policy(policy, shape(100, 1000), {1, 100000}, {}).ok()) << "every head is whole";
    EXPECT_TRUE(make_policy(policy, shape(100, 1000), {.5, 50000}, {{"full_share", "0"}}).ok()) << "every head streams";
    EXPECT_TRUE(make_policy(policy, shape(100, 1000), {.5, 50000}, {{"rank", "attention"}}).ok());
  }
}

// A whole share with a budget in slots: as many full heads as fit besides one token and a tail of the others.
TEST(PolicyWorked, DuoAttentionsBudgets) {
  const auto n_full = [](double share, uint64_t slots, uint32_t n_context) {
    return must(make_policy("duoattention", shape(8, n_context), {share, slots}, {{"rank", "attention"}}))->n_full_heads();
  };
  EXPECT_EQ(n_full(1, 8 * 1000, 1000), 8u);
  EXPECT_EQ(n_full(.2, 1600, 1000), 1u);          // streaming .05 / .85, full .15 of 8
  EXPECT_EQ(n_full(.2, 1600 * 100, 100000), 1u);  // 384 tokens: .196 of 8
  EXPECT_EQ(n_full(.51, 4080 * 100, 100000), 4u);
  EXPECT_EQ(n_full(1, 4080 * 100, 100000), 4u);  // by slots
}

}  // namespace
}  // namespace orrery::policy::worked_test
