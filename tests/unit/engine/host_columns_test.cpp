// Dense models of whose feed-forward blocks the processor computes some columns beside the device, which is the processor as well here:
// what a prompt makes on the device by way of the link, generated tokens make on both sides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/support/adapters.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/weights_away.h"

namespace orrery::host_columns_test {
namespace {

using namespace orrery::testing;
using engine::LanguageModel;
using engine::Session;

// Families with every kind of gated block: fused, with post norms, with per-layer embeddings, with GeLU, behind recurrent layers.
constexpr const char* kSpecs[] = {"llama-plain", "qwen2", "phi3", "gemma3", "gemma4", "qwen35", "glm4"};

// KV in F32, so that the last bits of a sum do not decide a value's rounding to F16.
std::vector<float> prompt_logits(const std::shared_ptr<LanguageModel>& model, const std::vector<int32_t>& tokens, uint32_t chunk = 128) {
  const auto session = open_session(model, 256, KvType::f32, chunk);
  std::vector<float> all(tokens.size() * session->logits().size());
  unwrap(session->prefill(tokens, nullptr, all.data()));
  return all;
}

// All tokens behind the first are generated ones, whichever they are.
std::vector<float> decoded_logits(const std::shared_ptr<LanguageModel>& model, const std::vector<int32_t>& tokens) {
  const auto session = open_session(model, 256, KvType::f32);
  std::vector<float> all(session->logits().size());
  unwrap(session->prefill({tokens.data(), 1}, nullptr, all.data()));
  for (size_t i = 1; i < tokens.size(); ++i) {
    session->push_generated(tokens[i]);
    unwrap(session->decode());
    all.insert(all.end(), session->logits().begin(), session->logits().end());
  }
  return all;
}

float largest(const std::vector<float>& a) { return farthest(a, std::vector<float>(a.size())); }

// All columns on one side: the bits of the undivided model, where they are stored alike (the processor reads the file's layout). On both: the
// sums of two parts, with other roundings.
TEST(EngineHostColumns, BothSidesTogetherAreTheBlock) {
  const std::vector<int32_t> prompt = random_prompt(40, 1);
  for (const char* spec : kSpecs)
    for (const TensorType type : {TensorType::f32, TensorType::q8_0}) {
      if (type == TensorType::q8_0 && std::string(spec) != "llama-plain" && std::string(spec) != "phi3") continue;
      SCOPED_TRACE(std::string(spec) + " " + type_traits(type)->name);
      const std::vector<std::byte> file = named_model_gguf(spec, {type});
      const auto whole = open_bytes(file);
      const std::vector<float> of_prompt = prompt_logits(whole, prompt), generated = decoded_logits(whole, prompt);
      for (const int64_t percent : {0, 50}) {
        SCOPED_TRACE(percent);
        const auto model = open_with(file, linked_options(), with_columns(percent));
        const model::HostColumns* columns = model->weights().columns.get();
        ASSERT_TRUE(columns);
        for (const auto& layer : columns->layout().layers) EXPECT_EQ(layer.n_there > 0, percent > 0) << layer.layer;
        const std::vector<float> there = prompt_logits(model, prompt);
        EXPECT_EQ(columns->counts().layers, 0u) << "the device computes prompts";
        EXPECT_GT(columns->prompts().bytes, 0u);
        EXPECT_TRUE(same_bits(prompt_logits(model, prompt, 7), there)) << "in chunks";
        const std::vector<float> beside = decoded_logits(model, prompt);
        EXPECT_EQ(columns->counts().layers, columns->layout().layers.size() * (prompt.size() - 1));
        EXPECT_LT(farthest(there, of_prompt), 2e-5f * largest(of_prompt));
        EXPECT_LT(farthest(beside, generated), 2e-5f * largest(generated));
        if (type == TensorType::f32) {
          EXPECT_EQ(same_bits(beside, generated), percent == 0);
        }
      }
    }
}

TEST(EngineHostColumns, SessionsDecodeTogetherAndUnderPolicies) {
  const std::vector<std::byte> file = deep_model_gguf("llama-plain", {TensorType::q8_0});
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 5; ++i) prompts.push_back(random_prompt(20 + 7 * i, 10 + i));
  expect_together_as_alone(open_with(file, linked_options(), with_columns(50)), prompts, 6);
  for (const char* name : {"streaming", "auto_by_codes", "infinigen"}) {
    SCOPED_TRACE(name);
    std::vector<float> traces[2];
    for (const int32_t n_threads : {1, 2}) {
      const auto model = open_with(file, linked_options(n_threads), with_columns(50));
      const auto session = unwrap(Session::open(model, with_mode(mode_of(name), 0.6)));
      unwrap(session->prefill(random_prompt(150, 3), nullptr, nullptr));
      (void)greedy(session.get(), 16, &traces[n_threads - 1]);
    }
    EXPECT_TRUE(same_bits(traces[0], traces[1]));
  }
}

// Where the model does not fit: as many columns as fit are on the device; where even none of them makes room, layers leave, too.
TEST(EngineHostColumns, AsManyAsFit) {
  const std::vector<std::byte> file = deep_model_gguf("llama-plain", {TensorType::q8_0});
  engine::RuntimeOptions runtime = linked_options();
  runtime.device_budget_bytes = uint64_t{8} << 20;
  const auto whole = open_with(file, runtime, with_columns(-1));
  EXPECT_FALSE(whole->weights().columns) << "it fits";
  if (reads_the_file(whole)) GTEST_SKIP() << "these kernels read weights where the file lies, so nothing has to leave";
  const uint64_t all = whole->runtime().arena().used();
  const std::vector<int32_t> prompt = random_prompt(40, 1);
  const std::vector<float> expected = prompt_logits(whole, prompt);
  uint64_t before = UINT64_MAX;
  for (const uint64_t missing : {uint64_t{1}, all / 8, all / 2}) {
    SCOPED_TRACE(missing);
    engine::ModelOptions options = with_columns(-1);
    options.sessions_bytes = runtime.device_budget_bytes - all + missing;
    const auto model = open_with(file, runtime, options);
    ASSERT_TRUE(model->weights().columns);
    uint64_t there = 0;
    for (const auto& layer : model->weights().columns->layout().layers) there += static_cast<uint64_t>(layer.n_there);
    EXPECT_EQ(static_cast<bool>(model->weights().layers), missing == all / 2) << "layers leave behind the last column";
    EXPECT_LT(there, before);
    EXPECT_EQ(there == 0, missing == all / 2);
    before = there;
    EXPECT_LE(model->runtime().arena().used(), runtime.device_budget_bytes - options.sessions_bytes);
    EXPECT_LT(farthest(prompt_logits(model, prompt), expected), 2e-5f * largest(expected));
    if (missing < all / 2) {  // a chunk leaves each layer, so that the next chunk's first layers are on their way
      EXPECT_GT(model->weights().columns->prompts().bytes, model->weights().columns->layout().units.bytes());
    }
    EXPECT_LT(farthest(decoded_logits(model, prompt), expected), 2e-3f * largest(expected)) << "as near as generated tokens are";
  }
}

TEST(EngineHostColumns, PlannedBytesAreTakenBytes) {
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", deep_model_gguf("llama-plain", {TensorType::q8_0}));
  engine::SessionOptions session;
  session.n_context = 256;
  for (const int64_t layers : {int64_t{-1}, int64_t{2}})
    for (const int64_t percent : {0, 50}) {
      SCOPED_TRACE(std::to_string(percent) + "%, layers " + std::to_string(layers));
      engine::ModelOptions options = with_columns(percent);
      options.layers_on_device = layers;
      const kv::Region planned = expect_planned_is_taken(source, linked_options(), options, session, "columns", [](const model::Model& m) {
        return std::pair(m.columns->layout().arena_bytes(), m.columns->layout().reservoir_bytes());
      });
      EXPECT_GT(planned.reservoir_bytes, 0u);
    }
}

// Rows of guesses are computed by both sides, too: each has the bits of a step of its own.
TEST(EngineHostColumns, GuessesChangeNothing) {
  const auto model = open_with(named_model_gguf("qwen35-mtp"), linked_options(), with_columns(50));
  std::vector<float> traces[2];
  for (const bool guesses : {false, true}) {
    engine::SessionOptions options;
    options.n_context = 256;
    if (guesses) options.speculate = engine::Speculate::mtp, options.speculate_tokens = 3, options.guess_costs.emplace().fill(1e-9);
    const auto session = unwrap(Session::open(model, options));
    unwrap(session->prefill(random_prompt(40, 1), nullptr, nullptr));
    for (int i = 0; i < 24; ++i) {
      session->push_generated(argmax(session->logits()));
      unwrap(session->decode(nullptr, nullptr, 3));
      traces[guesses].insert(traces[guesses].end(), session->logits().begin(), session->logits().end());
    }
    EXPECT_EQ(session->stats().guessed_tokens > 0, guesses);
  }
  EXPECT_TRUE(same_bits(traces[0], traces[1]));
}

TEST(EngineHostColumns, WhatCannotBeIsNamed) {
  const auto refusal = [](const char* spec, const engine::ModelOptions& options) {
    auto opened = try_open(named_model_gguf(spec), linked_options(), options);
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? std::string() : std::string(opened.status().detail().option) + ": " + opened.status().message();
  };
  engine::ModelOptions alone;
  alone.columns_on_device = 50;
  EXPECT_NE(refusal("llama-plain", alone).find("columns_on_device: "), std::string::npos);
  EXPECT_NE(refusal("qwen3moe", with_columns(50)).find("columns_on_device: "), std::string::npos);
  // An adapter adds to whole matrices.
  const std::vector<std::byte> file = named_model_gguf("llama-plain");
  const auto model = open_with(file, linked_options(), with_columns(50));
  AdapterSpec spec;
  spec.takes = [](const std::string& name) { return name.find("attn") != std::string::npos; };
  const auto adapter = [&] {
    const std::vector<std::byte> bytes = adapter_gguf(file, spec);
    engine::ModelSource source;
    source.memory = bytes, source.from_memory = true;
    return engine::LoadedAdapter::open(model, source);
  };
  EXPECT_TRUE(adapter().ok());
  spec.takes = [](const std::string& name) { return name.find("ffn_down.") != std::string::npos; };
  const auto refused = adapter();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::unsupported);
  EXPECT_NE(std::string(refused.status().message()).find("ffn_down.weight"), std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace orrery::host_columns_test
