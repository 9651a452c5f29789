// What holds for every policy: on random attention, over budgets and shapes, in whole runs; refusals; the table. policy_changes_test.cpp
// tests when selections change.
#include <gtest/gtest.h>

#include <iterator>
#include <numeric>

#include "tests/unit/policy/made_up.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::invariants_test {
namespace {

const Candidate kPolicies[] = {
    {"streaming", {}},
    {"streaming", {{"sinks", "0"}}},
    {"h2o", {}},
    {"h2o", {{"recent", "0"}}},
    {"h2o", {{"recent", "0.8"}}},
    {"heterocache", {}},
    {"heterocache", {{"full_share", "0.3"}, {"tau_sim", "0.3"}, {"tau_drift", "0.9"}, {"reduce", "max"}}},
    {"heterocache", {{"full_share", "0.3"}, {"tau_sim", "0.3"}, {"tau_drift", "1"}, {"stagger", "1"}, {"visible", "5"}, {"tail", "23"}}},
    {"heterocache", {{"tau_sim", "0.3"}, {"surplus", "thresholds"}, {"block", "3"}, {"refresh", "0"}}},
    {"heterocache", {{"full_share", "0.3"}, {"tau_sim", "0.3"}, {"satellites", "speculative"}, {"window", "3"}, {"reduce", "max"}}},
    {"heterocache", {{"tau_sim", "0.3"}, {"heads", "adaptive"}, {"floor", "0.1"}, {"satellites", "speculative"}, {"tau", "0"}}},
    {"heterocache", {{"full_share", "0.3"}, {"heads", "adaptive"}, {"window", "6"}}},
    {"synckv", {}},
    {"synckv", {{"representatives", "1"}, {"steps", "4"}, {"visible", "3"}, {"rho", "0.2"}, {"tail", "37"}}},
    {"synckv", {{"representatives", "1"}, {"rho", "1"}}},
    {"synckv", {{"window", "6"}, {"pool", "5"}}},
    {"snapkv", {}},
    {"snapkv", {{"window", "3"}, {"pool", "max"}, {"width", "7"}, {"tail", "19"}, {"first_layers", "1"}}},
    {"pyramidkv", {}},
    {"adakv", {}},
    {"adakv", {{"score", "each"}, {"window", "5"}}},
    {"adakv", {{"safeguard", "protect"}, {"alpha", "0.7"}, {"window", "6"}, {"layers", "preference"}}},
    {"adapyramid", {{"alpha", "0"}}},
    {"cake", {}},
    {"cake", {{"heads", "adaptive"}, {"pool", "none"}, {"tail", "31"}}},
    {"cake", {{"layers", "adaptive"}, {"tau_1", "2"}, {"tau_2", "2"}}},
    {"snapkv", {{"layers", "adaptive"}, {"first_layers", "1"}}},
    {"auto", {}},
    {"duoattention", {{"rank", "attention"}}},
    {"duoattention", {{"rank", "attention"}, {"full_share", "0.3"}, {"sinks", "4"}, {"window", "5"}}},
    {"razorattention", {{"rank", "attention"}}},
    {"razorattention", {{"rank", "attention"}, {"full_share", "0.3"}, {"sinks", "0"}, {"tail", "20"}}},
    {"freekv", {}},
    {"freekv", {{"page", "8"}, {"sinks", "0"}, {"window", "20"}, {"first_layers", "1"}}},
    {"freekv", {{"page", "4"}, {"sinks", "12"}, {"refresh", "0"}}},
    {"freekv", {{"page", "4"}, {"tau", "0"}}},
    {"freekv", {{"page", "8"}, {"score", "raw"}}},
    {"freekv", {{"page", "4"}, {"heads", "adaptive"}, {"tau", "0"}}},
    {"quest", {}},
    {"quest", {{"page", "8"}, {"sinks", "8"}, {"tau", "0.9"}}},
    {"quest", {{"page", "4"}, {"set", "layer"}}},
    {"quest", {{"page", "4"}, {"heads", "adaptive"}, {"floor", "0"}}},
    {"arkvale", {}},
    {"arkvale", {{"page", "4"}, {"tau", "0.9"}}},
    {"arkvale", {{"page", "8"}, {"score", "softmax"}, {"set", "head"}, {"sinks", "0"}, {"asked", "0.3"}}},
    {"arkvale", {{"page", "8"}, {"asked", "1"}}},
    {"arkvale", {{"page", "8"}, {"heads", "adaptive"}, {"asked", "0.7"}}},
    {"raas", {}},
    {"raas", {{"page", "4"}, {"stamp", "top"}, {"sinks", "0"}}},
    {"raas", {{"page", "8"}, {"prompt", "keep"}, {"first_layers", "1"}, {"threshold", "0.01"}}},
    {"omnikv", {}},
    {"omnikv", {{"filters", "0"}, {"behind", "0"}, {"tail", "23"}}},
    {"omnikv", {{"refresh", "0"}}},
    {"shadowkv", {}},
    {"shadowkv", {{"chunk", "4"}, {"rank", "1000"}, {"tail", "21"}, {"local", "40"}}},
    {"shadowkv+", {}},
    {"shadowkv+", {{"chunk", "4"}, {"outliers", "5"}, {"local", "1"}}},
    {"shadowkv+", {{"outliers", "0"}}},
};

bool is_one_of(const Candidate& c, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return std::string(c.policy) == name; });
}
// Methods that select by a window of queries and never refresh; methods whose heads hold whole pages.
bool chooses_once(const Candidate& c) { return is_one_of(c, {"snapkv", "pyramidkv", "adakv", "adapyramid", "cake", "auto"}); }
bool has_pages(const Candidate& c) { return is_one_of(c, {"freekv", "quest", "arkvale", "raas"}); }
bool has_chunks(const Candidate& c) { return std::string(c.policy).substr(0, 8) == "shadowkv"; }

