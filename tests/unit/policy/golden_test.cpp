// HeteroCache and SyncKV from logits to refreshed sets, against tests/golden/policies.json: the selections of another implementation on the
// same made-up attention. Sets must be equal; the goldens hold no close calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/heads/clusters.h"
#include "runtime/policy/heads/overlaps.h"
#include "runtime/policy/heads/roles.h"
#include "runtime/policy/published/engines/representatives.h"
#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/score/pooling.h"
#include "runtime/policy/score/score.h"
#include "runtime/policy/select/rings.h"
#include "runtime/policy/select/sets.h"
#include "runtime/policy/select/top_k.h"
#include "tests/unit/policy/fixture.h"
#include "tests/unit/policy/goldens.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::golden_test {
namespace {

using nlohmann::json;
using Floats = std::vector<float>;

const json& goldens() {
  static const json all = read_goldens("policies.json");
  return all;
}

double uniform(std::initializer_list<uint64_t> parts) { return static_cast<double>(hash(parts) >> 40) * 0x1p-24; }

// A case's attention and shape: the attention is make_policy_goldens.py's logits().
class Case {
 public:
  explicit Case(const json& j)
      : j_(j), n_layers(j["n_layers"]), n_heads(j["n_heads"]), group(j["group"]), n_keys(j["n_keys"]), texts(j["texts"]), steps(j["steps"]),
        top_k_size(j["top_k"]), decode_steps(j["decode_steps"]) {}

  Floats logits(uint64_t text, uint32_t layer, uint32_t head, uint64_t step) const {
    const json& traits = j_["heads"][layer][head];
    const uint64_t seed = j_["seed"], topic = traits[0];
    const double own = traits[1].get<double>() / 16, noise = traits[2].get<double>() / 16;
    const uint64_t period = j_["periods"][layer][topic];
    const uint64_t phase = period ? step / period : 0;
    Floats out;
    for (uint64_t q = 0; q < group; ++q) {
      for (uint64_t key = 0; key < n_keys; ++key) {
        const double x = 8 * uniform({seed, text, 1, layer, topic, phase, key}) + own * uniform({seed, text, 2, layer, head, key}) +
                         noise * uniform({seed, text, 3, layer, head, q, step, key});
        out.push_back(static_cast<float>(x));
      }
    }
    return out;
  }

  Floats scores(uint64_t text, uint32_t layer, uint32_t head, uint64_t step, const ScoreRule& rule) const {
    Floats out(n_keys);
    ScoreScratch scratch;
    const Status status = head_scores(logits(text, layer, head, step), group, rule, &scratch, out);
    if (!status.ok()) throw std::runtime_error(status.message());
    return out;
  }
  Tokens best(uint64_t text, uint32_t layer, uint32_t head, uint64_t step, const ScoreRule& rule, size_t k) const {
    Tokens out;
    top_k(scores(text, layer, head, step, rule), k, &out);
    return out;
  }

  std::vector<LayerOverlaps> calibrate(const ScoreRule& rule) const {
    std::vector<LayerOverlaps> out;
    for (uint32_t l = 0; l < n_layers; ++l) {
      out.push_back(must(LayerOverlaps::make(n_heads, steps)));
      for (uint32_t text = 0; text < texts; ++text) {
        for (uint32_t t = 0; t <= steps; ++t) {
          std::vector<Tokens> sets;
          for (uint32_t h = 0; h < n_heads; ++h) sets.push_back(best(text, l, h, t, rule, top_k_size));
          const Status status = out.back().add(t, sets);
          if (!status.ok()) throw std::runtime_error(status.message());
        }
      }
    }
    return out;
  }

 private:
  const json& j_;

 public:
  const uint32_t n_layers, n_heads, group, n_keys, texts, steps, top_k_size, decode_steps;
};

Tokens sorted(Tokens tokens) {
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}
double number(const json& text) { return std::stod(text.get<std::string>()); }

void expect_near(const std::vector<double>& found, const json& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i].get<double>(), 1e-9) << i;
}

TEST(PolicyGolden, TheAttentionIsTheSame) {
  ASSERT_GE(goldens()["cases"].size(), 3u);
  for (const json& j : goldens()["cases"]) {
    const Case c(j);
    const Floats row = c.logits(c.texts, 1, 2, 30);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(row[(c.group - 1) * c.n_keys + i], j["expected"]["logits"][i].get<float>());
    }
  }
}

