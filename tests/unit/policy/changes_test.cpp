// When a policy's selection changes, on made-up attention: which tokens are resident in which step. And the order of heads does not matter.
#include <gtest/gtest.h>

#include "tests/unit/policy/made_up.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::changes_test {
namespace {

// The steps, counted from 1, before which a head's prompt tokens differ from those before the previous step.
std::vector<std::set<uint32_t>> changes(FakeSession* s, uint32_t n_steps, uint32_t first_slot = 0) {
  std::vector<std::set<uint32_t>> out(s->n_heads());
  for (uint32_t t = 1; t <= n_steps; ++t) {
    const std::vector<Tokens> before = s->held();
    EXPECT_FALSE(s->prepare());
    for (uint32_t head = 0; head < s->n_heads(); ++head)
      for (uint32_t i = first_slot; i < s->n_selected(head); ++i)
        if (s->held()[head][i] != before[head][i]) out[head].insert(t);
    s->commit();
  }
  return out;
}

TEST(PolicyChanges, SyncKvsDynamicTokensChangeOnTimeAndItsStaticOnesNever) {
  for (const uint32_t m : {1u, 5u, 7u})
    for (const uint32_t visible : {1u, m}) {
      FakeSession s = open("synckv", kModels[2], .6,
                           {{"steps", std::to_string(m)}, {"visible", std::to_string(visible)}, {"rho", "0.5"}, {"tail", "40"}});
      s.settle(200);
      const std::vector<Tokens> first = s.held();
      std::set<uint32_t> seen;
      for (const std::set<uint32_t>& head : changes(&s, 40)) seen.insert(head.begin(), head.end());
      ASSERT_FALSE(seen.empty());
      EXPECT_EQ(*seen.begin(), m + visible);
      for (const uint32_t t : seen) EXPECT_EQ((t - visible) % m, 0u) << t;
      for (uint32_t head = 0; head < s.n_heads(); ++head) {
        const uint32_t n = s.n_selected(head), n_static = n - n / 2;  // k_dyn = floor((1 - rho) k)
        if (n == 200) continue;
        for (uint32_t i = 0; i < n_static; ++i) EXPECT_EQ(s.held()[head][i], first[head][i]);
      }
    }
}

// Two stars and a loner, equal in every layer up to noise. A hub attends to the keys of its three or two spokes; each spoke attends to a
// third of them and to keys of its own. Nothing ties.
std::vector<float> stars(uint32_t layer, uint32_t h, uint32_t position, uint32_t n_keys) {
  static const uint32_t kBlocks[8][3] = {{0, 1, 2}, {0, 3, 4}, {1, 5, 6}, {2, 7, 8}, {9, 10, 11}, {9, 12, 13}, {10, 14, 15}, {16, 17, 18}};
  const uint32_t shift = position >= 410 ? 200 : 0;  // during the answer the attention of all heads moves
  std::vector<float> out;
  for (uint32_t q = 0; q < kGroup; ++q)
    for (uint32_t key = 0; key < n_keys; ++key) {
      const uint32_t block = h == 7 ? key * 31 % 20 + position % 3 : (key + shift) % 400 / 20;
      float x = uniform({4, layer, h, key}) + uniform({5, layer, h, q, position, key}) / 4;
      for (const uint32_t b : kBlocks[h]) x += b == block ? 5.0f : 0.0f;
      out.push_back(x);
    }
  return out;
}
const Model kStars{"stars", 8, {0, 0}, 600};

TEST(PolicyChanges, HeteroCachesSatellitesChangeOnTimeAndItsAnchorsNever) {
  for (const bool stagger : {false, true})
    for (const uint32_t visible : {1u, 4u}) {
      FakeSession s(must(make_policy("heterocache", kStars.shape(), {.5, slots_for_share(kStars.shape(), .5)},
                                     {{"full_share", "0.25"},
                                      {"tau_sim", "0.27"},
                                      {"tau_drift", "1"},
                                      {"block", "4"},
                                      {"top_k", "60"},
                                      {"tail", "41"},
                                      {"visible", std::to_string(visible)},
                                      {"stagger", stagger ? "1" : "0"}})),
                    16, kGroup, 600,
                    [](uint32_t head, uint32_t position, uint32_t n_keys) { return stars(head / 8, head % 8, position, n_keys); });
      s.settle(400);
      s.forget();
      const auto seen = changes(&s, 40);
      // The satellites' pivots, and the order of the pivots.
      std::vector<uint32_t> pivots;
      std::map<uint32_t, uint32_t> pivot_of;
      for (const FakeSession::Asked& x : s.asked()) {
        if (std::find(pivots.begin(), pivots.end(), x.query.head) == pivots.end()) pivots.push_back(x.query.head);
        for (const uint32_t satellite : x.refilled) pivot_of[satellite] = x.query.head;
      }
      ASSERT_EQ(pivots.size(), 4u);
      std::sort(pivots.begin(), pivots.end());
      int n_changed = 0;
      for (uint32_t head = 0; head < s.n_heads(); ++head) {
        if (pivot_of.count(head) == 0) {
          EXPECT_TRUE(seen[head].empty()) << head;
          continue;
        }
        const auto place = static_cast<uint32_t>(std::find(pivots.begin(), pivots.end(), pivot_of[head]) - pivots.begin());
        const uint32_t offset = stagger ? place % 4 : 0;
        for (const uint32_t t : seen[head]) {
          ++n_changed;
          EXPECT_GE(t, offset + 4 + visible);
          EXPECT_EQ((t - visible - offset) % 4, 0u) << "step " << t << " head " << head;
        }
      }
      EXPECT_GT(n_changed, 5);
    }
}

// FreeKV's speculation for satellites: before a step they hold the best tokens of their pivot's query of the step before. A satellite whose
// own query has changed holds the best tokens of this step's query before it attends.
TEST(PolicyChanges, HeteroCachesSatellitesFollowEveryStep) {
  const auto attention = [](uint32_t head, uint32_t position, uint32_t n_keys) { return stars(head / 8, head % 8, position, n_keys); };
  for (const double tau : {0., .85}) {
    FakeSession s(must(make_policy("heterocache", kStars.shape(), {.5, slots_for_share(kStars.shape(), .5)},
                                   {{"full_share", "0.25"},
                                    {"tau_sim", "0.27"},
                                    {"top_k", "60"},
                                    {"tail", "41"},
                                    {"satellites", "speculative"},
                                    {"tau", std::to_string(tau)}})),
                  16, kGroup, 600, attention);
    s.similarity = likeness;
    s.settle(400);
    // The spokes of each star: 1 to 3 of hub 0, 5 and 6 of hub 4.
    const auto hub_of = [](uint32_t head) {
      return head % 8 >= 1 && head % 8 <= 3 ? head / 8 * 8 : head % 8 == 5 || head % 8 == 6 ? head / 8 * 8 + 4 : UINT32_MAX;
    };
    const auto best_of_hub = [&](uint32_t head, uint32_t position) {
      std::vector<float> scores(400);
      ScoreScratch scratch;
      EXPECT_TRUE(
          head_scores(attention(hub_of(head), position, 400), kGroup, {GroupReduce::mean, Pooling::avg, 5, true}, &scratch, scores).ok());
      const auto order = in_order({scores.begin(), scores.end()});
      return std::set<uint32_t>(order.begin(), order.begin() + s.n_selected(head));
    };
    uint32_t n_changed = 0, n_moved = 0;
    for (uint32_t t = 0; t < 40; ++t) {
      ASSERT_FALSE(s.prepare());
      const std::vector<Tokens> before = s.held();
      const auto check = [&](uint32_t head, uint32_t position) {
        ASSERT_EQ(as_set(s.selected(head)), best_of_hub(head, position)) << "step " << t << ", head " << head;
      };
      for (uint32_t head = 0; head < 16 && t > 0; ++head)
        if (hub_of(head) != UINT32_MAX) check(head, s.n_tokens() - 1);
      s.ask_layers(2);
      for (uint32_t head = 0; head < 16; ++head) {
        const bool changed = hub_of(head) != UINT32_MAX && static_cast<double>(likeness(head / 8, head % 8, s.n_tokens())) < tau;
        if (changed) check(head, s.n_tokens());
        else EXPECT_EQ(s.held()[head], before[head]) << head;
        n_changed += changed, n_moved += s.held()[head] != before[head];
      }
      s.commit();
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(s.policy().report().n_triggers, n_changed);
    EXPECT_EQ(s.policy().report().n_checks, tau > 0 ? 40u * 10 : 0u);
    EXPECT_EQ(n_changed > 20, tau > 0);
    EXPECT_EQ(n_moved > 10, tau > 0);
  }
}

// Ada-KV's allocation for compressed heads: a head's count is how many of the best scores of all of them are its own, apart from the part
// that is shared evenly. Heads select by the same scores.
TEST(PolicyChanges, HeteroCachesHeadsShareByTheirScores) {
  const auto attention = [](uint32_t head, uint32_t position, uint32_t n_keys) { return stars(head / 8, head % 8, position, n_keys); };
  const auto settled = [&](Options options) {
    options.insert(options.end(), {{"full_share", "0.25"}, {"tau_sim", "0.27"}, {"top_k", "60"}, {"tail", "41"}});
    FakeSession s(must(make_policy("heterocache", kStars.shape(), {.5, slots_for_share(kStars.shape(), .5)}, options)), 16, kGroup, 600,
                  attention);
    s.settle(400);
    return s;
  };
  const FakeSession by_stability = settled({}), evenly = settled({{"heads", "adaptive"}, {"floor", "1"}});
  uint32_t total = 0, n_compressed = 0;
  for (uint32_t head = 0; head < 16; ++head)
    if (evenly.n_selected(head) < 400) total += evenly.n_selected(head), ++n_compressed;
  for (const uint32_t w : {1u, 5u}) {
    const FakeSession s = settled({{"heads", "adaptive"}, {"floor", "0.25"}, {"window", std::to_string(w)}});
    std::vector<double> all;  // of compressed heads
    std::vector<uint32_t> heads;
    for (uint32_t head = 0; head < 16; ++head) {
      ASSERT_EQ(s.n_selected(head) < 400, evenly.n_selected(head) < 400) << head;
      ASSERT_EQ(s.n_selected(head) < 400, by_stability.n_selected(head) < 400) << head;
      if (s.n_selected(head) == 400) continue;
      heads.push_back(head);
      std::vector<double> sums(400);
      for (uint32_t p = 400 - w; p < 400; ++p) {
        std::vector<float> logits(size_t{kGroup} * 400, -INFINITY), scores(400);
        const std::vector<float> seen = attention(head, p, p + 1);
        for (uint32_t q = 0; q < kGroup; ++q) std::copy_n(seen.begin() + q * (p + 1), p + 1, logits.begin() + q * 400);
        ScoreScratch scratch;
        ASSERT_TRUE(head_scores(logits, kGroup, {GroupReduce::mean, Pooling::avg, 5, true}, &scratch, scores).ok());
        for (uint32_t key = 0; key < 400; ++key) sums[key] += static_cast<double>(scores[key]);
      }
      all.insert(all.end(), sums.begin(), sums.end());
    }
    ASSERT_EQ(heads.size(), n_compressed);
    const auto order = in_order(all);
    std::vector<uint32_t> counts(n_compressed);
    for (uint32_t i = 0; i < total; ++i) ++counts[order[i] / 400];
    uint32_t sum = 0, different = 0;
    for (uint32_t i = 0; i < n_compressed; ++i) {
      const double expected = .75 * counts[i] + .25 * total / n_compressed;
      EXPECT_NEAR(s.n_selected(heads[i]), expected, 1.0) << heads[i];
      EXPECT_NEAR(evenly.n_selected(heads[i]), static_cast<double>(total) / n_compressed, 1.0);
      sum += s.n_selected(heads[i]);
      different += s.n_selected(heads[i]) != by_stability.n_selected(heads[i]);
      std::vector<double> own(all.begin() + i * 400, all.begin() + (i + 1) * 400);
      const auto best = in_order(own);
      EXPECT_EQ(as_set(s.selected(heads[i])), std::set<uint32_t>(best.begin(), best.begin() + s.n_selected(heads[i]))) << heads[i];
    }
    EXPECT_EQ(sum, total);
    EXPECT_GE(different, 8u);
  }
}

// A step asks for a part of a head's pages: misses replace the lowest scores, and the other pages stay.
TEST(PolicyChanges, PagesThatAreNotAskedForStayByTheirScores) {
  for (const Options& options : {Options{{"page", "4"}}, Options{{"page", "8"}, {"set", "head"}, {"asked", "0.7"}}}) {
    const Candidate c{"arkvale", options};
    const Model& m = kModels[0];
    FakeSession s = open(c.policy, m, .5, c.options);
    s.similarity = likeness;
    s.settle(300);
    const uint32_t page = s.page_tokens();
    const auto whole_pages = [&](uint32_t head) {
      std::set<uint32_t> pages;
      for (const uint32_t position : s.held()[head])
        if (position / page < s.n_tokens() / page) pages.insert(position / page);
      return pages;
    };
    std::map<uint32_t, std::vector<double>> scores;  // by head: the last score of every page
    uint32_t n_first = 0, n_last = 0, n_stayed = 0, n_gone = 0;
    for (uint32_t t = 0; t < 45; ++t) {
      ASSERT_FALSE(s.prepare());
      std::map<uint32_t, std::set<uint32_t>> before;
      for (uint32_t head = 0; head < s.n_heads(); ++head) before[head] = whole_pages(head);
      s.forget();
      s.ask_layers(3);
      ASSERT_FALSE(s.asked_pages().empty());
      for (const FakeSession::AskedPages& asked : s.asked_pages()) {
        const PageQuery& q = asked.query;
        ASSERT_EQ(q.position, s.n_tokens());  // by the step's own query
        n_first = q.first_page, n_last = asked.n_tokens / page - q.first_page - q.n_pages;
        const auto found = page_scores(way_of(c), m, q.head, q.position, page, q.first_page, q.n_pages);
        const auto order = in_order(found);
        scores[q.head].assign(q.first_page, INFINITY);
        scores[q.head].insert(scores[q.head].end(), found.begin(), found.end());
        scores[q.head].resize(400, INFINITY);
        const uint32_t n_slots = s.capacity(q.head) / page - 1;
        const auto n_asked = static_cast<uint32_t>(std::stod(option(c, "asked", ".5")) * n_slots + 1e-9);
        std::set<uint32_t> wanted;
        for (uint32_t p = 0; p < n_first; ++p) wanted.insert(p);
        for (uint32_t p = q.first_page + q.n_pages; p < asked.n_tokens / page; ++p) wanted.insert(p);
        for (uint32_t i = 0; wanted.size() < std::max(n_asked, n_first + n_last + 1); ++i) wanted.insert(q.first_page + order[i]);
        // Of the resident pages the best stay.
        std::vector<uint32_t> others;
        for (const uint32_t p : before[q.head])
          if (!wanted.count(p)) others.push_back(p);
        std::stable_sort(others.begin(), others.end(), [&](uint32_t a, uint32_t b) { return scores[q.head][a] > scores[q.head][b]; });
        const size_t n_stay = n_slots - wanted.size();
        ASSERT_GE(others.size(), n_stay);
        n_gone += static_cast<uint32_t>(others.size() - n_stay), n_stayed += static_cast<uint32_t>(n_stay);
        wanted.insert(others.begin(), others.begin() + static_cast<ptrdiff_t>(n_stay));
        ASSERT_EQ(whole_pages(q.head), wanted) << "step " << t << ", head " << q.head;
      }
      for (uint32_t head = 0; head < s.n_heads(); ++head) before[head] = whole_pages(head);
      s.commit();
      // A complete page replaces the lowest score among the pages that the step did not ask for. The page that leaves the window stays.
      for (uint32_t head = 0; s.n_tokens() % page == 0 && scores.count(head); ++head) {
        const std::set<uint32_t> after = whole_pages(head);
        ASSERT_EQ(after.count(s.n_tokens() / page - 1), 1u);
        ASSERT_EQ(after.count(s.n_tokens() / page - 1 - n_last), 1u);
        for (const uint32_t p : before[head])
          for (const uint32_t q : after)
            if (!after.count(p) && q >= n_first) {
              ASSERT_LE(scores[head][p], scores[head][q]) << "step " << t << ", head " << head;
            }
      }
    }
    EXPECT_GT(n_stayed, 1000u);
    EXPECT_GT(n_gone, 100u);
    // One set for the layer.
    for (uint32_t head = 0; head < s.n_heads() && way_of(c).layer; ++head) EXPECT_EQ(s.held()[head], s.held()[head / 4 * 4]) << head;
  }
}

// Every step a filter finds the tokens that the layers after it hold in the same step. The layer after it and the layers before the first
// filter are whole.
TEST(PolicyChanges, OmniKvsLayersHoldWhatTheirFilterFinds) {
  const Model deep{"deep", 2, {0, 0, 24, 0, 0, 0, 0, 0, 0}};  // the third has a window
  struct Case {
    Options options;
    double share;
    std::vector<uint32_t> filter_of;  // by layer; the layer itself: it holds everything, or its window
  };
  for (const Case& c : {Case{{{"filters", "1+5"}}, .9, {0, 1, 2, 3, 1, 1, 6, 7, 6}},  // as with more layers
                        Case{{}, .9, {0, 1, 2, 3, 1, 1, 1, 1, 1}},                    // the second has no room
                        Case{{}, .6, {0, 1, 2, 0, 0, 0, 0, 0, 0}},                    // nor has the first, at its place
                        Case{{}, .4, {0, 0, 2, 0, 0, 0, 0, 0, 0}},                    // nor the layer after it
                        Case{{{"filters", "0+3+5"}, {"tail", "50"}}, .9, {0, 1, 2, 0, 4, 5, 6, 7, 6}},
                        Case{{{"filters", "2"}, {"behind", "0"}}, .6, {0, 1, 2, 3, 3, 3, 3, 3, 3}}}) {
    SCOPED_TRACE(std::to_string(c.share) + (c.options.empty() ? "" : c.options[0].second));
    FakeSession s = open("omnikv", deep, c.share, c.options);
    s.settle(300);
    const uint32_t n_prompt = 300;
    for (uint32_t t = 0; t < 12; ++t) {
      ASSERT_FALSE(s.prepare());
      s.ask_layers(9);
      for (uint32_t head = 0; head < s.n_heads(); ++head) {
        const uint32_t layer = head / 2, filter = c.filter_of[layer];
        if (deep.windowed(head)) continue;
        const Tokens& held = s.held()[head];
        if (filter == layer) {
          ASSERT_EQ(held.size(), s.n_tokens()) << "layer " << layer;
          continue;
        }
        ASSERT_LT(held.size(), s.n_tokens()) << "layer " << layer;
        const size_t k = held.size() - t;
        ASSERT_EQ(as_set(Tokens(held.begin(), held.begin() + static_cast<ptrdiff_t>(k))),
                  best_of_layer(deep, filter, s.n_tokens(), n_prompt, k))
            << "step " << t << ", layer " << layer;
        for (uint32_t i = 0; i < t; ++i) ASSERT_EQ(held[k + i], n_prompt + i);
      }
      s.commit();
    }
    EXPECT_GT(s.n_refills(), 20u);
  }
}

// 2, 8 and 18 of 32, scaled to other models. Dense: the layers up to the first filter, each filter, the layer after each.
TEST(PolicyChanges, OmniKvsFiltersSuitTheModelsDepth) {
  const std::vector<int32_t> none(48, 0);
  for (const auto& [n_layers, n_dense] :
       {std::pair(32u, 2u + 6), std::pair(48u, 3u + 6), std::pair(22u, 1u + 6), std::pair(14u, 1u + 6), std::pair(12u, 1u + 4),
        std::pair(8u, 1u + 2), std::pair(4u, 0u + 2), std::pair(3u, 0u + 1), std::pair(2u, 0u + 1)}) {
    const Shape shape{n_layers, 2, 4096, {none.data(), n_layers}};
    const double share = n_layers > 3 ? .9999 : .9;
    const auto policy = must(make_policy("omnikv", shape, {share, slots_for_share(shape, n_layers > 3 ? 1 : share)}, {}));
    EXPECT_EQ(policy->n_full_heads(), 2 * n_dense) << n_layers << " layers";
  }
}

// Which tokens are resident once each step's weights of the resident tokens are added, and the smallest sum is replaced.
TEST(PolicyChanges, H2OGivesUpTheLeastOfItsSums) {
  const Model& m = kModels[1];  // its second layer has a window
  for (const double recent : {.5, .1, 0.0, 1.0}) {
    FakeSession s = open("h2o", m, .4, {{"recent", std::to_string(recent).substr(0, 3)}});
    s.settle(300);
    std::vector<std::vector<double>> sums;
    for (uint32_t head = 0; head < s.n_heads(); ++head) sums.push_back(attended(head, 300)), sums.back().resize(400);
    std::vector<std::set<uint32_t>> held;
    for (const Tokens& tokens : s.held()) held.push_back(as_set(tokens));
    uint32_t n_heavy = 0;  // evicted tokens that were not the oldest
    for (uint32_t t = 300; t < 390; ++t) {
      ASSERT_FALSE(s.prepare());
      s.commit();
      for (uint32_t head = 0; head < s.n_heads(); ++head) {
        if (m.windowed(head)) continue;
        const auto n_recent = std::max(1u, static_cast<uint32_t>(recent * s.capacity(head) + .5));
        uint32_t least = t;
        for (const uint32_t p : held[head])
          if (p + n_recent <= t && (least == t || sums[head][p] < sums[head][least])) least = p;
        n_heavy += least != *held[head].begin();
        held[head].erase(least), held[head].insert(t);
        ASSERT_EQ(as_set(s.held()[head]), held[head]) << "token " << t << ", head " << head << ", recent " << recent;
        const std::vector<float> logits = restless(head, t, t + 1);
        for (uint32_t q = 0; q < kGroup; ++q) {
          double sum = 0;
          for (const uint32_t p : held[head]) sum += std::exp(static_cast<double>(logits[q * (t + 1) + p]));
          for (const uint32_t p : held[head]) sums[head][p] += std::exp(static_cast<double>(logits[q * (t + 1) + p])) / sum / kGroup;
        }
      }
    }
    EXPECT_EQ(n_heavy > 200, recent < 1) << recent;
    // A later prompt's queries add to all tokens, and all tokens compete again.
    s.settle(395);
    for (uint32_t head = 0; head < s.n_heads(); ++head) {
      if (m.windowed(head)) continue;
      const auto n_recent = std::max(1u, static_cast<uint32_t>(recent * s.capacity(head) + .5));
      for (uint32_t t = 390; t < 395; ++t) {
        const std::vector<float> logits = restless(head, t, t + 1);
        for (uint32_t q = 0; q < kGroup; ++q) {
          double sum = 0;
          for (uint32_t p = 0; p <= t; ++p) sum += std::exp(static_cast<double>(logits[q * (t + 1) + p]));
          for (uint32_t p = 0; p <= t; ++p) sums[head][p] += std::exp(static_cast<double>(logits[q * (t + 1) + p])) / sum / kGroup;
        }
      }
      const auto order = in_order({sums[head].begin(), sums[head].begin() + 395 - n_recent});
      std::set<uint32_t> expected(order.begin(), order.begin() + (s.capacity(head) - n_recent));
      for (uint32_t p = 395 - n_recent; p < 395; ++p) expected.insert(p);
      ASSERT_EQ(as_set(s.held()[head]), expected) << "head " << head << ", recent " << recent;
    }
  }
}

// Which pages are resident, each with the stamp of the last step that attended to it.
TEST(PolicyChanges, RaasGivesUpThePageThatWasNotLookedAtForTheLongest) {
  for (const Options& options :
       {Options{{"page", "4"}, {"threshold", "0.02"}}, Options{{"page", "4"}, {"stamp", "top"}, {"top", "0.3"}, {"sinks", "0"}}}) {
    const Candidate c{"raas", options};
    const Model& m = kModels[0];
    const uint32_t page = 4;
    const bool top = option(c, "stamp", "threshold") == "top";
    FakeSession s = open(c.policy, m, .4, c.options);
    s.settle(300);
    const uint32_t n_first = s.asked_pages()[0].query.first_page, n_last = 75 - n_first - s.asked_pages()[0].query.n_pages;
    EXPECT_EQ(n_first > 0, !top);
    std::map<uint32_t, std::map<uint32_t, uint32_t>> times;  // by head: the stamps of its resident pages
    uint32_t n_gone = 0, n_looked = 0, n_not = 0;
    const auto look = [&](uint32_t head, uint32_t position, uint32_t now) {
      std::vector<uint32_t> pages;
      for (const auto& [p, time] : times[head]) pages.push_back(p);
      const std::vector<float> logits = restless(head, position, position + 1);
      std::vector<std::vector<double>> rows(kGroup);
      for (uint32_t q = 0; q < kGroup; ++q)
        for (const uint32_t p : pages) {
          const auto first = logits.begin() + q * (position + 1) + p * page;
          rows[q].push_back(static_cast<double>(*std::max_element(first, first + page)));
        }
      std::set<uint32_t> looked;
      std::vector<double> weights(pages.size());
      for (const std::vector<double>& row : rows) {
        double sum = 0;
        for (const double x : row) sum += std::exp(x);
        for (size_t i = 0; i < pages.size(); ++i) weights[i] += std::exp(row[i]) / sum / kGroup;
        const auto order = in_order(row);
        for (size_t i = 0; top && i < static_cast<size_t>(.3 * static_cast<double>(pages.size()) + 1e-9); ++i)
          looked.insert(pages[order[i]]);
      }
      for (size_t i = 0; !top && i < pages.size(); ++i)
        if (weights[i] > .02) looked.insert(pages[i]);
      for (const uint32_t p : looked) times[head][p] = now;
      n_looked += static_cast<uint32_t>(looked.size()), n_not += static_cast<uint32_t>(pages.size() - looked.size());
    };
    for (uint32_t head = 0; head < s.n_heads(); ++head) {
      for (const uint32_t position : s.held()[head])
        if (position % page == 0) times[head][position / page] = 0;
      look(head, 299, 1);
    }
    for (uint32_t t = 0; t < 60; ++t) {
      ASSERT_FALSE(s.prepare());
      s.commit();
      const uint32_t n_pages = s.n_tokens() / page;
      for (uint32_t head = 0; head < s.n_heads(); ++head) {
        look(head, s.n_tokens() - 1, t + 2);
        if (s.n_tokens() % page == 0) {
          auto oldest = times[head].end();
          for (auto it = times[head].begin(); it != times[head].end(); ++it)
            if (it->first >= n_first && it->first + n_last < n_pages && (oldest == times[head].end() || it->second < oldest->second))
              oldest = it;
          times[head].erase(oldest);
          times[head][n_pages - 1] = t + 2;
          ++n_gone;
        }
        std::set<uint32_t> expected, found;
        for (const auto& [p, time] : times[head]) expected.insert(p);
        for (const uint32_t position : s.held()[head])
          if (position / page < n_pages) found.insert(position / page);
        ASSERT_EQ(found, expected) << "step " << t << ", head " << head;
      }
    }
    EXPECT_EQ(n_gone, 15 * s.n_heads());
    EXPECT_GT(n_looked, 1000u);
    EXPECT_GT(n_not, 1000u);
    EXPECT_EQ(s.n_refills(), 0u);
  }
}

// A budget in bytes that holds the prompt: the prompt stays, and the answer's pages compete.
TEST(PolicyChanges, RaasKeepsThePromptWhereItFits) {
  const Model& m = kModels[0];
  for (const bool keep : {true, false}) {
    Options options = {{"page", "4"}, {"sinks", "4"}, {"first_layers", "0"}};
    if (keep) options.emplace_back("prompt", "keep");
    FakeSession s(must(make_policy("raas", m.shape(), {1.0, m.n_heads() * uint64_t{160 + 100}}, options)), m.n_heads(), kGroup, m.n_context,
                  restless);
    s.settle(102);
    int n_again = 0;
    for (uint32_t t = 0; t < 290; ++t) n_again += s.step();
    EXPECT_EQ(n_again, 1);  // when all slots were taken for the first time
    bool all = true;
    for (uint32_t head = 0; head < s.n_heads(); ++head) {
      const std::set<uint32_t> held = as_set(s.held()[head]);
      for (uint32_t p = 0; p < 102; ++p) all = all && held.count(p) == 1;
    }
    EXPECT_EQ(all, keep);
  }
}

// ---- Heads in another order ----

TEST(PolicyChanges, HeadsInAnotherOrderKeepTheSameTokens) {
  const uint32_t orders[][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}, {2, 5, 0, 7, 6, 1, 4, 3}};
  const Options options = {{"full_share", "0.25"}, {"tau_sim", "0.27"}, {"top_k", "60"}, {"tail", "40"}};
  std::vector<std::vector<Tokens>> first;  // before every step, by head in the first order
  for (const auto& order : orders) {
    const Attention attention = [&](uint32_t head, uint32_t position, uint32_t n_keys) {
      return stars(head / 8, order[head % 8], position, n_keys);
    };
    FakeSession s(must(make_policy("heterocache", kStars.shape(), {.5, slots_for_share(kStars.shape(), .5)}, options)), 16, kGroup, 600,
                  attention);
    s.settle(400);
    EXPECT_EQ(s.policy().report().roles.pivot, 4u);
    EXPECT_EQ(s.policy().report().roles.satellite, 10u);
    std::vector<std::vector<Tokens>> all;
    for (uint32_t t = 0; t < 30; ++t) {
      s.prepare();
      all.emplace_back(16);
      for (uint32_t head = 0; head < 16; ++head) all.back()[head / 8 * 8 + order[head % 8]] = sorted(s.held()[head]);
      s.commit();
    }
    EXPECT_GE(s.policy().report().n_triggers, 4u);
    for (uint32_t l = 0; l < 2; ++l) {  // the hubs hold everything
      EXPECT_EQ(all[0][l * 8].size(), 400u);
      EXPECT_EQ(all[0][l * 8 + 4].size(), 400u);
    }
    if (first.empty()) first = all;
    // Heads of equal stability have equal remainders, which go by index: one token more or less.
    for (size_t t = 0; t < all.size(); ++t) {
      size_t n_tokens = 0, n_before = 0;
      for (uint32_t head = 0; head < 16; ++head) {
        const Tokens& more = all[t][head].size() > first[t][head].size() ? all[t][head] : first[t][head];
        const Tokens& less = &more == &all[t][head] ? first[t][head] : all[t][head];
        n_tokens += all[t][head].size(), n_before += first[t][head].size();
        ASSERT_LE(more.size(), less.size() + 1) << "step " << t << " head " << head;
        ASSERT_TRUE(std::includes(more.begin(), more.end(), less.begin(), less.end())) << "step " << t << " head " << head;
      }
      ASSERT_EQ(n_tokens, n_before);
    }
  }
}

}  // namespace
}  // namespace orrery::policy::changes_test