std::string describe(const Candidate& c, const Model& m, double share) {
  std::string text = std::string(c.policy) + " on " + m.name + " at " + std::to_string(share);
  for (const auto& [key, value] : c.options) text += " " + key + "=" + value;
  return text;
}

// The best tokens by a head's last w queries together, by sorting everything.
std::set<uint32_t> best_of(uint32_t head, uint32_t n, size_t k, const ScoreRule& rule, uint32_t w = 1) {
  std::vector<double> sums(n);
  ScoreScratch scratch;
  for (uint32_t p = n - std::min(w, n); p < n; ++p) {
    std::vector<float> logits(size_t{kGroup} * n, -INFINITY), scores(n);
    const std::vector<float> seen = restless(head, p, p + 1);
    for (uint32_t q = 0; q < kGroup; ++q) std::copy_n(seen.begin() + q * (p + 1), p + 1, logits.begin() + q * n);
    const Status status = head_scores(logits, kGroup, rule, &scratch, scores);
    EXPECT_TRUE(status.ok()) << status.message();
    for (uint32_t key = 0; key < n; ++key) sums[key] += static_cast<double>(scores[key]);
  }
  const auto order = in_order(sums);
  return std::set<uint32_t>(order.begin(), order.begin() + static_cast<ptrdiff_t>(k));
}

// The scores of the first n_old keys by the last w of n queries. Scores are the mean of the rows over queries and query heads; with gamma
// >= 0 plus gamma times the variance, pooled for each query head. `each`: rows are softmaxes over the scored keys alone, each pooled by
// itself.
std::vector<double> window_scores(uint32_t head, uint32_t n, uint32_t n_old, uint32_t w, Pooling pooling, uint32_t width, double gamma,
                                  bool each) {
  std::vector<std::vector<double>> rows;  // (w, group) of old keys
  for (uint32_t p = n - w; p < n; ++p) {
    const std::vector<float> logits = restless(head, p, p + 1);
    for (uint32_t q = 0; q < kGroup; ++q) {
      rows.emplace_back();
      double sum = 0;
      for (uint32_t key = 0; key < (each ? n_old : p + 1); ++key) sum += std::exp(static_cast<double>(logits[q * (p + 1) + key]));
      for (uint32_t key = 0; key < n_old; ++key) rows.back().push_back(std::exp(static_cast<double>(logits[q * (p + 1) + key])) / sum);
    }
  }
  std::vector<double> scores(n_old);
  const auto add_pooled = [&](const std::vector<double>& x) {
    for (int64_t key = 0; key < int64_t{n_old}; ++key) {
      double y = 0;
      const int64_t half = pooling == Pooling::none ? 0 : width / 2;
      for (int64_t j = std::max<int64_t>(key - half, 0); j <= std::min<int64_t>(key + half, int64_t{n_old} - 1); ++j)
        y = pooling == Pooling::max ? std::max(y, x[static_cast<size_t>(j)]) : y + x[static_cast<size_t>(j)];
      scores[static_cast<size_t>(key)] += y;
    }
  };
  for (const std::vector<double>& row : rows)
    if (each) add_pooled(row);
  for (uint32_t q = 0; q < kGroup && !each; ++q) {
    std::vector<double> x(n_old);
    for (uint32_t key = 0; key < n_old; ++key) {
      double mean = 0, squares = 0;
      for (uint32_t i = 0; i < w; ++i) mean += rows[i * kGroup + q][key] / w;
      for (uint32_t i = 0; i < w; ++i) squares += (rows[i * kGroup + q][key] - mean) * (rows[i * kGroup + q][key] - mean);
      x[key] = mean + (gamma > 0 && w > 1 ? gamma * squares / (w - 1) : 0);
    }
    if (gamma < 0) {  // mean, then pool
      for (uint32_t key = 0; key < n_old; ++key) scores[key] += x[key] / kGroup;
      x = scores;
      if (q + 1 < kGroup) continue;
      std::fill(scores.begin(), scores.end(), 0.0);
    }
    add_pooled(x);
  }
  for (double& score : scores) score /= each ? w * kGroup : gamma < 0 ? 1 : kGroup;
  return scores;
}

// The window of w tokens, and the best tokens before it, by sorting everything.
std::set<uint32_t> window_and_best(const std::vector<double>& scores, uint32_t n, size_t n_kept) {
  const auto n_old = static_cast<uint32_t>(scores.size()), w = n - n_old;
  std::vector<uint32_t> order(n_old);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b] * (1 + 1e-12); });
  std::set<uint32_t> kept(order.begin(), order.begin() + static_cast<ptrdiff_t>(n_kept - w));
  for (uint32_t p = n_old; p < n; ++p) kept.insert(p);
  return kept;
}

// The best pages by a position's query, as the policy last asked for them; the sink and window pages; and the tokens of the page that is
// being written.
std::set<uint32_t> best_pages(const FakeSession& s, const Candidate& c, const Model& m, const FakeSession::AskedPages& when, uint32_t n) {
  const PageQuery& asked = when.query;
  const uint32_t page = s.page_tokens(), n_last = when.n_tokens / page - asked.first_page - asked.n_pages;
  const uint32_t k = asked.k > 0 ? asked.k : s.capacity(asked.head) / page - 1 - asked.first_page - n_last;  // as many as have room
  const auto order = in_order(page_scores(way_of(c), m, asked.head, asked.position, page, asked.first_page, asked.n_pages));
  std::set<uint32_t> kept;
  const auto add = [&](uint32_t p) {
    for (uint32_t i = 0; i < page; ++i) kept.insert(p * page + i);
  };
  for (uint32_t p = 0; p < asked.first_page; ++p) add(p);
  for (uint32_t i = 0; i < k; ++i) add(asked.first_page + order[i]);
  for (uint32_t p = n / page - n_last; p < n / page; ++p) add(p);
  for (uint32_t i = n / page * page; i < n; ++i) kept.insert(i);
  EXPECT_LE(kept.size(), s.capacity(asked.head));
  return kept;
}

