// Policies with pages that come and go, on the demo model, in double precision: a head holds the pages that its queries look for. From the
// reservoir's keys and the queries on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tests/support/policy_sessions.h"
#include "tests/support/resident_oracle.h"

namespace orrery::pages_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;

constexpr uint32_t kPage = 16, kFirst = 1, kLast = 1;  // sinks of a page, a window of two with the one that is written

std::vector<double> descending(std::vector<double> x) {
  std::sort(x.begin(), x.end(), std::greater<>());
  return x;
}

// Of a head's candidates among n_tokens, by the query of `position`, which the ring holds: softmaxes of unscaled bounds, their mean.
std::vector<double> page_scores(const engine::LanguageModel& model, const Resident& resident, uint32_t head, uint32_t position,
                                uint32_t n_tokens, bool deviation) {
  return mean_of_softmaxes(
      page_bounds(resident, model.description(), head, position, kPage, kFirst, n_tokens / kPage - kFirst - kLast, deviation));
}

// A head's whole pages: the first, the last, and of the others the best by these scores, up to what floats and halves round.
void check_held(const kv::HeadStore& store, uint32_t head, const std::vector<double>& scores, uint32_t n_tokens) {
  const Span<const uint32_t> held = store.positions(head);
  const std::set<uint32_t> pages = whole_pages(held, kPage);
  const size_t n_whole = held.size() / kPage;
  ASSERT_EQ(pages.size(), n_whole) << "head " << head;
  for (size_t i = n_whole * kPage; i < held.size(); ++i) ASSERT_EQ(held[i], n_tokens - held.size() + i);
  ASSERT_EQ(pages.count(0), 1u);
  ASSERT_EQ(pages.count(n_tokens / kPage - 1), 1u);
  const double last = descending(scores)[n_whole - kFirst - kLast - 1];
  for (uint32_t i = 0; i < scores.size(); ++i) {
    if (pages.count(kFirst + i)) {
      ASSERT_GE(scores[i], last * .99) << "head " << head << ", page " << i + kFirst;
    } else {
      ASSERT_LE(scores[i], last * 1.01) << "head " << head << ", page " << i + kFirst;
    }
  }
}

struct Case {
  const char* name;
  const char* policy;
  const char* tau;
  bool deviation;
  KvType type;
};
class EnginePages : public ::testing::TestWithParam<Case> {};

TEST_P(EnginePages, HeadsHoldWhatQueriesLookFor) {
  const Case& c = GetParam();
  const auto model = open_demo();
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = c.policy;
  o.kv_share = .5;
  o.kv_type = c.type;
  o.policy_options = {{"page", "16"},        {"sinks", "16"}, {"window", "32"},
                      {"first_layers", "1"}, {"tau", c.tau},  {"digest", c.deviation ? "deviation" : "range"}};
  const auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, 500, 31), nullptr, nullptr));
  Resident* resident = session->resident();
  const auto first_head = static_cast<uint32_t>(model->description().kv().n_kv_heads);  // of the second layer: the first is whole
  const bool same_step = std::string(c.tau) == "2";
  std::map<uint32_t, std::vector<double>> expected;  // of the step before
  int n_checked = 0;
  resident->set_step_fault([&](uint64_t) {
    // Behind the step of the last position: its query stands in the ring, and the heads as they attended, its token besides.
    const uint32_t n_tokens = session->n_computed(), position = n_tokens - 1;
    for (uint32_t head = 0; head < resident->store().n_heads(); ++head) {
      const Span<const uint32_t> held = resident->store().positions(head);
      if (head < first_head) {
        EXPECT_EQ(held.size(), n_tokens);
        continue;
      }
      // Which tokens there were when the step's pages were chosen: those before its own.
      if (same_step) expected[head] = page_scores(*model, *resident, head, position, position, c.deviation);
      if (!expected.count(head) || n_tokens % kPage == 0) {
        expected[head] = page_scores(*model, *resident, head, position, n_tokens, c.deviation);
        continue;  // a page that has been completed has not moved yet
      }
      check_held(resident->store(), head, expected[head], n_tokens);
      ++n_checked;
      expected[head] = page_scores(*model, *resident, head, position, n_tokens, c.deviation);
      if (::testing::Test::HasFatalFailure()) return error(Code::internal, "see above");
    }
    return ok_status();
  });
  greedy(session.get(), 40);
  EXPECT_GT(n_checked, 500);
  EXPECT_GT(resident->refill_stats().tokens, 0u);
  EXPECT_EQ(resident->report().n_settled, 1u);
}

INSTANTIATE_TEST_SUITE_P(Cases, EnginePages,
                         ::testing::Values(Case{"one_step_behind", "freekv", "0", false, KvType::f16},
                                           Case{"deviation", "freekv", "0", true, KvType::f32},
                                           Case{"own_query", "quest", "2", false, KvType::f16},
                                           Case{"quantized", "freekv", "2", false, KvType::q8_0},
                                           Case{"values_in_four_bits", "quest", "2", false, KvType::k8v4}),
                         [](const auto& tested) { return std::string(tested.param.name); });

