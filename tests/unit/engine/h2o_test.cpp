// H2O on the demo model: heads hold the tokens that all queries together have attended to most, in double precision from the reservoir's
// keys and every position's query. Lost sums are computed again.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/policy/select/top_k.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/resident_oracle.h"

namespace orrery::h2o_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;

constexpr uint32_t kPrompt = 320;

// Every position's queries of a prompt, (n_heads, n_tokens, group, head_dim): a policy that keeps the last 64 is shown the prompt in
// pieces.
std::vector<std::vector<float>> prompt_queries(const std::shared_ptr<engine::LanguageModel>& model, const std::vector<int32_t>& prompt,
                                               KvType type, KvType device_type) {
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "snapkv";
  o.kv_type = type;
  o.device_kv_type = device_type;  // queries have the form of the slots' type
  const auto session = unwrap(Session::open(model, o));
  const auto& h = model->description();
  const auto width = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads * h.kv().head_dim);
  std::vector<std::vector<float>> queries(session->resident()->store().n_heads());
  for (uint32_t from = 0; from < prompt.size(); from += 64) {
    const auto n = std::min<uint32_t>(64, static_cast<uint32_t>(prompt.size()) - from);
    unwrap(session->prefill({prompt.data() + from, n}, nullptr, nullptr));
    for (uint32_t head = 0; head < queries.size(); ++head)
      for (uint32_t p = from; p < from + n; ++p) {
        const float* q = ring_queries(*session->resident(), h, head, p);
        queries[head].insert(queries[head].end(), q, q + width);
      }
  }
  return queries;
}

// Adds what a group's queries attend to among some keys, its mean, to the sums of their positions.
void add_attention(const model::Description& h, const float* q, const std::vector<std::vector<float>>& keys, Span<const uint32_t> positions,
                   std::vector<double>* sums) {
  const auto group = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads), dim = static_cast<size_t>(h.kv().head_dim);
  std::vector<std::vector<double>> rows(group, std::vector<double>(positions.size()));
  for (size_t g = 0; g < group; ++g)
    for (size_t i = 0; i < positions.size(); ++i)
      for (size_t d = 0; d < dim; ++d)
        rows[g][i] += static_cast<double>(q[g * dim + d]) * static_cast<double>(keys[i][d]) / std::sqrt(static_cast<double>(dim));
  const std::vector<double> mean = mean_of_softmaxes(rows);
  for (size_t i = 0; i < positions.size(); ++i) (*sums)[positions[i]] += mean[i];
}

struct Case {
  const char* name;
  const char* recent;
  KvType type, device_type;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class EngineH2O : public ::testing::TestWithParam<Case> {};

TEST_P(EngineH2O, HeadsHoldWhatHasBeenAttendedToMost) {
  const Case& c = GetParam();
  const auto model = open_demo();
  const auto& h = model->description();
  const auto prompt = random_tokens(*model, kPrompt, 61);
  const auto queries = prompt_queries(model, prompt, c.type, c.device_type);
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "h2o";
  o.policy_options = {{"recent", c.recent}};
  o.kv_share = share_of_tokens(.4, c.type, c.device_type);
  o.kv_type = c.type;
  o.device_kv_type = c.device_type;
  o.chunk_tokens = 100;
  const auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(prompt, nullptr, nullptr));
  Resident* resident = session->resident();
  const uint32_t n_heads = resident->store().n_heads(), n_slots = kPrompt * 4 / 10;
  const auto n_recent = static_cast<uint32_t>(std::stod(c.recent) * n_slots + .5);
  const auto width = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads * h.kv().head_dim);
  std::vector<std::vector<double>> sums(n_heads, std::vector<double>(1024));
  for (uint32_t head = 0; head < n_heads; ++head) {
    std::vector<std::vector<float>> keys;
    policy::Tokens seen;
    for (uint32_t p = 0; p < kPrompt; ++p) {
      keys.push_back(reservoir_key(resident->reservoir(), head, p));
      seen.push_back(p);
      add_attention(h, queries[head].data() + p * width, keys, seen, &sums[head]);
    }
  }
  std::vector<std::set<uint32_t>> before(n_heads);  // what was there before the step, its token besides
  uint32_t n_gone = 0, n_not_oldest = 0;
  resident->set_step_fault([&](uint64_t step) {
    const uint32_t n_tokens = session->n_computed(), position = n_tokens - 1;
    for (uint32_t head = 0; head < n_heads; ++head) {
      const Span<const uint32_t> positions = resident->store().positions(head);
      const std::set<uint32_t> held(positions.begin(), positions.end());
      EXPECT_EQ(held.size(), n_slots);
      EXPECT_EQ(held.count(position), 1u);
      // Of those outside the last n_recent, in the first step of all, nothing that is not there has a larger sum.
      for (uint32_t p = n_tokens - n_recent; p < n_tokens; ++p) EXPECT_EQ(held.count(p), 1u) << "head " << head << ", recent token " << p;
      std::vector<uint32_t> gone;
      if (step == 1) {
        for (uint32_t p = 0; p < position; ++p)
          if (!held.count(p)) gone.push_back(p);
      } else {
        std::set_difference(before[head].begin(), before[head].end(), held.begin(), held.end(), std::back_inserter(gone));
        EXPECT_EQ(gone.size(), 1u);
      }
      for (const uint32_t g : gone) {
        ++n_gone, n_not_oldest += step > 1 && g != *before[head].begin();
        for (const uint32_t p : held)
          if (p + n_recent < n_tokens) {
            EXPECT_GE(sums[head][p], sums[head][g] * (1 - 1e-4)) << "head " << head << ", " << p << " stayed, " << g << " went";
          }
      }
      before[head] = held;
      std::vector<std::vector<float>> keys;
      for (uint32_t slot = 0; slot < positions.size(); ++slot) keys.push_back(device_key(*resident, head, slot));
      add_attention(h, ring_queries(*resident, h, head, position), keys, positions, &sums[head]);
    }
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session.get(), 40);
  EXPECT_EQ(n_gone, n_heads * (kPrompt - n_slots + 1 + 39));
  EXPECT_GT(n_not_oldest, n_heads * 5u);
  EXPECT_EQ(resident->report().n_settled, 1u);

  // A later prompt attends to everything, and all compete again: by the sums of all queries so far.
  resident->set_step_fault(nullptr);
  const uint32_t n_before = session->n_computed();
  const auto second = random_tokens(*model, 50, 62);
  unwrap(session->prefill(second, nullptr, nullptr));
  greedy(session.get(), 1);
  EXPECT_EQ(resident->report().n_settled, 2u);
  uint32_t n_back = 0;
  for (uint32_t head = 0; head < n_heads; ++head)
    for (const uint32_t p : resident->store().positions(head)) n_back += p < n_before && !before[head].count(p);
  EXPECT_GT(n_back, 0u) << "nothing has come back";
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineH2O,
                         ::testing::Values(Case{"half_recent", "0.5", KvType::f16, KvType::f16},
                                           Case{"mostly_heavy", "0.1", KvType::f32, KvType::f32},
                                           Case{"quantized", "0.3", KvType::q8_0, KvType::q8_0},
                                           Case{"coarser_on_the_device", "0.5", KvType::f16, KvType::q4_0},
                                           Case{"mixed_on_the_device", "0.5", KvType::f16, KvType::k8v4}),
                         [](const auto& tested) { return std::string(tested.param.name); });

