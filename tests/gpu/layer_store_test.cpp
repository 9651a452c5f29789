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
  const auto model = open_with(file, small, options);
  ASSERT_TRUE(model->weights().layers);
  EXPECT_EQ(model->weights().layers->units().layers.size(), 3u) << "two slots take the room of two layers";
  EXPECT_LE(model->runtime().arena().used() + options.sessions_bytes, small.device_budget_bytes);
  EXPECT_TRUE(same_bits(logits_of(model, 16), expected));
}

}  // namespace
}  // namespace orrery::layer_store_test