TEST(PolicyGolden, HeteroCacheFromCalibrationToRefreshes) {
  int n_triggered = 0, n_kept = 0, n_capped = 0, n_satellite_sets = 0;
  for (const json& j : goldens()["cases"]) {
    SCOPED_TRACE(j["name"]);
    const Case c(j);
    const json& run = j["hetero"];
    const json& expected = j["expected"]["hetero"];
    const uint32_t text = c.texts;  // the prompt is no calibration text

    std::vector<LayerRoles> roles;
    std::vector<double> weights;
    std::vector<HeadId> compressed;
    const std::vector<LayerOverlaps> overlaps = c.calibrate({GroupReduce::mean, Pooling::avg, 5, true});
    for (uint32_t l = 0; l < c.n_layers; ++l) {
      const LayerStatistics s{must(overlaps[l].stability()), must(overlaps[l].similarity())};
      expect_near(s.stability, expected["stability"][l]);
      expect_near(s.similarity, expected["similarity"][l]);
      roles.push_back(must(classify(s, {number(run["tau_sim"]), number(run["tau_stable"])})));
      for (uint32_t h = 0; h < c.n_heads; ++h) {
        EXPECT_EQ(role_name(roles[l].roles[h]), expected["roles"][l][h].get<std::string>()) << l << " " << h;
        const json& pivot = expected["pivot_of"][l][h];
        EXPECT_EQ(roles[l].pivot_of[h], pivot.is_null() ? kNoHead : pivot.get<uint32_t>());
        if (is_full(roles[l].roles[h])) continue;
        compressed.push_back({l, h});
        weights.push_back(stability_weight(s.stability[h], c.top_k_size));
      }
    }
    const HeteroBudget budget = must(hetero_budget(must(Ratio::from(number(run["rho"]))), count_roles(roles).full(), weights, c.n_keys));
    EXPECT_EQ(budget.l_base, expected["l_base"].get<uint64_t>());
    ASSERT_EQ(budget.lengths, expected["lengths"].get<std::vector<uint64_t>>());
    n_capped += static_cast<int>(std::count(budget.lengths.begin(), budget.lengths.end(), c.n_keys));

    const ScoreRule rule{run["reduce"] == "mean" ? GroupReduce::mean : GroupReduce::max, Pooling::avg, 5, true};
    std::map<std::pair<uint32_t, uint32_t>, Tokens> resident, base;
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> length;
    for (size_t i = 0; i < compressed.size(); ++i) {
      const auto [l, h] = compressed[i];
      resident[{l, h}] = c.best(text, l, h, 0, rule, budget.lengths[i]);
      length[{l, h}] = budget.lengths[i];
      EXPECT_EQ(sorted(resident[{l, h}]), expected["prefill"][i].get<Tokens>());
    }
    for (uint32_t l = 0; l < c.n_layers; ++l) {
      for (uint32_t h = 0; h < c.n_heads; ++h) {
        if (roles[l].roles[h] == Role::pivot) base[{l, h}] = c.best(text, l, h, 0, rule, budget.l_base);
      }
    }
    size_t n_pivot = 0;
    for (const auto& [id, set] : base) EXPECT_EQ(sorted(set), expected["base"][n_pivot++].get<Tokens>());

    const DriftRule drift{run["block_steps"], number(run["tau_drift"])};
    auto check = expected["checks"].begin();
    for (uint32_t t = 1; t <= c.decode_steps; ++t) {
      if (!ends_block(t, drift.block_steps)) continue;
      for (auto& [id, set] : base) {
        const auto [l, h] = id;
        ASSERT_NE(check, expected["checks"].end());
        ASSERT_EQ((*check)["step"], t);
        ASSERT_EQ((*check)["layer"], l);
        ASSERT_EQ((*check)["head"], h);
        std::vector<Tokens> sets;
        for (uint32_t s = t - drift.block_steps + 1; s <= t; ++s) sets.push_back(c.best(text, l, h, s, rule, budget.l_base));
        const DriftVerdict verdict = must(check_drift(sets, set, drift));
        EXPECT_NEAR(verdict.median, (*check)["median"].get<double>(), 1e-9);
        EXPECT_EQ(verdict.triggered, (*check)["triggered"].get<bool>());
        (verdict.triggered ? n_triggered : n_kept)++;
        if (verdict.triggered) {
          set = sets.back();
          const Tokens order = c.best(text, l, h, t, rule, c.n_keys);
          const std::vector<uint32_t> satellites = roles[l].satellites_of(h);
          EXPECT_EQ(satellites.size(), (*check)["satellites"].size());
          for (const uint32_t s : satellites) {
            Tokens& slots = resident[{l, s}];
            const Tokens wanted = must(satellite_set(order, length[{l, s}]));
            for (const Replacement& r : planned_misses(slots, wanted)) slots[r.slot] = r.position;
            EXPECT_EQ(sorted(slots), (*check)["satellites"][std::to_string(s)].get<Tokens>()) << t << " " << s;
            ++n_satellite_sets;
          }
        }
        ++check;
      }
    }
    EXPECT_EQ(check, expected["checks"].end());
  }
  // The goldens cover what they are made for.
  EXPECT_GT(n_triggered, 8);
  EXPECT_GT(n_kept, 20);
  EXPECT_GT(n_satellite_sets, 20);
  EXPECT_GT(n_capped, 0);
}

