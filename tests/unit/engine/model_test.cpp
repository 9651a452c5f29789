// Opening a model in the engine: contradictions between tokenizer and weights are refused, and a refused model leaves nothing behind.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"

namespace orrery::model_test {
namespace {

using namespace orrery::testing;

struct Attempt {
  std::shared_ptr<engine::Runtime> runtime = unwrap(engine::Runtime::create(runtime_options()));
  TempDir dir;
  Status open(const std::vector<std::byte>& file, const engine::ModelOptions& options = {}) {
    auto model = engine::LanguageModel::open(runtime, dir.write("m.gguf", file), options);
    return model.ok() ? ok_status() : model.take_status();
  }
};

TEST(EngineModel, ATokenizerWithMoreTokensThanTheModelIsRefused) {
  nlohmann::json spec = load_model_spec("qwen3-tied");
  Attempt attempt;
  const uint64_t size = spec["vocab"]["size"];
  for (const auto& [n, code] : {std::pair{size - 8, Code::ok}, std::pair{size, Code::ok}, std::pair{size + 1, Code::bad_model}}) {
    spec["vocab"]["size"] = n;
    const Status status = attempt.open(build_model_gguf(spec));
    EXPECT_EQ(status.code(), code) << status.message();
    if (code != Code::ok) {
      EXPECT_NE(std::string(status.message()).find("129 tokens, tensor 'token_embd.weight' only 128 rows"), std::string::npos)
          << status.message();
    }
    EXPECT_EQ(attempt.runtime->arena().used(), 0u);
  }
}

TEST(EngineModel, LoadingMayBeCancelled) {
  Attempt attempt;
  const std::vector<std::byte> file = named_model_gguf("llama-256", {TensorType::q8_0});
  for (const bool full : {false, true}) {
    int calls = 0;
    engine::ModelOptions options;
    options.weights.full_fingerprint = full;
    options.weights.progress = [&](uint64_t, uint64_t) { return ++calls, true; };
    unwrap(attempt.open(file, options));
    ASSERT_GT(calls, 5);
    for (int stop = 1; stop <= calls; ++stop) {
      int n = 0;
      options.weights.progress = [&](uint64_t, uint64_t) { return ++n < stop; };
      EXPECT_EQ(attempt.open(file, options).code(), Code::cancelled);
      EXPECT_EQ(n, stop) << "asked again after a no";
      EXPECT_EQ(attempt.runtime->arena().used(), 0u);
    }
  }
}

// Vectors of 16 bits become float32 in the arena when a model is loaded; everything else stays where the file
// lies.
TEST(EngineModel, VectorsOf16BitsAreConvertedIntoTheArena) {
  const ModelRun run = load_model_runs("glm4")[0];
  for (const TensorType type : {TensorType::f16, TensorType::bf16}) {
    std::vector<float> logits[2];
    for (const bool dequantized : {false, true}) {
      MatrixStorage storage;
      storage.vectors = type;
      storage.dequantized = dequantized;
      const auto model = open_spec("glm4", runtime_options(), storage);
      EXPECT_EQ(model->runtime().arena().used() > 0, !dequantized);
      const auto session = open_session(model, 128);
      unwrap(session->prefill(run.prompt, nullptr, nullptr));
      logits[dequantized] = as_vector(session->logits());
    }
    EXPECT_TRUE(same_bits(logits[0], logits[1]));
  }
}

TEST(EngineModel, WeightsThatDoNotFitAreRefusedWithTheNumbers) {
  engine::RuntimeOptions small = runtime_options();
  const TempDir dir;
  MatrixStorage storage;
  storage.vectors = TensorType::f16;
  const std::string path = dir.write("m.gguf", named_model_gguf("glm4", storage));
  const kv::Plan plan = unwrap(engine::plan_file(path, small, {}, {}));
  ASSERT_GT(plan.weights_bytes, kv::kArenaAlignment);
  small.device_budget_bytes = plan.weights_bytes;
  EXPECT_TRUE(engine::LanguageModel::open(unwrap(engine::Runtime::create(small)), path, {}).ok());
  small.device_budget_bytes = plan.weights_bytes - 1;
  const auto model = engine::LanguageModel::open(unwrap(engine::Runtime::create(small)), path, {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::out_of_device_memory);
  EXPECT_EQ(model.status().detail().bytes_requested, plan.weights_bytes);
  EXPECT_EQ(model.status().detail().bytes_available, plan.weights_bytes - kv::kArenaAlignment);
}

TEST(EngineModel, OutlivesEveryOtherHandle) {
  std::unique_ptr<engine::Session> session;
  {
    const auto model = open_spec("llama-plain");
    session = open_session(model, 64);
  }
  unwrap(session->prefill(std::vector<int32_t>{1, 2, 3}, nullptr, nullptr));
  EXPECT_TRUE(session->sequence().has_logits());
}

}  // namespace
}  // namespace orrery::model_test
