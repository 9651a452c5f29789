// Policies whose pages come and go, on the demo model: what a head holds at a step is what its queries look for, in double precision
// from the reservoir's keys and the queries on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "tests/support/policy_sessions.h"

namespace orrery {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;

constexpr uint32_t kPage = 16, kFirst = 1, kLast = 1;   // sinks of a page, a window of two with the one that is written

std::vector<float> key(const kv::PageTable& reservoir, uint32_t head, uint32_t position) {
  const KvFormat& f = reservoir.format();
  const auto kv_heads = static_cast<uint32_t>(f.n_kv_heads);
  const uint64_t at = reservoir.view().pages[position / kPageTokens] + head / kv_heads * f.layer_bytes() + head % kv_heads * f.head_bytes() +
                      position % kPageTokens * f.token_bytes();
  std::vector<float> out(static_cast<size_t>(f.head_dim));
  gguf::dequantize_row(kv_tensor_type(f.type), reinterpret_cast<const std::byte*>(at), out.data(), out.size());
  return out;
}

// The least half that is no less, as digests hold bounds: over all dimensions it comes to a percent of a score.
double half_above(double x) {
  const float value = static_cast<float>(x);
  uint16_t half;
  float nearest;
  gguf::quantize_row(TensorType::f16, &value, reinterpret_cast<std::byte*>(&half), 1);
  gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(&half), &nearest, 1);
  if (nearest >= value) return nearest;
  half = static_cast<uint16_t>(nearest < 0 ? half - 1 : half + 1);
  gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(&half), &nearest, 1);
  return nearest;
}

// Of a head's candidates among n_tokens, by the query of `position`, which the ring holds: softmaxes of unscaled bounds, their mean.
std::vector<double> page_scores(const engine::LanguageModel& model, const Resident& resident, uint32_t head, uint32_t position,
                                uint32_t n_tokens, bool deviation) {
  const auto& h = model.hyper();
  const auto dim = static_cast<size_t>(h.head_dim), group = static_cast<size_t>(h.n_heads / h.n_kv_heads);
  const auto kv_heads = static_cast<uint32_t>(h.n_kv_heads);
  const QueryRing ring = resident.queries();
  const uint64_t row = uint64_t{head / kv_heads} * static_cast<uint64_t>(ring.n_rows) + position % static_cast<uint32_t>(ring.n_rows);
  const float* q = reinterpret_cast<const float*>(ring.data.address) + (row * static_cast<uint64_t>(h.n_heads) + head % kv_heads * group) * dim;
  const uint32_t n = n_tokens / kPage - kFirst - kLast;
  std::vector<std::vector<double>> bounds(group, std::vector<double>(n));
  for (uint32_t i = 0; i < n; ++i) {
    std::vector<double> low(dim, INFINITY), high(dim, -INFINITY), off(dim);
    std::vector<std::vector<float>> keys;
    for (uint32_t t = 0; t < kPage; ++t) {
      keys.push_back(key(resident.reservoir(), head, (kFirst + i) * kPage + t));
      for (size_t d = 0; d < dim; ++d) {
        low[d] = std::min<double>(low[d], keys[t][d]);
        high[d] = std::max<double>(high[d], keys[t][d]);
      }
    }
    for (size_t d = 0; deviation && d < dim; ++d) {
      const double middle = (low[d] + high[d]) / 2;
      for (uint32_t t = 0; t < kPage; ++t) off[d] += std::fabs(static_cast<double>(keys[t][d]) - middle) / kPage;
      low[d] = middle - off[d], high[d] = middle + off[d];
    }
    for (size_t d = 0; d < dim; ++d) low[d] = -half_above(-low[d]), high[d] = half_above(high[d]);
    for (size_t g = 0; g < group; ++g)
      for (size_t d = 0; d < dim; ++d) {
        const double x = q[g * dim + d];
        bounds[g][i] += std::max(x * low[d], x * high[d]);
      }
  }
  std::vector<double> scores(n);
  for (const std::vector<double>& b : bounds) {
    const double most = *std::max_element(b.begin(), b.end());
    double sum = 0;
    for (const double x : b) sum += std::exp(x - most);
    for (uint32_t i = 0; i < n; ++i) scores[i] += std::exp(b[i] - most) / sum / static_cast<double>(group);
  }
  return scores;
}

// A head's whole pages: the first, the last, and of the others the best by these scores, up to what floats and halves round.
void check_held(const kv::HeadStore& store, uint32_t head, const std::vector<double>& scores, uint32_t n_tokens) {
  const Span<const uint32_t> held = store.positions(head);
  std::set<uint32_t> pages;
  const size_t n_whole = held.size() / kPage;
  for (size_t i = 0; i < n_whole; ++i) {
    for (uint32_t t = 1; t < kPage; ++t) ASSERT_EQ(held[i * kPage + t], held[i * kPage] + t) << "head " << head;
    ASSERT_TRUE(pages.insert(held[i * kPage] / kPage).second) << "head " << head;
  }
  for (size_t i = n_whole * kPage; i < held.size(); ++i) ASSERT_EQ(held[i], n_tokens - held.size() + i);
  ASSERT_EQ(pages.count(0), 1u);
  ASSERT_EQ(pages.count(n_tokens / kPage - 1), 1u);
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double last = sorted[n_whole - kFirst - kLast - 1];
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
  o.policy_options = {{"page", "16"}, {"sinks", "16"}, {"window", "32"}, {"first_layers", "1"}, {"tau", c.tau}, {"digest", c.deviation ? "deviation" : "range"}};
  const auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, 500, 31), nullptr, nullptr));
  Resident* resident = session->resident();
  const auto first_head = static_cast<uint32_t>(model->hyper().n_kv_heads);   // of the second layer: the first is whole
  const bool same_step = std::string(c.tau) == "2";
  std::map<uint32_t, std::vector<double>> expected;   // of the step before
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
        continue;   // a page that has been completed has not moved yet
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
                         ::testing::Values(Case{"one_step_behind", "freekv", "0", false, KvType::f16}, Case{"deviation", "freekv", "0", true, KvType::f32},
                                           Case{"own_query", "quest", "2", false, KvType::f16}, Case{"quantized", "freekv", "2", false, KvType::q8_0}),
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

}  // namespace
}  // namespace orrery