// ShadowKV: the best chunks by a position's query among those that are no outliers; the outliers; and the tokens that are no candidates
// yet.
std::set<uint32_t> best_chunks(const FakeSession& s, const PageQuery& asked, uint32_t n) {
  const uint32_t chunk = s.page_tokens(),
                 n_outliers = (static_cast<uint32_t>(s.held()[asked.head].size()) - (n - asked.n_pages * chunk)) / chunk - asked.k;
  EXPECT_EQ(asked.first_page, 0u);
  std::vector<uint32_t> order(asked.n_pages);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return nearness(asked.head, a) < nearness(asked.head, b); });
  const std::set<uint32_t> outliers(order.begin(), order.begin() + n_outliers);
  EXPECT_EQ(outliers, s.hidden(asked.head));
  std::vector<double> scores(asked.n_pages);
  const std::vector<float> logits = restless(asked.head, asked.position, asked.position + 1);
  for (uint32_t q = 0; q < kGroup; ++q) {
    std::vector<double> best(asked.n_pages);
    double sum = 0;
    for (uint32_t c = 0; c < asked.n_pages; ++c) {
      const float* first = logits.data() + q * (asked.position + 1) + c * chunk;
      best[c] = outliers.count(c) ? 0 : std::exp(static_cast<double>(*std::max_element(first, first + chunk)));
      sum += best[c];
    }
    for (uint32_t c = 0; c < asked.n_pages; ++c) scores[c] = std::max(scores[c], best[c] / sum);
  }
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b] * (1 + 1e-7); });
  std::set<uint32_t> kept;
  const auto add = [&](uint32_t c) {
    for (uint32_t i = 0; i < chunk; ++i) kept.insert(c * chunk + i);
  };
  for (uint32_t i = 0; i < asked.k; ++i) add(order[i]);
  for (const uint32_t c : outliers) add(c);
  for (uint32_t t = asked.n_pages * chunk; t < n; ++t) kept.insert(t);
  return kept;
}

// Capacities; and a head keeps the best tokens by its own scores or, in SyncKV, by those of a head of its layer that keeps everything.
void check_settled(const FakeSession& s, const Candidate& c, const Model& m, uint64_t max_slots, double share) {
  const uint32_t n = s.n_tokens();
  ASSERT_LE(s.total_capacity() + s.n_compensation_tokens(), max_slots);
  const bool hetero = std::string(c.policy) == "heterocache", sync = std::string(c.policy) == "synckv",
             omni = std::string(c.policy) == "omnikv";
  const bool max = !c.options.empty() && c.options.back() == std::pair<std::string, std::string>{"reduce", "max"};
  const ScoreRule rule =
      hetero ? ScoreRule{max ? GroupReduce::max : GroupReduce::mean, Pooling::avg, 5, true}
             : ScoreRule{GroupReduce::max, Pooling::avg, static_cast<uint32_t>(std::stoul(sync ? option(c, "pool", "1") : "1")), true};
  for (uint32_t head = 0; head < s.n_heads(); ++head) {
    ASSERT_GE(s.n_selected(head), 1u) << head;
    const std::set<uint32_t> kept = as_set(s.selected(head));
    if (m.windowed(head)) {
      const uint32_t window = std::min<uint32_t>(static_cast<uint32_t>(m.window[head / m.n_kv_heads]), m.n_context);
      ASSERT_EQ(s.capacity(head), window);
      ASSERT_EQ(kept.size(), std::min(window, n));
      ASSERT_EQ(*kept.begin(), n - std::min(window, n));  // the last tokens, as tokens are unique
      continue;
    }
    // Every head has the same room for an answer, full heads too.
    if (hetero || sync || omni || chooses_once(c)) {
      uint32_t other = 0;
      while (m.windowed(other)) ++other;
      ASSERT_EQ(s.capacity(head) - s.n_selected(head), s.capacity(other) - s.n_selected(other)) << head;
      ASSERT_GT(s.capacity(head), s.n_selected(head));
    }
    if (kept.size() == n) continue;
    ASSERT_LT(share, 1.0);
    if (has_pages(c)) {
      for (const FakeSession::AskedPages& asked : s.asked_pages()) {
        if (asked.query.head != head || (asked.query.k == 0 && std::string(c.policy) == "raas")) continue;  // it also asks about all pages
        ASSERT_EQ(kept, best_pages(s, c, m, asked, n)) << head;
      }
      ASSERT_FALSE(s.asked_pages().empty());
    }
    for (const FakeSession::AskedPages& asked : s.asked_pages())
      if (has_chunks(c) && asked.query.head == head) {
        ASSERT_EQ(kept, best_chunks(s, asked.query, n)) << head;
      }
    if (chooses_once(c)) {
      // No head has less than the window, which is at most half of the mean.
      uint64_t total = 0, n_compressed = 0;
      const uint32_t exempt = static_cast<uint32_t>(std::stoul(option(c, "first_layers", "0"))) * m.n_kv_heads;
      for (uint32_t h = exempt; h < s.n_heads(); ++h)
        if (!m.windowed(h)) total += s.n_selected(h), ++n_compressed;
      const auto w = static_cast<uint32_t>(
          std::min<uint64_t>({std::stoul(option(c, "window", "32")), n, std::max<uint64_t>(total / n_compressed / 2, 1)}));
      const bool variance = is_one_of(c, {"cake", "auto"}), ada = std::string(c.policy).substr(0, 3) == "ada",
                 automatic = is_one_of(c, {"auto"});
      const std::string pool = option(c, "pool", ada || automatic ? "max" : "avg");
      const auto width = static_cast<uint32_t>(std::stoul(option(c, "width", automatic ? "15" : ada ? "7" : "5")));
      ASSERT_GE(kept.size(), w) << head;
      ASSERT_EQ(kept, window_and_best(window_scores(head, n, n - w, w,
                                                    pool == "max"   ? Pooling::max
                                                    : pool == "avg" ? Pooling::avg
                                                                    : Pooling::none,
                                                    width, variance ? 200 : -1, option(c, "score", "") == "each"),
                                      n, kept.size()))
          << head;
    }
    if (std::string(c.policy) == "h2o") {
      const std::vector<double>& sums = attended(head, n);
      const auto n_recent = std::max(1u, static_cast<uint32_t>(std::stod(option(c, "recent", ".5")) * s.capacity(head) + .5));
      ASSERT_EQ(kept.size(), s.capacity(head));
      const auto order = in_order({sums.begin(), sums.end() - n_recent});
      std::set<uint32_t> expected(order.begin(), order.begin() + (s.capacity(head) - n_recent));
      for (uint32_t p = n - n_recent; p < n; ++p) expected.insert(p);
      ASSERT_EQ(kept, expected) << head;
    }
    if (hetero) {
      ASSERT_EQ(kept, best_of(head, n, kept.size(), rule, static_cast<uint32_t>(std::stoul(option(c, "window", "1"))))) << head;
    } else if (omni) {
      bool found = false;
      for (uint32_t layer = 0; layer < head / m.n_kv_heads && !found; ++layer)
        found = !m.windowed(layer * m.n_kv_heads) && s.n_selected(layer * m.n_kv_heads) == n &&
                kept == best_of_layer(m, layer, n - 1, n, kept.size());
      ASSERT_TRUE(found) << head;
    } else if (sync) {
      bool found = false;
      const uint32_t first = head / m.n_kv_heads * m.n_kv_heads;
      for (uint32_t r = first; r < first + m.n_kv_heads && !found; ++r)
        found =
            s.n_selected(r) == n && kept == best_of(r, n, kept.size(), rule, static_cast<uint32_t>(std::stoul(option(c, "window", "1"))));
      ASSERT_TRUE(found) << head;
    }
  }
}

