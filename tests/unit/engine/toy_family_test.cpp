// The recipe of a family (runtime/model/families/add_a_family.md), followed: a toy family of existing blocks, in this file alone. Its
// layers are those of Qwen3, so the goldens of Qwen3, which share no code with the engine, say what its logits are.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"
#include "tests/support/engine_fixture.h"

namespace orrery::toy_family_test {
namespace {

using namespace orrery::testing;
using namespace orrery::model;
using nlohmann::json;

// Step 1: what a layer of the family is, by its blocks.
Status describe_toy(Reading& in) {
  attention::Parts attention;
  attention.qk_norm = true;
  ORRERY_TRY(feed_forward::read(in, {}));
  return attention::read(in, attention);
}

// Step 2: its row.
constexpr Family kToy = {"toy", describe_toy};

// A file of the family: that of Qwen3's spec, under the toy's name.
json toy_spec() {
  json spec = load_model_spec("qwen3");
  for (json& entry : spec["keys"]) {
    const std::string key = entry[0];
    if (key == "general.architecture") entry[2] = "toy";
    if (key.rfind("qwen3.", 0) == 0) entry[0] = "toy." + key.substr(6);
  }
  return spec;
}

Result<std::shared_ptr<engine::LanguageModel>> open(const json& spec, Span<const Family> families) {
  const TempDir dir;
  engine::ModelOptions options;
  options.weights.families = families;
  return engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options())), dir.write("model.gguf", build_model_gguf(spec)),
                                     options);
}

// Step 3: the family's goldens.
TEST(ToyFamily, HasTheLogitsOfItsOracle) {
  const auto model = unwrap(open(toy_spec(), {&kToy, 1}));
  EXPECT_STREQ(model->description().family, "toy");
  for (const ModelRun& run : load_model_runs("qwen3")) {
    const auto session = open_session(model, run.n_ctx);
    const size_t n_vocab = session->logits().size();
    std::vector<float> logits(run.prompt.size() * n_vocab);
    unwrap(session->prefill(run.prompt, nullptr, logits.data()));
    Deviation deviation;
    for (size_t i = 0; i < run.positions.size(); ++i) deviation.add(&logits[run.positions[i] * n_vocab], run.prompt_logits.row(i), n_vocab);
    for (size_t i = 0; i < run.answer.size(); ++i) {
      EXPECT_EQ(argmax(session->logits()), run.answer[i]);
      feed(session.get(), run.answer[i]);
      deviation.add(session->logits().data(), run.step_logits.row(i), n_vocab);
    }
    EXPECT_LE(deviation.relative(), 2e-5);
  }
}

// A trait that the family gets wrong moves the logits: the goldens see it.
TEST(ToyFamily, AWrongTraitIsSeen) {
  static constexpr Family kWrong = {"toy", [](Reading& in) {
                                      attention::Parts attention;
                                      attention.qk_norm = attention.rope_interleaved = true;
                                      ORRERY_TRY(feed_forward::read(in, {}));
                                      return attention::read(in, attention);
                                    }};
  const auto model = unwrap(open(toy_spec(), {&kWrong, 1}));
  const ModelRun run = load_model_runs("qwen3")[0];
  const auto session = open_session(model, run.n_ctx);
  unwrap(session->prefill(run.prompt, nullptr, nullptr));
  Deviation deviation;
  feed(session.get(), run.answer[0]);
  deviation.add(session->logits().data(), run.step_logits.row(0), session->logits().size());
  EXPECT_GT(deviation.relative(), 1e-2);
}

// What the family does not say is refused by name, without a line for it.
TEST(ToyFamily, WhatItDoesNotSayIsRefused) {
  const auto refusal = [](const json& spec, Span<const Family> families) {
    const auto model = open(spec, families);
    return model.ok() ? std::string("opened") : std::string(model.status().message());
  };
  const auto contains = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  const std::string unknown = refusal(toy_spec(), {});
  EXPECT_TRUE(contains(unknown, "architecture 'toy' is not supported") && contains(unknown, "llama, qwen2, qwen3")) << unknown;
  static constexpr Family kWithoutNorms = {"toy", [](Reading& in) {
                                             ORRERY_TRY(feed_forward::read(in, {}));
                                             return attention::read(in, {});
                                           }};
  const std::string tensor = refusal(toy_spec(), {&kWithoutNorms, 1});
  EXPECT_TRUE(contains(tensor, "tensor 'blk.0.attn_q_norm.weight'") || contains(tensor, "tensor 'blk.0.attn_k_norm.weight'")) << tensor;
  json more = toy_spec();
  more["keys"].push_back({"toy.whiskers", "u32", 6});
  const std::string key = refusal(more, {&kToy, 1});
  EXPECT_TRUE(contains(key, "toy.whiskers")) << key;
  static constexpr Family kWithoutFfn = {"toy", [](Reading& in) { return attention::read(in, {}); }};
  EXPECT_NE(refusal(toy_spec(), {&kWithoutFfn, 1}), "opened");
}

// The plan knows the family, too.
TEST(ToyFamily, IsPlanned) {
  const TempDir dir;
  engine::ModelOptions options;
  options.weights.families = {&kToy, 1};
  engine::ModelSource source;
  source.path = dir.write("model.gguf", build_model_gguf(toy_spec()));
  const kv::Plan plan = unwrap(engine::plan_file(source, runtime_options(), options, {}));
  EXPECT_TRUE(plan.fits);
  EXPECT_FALSE(engine::plan_file(source, runtime_options(), {}, {}).ok());
}

}  // namespace
}  // namespace orrery::toy_family_test
