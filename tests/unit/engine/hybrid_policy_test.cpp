// KV policies on models whose layers differ: some keep all KV, which policies divide; others have a recurrent state, or a window of keys in
// a KV group of their own. The state and the windows are exact under every policy.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/engine/session/session_file.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/session_bytes.h"

namespace orrery::hybrid_policy_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionFile;
using engine::SessionOptions;

constexpr const char* kModels[] = {"qwen35", "lfm2", "nemotron-h", "gemma4-moe"};

// These ask for queries one layer ahead, which a layer without attention does not have.
bool looks_ahead(const PolicyMode& mode) { return mode.policy == std::string("infinigen"); }

// These keep whole layers, and therefore need several with attention.
bool keeps_layers(const PolicyMode& mode) { return mode.policy == std::string("pyramidkv") || mode.policy == std::string("omnikv"); }
bool fits(const PolicyMode& mode, const engine::LanguageModel& model) {
  const model::KvGroup& kv = model.description().kv();
  return keeps_layers(mode) ? kv.n_layers() > 1 : mode.policy != std::string("synckv") || kv.n_kv_heads > 1;
}
// Half of the KV; more where half of the heads or layers of these small models are kept whole.
double part(const PolicyMode& mode) { return keeps_layers(mode) || mode.policy == std::string("synckv") ? .8 : .5; }

std::vector<PolicyMode> running_modes() {
  std::vector<PolicyMode> modes;
  for (const PolicyMode& mode : policy_modes())
    if (!looks_ahead(mode)) modes.push_back(mode);
  return modes;
}

// Without a resident state: the sessions choose their resident KV again.
std::vector<std::byte> saved(Session* session) { return without_resident(save_bytes(session)); }

std::vector<float> continued(Session* session, size_t n) {
  std::vector<float> trace;
  unwrap(session->sequence().refresh_logits());
  greedy(session, n, &trace);
  return trace;
}

class EngineHybridPolicy : public ::testing::TestWithParam<PolicyMode> {};

// Prompts in any chunks, going back, forks and files: the bits that a fresh session gives.
TEST_P(EngineHybridPolicy, WhatCutsASessionGivesAFreshOnesBits) {
  for (const char* spec : kModels) {
    const auto model = open_spec(spec, runtime_options(2));
    if (!fits(GetParam(), *model)) continue;
    const std::vector<int32_t> prompt = random_tokens(*model, 150, 2);
    const auto fresh = unwrap(Session::open(model, with_mode(GetParam(), part(GetParam()))));
    const std::vector<float> expected = answer(fresh.get(), prompt, 15);
    for (const uint32_t chunk : {7u, 64u}) {
      const auto session = unwrap(Session::open(model, with_mode(GetParam(), part(GetParam()), 320, KvType::f16, chunk)));
      EXPECT_TRUE(same_bits(answer(session.get(), prompt, 15), expected)) << spec << " in chunks of " << chunk;
    }
    // Back to the prompt, and to a part of it.
    unwrap(fresh->rewind(150));
    EXPECT_TRUE(same_bits(continued(fresh.get(), 15), expected)) << spec;
    const auto shorter = unwrap(Session::open(model, with_mode(GetParam(), part(GetParam()))));
    const std::vector<float> of_part = answer(shorter.get(), {prompt.begin(), prompt.begin() + 90}, 10);
    unwrap(fresh->rewind(90));
    EXPECT_TRUE(same_bits(continued(fresh.get(), 10), of_part)) << spec;
    // A fork goes on as its parent does.
    const auto fork = unwrap(shorter->fork());
    const std::vector<float> of_parent = continued(shorter.get(), 8);
    EXPECT_TRUE(same_bits(continued(fork.get(), 8), of_parent)) << spec;
  }
}