// Sums cannot be taken back: after a rewind, a chunk that is cancelled half-way or a failed step they are computed again, and are the same.
TEST(EngineH2OSums, ThatWereLostComeBack) {
  const auto model = open_demo();
  const auto prompt = random_tokens(*model, 300, 63), wrong = random_tokens(*model, 90, 64);
  const PolicyMode mode{"h2o", "h2o", {}, false};
  const auto fresh = unwrap(Session::open(model, with_mode(mode, .3, 640)));
  const std::vector<float> expected = answer(fresh.get(), prompt, 30);
  const auto rest = [&](Session* session) {
    std::vector<float> found;
    unwrap(session->prefill({prompt.data() + session->n_computed(), 300 - session->n_computed()}, nullptr, nullptr));
    greedy(session, 30, &found);
    return same_bits(found, expected);
  };
  const auto rewound = unwrap(Session::open(model, with_mode(mode, .3, 640, KvType::f16, 50)));
  unwrap(rewound->prefill({prompt.data(), 210}, nullptr, nullptr));
  answer(rewound.get(), wrong, 20);
  unwrap(rewound->rewind(210));
  EXPECT_TRUE(rest(rewound.get()));

  const auto cancelled = unwrap(Session::open(model, with_mode(mode, .3, 640, KvType::f16, 50)));
  unwrap(cancelled->prefill({prompt.data(), 110}, nullptr, nullptr));
  const std::atomic<bool> cancel{true};
  EXPECT_EQ(cancelled->prefill({prompt.data() + 110, 100}, &cancel, nullptr).code(), Code::cancelled);
  EXPECT_TRUE(rest(cancelled.get()));

  // In the middle of an answer: its tokens count as a prompt's then, and the answer goes on.
  const auto failing = unwrap(Session::open(model, with_mode(mode, .3, 640)));
  answer(failing.get(), prompt, 10);
  failing->resident()->set_step_fault([](uint64_t) { return error(Code::internal, "a step"); });
  failing->push_generated(7);
  EXPECT_EQ(failing->decode().code(), Code::internal);
  failing->resident()->set_step_fault(nullptr);
  unwrap(failing->sequence().refresh_logits());
  greedy(failing.get(), 20);
  EXPECT_EQ(failing->resident()->report().n_settled, 2u);
}

// Where nothing ever makes room nothing is summed, and nothing is paid for it.
TEST(EngineH2OSums, AWholeBudgetHasNone) {
  const auto model = open_demo();
  const PolicyMode mode{"h2o", "h2o", {}, false};
  const kv::Plan some = plan_session(*model, with_mode(mode, .99, 1024)), whole = plan_session(*model, with_mode(mode, 1.0, 1024));
  EXPECT_GT(some.host_bytes, whole.host_bytes + 32 * 1024 * 4);
}

}  // namespace
}  // namespace orrery::h2o_test
