// Compressed sessions: prompts attend to all tokens, whatever is resident, and the plan foretells the memory. budget_test.cpp tests whole
// budgets, refill_test.cpp tests refills.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "runtime/policy/select/rings.h"
#include "tests/support/policy_sessions.h"

namespace orrery::policy_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionOptions;

SessionOptions with_policy(double share, uint32_t n_context = 320, KvType kv = KvType::f16, uint32_t chunk = 0,
                           const char* policy = "streaming") {
  SessionOptions o;
  o.n_context = n_context;
  o.kv_type = kv;
  o.chunk_tokens = chunk;
  o.policy = policy;
  o.policy_options = without_profile(policy);
  o.kv_share = share;
  return o;
}

// A model, and a policy.
class EnginePolicy : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  const char* model_name() const { return std::get<0>(GetParam()); }
  SessionOptions options(double share, KvType kv = KvType::f16, uint32_t chunk = 0) const {
    return with_policy(share, 320, kv, chunk, std::get<1>(GetParam()));
  }
};

TEST_P(EnginePolicy, ThreadsAndChunksDoNotShow) {
  std::vector<float> first;
  for (const int32_t n_threads : {1, 2, 4}) {
    const auto model = open_spec(model_name(), runtime_options(n_threads));
    const auto session = unwrap(Session::open(model, options(0.7, KvType::f16, n_threads == 2 ? 7 : 64)));
    const std::vector<float> trace = answer(session.get(), random_tokens(*model, 150, 2), 40);
    if (first.empty()) first = trace;
    EXPECT_TRUE(same_bits(trace, first)) << n_threads;
  }
}

TEST_P(EnginePolicy, LaterPromptsAttendToEverything) {
  const auto model = open_spec(model_name());
  const auto one = random_tokens(*model, 150, 3), two = random_tokens(*model, 70, 4);
  const size_t n_vocab = static_cast<size_t>(model->description().n_vocab);
  std::vector<float> full_logits(two.size() * n_vocab), logits(two.size() * n_vocab);
  const auto full = open_session(model, 320, KvType::f16);
  unwrap(full->prefill(one, nullptr, nullptr));
  unwrap(full->prefill(two, nullptr, full_logits.data()));
  const auto session = unwrap(Session::open(model, options(0.7)));
  answer(session.get(), one, 20);
  unwrap(session->rewind(150));
  unwrap(session->prefill(two, nullptr, logits.data()));
  EXPECT_TRUE(same_bits(full_logits, logits));
}

TEST_P(EnginePolicy, AForkGoesOnAlike) {
  const auto model = open_spec(model_name());
  const auto session = unwrap(Session::open(model, options(0.7)));
  answer(session.get(), random_tokens(*model, 150, 5), 20);
  const auto fork = unwrap(session->fork());
  std::vector<float> a, b;
  greedy(session.get(), 30, &a);
  greedy(fork.get(), 30, &b);
  EXPECT_TRUE(same_bits(a, b));
}

INSTANTIATE_TEST_SUITE_P(Models, EnginePolicy,
                         ::testing::Combine(::testing::Values("llama-plain", "qwen3", "phi3-window", "glm4"),
                                            ::testing::ValuesIn(compressing_policies())),
                         [](const auto& tested) {
                           std::string name = std::string(std::get<0>(tested.param)) + "_" + std::get<1>(tested.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           std::replace(name.begin(), name.end(), '+', 'p');
                           return name;
                         });

TEST(EnginePolicyDemo, ResidentTokensAreTheSinksAndTheLast) {
  const auto model = open_demo();
  const auto session = unwrap(Session::open(model, with_policy(0.25, 1024)));
  unwrap(session->prefill(random_tokens(*model, 400, 7), nullptr, nullptr));
  for (int step = 1; step <= 130; ++step) {
    greedy(session.get(), 1);
    if (step % 13 != 0) continue;
    policy::Tokens expected;
    policy::sinks_and_recent(400 + static_cast<uint32_t>(step), 4, 96, &expected);
    for (uint32_t head = 0; head < session->resident()->store().n_heads(); ++head) {
      const Span<const uint32_t> held = session->resident()->store().positions(head);
      EXPECT_EQ(std::set<uint32_t>(held.begin(), held.end()), std::set<uint32_t>(expected.begin(), expected.end()))
          << "step " << step << ", head " << head;
    }
  }
}

TEST(EnginePolicyDemo, DeviceBytesAreTheBudget) {
  const auto model = open_demo();
  const uint64_t before = model->runtime().arena().used();
  SessionOptions o = with_policy(1.0, 4096);
  o.kv_share = 1.0;
  o.kv_budget_bytes = 1u << 20;
  const kv::Plan plan = plan_session(*model, o);
  EXPECT_LE(plan.compressed_kv_bytes, o.kv_budget_bytes);
  EXPECT_GE(plan.compressed_kv_bytes, o.kv_budget_bytes / 100 * 99);
  const auto session = unwrap(Session::open(model, o));
  EXPECT_EQ(model->runtime().arena().used() - before, plan.device_bytes);
  EXPECT_EQ(session->reservoir_bytes(), plan.reservoir_bytes);
  answer(session.get(), random_tokens(*model, 1000, 8), 50);
  EXPECT_EQ(model->runtime().arena().used() - before, plan.device_bytes);
  EXPECT_LE(session->kv_used_bytes(), o.kv_budget_bytes);

  o.kv_budget_bytes = 1000;
  auto refused = Session::open(model, o);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::invalid_argument);
  o.policy = "full";
  EXPECT_EQ(Session::open(model, o).take_status().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace orrery::policy_test
