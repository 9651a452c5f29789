// What holds for every policy, whatever it decides: on random attention, over budgets and shapes, in whole runs.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "tests/support/random_blocks.h"
#include "tests/unit/policy_fake_session.h"

namespace orrery::policy {
namespace {

constexpr uint32_t kGroup = 2;

float uniform(std::initializer_list<uint64_t> parts) {
  uint64_t h = 0x5EED;
  for (const uint64_t part : parts) h = testing::Random(h ^ part).bits();
  return static_cast<float>(h >> 40) * 0x1p-24f;
}

// Heads of a kind agree on topics, which move on; each has likings of its own and some noise.
std::vector<float> restless(uint32_t head, uint32_t position, uint32_t n_keys) {
  constexpr uint32_t kMostKeys = 400;
  static std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows;   // of all keys: they are asked for again and again
  std::vector<float>& row = rows[{head, position}];
  for (uint32_t q = 0; row.size() < size_t{kGroup} * kMostKeys; ++q)
    for (uint32_t key = 0; key < kMostKeys; ++key)
      row.push_back(6 * uniform({1, head % 3, (position + 7 * head) / (9 + 4 * (head % 3)), key}) + 3 * uniform({2, head, key}) +
                    uniform({3, head, q, position, key}));
  std::vector<float> out;
  for (uint32_t q = 0; q < kGroup; ++q) out.insert(out.end(), row.begin() + q * kMostKeys, row.begin() + q * kMostKeys + n_keys);
  return out;
}

// How near a page's keys are to their mean; some pages equally.
float nearness(uint32_t head, uint32_t page) { return std::floor(40 * uniform({9, head, page})) / 40; }

// Of a layer's query in a KV head with the one before.
float likeness(uint32_t layer, uint32_t head, uint32_t position) { return 1.0f - .5f * uniform({7, layer, head, position}) * uniform({8, layer, position}); }

struct Model {
  const char* name;
  uint32_t n_kv_heads;
  std::vector<int32_t> window;   // (n_layers)
  uint32_t n_context = 400;
  Shape shape() const { return {static_cast<uint32_t>(window.size()), n_kv_heads, n_context, window}; }
  uint32_t n_heads() const { return static_cast<uint32_t>(window.size()) * n_kv_heads; }
  bool windowed(uint32_t head) const { return window[head / n_kv_heads] > 0; }
};
const Model kModels[] = {{"plain", 4, {0, 0, 0}},      {"mixed", 4, {0, 24, 0}},  {"wide", 8, {0, 0}},
                         {"single", 1, {0}},           {"windows", 2, {16, 16}},  {"wider window than context", 2, {0, 500}}};

struct Candidate {
  const char* policy;
  Options options;
};
const Candidate kPolicies[] = {
    {"streaming", {}},
    {"streaming", {{"sinks", "0"}}},
    {"heterocache", {}},
    {"heterocache", {{"full_share", "0.3"}, {"tau_sim", "0.3"}, {"tau_drift", "0.9"}, {"reduce", "max"}}},
    {"heterocache", {{"full_share", "0.3"}, {"tau_sim", "0.3"}, {"tau_drift", "1"}, {"stagger", "1"}, {"visible", "5"}, {"tail", "23"}}},
    {"heterocache", {{"tau_sim", "0.3"}, {"surplus", "thresholds"}, {"block", "3"}, {"refresh", "0"}}},
    {"synckv", {}},
    {"synckv", {{"representatives", "1"}, {"steps", "4"}, {"visible", "3"}, {"rho", "0.2"}, {"tail", "37"}}},
    {"synckv", {{"representatives", "1"}, {"rho", "1"}}},
    {"snapkv", {}},
    {"snapkv", {{"window", "3"}, {"pool", "max"}, {"width", "7"}, {"tail", "19"}, {"first_layers", "1"}}},
    {"pyramidkv", {}},
    {"adakv", {}},
    {"adakv", {{"safeguard", "protect"}, {"alpha", "0.7"}, {"window", "6"}, {"layers", "preference"}}},
    {"adapyramid", {{"alpha", "0"}}},
    {"cake", {}},
    {"cake", {{"heads", "adaptive"}, {"pool", "none"}, {"tail", "31"}}},
    {"duoattention", {}},
    {"duoattention", {{"full_share", "0.3"}, {"sinks", "4"}, {"window", "5"}}},
    {"freekv", {}},
    {"freekv", {{"page", "8"}, {"sinks", "0"}, {"window", "20"}, {"first_layers", "1"}}},
    {"freekv", {{"page", "4"}, {"sinks", "12"}, {"refresh", "0"}}},
    {"freekv", {{"page", "4"}, {"tau", "0"}}},
    {"freekv", {{"page", "8"}, {"score", "raw"}}},
    {"quest", {}},
    {"quest", {{"page", "8"}, {"sinks", "8"}, {"tau", "0.9"}}},
    {"quest", {{"page", "4"}, {"set", "layer"}}},
    {"arkvale", {}},
    {"arkvale", {{"page", "4"}, {"tau", "0.9"}}},
    {"arkvale", {{"page", "8"}, {"score", "softmax"}, {"set", "head"}, {"sinks", "0"}, {"asked", "0.3"}}},
    {"arkvale", {{"page", "8"}, {"asked", "1"}}},
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
// The methods that choose by a window of queries and never refresh, and those whose heads hold whole pages.
bool chooses_once(const Candidate& c) { return is_one_of(c, {"snapkv", "pyramidkv", "adakv", "adapyramid", "cake"}); }
bool has_pages(const Candidate& c) { return is_one_of(c, {"freekv", "quest", "arkvale", "raas"}); }
bool has_chunks(const Candidate& c) { return std::string(c.policy).substr(0, 8) == "shadowkv"; }
std::string option(const Candidate& c, const char* name, const char* otherwise) {
  for (const auto& [key, value] : c.options)
    if (key == name) return value;
  return otherwise;
}

// How pages are scored, and whether all that is there is asked for at every step.
struct PageWay {
  bool raw, layer, all;
};
PageWay way_of(const Candidate& c) {
  const bool ark = std::string(c.policy) == "arkvale", raas = std::string(c.policy) == "raas";
  return {option(c, "score", ark ? "raw" : "softmax") == "raw", option(c, "set", ark ? "layer" : "head") == "layer",
          !raas && std::stod(option(c, "asked", ark ? ".5" : "1")) >= 1};
}

std::string describe(const Candidate& c, const Model& m, double share) {
  std::string text = std::string(c.policy) + " on " + m.name + " at " + std::to_string(share);
  for (const auto& [key, value] : c.options) text += " " + key + "=" + value;
  return text;
}

// The best tokens by a head's last query, by sorting everything.
std::set<uint32_t> best_of(uint32_t head, uint32_t n, size_t k, const ScoreRule& rule) {
  std::vector<float> scores(n);
  ScoreScratch scratch;
  const Status status = head_scores(restless(head, n - 1, n), kGroup, rule, &scratch, scores);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  return std::set<uint32_t>(order.begin(), order.begin() + static_cast<ptrdiff_t>(k));
}

// The best tokens before the window, by sorting everything, and the window: w queries, the mean of their rows and query heads.
std::set<uint32_t> best_of_window(uint32_t head, uint32_t n, size_t n_kept, uint32_t w, Pooling pooling, uint32_t width, bool variance) {
  const uint32_t n_old = n - w;
  std::vector<std::vector<double>> rows;   // (w, group) of old keys
  for (uint32_t p = n_old; p < n; ++p) {
    const std::vector<float> logits = restless(head, p, p + 1);
    for (uint32_t q = 0; q < kGroup; ++q) {
      rows.emplace_back();
      double sum = 0;
      for (uint32_t key = 0; key <= p; ++key) sum += std::exp(static_cast<double>(logits[q * (p + 1) + key]));
      for (uint32_t key = 0; key < n_old; ++key) rows.back().push_back(std::exp(static_cast<double>(logits[q * (p + 1) + key])) / sum);
    }
  }
  std::vector<double> scores(n_old);
  for (uint32_t q = 0; q < kGroup; ++q) {
    std::vector<double> x(n_old);
    for (uint32_t key = 0; key < n_old; ++key) {
      double mean = 0, squares = 0;
      for (uint32_t i = 0; i < w; ++i) mean += rows[i * kGroup + q][key] / w;
      for (uint32_t i = 0; i < w; ++i) squares += std::pow(rows[i * kGroup + q][key] - mean, 2);
      x[key] = mean + (variance && w > 1 ? 200 * squares / (w - 1) : 0);
    }
    if (!variance) {   // mean, then pool
      for (uint32_t key = 0; key < n_old; ++key) scores[key] += x[key] / kGroup;
      x = scores;
      if (q + 1 < kGroup) continue;
      std::fill(scores.begin(), scores.end(), 0.0);
    }
    for (int64_t key = 0; key < int64_t{n_old}; ++key) {
      double y = 0;
      const int64_t half = pooling == Pooling::none ? 0 : width / 2;
      for (int64_t j = std::max<int64_t>(key - half, 0); j <= std::min<int64_t>(key + half, int64_t{n_old} - 1); ++j)
        y = pooling == Pooling::max ? std::max(y, x[static_cast<size_t>(j)]) : y + x[static_cast<size_t>(j)];
      scores[static_cast<size_t>(key)] += y;
    }
  }
  std::vector<uint32_t> order(n_old);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b] * (1 + 1e-12); });
  std::set<uint32_t> kept(order.begin(), order.begin() + static_cast<ptrdiff_t>(n_kept - w));
  for (uint32_t p = n_old; p < n; ++p) kept.insert(p);
  return kept;
}

