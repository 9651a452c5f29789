// Whole runs of policies, against tests/golden/policy_runs.json: an independent reference's sessions on the same made-up attention. Every
// head's set is compared before every step, so that nothing is early or late. Roles show in which heads are asked, which hold everything,
// and which are refilled together.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/policy/select/rings.h"
#include "runtime/policy/select/sets.h"
#include "tests/unit/policy/fake_session.h"
#include "tests/unit/policy/goldens.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy::runs_test {
namespace {

using nlohmann::json;

const json& goldens() {
  static const json all = read_goldens("policy_runs.json");
  return all;
}

// make_policy_run_goldens.py's attention.
class Synthetic {
 public:
  explicit Synthetic(const json& j)
      : j_(j), n_layers(j["n_layers"]), n_kv_heads(j["n_kv_heads"]), group(j["group"]), n_prompt(j["n_prompt"]), n_decode(j["n_decode"]),
        n_heads(n_layers * n_kv_heads) {}

  std::vector<int64_t> units(uint32_t layer, uint32_t head, uint32_t q, uint32_t position, uint32_t n_keys) const {
    const json& traits = j_["heads"][layer][head];
    const uint64_t seed = j_["seed"], topic = traits[0], peaks = j_["peaks"];
    const int64_t own = traits[1], noise = traits[2], period = j_["periods"][layer][topic];
    const int64_t s = std::max<int64_t>(int64_t{position} - (int64_t{n_prompt} - 16), 0);
    std::vector<int64_t> out(n_keys, 0);
    for (uint64_t p = 0; p < peaks; ++p) {
      const int64_t phase = period ? (s + static_cast<int64_t>(p) * period / static_cast<int64_t>(peaks)) / period : 0;
      const auto centre = static_cast<int64_t>(hash({seed, 1, layer, topic, p, static_cast<uint64_t>(phase)}) % n_prompt);
      for (int64_t key = 0; key < int64_t{n_keys}; ++key) {
        int64_t& x = out[static_cast<size_t>(key)];
        x = std::max(x, (5 + static_cast<int64_t>(p % 3)) * 65536 - 40000 * std::abs(key - centre));
      }
    }
    for (uint32_t key = 0; key < n_keys; ++key) {
      out[key] += key < 2 ? 4 * 65536 : 0;
      out[key] += own * static_cast<int64_t>(hash({seed, 2, layer, head, key}) >> 48) >> 4;
      out[key] += noise * static_cast<int64_t>(hash({seed, 3, layer, head, q, position, key}) >> 48) >> 4;
    }
    return out;
  }

  std::vector<float> operator()(uint32_t head, uint32_t position, uint32_t n_keys) const {
    std::vector<float>& rows = rows_[{head, position}];  // of all keys of the run
    const uint32_t n_all = n_prompt + n_decode;
    for (uint32_t q = 0; rows.size() < size_t{group} * n_all; ++q)
      for (const int64_t x : units(head / n_kv_heads, head % n_kv_heads, q, position, n_all)) rows.push_back(static_cast<float>(x) / 65536);
    std::vector<float> out;
    for (uint32_t q = 0; q < group; ++q) out.insert(out.end(), rows.begin() + q * n_all, rows.begin() + q * n_all + n_keys);
    return out;
  }

 private:
  const json& j_;
  mutable std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows_;