// Tokens are computed again for their queries and their state, with generated tokens among them. Their KV stays the file's.
TEST_P(EngineHybridPolicy, AFileGivesTheSameAnswerInAnyChunk) {
  const auto model = open_spec(keeps_layers(GetParam()) ? "lfm2" : "qwen35", runtime_options(2));
  const auto first = unwrap(Session::open(model, with_mode(GetParam(), part(GetParam()))));
  answer(first.get(), random_tokens(*model, 110, 1), 31);
  answer(first.get(), random_tokens(*model, 9, 2), 17);
  const std::vector<std::byte> bytes = saved(first.get());
  for (const uint32_t back : {0u, 5u, 20u}) {
    std::vector<float> expected;
    for (const uint32_t chunk : {64u, 5u}) {
      const auto session = unwrap(Session::open(model, with_mode(GetParam(), part(GetParam()), 320, KvType::f16, chunk)));
      unwrap(SessionFile::load(session.get(), bytes, "a session"));
      unwrap(session->rewind(session->n_computed() - back));
      const std::vector<float> trace = continued(session.get(), 12);
      if (expected.empty()) expected = trace;
      EXPECT_TRUE(same_bits(trace, expected)) << "chunks of " << chunk << ", " << back << " tokens back";
      if (back != 20) continue;
      unwrap(session->rewind(first->n_computed() - back));
      const auto untouched = unwrap(Session::open(model, with_mode(GetParam(), part(GetParam()))));
      unwrap(SessionFile::load(untouched.get(), bytes, "a session"));
      unwrap(untouched->rewind(first->n_computed() - back));
      const std::vector<std::byte> of_session = saved(session.get()), of_untouched = saved(untouched.get());
      const size_t n =
          std::min(of_session.size(), of_untouched.size()) - model->description().state_bytes() - 16;  // one may have its state, too
      EXPECT_TRUE(std::equal(of_session.begin() + 88, of_session.begin() + static_cast<ptrdiff_t>(n), of_untouched.begin() + 88));
    }
  }
}

// The bytes of the plan are those that opening takes.
TEST_P(EngineHybridPolicy, ThePlanIsExact) {
  for (const char* spec : kModels)
    for (const double share : {part(GetParam()), .9}) {
      const auto model = open_spec(spec);
      if (!fits(GetParam(), *model)) continue;
      SessionOptions options = with_mode(GetParam(), share, 512);
      const kv::Plan plan = engine::plan_session(*model, &options);
      const uint64_t before = model->runtime().arena().used(), kept_before = model->runtime().reservoir().used();
      const auto session = unwrap(Session::open(model, options));
      EXPECT_EQ(model->runtime().arena().used() - before, plan.device_bytes) << spec;
      EXPECT_EQ(model->runtime().reservoir().used() - kept_before, plan.reservoir_bytes) << spec;
    }
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineHybridPolicy, ::testing::ValuesIn(running_modes()),
                         [](const auto& each) { return std::string(each.param.name); });

// A policy is refused where it would divide some of the KV that a layer reads.
TEST(EngineHybridForms, AModelWhoseLayersShareKvIsRunWithAllOfIt) {
  const auto model = open_spec("gemma4");
  const Status status = Session::open(model, with_mode(mode_of("snapkv"), .5)).take_status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(std::string(status.message()).find("later layers read the KV of earlier ones"), std::string::npos) << status.message();
  SessionOptions automatic;
  automatic.n_context = 128, automatic.automatic = true;
  EXPECT_EQ(unwrap(Session::open(model, automatic))->options().policy, "full");
}

// The same where one row is key and value.
TEST(EngineHybridForms, AModelOfLatentAttentionIsRunWithAllOfItsKv) {
  const auto model = open_spec("deepseek2-lite");
  for (const PolicyMode& mode : policy_modes()) {
    const Status status = Session::open(model, with_mode(mode, .5)).take_status();
    EXPECT_EQ(status.code(), Code::unsupported) << mode.name;
    EXPECT_NE(std::string(status.message()).find("(latent attention) one row of 96 values is both"), std::string::npos) << status.message();
  }
  SessionOptions automatic;
  automatic.n_context = 128, automatic.automatic = true;
  EXPECT_EQ(unwrap(Session::open(model, automatic))->options().policy, "full");
  const Status mixed = Session::open(model, with_mode(mode_of("full"), 1, 128, KvType::k8v4)).take_status();
  EXPECT_EQ(mixed.code(), Code::unsupported);
  EXPECT_NE(std::string(mixed.message()).find("keys and values of two types"), std::string::npos) << mixed.message();
}