// auto is a setting of engines/window, with a tail of a sixteenth of what a head may hold: of 380 tokens 8 at 10%, the least; 14 at 60%;
// and 16 at 80%, which other policies have too.
TEST(PolicyInvariants, AutoIsCakeWithLayersAndHeadsThatCompeteAndAShortTail) {
  for (const Model& m : {Model{"one layer", 4, {0}}, Model{"three layers", 4, {0, 0, 0}}}) {
    const auto settled = [&](const char* name, double share, const Options& options) {
      FakeSession s(must(make_policy(name, m.shape(), {share, slots_for_share(m.shape(), share)}, options)), m.n_heads(), kGroup,
                    m.n_context, restless);
      s.settle(380);
      return s;
    };
    for (const auto& [share, tail] : {std::pair(.1, 8u), std::pair(.6, 14u), std::pair(.8, 16u)}) {
      const FakeSession s = settled("auto", share, {});
      EXPECT_EQ(s.capacity(0) - s.n_selected(0), tail) << share;
      const FakeSession same = settled("cake", share,
                                       {{"pool", "max"},
                                        {"width", "15"},
                                        {"layers", "adaptive"},
                                        {"heads", "adaptive"},
                                        {"safeguard", "protect"},
                                        {"tau_1", "2"},
                                        {"tau_2", "2"},
                                        {"tail", std::to_string(tail)},
                                        {"compensation", "1"}});
      EXPECT_EQ(s.held(), same.held()) << share;
    }
  }
}

// With `renew`, a full tail of t tokens keeps 1 - renew t / window of the last scores. The rest is scores by the queries of these tokens.
TEST(PolicyInvariants, AFullTailRenewsScores) {
  constexpr uint32_t kWindow = 16, kTail = 5;
  const Model m{"three heads", 3, {0}};
  struct Case {
    const char* policy;
    Pooling pooling;
    uint32_t width;
    double gamma;
    bool each;
  };
  for (const Case& c :
       {Case{"snapkv", Pooling::avg, 5, -1, false}, Case{"cake", Pooling::avg, 5, 200, false}, Case{"adakv", Pooling::max, 7, -1, true}})
    for (const double renew : {2., 4.}) {  // 4: the queries since, alone
      Options options = {{"window", std::to_string(kWindow)}, {"tail", std::to_string(kTail)}, {"renew", std::to_string(renew)}};
      if (c.each) options.insert(options.end(), {{"score", "each"}});
      FakeSession s(must(make_policy(c.policy, m.shape(), {.3, slots_for_share(m.shape(), .3)}, options)), m.n_heads(), kGroup, m.n_context,
                    restless);
      const double share = std::min(renew * kTail / kWindow, 1.);
      std::vector<std::vector<double>> past(m.n_heads());
      const auto check = [&](bool again) {
        const uint32_t n = s.n_prompt();
        for (uint32_t head = 0; head < m.n_heads(); ++head) {
          std::vector<double> scores = window_scores(head, n, n - kWindow, again ? kTail : kWindow, c.pooling, c.width, c.gamma, c.each);
          for (size_t key = 0; again && key < past[head].size(); ++key) scores[key] = share * scores[key] + (1 - share) * past[head][key];
          ASSERT_EQ(as_set(s.selected(head)), window_and_best(scores, n, s.n_selected(head)))
              << c.policy << ", " << renew << ", head " << head << " at " << n;
          past[head] = scores;
        }
      };
      s.settle(300);
      check(false);
      for (int i = 0; i < 24; ++i)
        if (s.step(1)) check(true);
      EXPECT_EQ(s.n_prompt(), 320u);
      FakeSession fork = s.fork(restless);
      while (!s.step(1)) fork.step(1);
      check(true);
      fork.step(1);
      EXPECT_EQ(s.held(), fork.held());
      s.settle(s.n_tokens());  // a new prompt, a rewind: the window scores alone
      check(false);
      while (!s.step(1)) {
      }
      check(true);
    }
}

