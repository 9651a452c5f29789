// Every model of tests/golden/models through the engine: logits of the prompt and of 16 greedy steps, on
// every instruction set of this machine.  What is expected comes from oracle.py, which shares no code with
// the engine.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/cpu/cpu_backend.h"
#include "tests/support/bf16.h"
#include "tests/support/engine_fixture.h"

namespace orrery::model_goldens_test {
namespace {

using namespace orrery::testing;

// Runs a golden run, gives the deviation of its logits, and adds up the tokens that came out differently.
Deviation replay(const std::shared_ptr<engine::LanguageModel>& model, const ModelRun& run, KvType kv, int* n_wrong) {
  const auto session = open_session(model, run.n_ctx, kv);
  const size_t n_vocab = session->logits().size();
  std::vector<float> logits(run.prompt.size() * n_vocab);
  unwrap(session->prefill(run.prompt, nullptr, logits.data()));
  Deviation deviation;
  for (size_t i = 0; i < run.positions.size(); ++i) deviation.add(&logits[run.positions[i] * n_vocab], run.prompt_logits.row(i), n_vocab);
  for (size_t i = 0; i < run.answer.size(); ++i) {
    *n_wrong += argmax(session->logits()) != run.answer[i];
    feed(session.get(), run.answer[i]);
    deviation.add(session->logits().data(), run.step_logits.row(i), n_vocab);
  }
  return deviation;
}

// Its layers have different numbers of KV heads.
constexpr const char* kRefused = "llama-layers-differ";

std::vector<std::string> names() {
  std::vector<std::string> all = model_spec_names();
  all.erase(std::remove(all.begin(), all.end(), kRefused), all.end());
  return all;
}

class ModelGoldens : public ::testing::TestWithParam<std::string> {
 protected:
  // f(path, model, run) on every path.
  template <class F>
  void for_each_run(F f) {
    const auto runs = load_model_runs(GetParam());
    for (const char* path : cpu::available_paths()) {
      const auto model = open_spec(GetParam(), runtime_options(2, path));
      for (const ModelRun& run : runs) {
        SCOPED_TRACE(std::string(path) + " " + run.name);
        f(std::string(path), model, run);
      }
    }
  }
};

// Arithmetic in float32 against float64: measured at most 3.2e-6 of the largest logit on every case and path.
// A trait of a model that is got wrong moves logits by a tenth and more (sensitivity.py).
TEST_P(ModelGoldens, LogitsAndTokens) {
  for_each_run([](const std::string&, const auto& model, const ModelRun& run) {
    int n_wrong = 0;
    EXPECT_LE(replay(model, run, KvType::f32, &n_wrong).relative(), 2e-5);
    EXPECT_EQ(n_wrong, 0);
  });
}

// A KV cache of fewer bits rounds each key and value: by 2^-12 of it (F16), by up to 1/254 of its block's
// largest (Q8_0), by up to 1/16 of it (Q4_0); K8V4 rounds keys as Q8_0 and values as Q4_0. The error of the logits depends on how sharp a
// model's attention is: most cases stay near the rounding itself, qwen3-tied (queries and keys normed to
// large values) reaches 8e-4 (F16), .029 (Q8_0), .18 (K8V4) and .32 (Q4_0) of the logits' root mean square.  The bounds leave a factor of
// 1.5, of 2 for F16; keys or values that are read back wrong give about 1.4, as unrelated logits do.  Products of bf16, which
// attention of prompts takes on "amx" and "avx512bf16", round all KV but F32 by 2^-9: F16 eight times as far as it does itself (6.8e-3).
// In a mixture that takes another expert somewhere, too: measured .017 (deepseek2-lite) and .019 (gpt-oss).
TEST_P(ModelGoldens, QuantizedKvStaysNearItsRounding) {
  // A row of a mixture takes another expert where rounding closes its router's gap, so it moves by more: measured .25, .35 and .44.
  constexpr struct {
    KvType type;
    double dense, mixture;
  } kBounds[] = {{KvType::f16, 1.7e-3, 1.7e-3}, {KvType::q8_0, 0.045, 0.38}, {KvType::k8v4, 0.27, 0.52}, {KvType::q4_0, 0.6, 0.66}};
  for_each_run([&](const std::string& path, const auto& model, const ModelRun& run) {
    for (const auto& [kv, dense, mixture] : kBounds) {
      if (kv != KvType::f16 && model->description().kv().head_dim % 32 != 0) continue;
      if (key_type(kv) != value_type(kv) && model->description().shares_values()) continue;  // refused
      int n_wrong = 0;
      const double rms = replay(model, run, kv, &n_wrong).rms();
      // Recurrent layers keep no KV: with three of them in four, the rows of a mixture keep their experts.
      const bool mixes = model->description().experts() && !model->description().recurrent();
      const double bound = kv == KvType::f16 && rounds_attention(path, kv) ? (mixes ? 0.029 : 8 * dense) : mixes ? mixture : dense;
      EXPECT_LE(rms, bound) << kv_type_name(kv);
      EXPECT_GT(rms, 0.0);
      if (kv == KvType::f16) {
        EXPECT_EQ(n_wrong, 0);  // every margin is .15 or more
      }
    }
  });
}

TEST(ModelGoldensRefused, HeadsThatDifferBetweenLayers) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", named_model_gguf(kRefused));
  auto model = engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options())), path, {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::unsupported_architecture);
  EXPECT_NE(std::string(model.status().message()).find("'llama.attention.head_count_kv' differs between layers"), std::string::npos)
      << model.status().message();
}

// The same case with KV heads alike and layers of different widths is run: the golden does not apply then,
// but prefill and decode, whose kernels differ, must agree on it.
TEST(ModelGoldensRefused, WidthsThatDifferBetweenLayersAreRun) {
  nlohmann::json spec = load_model_spec(kRefused);
  for (nlohmann::json& key : spec["keys"])
    if (key[0] == "llama.attention.head_count_kv") key = {"llama.attention.head_count_kv", "u32", 2};
  for (nlohmann::json& tensor : spec["tensors"]) {
    const std::string name = tensor["name"];
    if (name.find("attn_k") != std::string::npos || name.find("attn_v") != std::string::npos) tensor["shape"][1] = 32;
  }
  const auto model = open_bytes(build_model_gguf(spec));
  std::vector<int32_t> widths;
  for (const model::LayerShape& layer : model->description().layers) widths.push_back(layer.feed_forward.width);
  EXPECT_EQ(widths, (std::vector<int32_t>{96, 128, 64}));
  const ModelRun run = load_model_runs(kRefused)[0];
  const auto prefilled = open_session(model, 128), decoded = open_session(model, 128);
  const size_t n_vocab = prefilled->logits().size();
  std::vector<float> logits(run.prompt.size() * n_vocab);
  unwrap(prefilled->prefill(run.prompt, nullptr, logits.data()));
  Deviation deviation;
  for (size_t i = 0; i < run.prompt.size(); ++i) {
    feed(decoded.get(), run.prompt[i]);
    deviation.add(decoded->logits().data(), &logits[i * n_vocab], n_vocab);
  }
  EXPECT_LE(deviation.relative(), 2e-5);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& spec) {
  std::string name = spec.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Specs, ModelGoldens, ::testing::ValuesIn(names()), test_name);

}  // namespace
}  // namespace orrery::model_goldens_test