// Of pages first .. first + n - 1 of a head, by a position's query: a page's logit is its best key's.
std::vector<double> page_scores(const PageWay& way, const Model& m, uint32_t head, uint32_t position, uint32_t page, uint32_t first, uint32_t n) {
  std::vector<double> scores(n);
  const uint32_t begin = way.layer ? head / m.n_kv_heads * m.n_kv_heads : head;
  for (uint32_t h = begin; h < (way.layer ? begin + m.n_kv_heads : head + 1); ++h) {
    const std::vector<float> logits = restless(h, position, position + 1);
    for (uint32_t q = 0; q < kGroup; ++q) {
      std::vector<double> best(n, -1e30);
      for (uint32_t i = 0; i < n * page; ++i)
        best[i / page] = std::max(best[i / page], static_cast<double>(logits[q * (position + 1) + first * page + i]));
      double sum = 0;
      for (const double x : best) sum += std::exp(x);
      for (uint32_t i = 0; i < n; ++i) scores[i] += way.raw ? best[i] : std::exp(best[i]) / sum;
    }
  }
  return scores;
}
// Best first, up to what floats round.
std::vector<uint32_t> in_order(const std::vector<double>& scores) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b] + 1e-7 * std::fabs(scores[b]); });
  return order;
}

// The best pages by a position's query, as the policy has asked for them last, those before and behind, and what is of no whole page
// yet.
std::set<uint32_t> best_pages(const FakeSession& s, const Candidate& c, const Model& m, const FakeSession::AskedPages& when, uint32_t n) {
  const PageQuery& asked = when.query;
  const uint32_t page = s.page_tokens(), n_last = when.n_tokens / page - asked.first_page - asked.n_pages;
  const uint32_t k = asked.k > 0 ? asked.k : s.capacity(asked.head) / page - 1 - asked.first_page - n_last;   // all that there is room for
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

// The best tokens by the maximum over all query heads of a layer.
std::set<uint32_t> best_of_layer(const Model& m, uint32_t layer, uint32_t position, uint32_t n, size_t k) {
  std::vector<float> scores(n, -INFINITY);
  for (uint32_t head = layer * m.n_kv_heads; head < (layer + 1) * m.n_kv_heads; ++head) {
    const std::vector<float> logits = restless(head, position, n);
    for (size_t i = 0; i < logits.size(); ++i) scores[i % n] = std::max(scores[i % n], logits[i]);
  }
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  return std::set<uint32_t>(order.begin(), order.begin() + static_cast<ptrdiff_t>(k));
}

// ShadowKV's: the best chunks by a position's query among those that are no outliers, the outliers, and what is not to be chosen yet.
std::set<uint32_t> best_chunks(const FakeSession& s, const PageQuery& asked, uint32_t n) {
  const uint32_t chunk = s.page_tokens(), n_outliers = (static_cast<uint32_t>(s.held()[asked.head].size()) - (n - asked.n_pages * chunk)) / chunk - asked.k;
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
  const auto add = [&](uint32_t c) { for (uint32_t i = 0; i < chunk; ++i) kept.insert(c * chunk + i); };
  for (uint32_t i = 0; i < asked.k; ++i) add(order[i]);
  for (const uint32_t c : outliers) add(c);
  for (uint32_t t = asked.n_pages * chunk; t < n; ++t) kept.insert(t);
  return kept;
}

std::set<uint32_t> as_set(const Tokens& tokens) { return std::set<uint32_t>(tokens.begin(), tokens.end()); }

// Capacities, and that what a head keeps is the best of its own or, in SyncKV, of a head of its layer that keeps all.
void check_settled(const FakeSession& s, const Candidate& c, const Model& m, uint64_t max_slots, double share) {
  const uint32_t n = s.n_tokens();
  ASSERT_LE(s.total_capacity(), max_slots);
  const bool hetero = std::string(c.policy) == "heterocache", sync = std::string(c.policy) == "synckv", omni = std::string(c.policy) == "omnikv";
  const bool max = !c.options.empty() && c.options.back() == std::pair<std::string, std::string>{"reduce", "max"};
  const ScoreRule rule = hetero ? ScoreRule{max ? GroupReduce::max : GroupReduce::mean, Pooling::avg, 5, true}
                                : ScoreRule{GroupReduce::max, Pooling::none, 1, true};
  for (uint32_t head = 0; head < s.n_heads(); ++head) {
    ASSERT_GE(s.n_selected(head), 1u) << head;
    const std::set<uint32_t> kept = as_set(s.selected(head));
    if (m.windowed(head)) {
      const uint32_t window = std::min<uint32_t>(static_cast<uint32_t>(m.window[head / m.n_kv_heads]), m.n_context);
      ASSERT_EQ(s.capacity(head), window);
      ASSERT_EQ(kept.size(), std::min(window, n));
      ASSERT_EQ(*kept.begin(), n - std::min(window, n));   // the last ones: they are unique
      continue;
    }
    // The same room for an answer in every head, in those that keep everything too.
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
        if (asked.query.head != head || (asked.query.k == 0 && std::string(c.policy) == "raas")) continue;   // it looks at all besides
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
      const auto w = static_cast<uint32_t>(std::min<uint64_t>({std::stoul(option(c, "window", "32")), n, std::max<uint64_t>(total / n_compressed / 2, 1)}));
      const bool variance = std::string(c.policy) == "cake", ada = std::string(c.policy).substr(0, 3) == "ada";
      const std::string pool = option(c, "pool", ada ? "max" : "avg");
      const auto width = static_cast<uint32_t>(std::stoul(option(c, "width", ada ? "7" : "5")));
      ASSERT_GE(kept.size(), w) << head;
      ASSERT_EQ(kept, best_of_window(head, n, kept.size(), w, pool == "max" ? Pooling::max : pool == "avg" ? Pooling::avg : Pooling::none, width,
                                     variance)) << head;
    }
    if (hetero) {
      ASSERT_EQ(kept, best_of(head, n, kept.size(), rule)) << head;
    } else if (omni) {
      bool found = false;
      for (uint32_t layer = 0; layer < head / m.n_kv_heads && !found; ++layer)
        found = !m.windowed(layer * m.n_kv_heads) && s.n_selected(layer * m.n_kv_heads) == n && kept == best_of_layer(m, layer, n - 1, n, kept.size());
      ASSERT_TRUE(found) << head;
    } else if (sync) {
      bool found = false;
      const uint32_t first = head / m.n_kv_heads * m.n_kv_heads;
      for (uint32_t r = first; r < first + m.n_kv_heads && !found; ++r)
        found = s.n_selected(r) == n && kept == best_of(r, n, kept.size(), rule);
      ASSERT_TRUE(found) << head;
    }
  }
}

