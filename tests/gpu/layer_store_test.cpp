// Models some of whose layers lie in host memory and cross the link in each step: the logits are those of all layers on the device, to the
// bit.
#include <gtest/gtest.h>

#include "tests/gpu/on_cuda.h"
#include "tests/support/random_blocks.h"

namespace orrery::layer_store_test {
namespace {

using namespace testing;

std::shared_ptr<engine::LanguageModel> open(const std::vector<std::byte>& file, const engine::ModelOptions& options,
                                            const engine::RuntimeOptions& runtime = on_cuda()) {
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", file);
  return unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options));
}

engine::ModelOptions with_layers(int64_t on_device) {
  engine::ModelOptions options;
  options.layers_on_device = on_device;
  return options;
}

std::vector<float> logits_of(const std::shared_ptr<engine::LanguageModel>& model, uint32_t chunk) {
  Random random(1);
  std::vector<int32_t> prompt(24);
  for (int32_t& t : prompt) t = static_cast<int32_t>(3 + random.below(90));
  const auto session = open_session(model, 64, KvType::f16, chunk);
  unwrap(session->prefill(prompt, nullptr, nullptr));
  std::vector<float> all = as_vector(session->logits());
  (void)greedy(session.get(), 5, &all);
  return all;
}

TEST(GpuLayerStore, WhereLayersLieChangesNoBit) {
  for (const char* spec : {"llama-plain", "qwen35"}) {
    SCOPED_TRACE(spec);
    const std::vector<std::byte> file = std::string(spec) == "qwen35" ? named_model_gguf(spec) : deep_model_gguf(spec, {TensorType::q8_0});
    const std::vector<float> expected = logits_of(open(file, {}), 16);
    const auto model = open(file, with_layers(0));
    ASSERT_TRUE(model->weights().layers && !model->weights().layers->in_place());
    EXPECT_TRUE(same_bits(logits_of(model, 16), expected));
    EXPECT_GT(model->weights().layers->counts().decode.bytes, 0u);
  }
}

// A device whose memory has no room for the model, nor the driver's word for it: as many layers stay as leave room for a session.
TEST(GpuLayerStore, AModelLargerThanTheDeviceOpens) {
  const std::vector<std::byte> file = deep_model_gguf("llama-plain", {TensorType::q8_0});
  const auto whole = open(file, {});
  EXPECT_EQ(whole->weights().layers, nullptr);
  const std::vector<float> expected = logits_of(whole, 16);
  engine::RuntimeOptions small = on_cuda();
  engine::ModelOptions options;
  options.sessions_bytes = uint64_t{6} << 20;
  small.device_budget_bytes = options.sessions_bytes + whole->weights().region.bytes() - 1;
  const auto model = open(file, options, small);
  ASSERT_TRUE(model->weights().layers);
  EXPECT_EQ(model->weights().layers->units().layers.size(), 3u) << "two slots take the room of two layers";
  EXPECT_LE(model->runtime().arena().used() + options.sessions_bytes, small.device_budget_bytes);
  EXPECT_TRUE(same_bits(logits_of(model, 16), expected));
}

}  // namespace
}  // namespace orrery::layer_store_test