// Where no step corrects itself, and where each does: the two ends of tau. In between, corrections are counted.
TEST(EnginePagesTau, CorrectionsAreCounted) {
  const auto model = open_demo();
  uint64_t triggers[3];
  const char* taus[] = {"0", "0.9", "2"};
  for (int i = 0; i < 3; ++i) {
    engine::SessionOptions o;
    o.n_context = 1024;
    o.policy = "freekv";
    o.kv_share = .5;
    o.policy_options = {{"tau", taus[i]}};
    const auto session = unwrap(Session::open(model, o));
    unwrap(session->prefill(random_tokens(*model, 500, 32), nullptr, nullptr));
    greedy(session.get(), 20);
    const policy::Report report = session->resident()->report();
    triggers[i] = report.n_triggers;
    EXPECT_EQ(report.n_checks > 0, i > 0);
    EXPECT_EQ(report.n_triggers == report.n_checks, i != 1);
  }
  EXPECT_EQ(triggers[0], 0u);
  EXPECT_GT(triggers[1], 0u);
  EXPECT_LT(triggers[1], triggers[2]);
}

// ---- ArkVale ----

constexpr uint32_t kSmall = 8;

// A session whose pages are of kSmall tokens, one of them first and two last, behind a prompt.
std::unique_ptr<Session> open_small(const std::shared_ptr<engine::LanguageModel>& model, const char* policy, double share, KvType type,
                                    size_t n_prompt, const policy::Options& options = {}) {
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = policy;
  o.kv_share = share;
  o.kv_type = type;
  o.policy_options = {{"page", "8"}, {"sinks", "8"}, {"window", "16"}, {"first_layers", "0"}};
  o.policy_options.insert(o.policy_options.end(), options.begin(), options.end());
  auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, n_prompt, 33), nullptr, nullptr));
  return session;
}

// Behind each of n greedy steps: check(step, position, pages), where so many pages were whole before the step's own token; its failures
// end the answer.
template <class Check>
void check_steps(Session* session, size_t n, const Check& check) {
  session->resident()->set_step_fault([&](uint64_t step) {
    const uint32_t position = session->n_computed() - 1;
    check(step, position, position / kSmall);
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session, n);
  EXPECT_EQ(session->resident()->report().n_settled, 1u);
}

// One set for the layer. What the step asks for is there, by the mean of all the layer's query heads; what has gone scores less than what
// was not asked for either, and stayed.
TEST(EnginePagesArkVale, LayersHoldWhatTheirHeadsLookForTogether) {
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::k8v4}) {
    const auto model = open_demo();
    const auto& h = model->description();
    const auto session = open_small(model, "arkvale", .4, type, 500);
    Resident* resident = session->resident();
    const auto kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads), n_layers = static_cast<uint32_t>(h.n_layers);
    std::vector<std::set<uint32_t>> before(n_layers);
    int n_checked = 0, n_gone = 0;
    check_steps(session.get(), 40, [&](uint64_t, uint32_t position, uint32_t n_pages) {
      for (uint32_t layer = 0; layer < n_layers; ++layer) {
        std::vector<double> scores(n_pages, INFINITY);  // the first and the last are not in question
        for (uint32_t p = kFirst; p < n_pages - kLast; ++p) scores[p] = 0;
        for (uint32_t head = layer * kv_heads; head < (layer + 1) * kv_heads; ++head)
          for (const auto& row : page_bounds(*resident, h, head, position, kSmall, kFirst, n_pages - kFirst - kLast, true))
            for (uint32_t i = 0; i < row.size(); ++i) scores[kFirst + i] += row[i] / h.kv().n_heads;
        const Span<const uint32_t> held = resident->store().positions(layer * kv_heads);
        for (uint32_t head = layer * kv_heads + 1; head < (layer + 1) * kv_heads; ++head) {
          const Span<const uint32_t> other = resident->store().positions(head);
          EXPECT_TRUE(std::equal(held.begin(), held.end(), other.begin(), other.end())) << "layer " << layer;
        }
        std::set<uint32_t> pages = whole_pages(held.first(held.size() / kSmall * kSmall), kSmall);
        EXPECT_EQ(pages.size(), held.size() / kSmall);
        pages.erase(n_pages);  // just completed
        const std::vector<double> sorted = descending(scores);
        const size_t n_slots = resident->store().capacity(layer * kv_heads) / kSmall - 1;
        const double last = sorted[n_slots / 2 - 1], near = .02 * (sorted[2] - sorted.back());
        for (uint32_t p = 0; p < n_pages; ++p)
          if (scores[p] > last + near) {
            EXPECT_EQ(pages.count(p), 1u) << "layer " << layer << ", page " << p;
          }
        for (const uint32_t gone : before[layer]) {
          if (pages.count(gone)) continue;
          ++n_gone;
          for (const uint32_t p : pages)
            if (before[layer].count(p)) {
              EXPECT_GE(scores[p], scores[gone] - near) << "layer " << layer << ", page " << p << " and " << gone;
            }
        }
        before[layer] = pages;
        if ((position + 1) % kSmall == 0) before[layer].clear();  // the page goes where another was
        ++n_checked;
      }
    });
    EXPECT_EQ(n_checked, 160);
    EXPECT_GT(n_gone, 10);  // there was something to look at; 20 and more, by the path's rounding
    EXPECT_GT(resident->refill_stats().tokens, 0u);
  }
}