TEST(PolicyInvariants, HoldOverBudgetsAndShapes) {
  int n_runs = 0, n_again = 0;
  uint64_t n_refills = 0, n_pages = 0, n_corrected = 0, n_chunks = 0;
  for (const Model& m : kModels)
    for (const Candidate& c : kPolicies)
      for (const double share : {.2, .4, .6, .8, 1.0}) {
        SCOPED_TRACE(describe(c, m, share));
        const uint64_t max_slots = slots_for_share(m.shape(), share);
        auto made = make_policy(c.policy, m.shape(), {share, max_slots}, c.options);
        if (!made.ok()) {
          EXPECT_NE(std::string(made.status().message()).find("must be at least"), std::string::npos) << made.status().message();
          // SyncKV keeps one head of a layer at least, HeteroCache and DuoAttention the share they are asked to keep, and exempt layers
          // are all of what is not enough.
          const double n_layers = static_cast<double>(std::count(m.window.begin(), m.window.end(), 0));
          const double full = std::string(c.policy) == "synckv" ? 1.0 / m.n_kv_heads
                              : chooses_once(c)               ? 1 / n_layers
                              : std::string(c.policy) == "omnikv" ? 1 / n_layers
                              : has_pages(c) ? .3 + std::stod(option(c, "first_layers", "0")) / n_layers
                              : has_chunks(c) ? .45   // 32 of 400 tokens, and what finds and rebuilds the others
                                                                  : .3;
          EXPECT_TRUE(share < 1 && share < full + .02) << made.status().message();
          continue;
        }
        ++n_runs;
        FakeSession session(std::move(made).value(), m.n_heads(), kGroup, m.n_context, restless);
        const bool streaming = std::string(c.policy) == "streaming" || std::string(c.policy) == "duoattention";   // rings
        const bool paged = has_pages(c) || has_chunks(c);
        session.similarity = likeness, session.page_cosine = nearness;
        std::map<uint32_t, FakeSession::AskedPages> latest;   // by head
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
          // Pages are those that were asked for last, where all are: behind the step before, or, where a query has turned, before this one's.
          const auto note = [&] {
            for (const FakeSession::AskedPages& asked : session.asked_pages())
              if (way_of(c).all) latest[asked.query.head] = asked;
            session.forget();
          };
          const auto check = [&](uint32_t head) {
            ASSERT_EQ(as_set(session.held()[head]), best_pages(session, c, m, latest[head], session.n_tokens())) << "step " << t << ", head " << head;
          };
          note();
          for (const auto& [head, asked] : latest)
            if (!has_chunks(c)) check(head);
          session.ask_layers(static_cast<uint32_t>(m.window.size()));
          for (const FakeSession::AskedPages& asked : session.asked_pages()) {
            const uint32_t head = asked.query.head;
            if (!way_of(c).all) continue;   // see below
            latest[head] = asked;
            if (has_chunks(c)) {
              ASSERT_EQ(as_set(session.held()[head]), best_chunks(session, asked.query, session.n_tokens())) << "step " << t << ", head " << head;
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
            // Generated tokens lie behind the prompt's and stay there.
            const uint32_t first_generated = session.n_tokens() - static_cast<uint32_t>(held.size() - session.n_selected(head));
            for (size_t i = session.n_selected(head); !streaming && !paged && !m.windowed(head) && i < held.size(); ++i)
              ASSERT_EQ(held[i], first_generated + (i - session.n_selected(head))) << "head " << head;
            // A whole budget keeps everything where it is.
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

// ---- When things change ----

// The steps, counted from 1, before which a head's prompt tokens were others than before the step before.
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

FakeSession open(const char* policy, const Model& m, double share, const Options& options) {
  return FakeSession(must(make_policy(policy, m.shape(), {share, slots_for_share(m.shape(), share)}, options)), m.n_heads(),
                     kGroup, m.n_context, restless);
}

TEST(PolicyInvariants, SyncKvsDynamicTokensChangeOnTimeAndItsStaticOnesNever) {
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
        const uint32_t n = s.n_selected(head), n_static = n - n / 2;   // k_dyn = floor((1 - rho) k)
        if (n == 200) continue;
        for (uint32_t i = 0; i < n_static; ++i) EXPECT_EQ(s.held()[head][i], first[head][i]);
      }
    }
}

// Two stars and a loner, the same in every layer up to noise: a hub looks where its three or two spokes look, each at a
// third of it and at places of its own. Nothing ties.
std::vector<float> stars(uint32_t layer, uint32_t h, uint32_t position, uint32_t n_keys) {
  static const uint32_t kBlocks[8][3] = {{0, 1, 2}, {0, 3, 4}, {1, 5, 6}, {2, 7, 8}, {9, 10, 11}, {9, 12, 13}, {10, 14, 15}, {16, 17, 18}};
  const uint32_t shift = position >= 410 ? 200 : 0;   // in the answer all look elsewhere
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

TEST(PolicyInvariants, HeteroCachesSatellitesChangeOnTimeAndItsAnchorsNever) {
  for (const bool stagger : {false, true})
    for (const uint32_t visible : {1u, 4u}) {
      FakeSession s(must(make_policy("heterocache", kStars.shape(), {.5, slots_for_share(kStars.shape(), .5)},
                                     {{"full_share", "0.25"}, {"tau_sim", "0.27"}, {"tau_drift", "1"}, {"block", "4"}, {"top_k", "60"},
                                      {"tail", "41"}, {"visible", std::to_string(visible)}, {"stagger", stagger ? "1" : "0"}})),
                    16, kGroup, 600, [](uint32_t head, uint32_t position, uint32_t n_keys) {
                      return stars(head / 8, head % 8, position, n_keys);
                    });
      s.settle(400);
      s.forget();
      const auto seen = changes(&s, 40);
      // Who follows whom, and in which place the pivots come.
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

// Where a step asks for a part of what a head holds: what is missing takes the place of the lowest scores, and the others stay.
TEST(PolicyInvariants, PagesThatAreNotAskedForStayByTheirScores) {
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
    std::map<uint32_t, std::vector<double>> scores;   // by head: of every page, the last
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
        ASSERT_EQ(q.position, s.n_tokens());   // by the step's own query
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
        // Of what was there, the best stay.
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
      // A page that is complete takes the place of the lowest, of those that were not asked for; the one that leaves the window stays.
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

// Every step a filter finds what the layers behind it hold in the same step; the layer behind it and those before the first are whole.
TEST(PolicyInvariants, OmniKvsLayersHoldWhatTheirFilterFinds) {
  const Model deep{"deep", 2, {0, 0, 24, 0, 0, 0, 0, 0, 0}};   // the third has a window
  struct Case {
    Options options;
    double share;
    std::vector<uint32_t> filter_of;   // by layer; its own: it holds everything, or its window
  };
  for (const Case& c : {Case{{{"filters", "1+5"}}, .9, {0, 1, 2, 3, 1, 1, 6, 7, 6}},   // as they were with more layers
                        Case{{}, .9, {0, 1, 2, 3, 1, 1, 1, 1, 1}},          // the second has no room
                        Case{{}, .6, {0, 1, 2, 0, 0, 0, 0, 0, 0}},          // nor has the first where it should be
                        Case{{}, .4, {0, 0, 2, 0, 0, 0, 0, 0, 0}},          // nor the layer behind
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
        ASSERT_EQ(as_set(Tokens(held.begin(), held.begin() + static_cast<ptrdiff_t>(k))), best_of_layer(deep, filter, s.n_tokens(), n_prompt, k))
            << "step " << t << ", layer " << layer;
        for (uint32_t i = 0; i < t; ++i) ASSERT_EQ(held[k + i], n_prompt + i);
      }
      s.commit();
    }
    EXPECT_GT(s.n_refills(), 20u);
  }
}

// 2, 8 and 18 of 32, and what that is elsewhere: the layers up to the first, each filter, each one behind.
TEST(PolicyInvariants, OmniKvsFiltersSuitTheModelsDepth) {
  const std::vector<int32_t> none(48, 0);
  for (const auto& [n_layers, n_dense] : {std::pair(32u, 2u + 6), std::pair(48u, 3u + 6), std::pair(22u, 1u + 6), std::pair(14u, 1u + 6),
                                          std::pair(12u, 1u + 4), std::pair(8u, 1u + 2), std::pair(4u, 0u + 2), std::pair(3u, 0u + 1), std::pair(2u, 0u + 1)}) {
    const Shape shape{n_layers, 2, 4096, {none.data(), n_layers}};
    const double share = n_layers > 3 ? .9999 : .9;
    const auto policy = must(make_policy("omnikv", shape, {share, slots_for_share(shape, n_layers > 3 ? 1 : share)}, {}));
    EXPECT_EQ(policy->n_full_heads(), 2 * n_dense) << n_layers << " layers";
  }
}

// Which pages are there when each has the time of the last step that looked at it.
TEST(PolicyInvariants, RaasGivesUpThePageThatWasNotLookedAtForTheLongest) {
  for (const Options& options : {Options{{"page", "4"}, {"threshold", "0.02"}}, Options{{"page", "4"}, {"stamp", "top"}, {"top", "0.3"}, {"sinks", "0"}}}) {
    const Candidate c{"raas", options};
    const Model& m = kModels[0];
    const uint32_t page = 4;
    const bool top = option(c, "stamp", "threshold") == "top";
    FakeSession s = open(c.policy, m, .4, c.options);
    s.settle(300);
    const uint32_t n_first = s.asked_pages()[0].query.first_page, n_last = 75 - n_first - s.asked_pages()[0].query.n_pages;
    EXPECT_EQ(n_first > 0, !top);
    std::map<uint32_t, std::map<uint32_t, uint32_t>> times;   // by head, of the pages that are there
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
        for (size_t i = 0; top && i < static_cast<size_t>(.3 * static_cast<double>(pages.size()) + 1e-9); ++i) looked.insert(pages[order[i]]);
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
            if (it->first >= n_first && it->first + n_last < n_pages && (oldest == times[head].end() || it->second < oldest->second)) oldest = it;
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

// Where the budget is in bytes, and holds the prompt: that stays, and the answer's pages compete.
TEST(PolicyInvariants, RaasKeepsThePromptWhereItFits) {
  const Model& m = kModels[0];
  for (const bool keep : {true, false}) {
    Options options = {{"page", "4"}, {"sinks", "4"}, {"first_layers", "0"}};
    if (keep) options.emplace_back("prompt", "keep");
    FakeSession s(must(make_policy("raas", m.shape(), {1.0, m.n_heads() * uint64_t{160 + 100}}, options)), m.n_heads(), kGroup, m.n_context, restless);
    s.settle(102);
    int n_again = 0;
    for (uint32_t t = 0; t < 290; ++t) n_again += s.step();
    EXPECT_EQ(n_again, 1);   // when all slots were taken for the first time
    bool all = true;
    for (uint32_t head = 0; head < s.n_heads(); ++head) {
      const std::set<uint32_t> held = as_set(s.held()[head]);
      for (uint32_t p = 0; p < 102; ++p) all = all && held.count(p) == 1;
    }
    EXPECT_EQ(all, keep);
  }
}

// ---- Heads in another order ----

TEST(PolicyInvariants, HeadsInAnotherOrderKeepTheSameTokens) {
  const uint32_t orders[][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}, {2, 5, 0, 7, 6, 1, 4, 3}};
  const Options options = {{"full_share", "0.25"}, {"tau_sim", "0.27"}, {"top_k", "60"}, {"tail", "40"}};
  std::vector<std::vector<Tokens>> first;   // before every step, by head in the first order
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
    for (uint32_t l = 0; l < 2; ++l) {   // the hubs hold everything
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

// ---- Refusals ----

TEST(PolicyInvariants, TheStatedLeastBudgetIsAcceptedAndLessIsNot) {
  for (const Model& base : {kModels[0], kModels[1], kModels[2]})
    for (const uint32_t n_context : {100u, 333u, 400u, 4096u, 100000u}) {
      Model m = base;
      m.n_context = n_context;
      for (const char* representatives : {"1", "2", "3"}) {
        const Options options = {{"representatives", representatives}};
        const auto made = [&](double share) { return make_policy("synckv", m.shape(), {share, slots_for_share(m.shape(), share)}, options); };
        const auto refused = made(.001);
        if (refused.ok()) {
          EXPECT_LE(n_context, 400u);   // where 64 slots a head are enough
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
  std::map<std::string, std::vector<std::string>> names;   // as the table has them
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
        EXPECT_NE(text.find("policy option " + policy + "." + name), std::string::npos) << name << " '" << bad.substr(0, 20) << "': " << text;
        EXPECT_LT(text.size(), 300u);
      }
    }
    const std::string far(100000, 'z');
    EXPECT_NE(message(policy, {{far, "1"}}).find("has no option"), std::string::npos);
    EXPECT_EQ(message(policy, {{far, "1"}}).find("did you mean"), std::string::npos);
    EXPECT_NE(message(policy.substr(1), {}).find("did you mean '" + policy + "'"), std::string::npos);
  }
  EXPECT_NE(message("heterocache", {{"pool", "4"}}).find("expected an odd number"), std::string::npos);
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
  EXPECT_EQ(page("quest", 4096, {}), 16u);   // its own size
  EXPECT_EQ(page("quest", 4096, {{"page", "auto"}}), 32u);
  EXPECT_EQ(page("quest", 300, {{"page", "auto"}}), 8u);
}

// ---- The table ----

// Every row is of a policy that is, and what it calls a default changes nothing when it is given.
TEST(PolicyInvariants, TheTableTellsTheDefaults) {
  const Model& m = kModels[0];
  const auto kept = [&](const char* policy, const Options& options) {
    FakeSession s(must(make_policy(policy, m.shape(), {.5, slots_for_share(m.shape(), .5)}, options)), m.n_heads(), kGroup, m.n_context, restless);
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
}  // namespace orrery::policy