// Preferences of layers are renewed like scores. An entropy is a sum over queries, so that of a tail counts as if it had the window's
// number.
TEST(PolicyInvariants, AFullTailRenewsPreferences) {
  constexpr uint32_t kWindow = 16, kTail = 5;
  const Model m{"three layers", 2, {0, 0, 0}};
  const auto looks = [](uint32_t head, uint32_t position, uint32_t n_keys) {  // the answer makes other layers sharp than the prompt
    std::vector<float> logits = restless(head, position, n_keys);
    for (float& x : logits) x *= (head / 2 == 0) == (position < 300) ? 1.5f : .5f;
    return logits;
  };
  const Options options = {
      {"window", std::to_string(kWindow)}, {"tail", std::to_string(kTail)}, {"renew", "1"}, {"layers", "adaptive"}, {"pool", "none"}};
  FakeSession s(must(make_policy("cake", m.shape(), {.3, slots_for_share(m.shape(), .3)}, options)), m.n_heads(), kGroup, m.n_context,
                looks);
  const double share = 1. * kTail / kWindow;
  std::vector<std::vector<double>> past(m.n_heads());
  std::vector<double> preference(3);
  const auto check = [&](bool again) {
    const uint32_t n = s.n_prompt(), w = again ? kTail : kWindow, n_old = n - kWindow;
    std::vector<double> entropies(3), variances(3);
    for (uint32_t head = 0; head < m.n_heads(); ++head) {
      std::vector<std::vector<double>> rows;  // (group, w) of old keys
      for (uint32_t q = 0; q < kGroup; ++q)
        for (uint32_t p = n - w; p < n; ++p) {
          const std::vector<float> logits = looks(head, p, p + 1);
          double sum = 0;
          for (uint32_t key = 0; key <= p; ++key) sum += std::exp(static_cast<double>(logits[q * (p + 1) + key]));
          rows.emplace_back();
          for (uint32_t key = 0; key < n_old; ++key) rows.back().push_back(std::exp(static_cast<double>(logits[q * (p + 1) + key])) / sum);
        }
      std::vector<double> scores(n_old);
      for (uint32_t key = 0; key < n_old; ++key)
        for (uint32_t q = 0; q < kGroup; ++q) {
          double mean = 0, squares = 0;
          for (uint32_t i = 0; i < w; ++i) mean += rows[q * w + i][key] / w;
          for (uint32_t i = 0; i < w; ++i) squares += std::pow(rows[q * w + i][key] - mean, 2);
          for (uint32_t i = 0; i < w; ++i)
            entropies[head / 2] -= rows[q * w + i][key] * std::log(rows[q * w + i][key] + 1e-10) * kWindow / w;
          variances[head / 2] += squares / (w - 1);
          scores[key] += (mean + 200 * squares / (w - 1)) / kGroup;
        }
      for (size_t key = 0; again && key < past[head].size(); ++key) scores[key] = share * scores[key] + (1 - share) * past[head][key];
      past[head] = scores;
    }
    for (uint32_t l = 0; l < 3; ++l) {
      const double own = entropies[l] * variances[l];
      preference[l] = again ? share * own + (1 - share) * preference[l] : own;
    }
    std::vector<std::pair<double, uint32_t>> all;
    for (uint32_t head = 0; head < m.n_heads(); ++head)
      for (const double x : past[head]) all.push_back({x * preference[head / 2], head / 2});
    std::sort(all.rbegin(), all.rend());
    uint32_t total = 0;
    std::vector<uint32_t> kept(3), expected(3, 2 * kWindow);
    for (uint32_t head = 0; head < m.n_heads(); ++head) kept[head / 2] += s.n_selected(head), total += s.n_selected(head) - kWindow;
    for (uint32_t i = 0; i < total; ++i) ++expected[all[i].second];
    for (uint32_t l = 0; l < 3; ++l) EXPECT_NEAR(kept[l], expected[l], 1) << "layer " << l << " at " << n;
  };
  s.settle(300);
  check(false);
  for (int i = 0; i < 22; ++i)
    if (s.step(3)) check(true);
  EXPECT_EQ(s.n_prompt(), 320u);
}

// With slots in Q4_0 and a near reservoir, auto has a tail of a forty-eighth of what a head may hold, and renews scores.
TEST(PolicyInvariants, AutoRenewsScoresInSmallSlots) {
  const Model m{"one layer", 4, {0}};
  const auto held = [&](const char* name, uint64_t slot_bytes, const Options& options, bool near = true) {
    Shape shape = m.shape();
    shape.finds_by_codes = near;
    shape.head_dim = 64, shape.slot_bytes = slot_bytes, shape.compensation_token_bytes = 2 * slot_bytes;
    FakeSession s(must(make_policy(name, shape, {.6, slots_for_share(shape, .6)}, options)), m.n_heads(), kGroup, m.n_context, restless);
    s.settle(300);
    for (int i = 0; i < 22; ++i) s.step(1);
    return s.held();
  };
  const Options own = {{"pool", "max"},          {"width", "15"}, {"layers", "adaptive"}, {"heads", "adaptive"},
                       {"safeguard", "protect"}, {"tau_1", "2"},  {"tau_2", "2"},         {"compensation", "1"}};
  const auto with = [&](const char* tail, const char* renew) {
    Options o = own;
    o.insert(o.end(), {{"tail", tail}, {"renew", renew}});
    return o;
  };
  const Options by_window = {{"by", "window"}};
  EXPECT_EQ(held("auto", 72, by_window), held("cake", 72, with("4", "3")));
  EXPECT_NE(held("auto", 72, by_window), held("cake", 72, with("4", "0")));
  EXPECT_EQ(held("auto", 72, {{"renew", "0"}}), held("cake", 72, with("4", "0")));
  EXPECT_EQ(held("auto", 136, by_window), held("cake", 136, with("11", "0")));
  EXPECT_EQ(held("auto", 72, by_window, false), held("cake", 72, with("11", "0")));
}