// ---- RaaS ----

// Which pages are there when their time is that of the last step that looked at them: nothing comes back.
TEST(EnginePagesRaas, TheOldestPageMakesRoom) {
  for (const char* stamp : {"threshold", "top"}) {
    const auto model = open_demo();
    const auto& h = model->description();
    const auto session = open_small(model, "raas", .3, KvType::f16, 501, {{"stamp", stamp}, {"threshold", "0.01"}});
    Resident* resident = session->resident();
    std::map<uint32_t, std::map<uint32_t, uint64_t>> looked;  // by head and page: the last step that surely did
    std::map<uint32_t, std::set<uint32_t>> doubtful;          // may have been looked at since: near the threshold
    std::map<uint32_t, std::set<uint32_t>> before;
    int n_gone = 0, n_looked = 0, n_not = 0;
    check_steps(session.get(), 80, [&](uint64_t step, uint32_t position, uint32_t n_pages) {
      for (uint32_t head = 0; head < resident->store().n_heads(); ++head) {
        const Span<const uint32_t> held = resident->store().positions(head);
        std::set<uint32_t> pages = whole_pages(held, kSmall);
        EXPECT_EQ(pages.size(), held.size() / kSmall);
        if ((position + 1) % kSmall == 0) pages.erase(n_pages);  // just completed: it moves behind this
        // What has gone with the page that was completed in the step before was the oldest, but for first and last.
        for (const uint32_t gone : before[head]) {
          if (pages.count(gone)) continue;
          ++n_gone;
          EXPECT_GE(gone, 1u);
          for (const uint32_t p : pages) {
            if (p < 1 || p + 2 > n_pages || !before[head].count(p)) continue;
            if (doubtful[head].count(p) || doubtful[head].count(gone)) continue;
            EXPECT_TRUE(std::pair(looked[head][gone], gone) < std::pair(looked[head][p], p))
                << "head " << head << ", page " << p << ", not " << gone;
          }
        }
        for (const uint32_t p : pages) {
          if (before[head].count(p) || before[head].empty()) continue;
          EXPECT_EQ(p, n_pages - 1) << "a page came back";
          looked[head][p] = step - 1;  // when it was completed
        }
        if (before[head].empty()) doubtful[head] = pages;  // the prompt's last query has looked at some
        before[head] = pages;
        // This step looks at what is there.
        const auto bounds = page_bounds(*resident, h, head, position, kSmall, 0, n_pages, false);
        std::vector<std::vector<double>> rows;
        const std::vector<uint32_t> there(pages.begin(), pages.end());
        for (const auto& row : bounds) {
          rows.emplace_back();
          for (const uint32_t p : there) rows.back().push_back(row[p]);
        }
        std::set<uint32_t> sure, maybe;
        if (stamp == std::string("threshold")) {
          const auto weights = mean_of_softmaxes(rows);
          for (size_t i = 0; i < there.size(); ++i) {
            if (weights[i] > .0101) sure.insert(there[i]);
            else if (weights[i] > .0099) maybe.insert(there[i]);
          }
        } else {
          for (const auto& row : rows) {
            const std::vector<double> sorted = descending(row);
            const double last = sorted[there.size() / 2 - 1], next = sorted[there.size() / 2], near = 1e-3 * (sorted[0] - sorted.back());
            for (size_t i = 0; i < there.size(); ++i) {
              if (row[i] >= last && row[i] > next + near) sure.insert(there[i]);
              else if (row[i] > last - near) maybe.insert(there[i]);
            }
          }
        }
        for (const uint32_t p : there) {
          if (sure.count(p)) looked[head][p] = step, doubtful[head].erase(p);
          else if (maybe.count(p)) doubtful[head].insert(p);
          (sure.count(p) ? n_looked : n_not) += 1;
        }
      }
    });
    EXPECT_GT(n_gone, 200) << stamp;
    EXPECT_GT(n_looked, 1000) << stamp;
    EXPECT_GT(n_not, 1000) << stamp;
    EXPECT_EQ(resident->refill_stats().tokens, 0u);
  }
}

}  // namespace
}  // namespace orrery::pages_test
