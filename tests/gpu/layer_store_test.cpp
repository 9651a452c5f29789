// Models some of whose layers lie in host memory and cross the link in each step: the logits have the same bits as with all layers on the
// device.
#include <gtest/gtest.h>

#include "tests/gpu/on_cuda.h"
#include "tests/support/weights_away.h"

namespace orrery::layer_store_test {
namespace {

using namespace testing;

std::vector<float> logits_of(const std::shared_ptr<engine::LanguageModel>& model, uint32_t chunk) {
  const auto session = open_session(model, 64, KvType::f16, chunk);
  unwrap(session->prefill(random_prompt(24, 1), nullptr, nullptr));
  std::vector<float> all = as_vector(session->logits());
  (void)greedy(session.get(), 5, &all);
  return all;
}

TEST(GpuLayerStore, WhereLayersLieChangesNoBit) {
  for (const char* spec : {"llama-plain", "qwen35"}) {
    SCOPED_TRACE(spec);
    const std::vector<std::byte> file = std::string(spec) == "qwen35" ? named_model_gguf(spec) : deep_model_gguf(spec, {TensorType::q8_0});
    const std::vector<float> expected = logits_of(open_with(file, on_cuda(), {}), 16);
    const auto model = open_with(file, on_cuda(), with_layers(0));
    ASSERT_TRUE(model->weights().layers && !model->weights().layers->in_place());
    EXPECT_TRUE(same_bits(logits_of(model, 16), expected));
    EXPECT_GT(model->weights().layers->counts().decode.bytes, 0u);
  }
}

// A device whose memory has no room for the model, nor the driver's word for it. The embedding leaves first, whose rows the host reads in the
// file; then as many layers stay as leave room for a session.
TEST(GpuLayerStore, AModelLargerThanTheDeviceOpens) {
  const std::vector<std::byte> file = deep_model_gguf("llama-plain", {TensorType::q8_0});
  const auto whole = open_with(file, on_cuda(), {});
  EXPECT_EQ(whole->weights().layers, nullptr);
  const std::vector<float> expected = logits_of(whole, 16);
  engine::RuntimeOptions small = on_cuda();
  engine::ModelOptions options;
  options.sessions_bytes = uint64_t{6} << 20;
  small.device_budget_bytes = options.sessions_bytes + whole->weights().region.bytes() - 1;
  const auto without = open_with(file, small, options);
  EXPECT_TRUE(without->weights().weights.embedding_on_host && !without->weights().layers);
  EXPECT_LT(without->weights().region.bytes(), whole->weights().region.bytes());
  EXPECT_TRUE(same_bits(logits_of(without, 16), expected));
  small.device_budget_bytes = options.sessions_bytes + without->weights().region.bytes() - 1;
  const auto divided = open_with(file, small, options);
  ASSERT_TRUE(divided->weights().columns && !divided->weights().layers) << "without a wish, the processor computes columns";
  EXPECT_LE(divided->runtime().arena().used() + options.sessions_bytes, small.device_budget_bytes);
  EXPECT_LT(farthest(logits_of(divided, 16), expected), 0.1f * farthest(expected, std::vector<float>(expected.size())));
  options.host_computes = engine::HostComputes::never;
  const auto model = open_with(file, small, options);
  ASSERT_TRUE(model->weights().layers);
  EXPECT_EQ(model->weights().layers->units().layers.size(), 3u) << "two slots take the room of two layers";
  EXPECT_LE(model->runtime().arena().used() + options.sessions_bytes, small.device_budget_bytes);
  EXPECT_TRUE(same_bits(logits_of(model, 16), expected));
}

// Columns of feed-forward blocks that the processor computes beside the GPU, and that a prompt brings to it. Sums have other roundings.
TEST(GpuHostColumns, BothSidesTogetherAreTheBlock) {
  for (const char* spec : {"llama-plain", "gemma3", "phi3"})
    for (const TensorType type : {TensorType::f32, TensorType::q8_0}) {
      if ((type == TensorType::f32) != (std::string(spec) == "gemma3")) continue;
      SCOPED_TRACE(spec);
      const std::vector<std::byte> file = named_model_gguf(spec, {type});
      const std::vector<int32_t> prompt = random_prompt(20, 1), answer = random_prompt(4, 2);
      const auto logits = [&](const std::shared_ptr<engine::LanguageModel>& model, bool generated) {
        const auto session = open_session(model, 64, KvType::f32, 16);
        std::vector<float> all(prompt.size() * session->logits().size());
        unwrap(session->prefill(prompt, nullptr, all.data()));
        if (generated) all.clear();
        for (const int32_t token : answer) {
          if (!generated) break;
          session->push_generated(token);
          unwrap(session->decode());
          all.insert(all.end(), session->logits().begin(), session->logits().end());
        }
        return all;
      };
      const auto whole = open_with(file, on_cuda(), {});
      for (const int64_t percent : {0, 50})
        for (const bool generated : {false, true}) {
          SCOPED_TRACE(std::to_string(percent) + (generated ? "% of generated tokens" : "% of a prompt"));
          const std::vector<float> expected = logits(whole, generated);
          const float size = farthest(expected, std::vector<float>(expected.size()));
          const auto model = open_with(file, on_cuda(), with_columns(percent));
          const model::HostColumns* columns = model->weights().columns.get();
          ASSERT_TRUE(columns);
          const std::vector<float> found = logits(model, generated);
          // The processor rounds activations of quantized products in another way than the GPU.
          const float near = type == TensorType::f32 ? 4e-4f : generated ? 5e-2f : 2e-2f;
          EXPECT_LT(farthest(found, expected), near * size);
          EXPECT_TRUE(same_bits(logits(model, generated), found));
          EXPECT_EQ(columns->counts().layers > 0, generated);
          EXPECT_GT(columns->prompts().bytes, 0u);
        }
    }
}

TEST(GpuHostColumns, PlannedBytesAreTakenBytes) {
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", deep_model_gguf("llama-plain", {TensorType::q8_0}));
  engine::SessionOptions session;
  session.n_context = 128;
  const kv::Plan plan = unwrap(engine::plan_file(source, on_cuda(), with_columns(50), session));
  const auto model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(on_cuda())), source, with_columns(50)));
  const auto opened = unwrap(engine::Session::open(model, session));
  EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes);
  EXPECT_EQ(model->runtime().reservoir().used(), plan.reservoir_bytes);
}

}  // namespace
}  // namespace orrery::layer_store_test