// What a row takes: 1,152 bytes a token and layer in F16, and 47 layers of GLM-4.7-Flash 52.9 KiB.
TEST(EngineHybridForms, ARowOfLatentAttentionIsStoredOnce) {
  const auto model = open_spec("glm47");
  const KvFormat small = engine::kv_format(model->description(), KvType::f16);
  EXPECT_EQ(small.token_bytes(), 96u);
  EXPECT_EQ(unwrap(Session::open(model, with_mode(mode_of("full"), 1, 128)))->kv_bytes(),
            uint64_t{2} * 3 * kPageTokens * 96 * (kPagesTogether / 2));
  model::Description d;
  d.n_layers = 47;
  d.layers.resize(47);
  for (model::LayerShape& layer : d.layers)
    layer.attention.n_heads = 20, layer.attention.n_kv_heads = 1, layer.attention.head_dim = 576, layer.attention.shared_values = 512;
  model::group_layers(&d);
  const KvFormat kv = engine::kv_format(d, KvType::f16);
  EXPECT_EQ(kv.page_bytes(), uint64_t{kPageTokens} * 47 * 1152);
  EXPECT_NEAR(static_cast<double>(engine::page_bytes(d, KvType::f16)) / kPageTokens / 1024, 52.9, 0.05);
}

// Kept prompts hold the pages of every KV group.
TEST(EngineHybridForms, AKeptPromptHasThePagesOfAllGroups) {
  for (const char* spec : {"gemma4", "gemma4-moe", "glm47"}) {
    const auto model = open_spec(spec, runtime_options(2));
    ASSERT_EQ(model->description().groups.size(), spec == std::string("glm47") ? 1u : 2u);
    SessionOptions options = with_mode(mode_of("full"), 1);
    options.reuse_prompts = true;
    const auto one = unwrap(Session::open(model, options)), two = unwrap(Session::open(model, options)),
               fresh = unwrap(Session::open(model, options));
    const std::vector<int32_t> prompt = random_tokens(*model, 170, 4);
    unwrap(one->prefill(prompt, nullptr, nullptr));
    one->keep_prefix();
    unwrap(two->find_prefix(prompt, nullptr));
    ASSERT_EQ(two->n_computed(), 128u);
    unwrap(two->prefill({prompt.data() + 128, 42}, nullptr, nullptr));
    std::vector<float> found;
    greedy(two.get(), 6, &found);
    EXPECT_TRUE(same_bits(found, answer(fresh.get(), prompt, 6))) << spec;
  }
}

// Keys are centred and rotated as in a model without a state: Q4_0 keeps more of them than it does without.
TEST(EngineHybridForms, QuantizedKeysAreCentred) {
  const auto model = open_spec("qwen35", runtime_options(2));
  const std::vector<int32_t> prompt = random_tokens(*model, 130, 1);
  SessionOptions options = with_mode(mode_of("full"), 1, 320, KvType::q8_0);
  const auto session = unwrap(Session::open(model, options));
  EXPECT_TRUE(options.centred(model->description()));
  const std::vector<float> trace = answer(session.get(), prompt, 5);
  EXPECT_TRUE(static_cast<bool>(session->sequence().transform().key_means));
  // The mean keys are measured on other tokens, whose state leaves no trace.
  const auto again = unwrap(Session::open(model, options));
  EXPECT_TRUE(same_bits(answer(again.get(), prompt, 5), trace));
  EXPECT_EQ(again->stats().recomputed_tokens + session->stats().recomputed_tokens, 0u);
}

}  // namespace
}  // namespace orrery::hybrid_policy_test