 public:
  const uint32_t n_layers, n_kv_heads, group, n_prompt, n_decode, n_heads;
};

// Attention to everything except some tokens.
std::vector<float> elsewhere(uint32_t group, uint32_t head, uint32_t position, uint32_t n_keys, const Tokens& shunned) {
  std::vector<float> out;
  for (uint32_t q = 0; q < group; ++q) {
    for (uint32_t key = 0; key < n_keys; ++key) out.push_back(static_cast<float>(hash({99, head, q, position, key}) >> 52) / 4096);
    for (const uint32_t key : shunned) out[size_t{q} * n_keys + key] -= 20;
  }
  return out;
}

FakeSession open(const Synthetic& a, const json& options) {
  Options given;
  const auto n_context = static_cast<uint32_t>(std::stoul(options.value("context", std::to_string(a.n_prompt + a.n_decode + 400))));
  Budget budget{std::stod(options["budget"].get<std::string>()), uint64_t{a.n_heads} * n_context};
  for (const auto& [key, value] : options.items()) {
    if (key == "max_slots") budget.max_slots = std::stoull(value.get<std::string>());
    if (key == "policy" || key == "budget" || key == "max_slots" || key == "context") continue;
    given.emplace_back(key, value.get<std::string>());
  }
  if (options["policy"] == "duoattention") given.emplace_back("rank", "attention");
  const std::vector<int32_t> windows(a.n_layers, 0);
  const Shape shape{a.n_layers, a.n_kv_heads, n_context, windows};
  return FakeSession(must(make_policy(options["policy"], shape, budget, given)), a.n_heads, a.group, n_context,
                     [&a](uint32_t head, uint32_t position, uint32_t n_keys) { return a(head, position, n_keys); });
}

// Runs f(case, run) over the runs of a policy.
template <class F>
int for_each_run(const char* policy, const F& f) {
  int n = 0;
  for (const json& j : goldens()["cases"]) {
    const Synthetic attention(j);
    for (const json& run : j["runs"]) {
      if (run["options"]["policy"] != policy) continue;
      ::testing::ScopedTrace trace(__FILE__, __LINE__, j["name"].get<std::string>() + " " + run["options"].dump());
      f(attention, run);
      ++n;
    }
  }
  return n;
}

TEST(PolicyRuns, TheAttentionIsTheSame) {
  for (const json& j : goldens()["cases"]) {
    const Synthetic a(j);
    ASSERT_GE(j["worked"].size(), 4u);
    for (const json& w : j["worked"]) {
      const uint32_t key = w[4];
      EXPECT_EQ(a.units(w[0], w[1], w[2], w[3], key + 1)[key], w[5].get<int64_t>());
    }
  }
}

// ---- HeteroCache ----

struct Watched {
  std::map<uint32_t, Tokens> sets;                  // of compressed heads
  std::map<uint32_t, Tokens> base;                  // of pivots
  std::map<uint32_t, std::vector<uint32_t>> looks;  // positions whose overlap was measured since the last check
  ScoreRule rule;                                   // of the questions
};

// A settled session's roles, lengths and sets.
void expect_hetero(FakeSession& session, const Synthetic& a, const json& e, const json& options, Watched* w) {
  const uint32_t n = e["at"];
  w->looks.clear();
  ASSERT_EQ(session.n_tokens(), n);
  *w = {};
  std::vector<uint32_t> pivots;
  std::map<uint32_t, std::vector<uint32_t>> satellites;
  RoleCounts counts;
  size_t at = 0;
  for (uint32_t head = 0; head < a.n_heads; ++head) {
    const uint32_t l = head / a.n_kv_heads, h = head % a.n_kv_heads;
    const std::string role = e["roles"][l][h];
    counts.anchor += role == "anchor", counts.volatile_heads += role == "volatile";
    counts.pivot += role == "pivot", counts.satellite += role == "satellite";
    if (role == "pivot") pivots.push_back(head);
    if (role == "pivot" || role == "volatile") {
      EXPECT_EQ(session.n_selected(head), n) << l << " " << h;
      EXPECT_EQ(session.capacity(head), n + e["tail"].get<uint32_t>());
      continue;
    }
    const uint32_t length = e["lengths"][at];
    EXPECT_EQ(session.n_selected(head), length) << l << " " << h << " " << role;
    EXPECT_EQ(session.capacity(head), length + e["tail"].get<uint32_t>());
    w->sets[head] = e["sets"][at++].get<Tokens>();
    if (role == "satellite" && length < n) satellites[l * a.n_kv_heads + e["pivot_of"][l][h].get<uint32_t>()].push_back(head);
  }
  EXPECT_EQ(at, e["lengths"].size());
  const RoleCounts found = session.policy().report().roles;
  EXPECT_EQ(found.anchor, counts.anchor);
  EXPECT_EQ(found.volatile_heads, counts.volatile_heads);
  EXPECT_EQ(found.pivot, counts.pivot);
  EXPECT_EQ(found.satellite, counts.satellite);

  // Calibration asks about a quarter of the keys that all its queries see.
  ASSERT_FALSE(session.asked().empty());
  EXPECT_EQ(session.asked()[0].query.k, e["calibration_k"].get<uint32_t>());
  // Pivots are asked last, for K_base.
  ASSERT_GE(session.asked().size(), pivots.size());
  for (size_t i = 0; i < pivots.size(); ++i) {
    const FakeSession::Asked& asked = session.asked()[session.asked().size() - pivots.size() + i];
    EXPECT_EQ(asked.query.head, pivots[i]);
    EXPECT_EQ(asked.query.k, e["base_length"].get<uint32_t>());
    w->base[pivots[i]] = sorted(asked.best);
    EXPECT_EQ(w->base[pivots[i]], e["base"][i].get<Tokens>());
  }

  // Satellites and their pivots: where the attention of all heads moves at once, every pivot refills its satellites. Sets of more than 1 /
  // (2 - tau) of the prompt overlap too much to trigger.
  const uint32_t block = static_cast<uint32_t>(std::stoul(options.value("block", "5"))), tail = e["tail"];
  if (tail < block || e["base_length"].get<uint32_t>() * 2 > n) return;
  FakeSession moved = session.fork(
      [&](uint32_t head, uint32_t position, uint32_t n_keys) { return elsewhere(a.group, head, position, n_keys, w->base.at(head)); });
  std::map<uint32_t, std::vector<uint32_t>> followed;
  for (uint32_t t = 0; t < block; ++t) moved.step();
  for (const FakeSession::Asked& asked : moved.asked())
    if (!asked.refilled.empty()) followed[asked.query.head] = asked.refilled;
  EXPECT_EQ(followed, satellites);
}

// The golden's checks of step t, against the questions. A trigger changes sets. Each query of a block is measured in its own step, until a
// majority settles the median's side; and the last one where there is a trigger.
void expect_checks(FakeSession* session, const Synthetic& a, const json& checks, uint32_t t, double tau, uint32_t block, Watched* w,
                   int* n_triggered) {
  const uint32_t position = session->n_tokens() - 1, majority = block / 2 + 1;
  std::map<uint32_t, FakeSession::Asked> asked;
  for (const FakeSession::Asked& x : session->asked()) {
    if (x.query.by_score) continue;
    ASSERT_EQ(x.query.first_position, position);
    ASSERT_EQ(x.query.n_positions, 1u);
    asked.emplace(x.query.head, x);
    std::vector<uint32_t>& looks = w->looks[x.query.head];  // a trigger asks for the keys themselves as well
    if (looks.empty() || looks.back() != position) looks.push_back(position);
    w->rule = x.rule;
  }
  for (const json& check : checks) {
    if (check[0] != t) continue;
    const uint32_t pivot = check[1].get<uint32_t>() * a.n_kv_heads + check[2].get<uint32_t>();
    // All queries of the block, whatever the policy measured.
    const auto n = static_cast<uint32_t>(w->base[pivot].size());
    Tokens best(size_t{block} * n);
    const KeyQuery whole{pivot, position + 1 - block, block, session->n_prompt(), n, false, best.data()};
    ASSERT_TRUE(session->top_keys({&whole, 1}, w->rule).ok());
    std::vector<Tokens> sets;
    std::vector<uint32_t> looks;  // that must be measured
    uint32_t n_stable = 0;
    for (uint32_t i = 0; i < block; ++i) {
      sets.emplace_back(best.begin() + i * n, best.begin() + (i + 1) * n);
      if (n_stable < majority && looks.size() - n_stable < majority) {
        looks.push_back(position + 1 - block + i);
        n_stable += !must(check_drift({&sets[i], 1}, w->base[pivot], {1, tau})).triggered;
      }
    }
    if (looks.size() - n_stable >= majority && looks.back() != position) looks.push_back(position);
    EXPECT_EQ(w->looks[pivot], looks) << "step " << t << " head " << pivot;
    w->looks.erase(pivot);
    const DriftVerdict verdict = must(check_drift(sets, w->base[pivot], {block, tau}));
    EXPECT_NEAR(verdict.median, check[3].get<double>(), 1e-9) << "step " << t << " head " << pivot;
    EXPECT_EQ(verdict.triggered, check.size() > 4);
    if (check.size() <= 4) continue;
    ++*n_triggered;
    ASSERT_EQ(asked.count(pivot), 1u);
    EXPECT_EQ(asked.at(pivot).best, sets.back());
    w->base[pivot] = sets.back();
    for (const auto& [h, set] : check[4].items())
      w->sets[check[1].get<uint32_t>() * a.n_kv_heads + static_cast<uint32_t>(std::stoul(h))] = set.get<Tokens>();
  }
  // No measurement is left over: a block has W queries.
  for (const auto& [head, looks] : w->looks) EXPECT_GT(looks.front() + block, position + 1) << "step " << t << " head " << head;
}

TEST(PolicyRuns, HeteroCache) {
  int n_triggered = 0, n_again = 0;
  const int n = for_each_run("heterocache", [&](const Synthetic& a, const json& run) {
    const json& options = run["options"];
    const std::string tau_stable = options.value("tau_stable", "0.5");
    const double tau = std::stod(options.value("tau_drift", tau_stable));
    const auto block = static_cast<uint32_t>(std::stoul(options.value("block", "5")));
    FakeSession session = open(a, options);
    session.settle(a.n_prompt);
    Watched w;
    size_t settled = 0;
    uint32_t t = 0;
    const uint64_t before = session.policy().report().n_triggers;
    const int triggered_before = n_triggered;
    expect_hetero(session, a, run["settles"][0], options, &w);
    for (uint32_t i = 0; i <= a.n_decode; ++i) {
      session.forget();
      if (session.prepare()) {
        if (i == a.n_decode) break;  // the golden ends before it
        t = 0;
        ASSERT_LT(++settled, run["settles"].size()) << i;
        ++n_again;
        expect_hetero(session, a, run["settles"][settled], options, &w);
      }
      if (::testing::Test::HasFatalFailure()) return;
      for (const auto& [head, set] : w.sets) ASSERT_EQ(sorted(session.selected(head)), set) << "step " << i << " head " << head;
      if (i == a.n_decode) break;
      session.forget();
      session.commit();
      expect_checks(&session, a, run["settles"][settled]["checks"], ++t, tau, block, &w, &n_triggered);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(settled + 1, run["settles"].size());
    EXPECT_EQ(session.policy().report().n_triggers - before, static_cast<uint64_t>(n_triggered - triggered_before));
  });
  EXPECT_GE(n, 10);
  EXPECT_GE(n_triggered, 30);
  EXPECT_GE(n_again, 10);
}

// ---- SyncKV ----

void expect_sync(const FakeSession& session, const Synthetic& a, const json& e, std::map<uint32_t, Tokens>* fixed,
                 std::map<uint32_t, Tokens>* dynamic) {
  const uint32_t n = e["at"], tail = e["tail"];
  ASSERT_EQ(session.n_tokens(), n);
  fixed->clear(), dynamic->clear();
  // Representatives are asked last, one for each cluster, by head.
  std::map<uint32_t, Tokens> best;
  for (const FakeSession::Asked& x : session.asked())
    if (x.query.by_score) best[x.query.head] = x.best;
  EXPECT_EQ(best.size(), e["cells"].size());
  for (size_t i = 0; i < e["cells"].size(); ++i) {
    const uint32_t l = e["cells"][i][0], c = e["cells"][i][1], first = l * a.n_kv_heads;
    const uint32_t representative = first + e["representatives"][l][c].get<uint32_t>();
    const uint32_t k = e["k"][l], n_static = k - e["k_dynamic"][l].get<uint32_t>();
    const Tokens &f = e["fixed"][i].get<Tokens>(), d = e["dynamic"][i].get<Tokens>();
    EXPECT_EQ(session.n_selected(representative), n);
    EXPECT_EQ(session.capacity(representative), n + tail);
    ASSERT_EQ(best[representative].size(), k) << l << " " << c;
    EXPECT_EQ(sorted(Tokens(best[representative].begin(), best[representative].begin() + n_static)), f);
    EXPECT_EQ(sorted(Tokens(best[representative].begin() + n_static, best[representative].end())), d);
    for (uint32_t h = 0; h < a.n_kv_heads; ++h) {
      if (e["clusters"][l][h] != c || first + h == representative) continue;
      EXPECT_EQ(session.capacity(first + h), k + tail);
      (*fixed)[first + h] = f, (*dynamic)[first + h] = d;
    }
  }
}

TEST(PolicyRuns, SyncKv) {
  int n_changed = 0;
  const int n = for_each_run("synckv", [&](const Synthetic& a, const json& run) {
    FakeSession session = open(a, run["options"]);
    session.settle(a.n_prompt);
    std::map<uint32_t, Tokens> fixed, dynamic;
    size_t settled = 0;
    uint32_t t = 0;
    expect_sync(session, a, run["settles"][0], &fixed, &dynamic);
    for (uint32_t i = 0; i <= a.n_decode; ++i) {
      session.forget();
      if (session.prepare()) {
        if (i == a.n_decode) break;
        t = 0;
        ASSERT_LT(++settled, run["settles"].size()) << i;
        expect_sync(session, a, run["settles"][settled], &fixed, &dynamic);
      }
      if (::testing::Test::HasFatalFailure()) return;
      for (const auto& [head, set] : fixed) {
        const Tokens held = session.selected(head);
        const auto split = held.begin() + static_cast<ptrdiff_t>(set.size());
        ASSERT_EQ(sorted(Tokens(held.begin(), split)), set) << "step " << i << " head " << head;
        ASSERT_EQ(sorted(Tokens(split, held.end())), dynamic[head]) << "step " << i << " head " << head;
      }
      if (i == a.n_decode) break;
      session.commit();
      ++t;
      const json& e = run["settles"][settled];
      for (const json& check : e["checks"]) {
        if (check[0] != t) continue;
        const uint32_t l = check[1], first = l * a.n_kv_heads;
        for (uint32_t h = 0; h < a.n_kv_heads; ++h) {
          if (e["clusters"][l][h] != check[2] || fixed.count(first + h) == 0) continue;
          n_changed += dynamic[first + h] != check[3].get<Tokens>();
          dynamic[first + h] = check[3].get<Tokens>();
        }
      }
    }
    EXPECT_EQ(settled + 1, run["settles"].size());
  });
  EXPECT_GE(n, 6);
  EXPECT_GE(n_changed, 100);
}

// ---- Windows of queries ----

TEST(PolicyRuns, WindowsOfQueries) {
  int n = 0, n_again = 0, n_sets = 0;
  for (const char* policy : {"snapkv", "pyramidkv", "adakv", "adapyramid", "cake"})
    n += for_each_run(policy, [&](const Synthetic& a, const json& run) {
      FakeSession session = open(a, run["options"]);
      session.settle(a.n_prompt);
      for (size_t settled = 0; settled < run["settles"].size(); ++settled) {
        const json& e = run["settles"][settled];
        ASSERT_EQ(session.n_tokens(), e["at"].get<uint32_t>());
        std::set<uint32_t> compressed;
        for (const json& set : e["sets"]) {
          const uint32_t head = set[0].get<uint32_t>() * a.n_kv_heads + set[1].get<uint32_t>();
          compressed.insert(head);
          ++n_sets;
          ASSERT_EQ(session.selected(head), set[2].get<Tokens>()) << "head " << head;  // ascending: in slot order
          ASSERT_EQ(session.capacity(head), session.n_selected(head) + e["tail"].get<uint32_t>());
        }
        for (uint32_t head = 0; head < a.n_heads; ++head)
          if (compressed.count(head) == 0) {
            ASSERT_EQ(session.n_selected(head), session.n_tokens()) << head;
          }
        // The selection stays until the tail is full.
        const std::vector<Tokens> chosen = session.held();
        while (session.n_tokens() < a.n_prompt + a.n_decode && !session.prepare()) {
          session.commit();
          for (uint32_t head = 0; head < a.n_heads; ++head)
            ASSERT_TRUE(std::equal(chosen[head].begin(), chosen[head].end(), session.held()[head].begin())) << head;
        }
        n_again += settled > 0;
      }
      EXPECT_EQ(session.n_tokens(), a.n_prompt + a.n_decode);
    });
  EXPECT_GE(n, 15);
  EXPECT_GE(n_again, 10);
  EXPECT_GE(n_sets, 500);
}

TEST(PolicyRuns, DuoAttention) {
  const int n = for_each_run("duoattention", [&](const Synthetic& a, const json& run) {
    FakeSession session = open(a, run["options"]);
    session.settle(a.n_prompt);
    bool prepared = false;
    for (size_t settled = 0; settled < run["settles"].size(); ++settled) {
      const json& e = run["settles"][settled];
      ASSERT_EQ(session.n_tokens(), e["at"].get<uint32_t>());
      const uint32_t most_sinks = static_cast<uint32_t>(std::stoul(run["options"].value("sinks", "128")));
      do {
        const uint32_t now = session.n_tokens();
        for (const json& full : e["full"]) {
          const Tokens& held = session.held()[full[0].get<uint32_t>() * a.n_kv_heads + full[1].get<uint32_t>()];
          ASSERT_EQ(held.size(), now);
          ASSERT_EQ(held.back(), now - 1);
        }
        for (const json& other : e["capacity"]) {
          const uint32_t head = other[0].get<uint32_t>() * a.n_kv_heads + other[1].get<uint32_t>(), capacity = other[2];
          ASSERT_EQ(session.capacity(head), capacity);
          Tokens expected;
          const uint32_t sinks = std::min(most_sinks, capacity / 3);
          sinks_and_recent(now, sinks, capacity - sinks, &expected);
          ASSERT_EQ(sorted(session.held()[head]), expected) << "head " << head << " at " << now;
        }
        if (now == a.n_prompt + a.n_decode) break;
        if (!prepared && (prepared = session.prepare())) break;  // settled again, before the step
        session.commit();
        prepared = false;
      } while (true);
    }
    EXPECT_EQ(session.n_tokens(), a.n_prompt + a.n_decode);
  });
  EXPECT_GE(n, 3);
}

TEST(PolicyRuns, Streaming) {
  const int n = for_each_run("streaming", [&](const Synthetic& a, const json& run) {
    FakeSession session = open(a, run["options"]);
    session.settle(a.n_prompt);
    for (uint32_t i = 0; i <= a.n_decode; ++i) {
      const auto shown = run["visible"].find(std::to_string(session.n_tokens()));
      for (uint32_t head = 0; shown != run["visible"].end() && head < a.n_heads; ++head)
        ASSERT_EQ(sorted(session.held()[head]), shown->get<Tokens>()) << session.n_tokens();
      if (i < a.n_decode) session.step();
    }
  });
  EXPECT_GE(n, 1);
}

}  // namespace
}  // namespace orrery::policy::runs_test
