// Models whose experts lie in host memory, with a cache of them on the device: the logits are those of all experts on the device, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/gpu/on_cuda.h"
#include "tests/support/weights_away.h"

namespace orrery::expert_store_test {
namespace {

using namespace testing;

std::shared_ptr<engine::LanguageModel> open(const std::vector<std::byte>& file, int64_t experts_on_device) {
  return open_with(file, on_cuda(), with_experts(experts_on_device));
}

std::vector<float> logits_of(const std::shared_ptr<engine::LanguageModel>& model, uint32_t chunk) {
  const auto session = open_session(model, 96, KvType::f16, chunk);
  unwrap(session->prefill(random_prompt(40, 1), nullptr, nullptr));
  std::vector<float> all = as_vector(session->logits());
  (void)greedy(session.get(), 10, &all);
  return all;
}

TEST(GpuExpertStore, WhereExpertsLieChangesNoBit) {
  for (const char* spec : {"qwen3moe", "gpt-oss", "gemma4-moe"}) {
    SCOPED_TRACE(spec);
    const std::vector<std::byte> file = deep_model_gguf(spec);
    const std::vector<float> expected = logits_of(open(file, -1), 64);
    const int64_t least = std::string(spec) == "gemma4-moe" ? 22 : 16;
    for (const int64_t on_device : {least, least + 7}) {
      const auto model = open(file, on_device);
      ASSERT_TRUE(model->weights().experts && !model->weights().experts->in_place());
      EXPECT_TRUE(same_bits(logits_of(model, 64), expected)) << on_device;
      EXPECT_GT(model->weights().experts->counts().missed, 0u);
    }
  }
}

TEST(GpuExpertStore, RepackedWeightsAreThoseOfTheDevice) {
  const std::vector<std::byte> file = deep_model_gguf("qwen3moe", {TensorType::q8_0});
  EXPECT_TRUE(same_bits(logits_of(open(file, 20), 64), logits_of(open(file, -1), 64)));
}

// Experts that the processor computes beside the GPU. The last bits of a product differ between the two sides, and routers of random models
// make much of them: the logits are far closer to the GPU's than the processor's alone are. A second run repeats them to the bit.
TEST(GpuHostExperts, TheProcessorComputesItsShare) {
  for (const char* spec : {"qwen3moe", "gpt-oss", "nemotron-h"}) {
    SCOPED_TRACE(spec);
    const std::vector<std::byte> file = deep_model_gguf(spec);
    const std::vector<int32_t> prompt = random_prompt(18, 1), answer = random_prompt(3, 2);
    const auto logits = [&](const std::shared_ptr<engine::LanguageModel>& model) {
      const auto session = open_session(model, 64, KvType::f16, 16);
      std::vector<float> all(prompt.size() * session->logits().size());
      unwrap(session->prefill(prompt, nullptr, all.data()));
      for (const int32_t token : answer) {
        session->push_generated(token);
        unwrap(session->decode());
        all.insert(all.end(), session->logits().begin(), session->logits().end());
      }
      return all;
    };
    const std::vector<float> expected = logits(open(file, -1));
    engine::RuntimeOptions processor = runtime_options();
    processor.backend = "cpu";
    const float of_processor = farthest(logits(open_with(file, processor, {})), expected);
    for (const int64_t on_device : {0, 7}) {
      if (on_device == 0 && std::string(spec) != "qwen3moe") continue;
      const auto model = open_with(file, on_cuda(), with_host_experts(on_device));
      ASSERT_TRUE(model->weights().host);
      const std::vector<float> found = logits(model);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_LT(farthest(found, expected), 0.25f * of_processor) << on_device;
      EXPECT_FALSE(same_bits(found, expected)) << "the processor computed nothing";
      EXPECT_TRUE(same_bits(logits(model), found));
      const model::HostExperts::Counts counts = model->weights().host->counts();
      EXPECT_GT(counts.by_host, 0u);
      EXPECT_EQ(counts.on_device > 0, on_device > 0);
    }
  }
}

// The experts of a long prompt cross the link as in the file, and the GPU stores them as its own: its logits are those of all experts on the
// device, to the bit. The last chunk is short.
TEST(GpuHostExperts, LongPromptsAreTheDevices) {
  for (const char* spec : {"qwen3moe", "qwen3moe-fused", "gpt-oss", "nemotron-h", "gemma4-moe"}) {
    for (const TensorType type : {TensorType::f32, TensorType::q8_0}) {
      if (type == TensorType::q8_0 && std::string(spec) != "qwen3moe") continue;
      SCOPED_TRACE(std::string(spec) + " " + type_traits(type)->name);
      const std::vector<std::byte> file = deep_model_gguf(spec, {type});
      const std::vector<int32_t> prompt = random_prompt(70, 1);
      const auto logits = [&](const std::shared_ptr<engine::LanguageModel>& model) {
        const auto session = open_session(model, 96, KvType::f16, 64);
        std::vector<float> all(64 * session->logits().size());
        unwrap(session->prefill({prompt.data(), 64}, nullptr, all.data()));
        unwrap(session->prefill({prompt.data() + 64, 6}, nullptr, nullptr));
        return all;
      };
      const std::vector<float> expected = logits(open(file, -1));
      for (const int64_t on_device : {0, 7}) {
        if (on_device == 0 && std::string(spec) != "qwen3moe") continue;
        const auto model = open_with(file, on_cuda(), with_host_experts(on_device));
        ASSERT_TRUE(model->weights().host && model->weights().host->layout().as_in_file);
        EXPECT_TRUE(same_bits(logits(model), expected)) << on_device;
        const model::HostExperts::Counts counts = model->weights().host->counts();
        EXPECT_GT(counts.prompt_brought, 0u);
        EXPECT_GT(counts.prompt_by_host, 0u) << "the short chunk";
      }
    }
  }
}

// The plan of a card says where experts lie, and opening takes these bytes.
TEST(GpuExpertStore, PlannedBytesAreTakenBytes) {
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", deep_model_gguf("qwen3moe"));
  engine::ModelOptions options;
  options.experts_on_device = 19;
  engine::SessionOptions session;
  session.n_context = 128;
  for (const bool by_host : {false, true}) {
    options.host_computes = by_host ? engine::HostComputes::always : engine::HostComputes::never;
    const kv::Plan plan = unwrap(engine::plan_file(source, on_cuda(), options, session));
    const auto model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(on_cuda())), source, options));
    const auto opened = unwrap(engine::Session::open(model, session));
    EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes) << by_host;
    EXPECT_EQ(model->runtime().reservoir().used(), plan.reservoir_bytes) << by_host;
    EXPECT_GT(plan.reservoir_bytes, 0u);
  }
}

}  // namespace
}  // namespace orrery::expert_store_test
