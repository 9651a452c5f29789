// Models whose experts do not all lie in the arena: where they lie changes what a step waits for, and no bit.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"

namespace orrery::expert_store_test {
namespace {

using namespace orrery::testing;
using engine::LanguageModel;
using engine::Session;

constexpr const char* kSpecs[] = {"qwen3moe",   "qwen3moe-fused", "qwen35moe", "qwen3next",      "lfm2moe", "gpt-oss",
                                  "nemotron-h", "gemma4-moe",     "glm47",     "deepseek2-lite"};

std::vector<int32_t> random_prompt(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + random.below(90));
  return tokens;
}

engine::RuntimeOptions linked_options(int32_t n_threads = 2) {
  engine::RuntimeOptions options = runtime_options(n_threads);
  options.link.bytes_per_second = uint64_t{4} << 30;
  return options;
}

Result<std::shared_ptr<LanguageModel>> try_open(const std::vector<std::byte>& file, const engine::RuntimeOptions& runtime,
                                                int64_t experts_on_device, uint64_t sessions_bytes = 0) {
  const TempDir dir;
  engine::ModelOptions options;
  options.experts_on_device = experts_on_device, options.sessions_bytes = sessions_bytes;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", file);
  return LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options);
}
std::shared_ptr<LanguageModel> open(const std::vector<std::byte>& file, const engine::RuntimeOptions& runtime, int64_t experts_on_device) {
  return unwrap(try_open(file, runtime, experts_on_device));
}

model::ExpertUnits units_of(const std::vector<std::byte>& file) {
  return open(file, runtime_options(), 0)->weights().experts->units();
}

std::vector<float> logits_of(const std::shared_ptr<LanguageModel>& model, const std::vector<int32_t>& prompt, uint32_t chunk = 128) {
  const auto session = open_session(model, 256, KvType::f16, chunk);
  std::vector<float> all(prompt.size() * session->logits().size());
  unwrap(session->prefill(prompt, nullptr, all.data()));
  (void)greedy(session.get(), 12, &all);
  return all;
}

TEST(EngineExpertStore, WhereExpertsLieChangesNoBit) {
  const std::vector<int32_t> prompt = random_prompt(70, 1);
  for (const char* spec : kSpecs)
    for (const TensorType type : {TensorType::f32, TensorType::q8_0}) {
      if (type == TensorType::q8_0 && std::string(spec) != "qwen3moe") continue;
      SCOPED_TRACE(std::string(spec) + " " + type_traits(type)->name);
      const std::vector<std::byte> file = named_model_gguf(spec, {type});
      const std::vector<float> expected = logits_of(open_bytes(file), prompt);
      const model::ExpertUnits units = units_of(file);
      const auto n = static_cast<int64_t>(units.n_units()), least = static_cast<int64_t>(units.least_slots());
      for (const int64_t on_device : {int64_t{0}, int64_t{3}, n / 2, n - 1}) {
        const auto model = open(file, runtime_options(), on_device);
        ASSERT_TRUE(model->weights().experts && model->weights().experts->in_place());
        EXPECT_TRUE(same_bits(logits_of(model, prompt), expected)) << "in place, " << on_device;
      }
      for (const int64_t on_device : {least, n - 1}) {
        if (on_device < least || on_device >= n) continue;
        const auto model = open(file, linked_options(), on_device);
        ASSERT_TRUE(model->weights().experts && !model->weights().experts->in_place());
        EXPECT_TRUE(same_bits(logits_of(model, prompt), expected)) << "link, " << on_device;
        EXPECT_TRUE(same_bits(logits_of(model, prompt, 7), expected)) << "link, in chunks, " << on_device;
        EXPECT_GT(model->weights().experts->counts().asked(), 0u);
      }
      EXPECT_EQ(open(file, linked_options(), n)->weights().experts, nullptr) << "all on the device";
    }
}

}  // namespace
}  // namespace orrery::expert_store_test