// A head's compensation token: its evicted tokens by their last query's weights, the mean of its group. It weighs their perplexity,
// e^entropy, times the share of tokens that all heads keep. Here it takes one slot; nothing where nothing is evicted.
TEST(PolicyInvariants, CompensationHasTheWeightsOfTheLastQuery) {
  const Model m{"a window between", 3, {0, 16, 0}};
  for (const auto& [name, share, factor] : {std::tuple("auto", .1, 1.), std::tuple("auto", .6, .5), std::tuple("snapkv", .3, .25)}) {
    const auto settled = [&, name = name, share = share](double compensation) {
      FakeSession s(
          must(make_policy(name, m.shape(), {share, slots_for_share(m.shape(), share)}, {{"compensation", std::to_string(compensation)}})),
          m.n_heads(), kGroup, m.n_context, restless);
      s.settle(380);
      return s;
    };
    const auto compressed = [&](uint32_t head) { return !m.windowed(head); };
    FakeSession s = settled(factor), without = settled(0);
    EXPECT_EQ(without.policy().max_compensation_tokens(), 0u);
    EXPECT_EQ(without.n_compensation_tokens(), 0u);
    EXPECT_EQ(s.policy().max_compensation_tokens(), 2 * m.n_kv_heads);
    EXPECT_EQ(s.total_capacity() + s.policy().max_compensation_tokens(), without.total_capacity());
    double kept = 0, all = 0;
    for (uint32_t head = 0; head < m.n_heads(); ++head)
      if (compressed(head)) kept += s.n_selected(head), all += 380;
    int n_compensation_tokens = 0;
    for (uint32_t head = 0; head < m.n_heads(); ++head) {
      ASSERT_EQ(s.policy().has_compensation_token(head), compressed(head) && s.n_selected(head) < 380) << head;
      if (!s.policy().has_compensation_token(head)) continue;
      ++n_compensation_tokens;
      const std::vector<float> logits = restless(head, 379, 380);
      std::vector<double> weights(380);
      for (uint32_t g = 0; g < kGroup; ++g) {
        double sum = 0;
        for (uint32_t p = 0; p < 380; ++p) sum += std::exp(static_cast<double>(logits[g * 380 + p]));
        for (uint32_t p = 0; p < 380; ++p) weights[p] += std::exp(static_cast<double>(logits[g * 380 + p])) / sum;
      }
      for (const uint32_t p : s.selected(head)) weights[p] = 0;
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      double entropy = 0;
      for (const double w : weights)
        if (w > 0) entropy -= w / sum * std::log(w / sum);
      const CompensationShares shares = s.policy().compensation_shares(head);
      EXPECT_NEAR(shares.weight / (factor * kept / all * std::exp(entropy)), 1, 1e-5) << name << ", head " << head;
      ASSERT_EQ(shares.of_tokens.size(), 380u);
      for (uint32_t p = 0; p < 380; ++p)
        ASSERT_NEAR(shares.of_tokens[p], weights[p] / sum, 1e-6) << name << ", head " << head << ", token " << p;
    }
    EXPECT_GT(n_compensation_tokens, 4);
    s.settle(20);  // all of it has room
    EXPECT_EQ(s.n_compensation_tokens(), 0u);
  }
  EXPECT_EQ(must(make_policy("auto", m.shape(), {1.0, slots_for_share(m.shape(), 1)}, {}))->max_compensation_tokens(), 0u);
}

// Layers that compete: the selection at a larger budget includes the selection at a smaller one, by the same queries.
TEST(PolicyInvariants, ALargerBudgetTakesNothingFromALayer) {
  const Model m{"two layers", 2, {0, 0}};
  const auto looks = [](uint32_t head, uint32_t position, uint32_t n_keys) {
    std::vector<float> logits = restless(head, position, n_keys);
    for (float& x : logits) x *= head >= 2 ? .8f : .5f;
    return logits;
  };
  std::vector<Tokens> before(m.n_heads());
  for (const double share : {.2, .3, .4, .5, .6, .7, .8, .9}) {
    FakeSession s(must(make_policy("auto", m.shape(), {share, slots_for_share(m.shape(), share)}, {{"tail", "16"}, {"alpha", "0"}})),
                  m.n_heads(), kGroup, m.n_context, looks);
    s.settle(380);
    for (uint32_t head = 0; head < m.n_heads(); ++head) {
      const Tokens& now = s.selected(head);
      EXPECT_TRUE(std::includes(now.begin(), now.end(), before[head].begin(), before[head].end())) << share << ", head " << head;
      before[head] = now;
    }
  }
}

