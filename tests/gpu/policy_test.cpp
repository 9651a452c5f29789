// Tests compressed sessions on the CUDA backend (resident heads, refills, best keys) against the CPU backend's plain kernels, with the same
// tokens.
//
// Policies choose by scores, which differ in their last bits. With equal choices, logits are as near as with full KV (model_test.cpp).
// Q4_0 is left out: a value's last bit may move its code by an eighth, and so change a choice.
#include <gtest/gtest.h>

#include <set>

#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"
#endif

namespace orrery::policy_test {
namespace cuda {
struct LowRankWork;
}
namespace {

using namespace testing;
using engine::Session;

struct Answer {
  std::vector<float> logits;
  uint64_t refilled = 0;
};
// Logits after each given token, or if none is given, after each greedy token, which `tokens` receives.
Answer answer_of(const std::shared_ptr<engine::LanguageModel>& model, const engine::SessionOptions& options, std::vector<int32_t>* tokens) {
  const auto session = unwrap(Session::open(model, options));
  unwrap(session->prefill(random_tokens(*model, 72, 1), nullptr, nullptr));
  Answer answer;
  if (tokens->empty()) {
    *tokens = greedy(session.get(), 8, &answer.logits);
  } else {
    for (const int32_t token : *tokens) {
      feed(session.get(), token);
      answer.logits.insert(answer.logits.end(), session->logits().begin(), session->logits().end());
    }
  }
  if (session->resident()) answer.refilled = session->resident()->refill_stats().tokens;
  return answer;
}

using Case = std::pair<const char*, KvType>;  // a mode, the type of resident KV
class GpuPolicy : public ::testing::TestWithParam<Case> {};

TEST_P(GpuPolicy, ChoosesAndAnswersAsOnTheCpu) {
  const PolicyMode& mode = mode_of(GetParam().first);
  engine::SessionOptions options = with_mode(mode, share_of_tokens(0.6, KvType::f16, GetParam().second), 128);
  options.device_kv_type = GetParam().second;
  if (mode.name == std::string("auto_by_window"))  // a GPU has other defaults
    options.policy_options.insert(options.policy_options.end(), {{"tail", "8"}, {"renew", "3"}});
  std::vector<int32_t> tokens;
  const Answer expected = answer_of(open_spec("qwen3", runtime_options(2, "plain")), options, &tokens);
  const Answer got = answer_of(open_spec("qwen3", on_cuda()), options, &tokens);
  Deviation deviation;
  ASSERT_EQ(got.logits.size(), expected.logits.size());
  deviation.add(got.logits.data(), expected.logits.data(), got.logits.size());
  EXPECT_LE(deviation.relative(), GetParam().second == KvType::f16 ? 4e-3 : 2e-2);
  EXPECT_EQ(got.refilled, expected.refilled);
  EXPECT_EQ(got.refilled > 0,
            std::string("synckv") == mode.policy || (mode.refills && mode.pages()) || mode.within_steps);  // the others' refills come later
}

// With slots in the order of positions, and tiles at the same places, results are equal to the bit.
void expect_full_attention(const Case& tested) {
  const auto model = open_spec("qwen3", on_cuda());
  engine::SessionOptions full;
  full.n_context = 128;
  full.kv_type = tested.second;
  std::vector<int32_t> tokens;
  const Answer expected = answer_of(model, full, &tokens);
  const engine::SessionOptions whole = with_mode(mode_of(tested.first), 1.0, 128, tested.second);
  EXPECT_TRUE(same_bits(answer_of(model, whole, &tokens).logits, expected.logits));
}
TEST_P(GpuPolicy, AWholeBudgetIsFullAttention) { expect_full_attention(GetParam()); }
class GpuWholeBudget : public GpuPolicy {};
TEST_P(GpuWholeBudget, IsFullAttention) { expect_full_attention(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Modes, GpuPolicy,
                         ::testing::Values(Case{"streaming", KvType::q8_0}, Case{"heterocache", KvType::f16}, Case{"adakv", KvType::f16},
                                           Case{"cake", KvType::q8_0}, Case{"auto_by_window", KvType::q8_0},
                                           Case{"auto_by_window", KvType::q4_0}, Case{"streaming", KvType::q4_0},
                                           Case{"quest", KvType::f16}, Case{"freekv_small_pages", KvType::f16},
                                           Case{"arkvale", KvType::f16}, Case{"raas", KvType::f16}, Case{"omnikv", KvType::f16},
                                           Case{"omnikv", KvType::q8_0}, Case{"shadowkv", KvType::f16}, Case{"shadowkv_plus", KvType::q8_0},
                                           Case{"razorattention", KvType::f16}, Case{"loki", KvType::f16}, Case{"loki_max", KvType::q8_0},
                                           Case{"infinigen", KvType::f16}, Case{"synckv_every_step", KvType::f16},
                                           Case{"synckv_every_step", KvType::q8_0}, Case{"synckv_every_step", KvType::k8v4},
                                           Case{"auto_by_window", KvType::k8v4}, Case{"streaming", KvType::k8v4},
                                           Case{"loki", KvType::k8v4}, Case{"shadowkv", KvType::k8v4}));
// Codes choose by products that the CPU rounds to other steps: key_codes_test.cpp compares the choices with the codes.
INSTANTIATE_TEST_SUITE_P(Codes, GpuWholeBudget,
                         ::testing::Values(Case{"keycodes", KvType::f16}, Case{"keycodes", KvType::q8_0},
                                           Case{"keycodes_signs", KvType::f16}, Case{"keycodes_dropping", KvType::q8_0},
                                           Case{"keycodes_fine", KvType::k8v4}, Case{"keycodes_values", KvType::f16}));

#ifdef ORRERY_EMULATED
// Prompts, settling and steps, under schedules that run streams' work in any order that events allow. Copies to the device include the keys
// of a chunk's own rows.
TEST(GpuPolicySchedules, ChangeNothing) {
  const PolicyMode seldom_corrected = {
      "freekv", "freekv", {{"page", "8"}, {"first_layers", "0"}, {"sinks", "8"}, {"window", "8"}, {"tau", "0.2"}}, true, true};
  for (const char* name :
       {"streaming", "shadowkv", "quest", "loki", "omnikv", "infinigen", "freekv", "synckv_every_step", "keycodes", "keycodes_values"}) {
    const PolicyMode& mode = name == std::string("freekv") ? seldom_corrected : mode_of(name);
    std::vector<float> expected;
    std::vector<uint64_t> schedules = {0};
    for (const uint64_t seed : emulated::schedules()) schedules.push_back(seed);
    for (const uint64_t schedule : schedules) {
      const auto model = open_spec("qwen3", on_cuda());
      const auto session = unwrap(Session::open(model, with_mode(mode, 0.6, 256, KvType::f16, 70)));
      emulated::set_schedule(schedule);
      std::vector<float> logits = answer(session.get(), random_tokens(*model, 200, 1), 3);
      emulated::set_schedule(0);
      if (schedule == 0) expected = std::move(logits);
      else EXPECT_TRUE(same_bits(logits, expected)) << name << ", schedule " << schedule;
    }
  }
}

// Settling rebuilds the keys of a layer's heads in one launch, for any number of heads.
TEST(GpuShadowKv, SettlingRebuildsALayerAtATime) {
  const auto model = open_spec("qwen3", on_cuda());
  const auto session = unwrap(Session::open(model, with_mode(mode_of("shadowkv"), 0.6, 128)));
  unwrap(session->prefill(random_tokens(*model, 72, 1), nullptr, nullptr));
  const auto rebuilt = [] { return emulated::launches_of("rebuild_keys_kernel"); };
  const uint64_t before = rebuilt();
  {
    const Turn turn = model->runtime().take_turn();
    const engine::Resident::Use use(session->resident(), turn);
    unwrap(turn.backend().set_scratch(model->workspace(turn).scratch, model->limits(turn)));
    unwrap(session->resident()->prepare(72));
  }
  ASSERT_TRUE(session->resident()->settled());
  EXPECT_EQ(model->description().kv().n_kv_heads, 2);
  EXPECT_EQ(rebuilt() - before, static_cast<uint64_t>(model->description().n_layers));
}
#endif

// Every policy: chunks and forks do not change results, and a prompt after generated tokens attends to all tokens, not only resident ones.
void expect_chunks_forks_and_later_prompts(const char* spec, const char* policy, double share) {
  const auto model = open_spec(spec, on_cuda());
  const std::vector<int32_t> prompt = random_tokens(*model, 72, 1), next = random_tokens(*model, 9, 2);
  PolicyMode mode{"", policy, {}, false};
  const auto one = unwrap(Session::open(model, with_mode(mode, share, 128))),
             other = unwrap(Session::open(model, with_mode(mode, share, 128, KvType::f16, 17)));
  EXPECT_TRUE(same_bits(answer(one.get(), prompt, 3), answer(other.get(), prompt, 3))) << "chunks";
  const auto fork = unwrap(one->fork());
  std::vector<float> a, b;
  greedy(one.get(), 3, &a), greedy(fork.get(), 3, &b);
  EXPECT_TRUE(same_bits(a, b)) << "forks";

  const size_t n_vocab = static_cast<size_t>(model->description().n_vocab);
  std::vector<float> expected(next.size() * n_vocab), got(expected.size());
  const auto full = open_session(model, 128, KvType::f16);
  unwrap(full->prefill(prompt, nullptr, nullptr));
  unwrap(full->prefill(next, nullptr, expected.data()));
  unwrap(one->rewind(static_cast<uint32_t>(prompt.size())));
  unwrap(one->prefill(next, nullptr, got.data()));
  EXPECT_TRUE(same_bits(got, expected)) << "a later prompt";
}

class GpuPolicies : public ::testing::TestWithParam<const char*> {};
TEST_P(GpuPolicies, ChunksForksAndLaterPrompts) { expect_chunks_forks_and_later_prompts("qwen3", GetParam(), .6); }
// Next to recurrent layers, whose state follows rewinds and forks; and next to windows in a KV group of their own. (A layer without
// attention has no queries for a look ahead.)
TEST_P(GpuPolicies, NextToOtherLayers) {
  const std::string policy = GetParam();
  const bool keeps_whole = policy == "pyramidkv" || policy == "omnikv" || policy == "synckv";
  // Of policies that are settings of one class, one meets the windows.
  const std::set<std::string> settings = {"adakv", "adapyramid", "auto", "cake", "arkvale", "razorattention", "shadowkv+"};
  for (const char* spec : {"lfm2", "gemma4-moe"}) {
    if (settings.count(policy) && spec == std::string("gemma4-moe")) continue;
    if (keeps_whole && spec == std::string("gemma4-moe")) continue;  // its one head in one layer would be kept whole
    if (GetParam() != std::string("infinigen")) expect_chunks_forks_and_later_prompts(spec, GetParam(), .8);
    else
      EXPECT_EQ(Session::open(open_spec(spec, on_cuda()), with_mode(mode_of("infinigen"), .8, 128)).take_status().code(),
                Code::unsupported);
  }
}

// The link makes codes slow: auto goes by them where it is told to.
TEST(GpuPolicy, AutoGoesByCodesWhereAsked) {
  const auto model = open_spec("qwen3-tied", on_cuda());
  struct Wanted {
    double share;
    const char* by;  // null: nothing is said
    KvType type;
  };
  for (const Wanted& c : {Wanted{.5, nullptr, KvType::q8_0}, Wanted{.3, nullptr, KvType::k8v4}, Wanted{.2, nullptr, KvType::q4_0},
                          Wanted{.5, "codes", KvType::q8_0}, Wanted{.2, "codes", KvType::q8_0}, Wanted{.12, "codes", KvType::k8v4}}) {
    engine::SessionOptions o;
    o.n_context = 512, o.policy = "auto", o.kv_share = c.share;
    if (c.by) o.policy_options = {{"by", c.by}};
    const auto session = unwrap(Session::open(model, o));
    EXPECT_EQ(session->resident()->format().type, c.type) << c.share;
    EXPECT_EQ(session->resident()->key_codes() != nullptr, c.by != nullptr) << c.share;
    EXPECT_EQ(session->resident()->policy().slots_in_place(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuPolicies, ::testing::ValuesIn(compressing_policies()), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '+', 'p');
  return name;
});

}  // namespace
}  // namespace orrery::policy_test