TEST(PolicyGolden, SyncKvFromCalibrationToAnticipations) {
  const ScoreRule rule{GroupReduce::max, Pooling::none, 1, true};
  for (const json& j : goldens()["cases"]) {
    SCOPED_TRACE(j["name"]);
    const Case c(j);
    const json& run = j["sync"];
    const json& expected = j["expected"]["sync"];
    const uint32_t n_representatives = run["n_representatives"], stride = run["stride"], text = c.texts;
    const uint64_t k = must(sync_budget(must(Ratio::from(number(run["memory"]))), c.n_heads, n_representatives, c.n_keys));
    EXPECT_EQ(k, expected["k"].get<uint64_t>());
    const SyncSplit split = must(sync_split(k, must(Ratio::from(number(run["static_share"])))));
    size_t cluster = 0;
    const std::vector<LayerOverlaps> overlaps = c.calibrate(rule);
    for (uint32_t l = 0; l < c.n_layers; ++l) {
      const std::vector<double> similarity = must(overlaps[l].mean_similarity());
      expect_near(similarity, expected["similarity"][l]);
      const LayerClusters clusters = must(cluster_heads(similarity, c.n_heads, n_representatives));
      EXPECT_EQ(clusters.cluster_of, expected["clusters"][l].get<std::vector<uint32_t>>());
      for (uint32_t g = 0; g < n_representatives; ++g) {
        const json& expected_head = expected["representatives"][l][g];
        ASSERT_EQ(clusters.representatives[g], expected_head.is_null() ? kNoHead : expected_head.get<uint32_t>());
        const uint32_t head = clusters.representatives[g];
        if (head == kNoHead) continue;
        const SyncSets sets = sync_initial(c.scores(text, l, head, 0, rule), split);
        EXPECT_EQ(sorted(sets.fixed), expected["static"][cluster].get<Tokens>());
        const json& series = expected["dynamic"][cluster++];
        EXPECT_EQ(sorted(sets.dynamic), series[0].get<Tokens>());
        size_t n = 1;
        for (uint32_t t = 1; t <= c.decode_steps; ++t) {
          if (!is_anticipation(t, stride)) continue;
          const Tokens dynamic = sync_dynamic(c.scores(text, l, head, t, rule), sets.fixed, split.n_dynamic);
          EXPECT_EQ(sorted(dynamic), series[n++].get<Tokens>()) << t;
        }
        EXPECT_EQ(n, series.size());
      }
    }
    EXPECT_EQ(cluster, expected["static"].size());
  }
}

// Similarities in sixteenths: many distances are equal, and the lowest index decides.
TEST(PolicyGolden, KMeansWithTies) {
  const json& all = goldens()["clusters"];
  ASSERT_GE(all.size(), 100u);
  for (uint64_t i = 0; i < all.size(); ++i) {
    const uint32_t n = all[i]["n"];
    std::vector<double> similarity(size_t{n} * n, 1);
    for (uint32_t a = 0; a < n; ++a) {
      for (uint32_t b = a + 1; b < n; ++b) {
        similarity[a * n + b] = similarity[b * n + a] = std::floor(uniform({77, i, a, b}) * 16) / 16;
      }
    }
    const LayerClusters found = must(cluster_heads(similarity, n, all[i]["n_clusters"]));
    EXPECT_EQ(found.cluster_of, all[i]["cluster_of"].get<std::vector<uint32_t>>()) << i;
    std::vector<uint32_t> heads;
    for (const json& head : all[i]["representatives"]) heads.push_back(head.is_null() ? kNoHead : head.get<uint32_t>());
    EXPECT_EQ(found.representatives, heads) << i;
  }
}

}  // namespace
}  // namespace orrery::policy::golden_test