// Each policy on each shape with two or three of the budgets, on neighbouring shapes with the others.
TEST(PolicyInvariants, HoldOverBudgetsAndShapes) {
  constexpr double kShares[] = {.2, .4, .6, .8, 1.0};
  int n_runs = 0, n_again = 0;
  uint64_t n_refills = 0, n_pages = 0, n_corrected = 0, n_chunks = 0;
  for (const Model& m : kModels)
    for (const Candidate& c : kPolicies)
      for (size_t at = static_cast<size_t>(&m - kModels + (&c - kPolicies)) % 2; at < std::size(kShares); at += 2) {
        const double share = kShares[at];
        SCOPED_TRACE(describe(c, m, share));
        const uint64_t max_slots = slots_for_share(m.shape(), share);
        auto made = make_policy(c.policy, m.shape(), {share, max_slots}, c.options);
        if (!made.ok()) {
          EXPECT_NE(std::string(made.status().message()).find("must be at least"), std::string::npos) << made.status().message();
          // A budget may be too small for SyncKV's one full head of each layer, for the full share that HeteroCache and DuoAttention are
          // asked to keep, and for exempt layers.
          const double n_layers = static_cast<double>(std::count(m.window.begin(), m.window.end(), 0));
          const double full = std::string(c.policy) == "synckv"   ? 1.0 / m.n_kv_heads
                              : chooses_once(c)                   ? 1 / n_layers
                              : std::string(c.policy) == "omnikv" ? 1 / n_layers
                              : has_pages(c)                      ? .3 + std::stod(option(c, "first_layers", "0")) / n_layers
                              : has_chunks(c)                     ? .45  // 32 of 400 tokens, landmarks and low-rank keys
                                                                  : .3;
          EXPECT_TRUE(share < 1 && share < full + .02) << made.status().message();
          continue;
        }
        ++n_runs;
        FakeSession session(std::move(made).value(), m.n_heads(), kGroup, m.n_context, restless);
        const bool streaming = is_one_of(c, {"streaming", "duoattention", "razorattention", "h2o"});  // slots are reused
        const bool paged = has_pages(c) || has_chunks(c);
        session.similarity = likeness, session.page_cosine = nearness;
        std::map<uint32_t, FakeSession::AskedPages> latest;  // by head
        for (const uint32_t n_prompt : {1u, 20u, 300u}) {
          session.forget();
          session.settle(n_prompt);
          check_settled(session, c, m, max_slots, share);
          if (HasFatalFailure()) return;
        }
        for (uint32_t t = 0; t < 45; ++t) {
          const bool again = session.prepare();
          if (again) {
            ++n_again;
            EXPECT_LT(share, 1.0) << "nothing is ever given up";
            check_settled(session, c, m, max_slots, share);
          }
          // Resident pages are those that were asked for last: after the step before or, where a query has changed, within this step.
          const auto note = [&] {
            for (const FakeSession::AskedPages& asked : session.asked_pages())
              if (way_of(c).all) latest[asked.query.head] = asked;
            session.forget();
          };
          const auto check = [&](uint32_t head) {
            ASSERT_EQ(as_set(session.held()[head]), best_pages(session, c, m, latest[head], session.n_tokens()))
                << "step " << t << ", head " << head;
          };
          note();
          for (const auto& [head, asked] : latest)
            if (!has_chunks(c)) check(head);
          session.ask_layers(static_cast<uint32_t>(m.window.size()));
          for (const FakeSession::AskedPages& asked : session.asked_pages()) {
            const uint32_t head = asked.query.head;
            if (!way_of(c).all) continue;  // see below
            latest[head] = asked;
            if (has_chunks(c)) {
              ASSERT_EQ(as_set(session.held()[head]), best_chunks(session, asked.query, session.n_tokens()))
                  << "step " << t << ", head " << head;
              ++n_chunks;
              continue;
            }
            const double tau = std::stod(option(c, "tau", std::string(c.policy) == "freekv" ? ".8" : "2"));
            if (likeness(head / m.n_kv_heads, head % m.n_kv_heads, session.n_tokens()) < tau) check(head), ++n_corrected;
          }
          n_pages += latest.size();
          session.forget();
          session.commit();
          for (uint32_t head = 0; head < session.n_heads() && !HasFatalFailure(); ++head) {
            const Tokens& held = session.held()[head];
            ASSERT_LE(held.size(), session.capacity(head));
            ASSERT_NE(std::find(held.begin(), held.end(), session.n_tokens() - 1), held.end()) << "the newest token";
            // Generated tokens lie after the prompt's slots and stay there.
            const uint32_t first_generated = session.n_tokens() - static_cast<uint32_t>(held.size() - session.n_selected(head));
            for (size_t i = session.n_selected(head); !streaming && !paged && !m.windowed(head) && i < held.size(); ++i)
              ASSERT_EQ(held[i], first_generated + (i - session.n_selected(head))) << "head " << head;
            // A whole budget keeps every token in its slot.
            for (size_t i = 0; share >= 1.0 && !m.windowed(head) && i < held.size(); ++i) ASSERT_EQ(held[i], i);
          }
          if (HasFatalFailure()) return;
        }
        EXPECT_TRUE(share < 1.0 || session.n_refills() == 0);
        n_refills += session.n_refills();
      }
  EXPECT_GE(n_runs, 450);
  EXPECT_GE(n_again, 300);
  EXPECT_GE(n_refills, 300u);
  EXPECT_GE(n_pages, 10000u);
  EXPECT_GE(n_corrected, 3000u);
  EXPECT_GE(n_chunks, 10000u);
}

// ---- Refusals ----

TEST(PolicyInvariants, TheStatedLeastBudgetIsAcceptedAndLessIsNot) {
  for (const Model& base : {kModels[0], kModels[1], kModels[2]})
    for (const uint32_t n_context : {100u, 333u, 400u, 4096u, 100000u}) {
      Model m = base;
      m.n_context = n_context;
      for (const char* representatives : {"1", "2", "3"}) {
        const Options options = {{"representatives", representatives}};
        const auto made = [&](double share) {
          return make_policy("synckv", m.shape(), {share, slots_for_share(m.shape(), share)}, options);
        };
        const auto refused = made(.001);
        if (refused.ok()) {
          EXPECT_LE(n_context, 400u);  // where kMinSlots, 64 a head, are enough
          continue;
        }
        const std::string message = refused.status().message();
        const size_t at = message.find("must be at least ");
        ASSERT_NE(at, std::string::npos) << message;
        const double least = std::stod(message.substr(at + 17));
        EXPECT_NEAR(least, std::stod(representatives) / m.n_kv_heads, .03) << message;
        EXPECT_TRUE(made(least).ok()) << m.name << " " << n_context << ": " << message;
        EXPECT_FALSE(made(least - .00101).ok()) << m.name << " " << n_context << ": " << message;
      }
    }
}

