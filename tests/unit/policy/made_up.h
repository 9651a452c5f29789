// Made-up models and attention, for tests that hold for every policy; and the expected selections, by sorting everything.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/support/random_blocks.h"
#include "tests/unit/policy/fake_session.h"

namespace orrery::policy {

inline constexpr uint32_t kGroup = 2;

inline float uniform(std::initializer_list<uint64_t> parts) {
  uint64_t h = 0x5EED;
  for (const uint64_t part : parts) h = testing::Random(h ^ part).bits();
  return static_cast<float>(h >> 40) * 0x1p-24f;
}

// Heads of a kind attend to the same topics, which change; each adds preferences of its own and some noise.
inline std::vector<float> restless(uint32_t head, uint32_t position, uint32_t n_keys) {
  constexpr uint32_t kMostKeys = 400;
  static std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows;  // of all keys, cached
  std::vector<float>& row = rows[{head, position}];
  for (uint32_t q = 0; row.size() < size_t{kGroup} * kMostKeys; ++q)
    for (uint32_t key = 0; key < kMostKeys; ++key)
      row.push_back(6 * uniform({1, head % 3, (position + 7 * head) / (9 + 4 * (head % 3)), key}) + 3 * uniform({2, head, key}) +
                    uniform({3, head, q, position, key}));
  std::vector<float> out;
  for (uint32_t q = 0; q < kGroup; ++q) out.insert(out.end(), row.begin() + q * kMostKeys, row.begin() + q * kMostKeys + n_keys);
  return out;
}

// The least cosine of a page's keys with their mean; some pages tie.
inline float nearness(uint32_t head, uint32_t page) { return std::floor(40 * uniform({9, head, page})) / 40; }

// The cosine of a layer's query in a KV head with the query before.
inline float likeness(uint32_t layer, uint32_t head, uint32_t position) {
  return 1.0f - .5f * uniform({7, layer, head, position}) * uniform({8, layer, position});
}

struct Model {
  const char* name;
  uint32_t n_kv_heads;
  std::vector<int32_t> window;  // (n_layers)
  uint32_t n_context = 400;
  Shape shape() const { return {static_cast<uint32_t>(window.size()), n_kv_heads, n_context, window, 1, 1, 16}; }
  uint32_t n_heads() const { return static_cast<uint32_t>(window.size()) * n_kv_heads; }
  bool windowed(uint32_t head) const { return window[head / n_kv_heads] > 0; }
};
inline const Model kModels[] = {{"plain", 4, {0, 0, 0}}, {"mixed", 4, {0, 24, 0}}, {"wide", 8, {0, 0}},
                                {"single", 1, {0}},      {"windows", 2, {16, 16}}, {"wider window than context", 2, {0, 500}}};

struct Candidate {
  const char* policy;
  Options options;
};

inline std::string option(const Candidate& c, const char* name, const char* otherwise) {
  for (const auto& [key, value] : c.options)
    if (key == name) return value;
  return otherwise;
}

// How pages are scored, and whether a step asks for all of a head's pages.
struct PageWay {
  bool raw, layer, all;
};
inline PageWay way_of(const Candidate& c) {
  const bool ark = std::string(c.policy) == "arkvale", raas = std::string(c.policy) == "raas";
  return {option(c, "score", ark ? "raw" : "softmax") == "raw", option(c, "set", ark ? "layer" : "head") == "layer",
          !raas && std::stod(option(c, "asked", ark ? ".5" : "1")) >= 1};
}

// Scores of pages first .. first + n - 1 of a head by a position's query. A page's logit is that of its best key.
inline std::vector<double> page_scores(const PageWay& way, const Model& m, uint32_t head, uint32_t position, uint32_t page, uint32_t first,
                                       uint32_t n) {
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
// Best first, up to the rounding of floats.
inline std::vector<uint32_t> in_order(const std::vector<double>& scores) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b] + 1e-7 * std::fabs(scores[b]); });
  return order;
}

// The best tokens by the maximum over all query heads of a layer.
inline std::set<uint32_t> best_of_layer(const Model& m, uint32_t layer, uint32_t position, uint32_t n, size_t k) {
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

// For each key of a head the sum of the weights of positions 0 .. n - 1, the mean of the group.
inline const std::vector<double>& attended(uint32_t head, uint32_t n) {
  static std::map<std::pair<uint32_t, uint32_t>, std::vector<double>> sums;  // cached
  std::vector<double>& of = sums[{head, n}];
  for (uint32_t p = of.empty() ? 0 : n; p < n; ++p) {
    of.resize(n);
    const std::vector<float> logits = restless(head, p, p + 1);
    for (uint32_t q = 0; q < kGroup; ++q) {
      double sum = 0;
      for (uint32_t key = 0; key <= p; ++key) sum += std::exp(static_cast<double>(logits[q * (p + 1) + key]));
      for (uint32_t key = 0; key <= p; ++key) of[key] += std::exp(static_cast<double>(logits[q * (p + 1) + key])) / sum / kGroup;
    }
  }
  return of;
}

inline std::set<uint32_t> as_set(const Tokens& tokens) { return std::set<uint32_t>(tokens.begin(), tokens.end()); }

inline FakeSession open(const char* policy, const Model& m, double share, const Options& options) {
  return FakeSession(must(make_policy(policy, m.shape(), {share, slots_for_share(m.shape(), share)}, options)), m.n_heads(), kGroup,
                     m.n_context, restless);
}

}  // namespace orrery::policy