TEST(PolicyInvariants, HostileOptionsAreRefusedByName) {
  std::map<std::string, std::vector<std::string>> names;  // as the table has them
  for (const PolicyRow& row : policy_rows())
    for (const OptionRow& o : row.options) names[row.name].emplace_back(o.name);
  ASSERT_GE(names.size(), 9u);
  const Model& m = kModels[2];
  const auto message = [&](const std::string& policy, const Options& options) {
    const auto made = make_policy(policy, m.shape(), {.6, slots_for_share(m.shape(), .6)}, options);
    return made.ok() ? std::string() : std::string(made.status().message());
  };
  for (const auto& [policy, options] : names) {
    for (const std::string& name : options) {
      const std::string wrong = name.substr(0, name.size() - 1) + "x";
      EXPECT_NE(message(policy, {{wrong, "1"}}).find("did you mean '"), std::string::npos) << wrong;
      EXPECT_NE(message(policy, {{wrong, "1"}}).find("has no option '" + wrong + "'"), std::string::npos) << wrong;
      for (const std::string& bad : {std::string(), std::string("-1"), std::string("1e3"), std::string("nan"), std::string(" 1"),
                                     std::string("0x1"), std::string("1,5"), std::string("4294967296"), std::string("1\n"),
                                     std::string("%s%n"), std::string(100000, '9'), std::string("\xff\xfe"), std::string(1, '\0')}) {
        const std::string text = message(policy, {{name, bad}});
        EXPECT_NE(text.find("policy option " + policy + "." + name), std::string::npos)
            << name << " '" << bad.substr(0, 20) << "': " << text;
        EXPECT_LT(text.size(), 300u);
      }
    }
    const std::string far(100000, 'z');
    EXPECT_NE(message(policy, {{far, "1"}}).find("has no option"), std::string::npos);
    EXPECT_EQ(message(policy, {{far, "1"}}).find("did you mean"), std::string::npos);
    EXPECT_NE(message(policy.substr(1), {}).find("did you mean '" + policy + "'"), std::string::npos);
  }
  EXPECT_NE(message("heterocache", {{"pool", "4"}}).find("expected an odd number"), std::string::npos);
  EXPECT_NE(message("synckv", {{"pool", "2"}}).find("expected an odd number"), std::string::npos);
  EXPECT_NE(message("synckv", {{"representatives", "9"}}).find("9 representatives among 8 heads"), std::string::npos);
  EXPECT_NE(message("heterocache", {{"block", "3"}, {"visible", "4"}}).find("from 1 to 3"), std::string::npos);
  EXPECT_NE(message("snapkv", {{"width", "6"}}).find("expected an odd number"), std::string::npos);
  EXPECT_NE(message("cake", {{"tau_1", "0.05"}}).find("from 0.1 to 10"), std::string::npos);
}

TEST(PolicyInvariants, PagesShrinkWhereTheBudgetHoldsFew) {
  Model m = kModels[0];
  const auto page = [&](const char* policy, uint32_t n_context, const Options& options) {
    m.n_context = n_context;
    return must(make_policy(policy, m.shape(), {.5, slots_for_share(m.shape(), .5)}, options))->digests().page_tokens;
  };
  EXPECT_EQ(page("freekv", 4096, {}), 32u);
  EXPECT_EQ(page("freekv", 800, {}), 16u);
  EXPECT_EQ(page("freekv", 300, {}), 8u);
  EXPECT_EQ(page("freekv", 800, {{"page", "64"}}), 64u);
  EXPECT_EQ(page("quest", 4096, {}), 16u);  // its own size
  EXPECT_EQ(page("quest", 4096, {{"page", "auto"}}), 32u);
  EXPECT_EQ(page("quest", 300, {{"page", "auto"}}), 8u);
}

// ---- The table ----

// Every row belongs to a policy, and giving a default explicitly changes nothing.
TEST(PolicyInvariants, TheTableTellsTheDefaults) {
  const Model& m = kModels[0];
  const auto profile = std::make_shared<HeadProfile>();  // for policies that refuse a session without one
  profile->top_k = 1;
  for (uint32_t l = 0; l < m.shape().n_layers; ++l) {
    const size_t n = m.shape().n_kv_heads;
    ProfileLayer layer;
    layer.roles.roles.assign(n, Role::anchor), layer.roles.pivot_of.assign(n, kNoHead);
    layer.stability.assign(n, .5), layer.echo.assign(n, .1);
    for (size_t h = 0; h < n; ++h) layer.induction.push_back(.01 * static_cast<double>((7 * h + 3 * l) % 50));
    profile->layers.push_back(layer);
  }
  must(write_profile(*profile));
  const auto kept = [&](const char* policy, const Options& options) {
    const bool asks = policy == std::string("duoattention") || policy == std::string("razorattention");
    Shape shape = m.shape();
    shape.slot_bytes = shape.digest_bytes = 256, shape.head_dim = 64;  // F16
    FakeSession s(must(make_policy(policy, shape, {.5, slots_for_share(shape, .5)}, options, asks ? profile : nullptr)), m.n_heads(),
                  kGroup, m.n_context, restless);
    s.settle(250);
    for (int t = 0; t < 12; ++t) s.step();
    return s.held();
  };
  const char* before = "";
  for (const PolicyRow& row : policy_rows()) {
    EXPECT_LT(std::string(before), row.name) << "in the order of names";
    before = row.name;
    for (const char* text : {row.method, row.score, row.allocate, row.keep, row.refresh, row.device, row.link, row.page})
      EXPECT_NE(std::string(text), "") << row.name;
    if (row.name == std::string("full")) continue;
    const std::vector<Tokens> expected = kept(row.name, {});
    Options given;
    for (const OptionRow& o : row.options)
      if (o.value[0] != '(') given.emplace_back(o.name, o.value);
    EXPECT_EQ(kept(row.name, given), expected) << row.name;
    for (const auto& [name, value] : given) EXPECT_EQ(kept(row.name, {{name, value}}), expected) << row.name << "." << name;
  }
}

}  // namespace
}  // namespace orrery::policy::invariants_test
