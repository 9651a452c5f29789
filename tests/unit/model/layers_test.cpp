// Families whose layers differ: windows, RoPE, scales.
#include "tests/unit/model/fixture.h"

#include "runtime/model/description/rope.h"

namespace orrery::model {
namespace {

std::vector<int32_t> windows_of(const Description& d) {
  std::vector<int32_t> windows;
  for (const LayerShape& layer : d.layers) windows.push_back(layer.attention.window);
  return windows;
}

TEST(ModelGemma3, FiveOfSixLayersHaveAWindowAndARopeOfTheirOwn) {
  const Description d = described(spec_of("gemma3"));
  EXPECT_EQ(windows_of(d), (std::vector<int32_t>{12, 12, 12, 12, 12, 0, 12}));
  ASSERT_EQ(d.ropes.size(), 2u);
  EXPECT_EQ(d.ropes[0].base, 1e6f);
  EXPECT_EQ(d.ropes[0].scaling, RopeScaling::linear);
  EXPECT_EQ(d.ropes[0].factor, 8.0f);
  EXPECT_EQ(d.ropes[1].base, 1e4f);
  EXPECT_EQ(d.ropes[1].scaling, RopeScaling::none);
  for (const LayerShape& layer : d.layers) EXPECT_EQ(layer.attention.rope, layer.attention.window > 0 ? 1 : 0);
  EXPECT_EQ(d.embedding_scale, 8.0f);
  EXPECT_EQ(d.logit_cap, 0.0f);
  EXPECT_EQ(reach_of_context(d), 4096u);  // what its scaling has reached, and not eight times that
}

TEST(ModelGemma3, FlagsAndKeysReplaceTheDefaults) {
  const Description d = described(spec_of("gemma3-flags"));
  EXPECT_EQ(windows_of(d), (std::vector<int32_t>{5, 0, 5}));
  EXPECT_EQ(d.ropes[1].base, 700.0f);
  EXPECT_EQ(d.logit_cap, 9.0f);
  EXPECT_EQ(d.kv().scale, 0.2f);
  const Description of_two = described(with(spec_of("gemma3"), "gemma3.attention.sliding_window_pattern", "u32", 2));
  EXPECT_EQ(windows_of(of_two), (std::vector<int32_t>{12, 0, 12, 0, 12, 0, 12}));
}

TEST(ModelGemma3, WithoutAWindowThereIsOneRope) {
  for (const json& spec : {spec_of("gemma3-whole"), without(spec_of("gemma3"), "gemma3.attention.sliding_window")}) {
    const Description d = described(spec);
    EXPECT_EQ(d.ropes.size(), 1u);
    for (const LayerShape& layer : d.layers) EXPECT_EQ(layer.attention.window, 0);
  }
}

TEST(ModelGemma3, ThreeScalesOfAttention) {
  EXPECT_EQ(described(spec_of("gemma3-whole")).kv().scale, 0.125f);            // heads of 64
  json spec = with(spec_of("gemma3-whole"), "gemma3.block_count", "u32", 62);  // the 27B: width / heads, 32
  EXPECT_EQ(described(spec).kv().scale, 1.0f / std::sqrt(32.0f));
  EXPECT_EQ(described(with(spec, "gemma3.attention.scale", "f32", 0.3)).kv().scale, 0.3f);
}

TEST(ModelGemma3, FilesThatLieAreRefused) {
  const json spec = spec_of("gemma3");
  const auto pattern = [&](const char* type, const json& value) {
    return with(spec, "gemma3.attention.sliding_window_pattern", type, value);
  };
  expect_refused(pattern("bool[]", {1, 0}), Code::bad_model, "sliding_window_pattern' is not a list of one value for each of 7 layers");
  expect_refused(pattern("u32[]", {1, 1, 1, 1, 1, 0, 2}), Code::bad_model, "sliding_window_pattern' value 6 is not true or false");
  expect_refused(with(spec, "gemma3.rope.freq_base_swa", "f32", 0.5), Code::bad_model, "rope.freq_base_swa' is 0.5");
  expect_refused(with(spec, "gemma3.rope.dimension_count_swa", "u32", 7), Code::bad_model, "rope.dimension_count_swa' is 7");
  expect_refused(with(spec, "gemma3.final_logit_softcapping", "f32", -1.0), Code::bad_model, "final_logit_softcapping' is -1");
  expect_refused(with(spec, "gemma3.attention.scale", "f32", -0.5), Code::bad_model, "attention.scale' is -0.5");
  expect_refused(with(spec, "gemma3.attn_logit_softcapping", "f32", 50.0), Code::unsupported_architecture, "attn_logit_softcapping");
  for (const char* name :
       {"blk.1.attn_q_norm.weight", "blk.1.attn_k_norm.weight", "blk.0.post_attention_norm.weight", "blk.0.post_ffw_norm.weight"}) {
    json lacking = spec;
    json kept = json::array();
    for (const json& tensor : spec["tensors"])
      if (tensor["name"] != name) kept.push_back(tensor);
    lacking["tensors"] = kept;
    expect_refused(lacking, Code::bad_model, std::string("tensor '") + name);
  }
  // A window in a family that is run without one is refused as before.
  expect_refused(with(spec_of("llama-plain"), "llama.attention.sliding_window", "u32", 12), Code::unsupported_architecture,
                 "run without windows");
}

TEST(ModelMuse, FullLayersHaveNeitherWindowNorRope) {
  const Description d = described(spec_of("muse"));
  EXPECT_EQ(windows_of(d), (std::vector<int32_t>{12, 12, 12, 0, 12}));
  for (const LayerShape& layer : d.layers) {
    EXPECT_EQ(layer.attention.rope, layer.attention.window > 0 ? 1 : -1);
    EXPECT_EQ(layer.attention.query_rope, layer.attention.rope);
    EXPECT_EQ(layer.post_norm_eps, 1e-8f);
  }
  EXPECT_EQ(d.ropes[1].base, 500000.0f);  // that of the file, where no other is named for windows
  EXPECT_EQ(described(with(spec_of("muse"), "muse-glimmer.rope.freq_base_swa", "f32", 100.0)).ropes[1].base, 100.0f);
  for (const char* key : {"muse-glimmer.logit_scale", "muse-glimmer.attention.sliding_window"})
    expect_refused(without(spec_of("muse"), key), Code::bad_model, std::string("key '") + key + "' is missing");
  for (const char* name : {"blk.1.attn_q_norm.weight", "blk.1.attn_k_norm.weight", "blk.0.attn_gate.weight"}) {
    json spec = spec_of("muse"), kept = json::array();
    for (const json& tensor : spec["tensors"])
      if (tensor["name"] != name) kept.push_back(tensor);
    spec["tensors"] = kept;
    expect_refused(spec, Code::bad_model, std::string("tensor '") + name);
  }
}

TEST(ModelMistral3, QueriesHaveATableOfTheirOwn) {
  const json spec = spec_of("mistral3");
  const Description d = described(spec);
  ASSERT_EQ(d.ropes.size(), 2u);
  EXPECT_EQ(d.ropes[0].temperature, 0.0f);
  EXPECT_EQ(d.ropes[1].temperature, 0.5f);
  for (const LayerShape& layer : d.layers) EXPECT_EQ(layer.attention.rope + 2 * layer.attention.query_rope, 2);
  EXPECT_EQ(described(without(spec, "mistral3.attention.temperature_scale")).ropes.size(), 1u);
  expect_refused(with(spec, "mistral3.rope.dimension_count", "u32", 16), Code::unsupported_architecture,
                 "temperature_scale' is 0.5 with 16 rotated dimensions of heads of 32");
  // YaRN's magnitude is a ratio: with 1 it is 1, with 0 it is 1 + .1 ln 16.
  EXPECT_EQ(make_rope_table(d.ropes[0], {}, 64).magnitude, 1.0f);
  RopeParameters alone = d.ropes[0];
  alone.log_multiplier = 0.0f;
  EXPECT_NEAR(make_rope_table(alone, {}, 64).magnitude, 1.2772588722239781, 1e-6);
  alone.log_multiplier = 0.5f;
  EXPECT_NEAR(make_rope_table(alone, {}, 64).magnitude, 1.2772588722239781 / 1.138629436111989, 1e-6);
}

TEST(ModelSmolLm3, EveryFourthLayerHasNoRope) {
  std::vector<int32_t> ropes;
  for (const LayerShape& layer : described(spec_of("smollm3")).layers) ropes.push_back(layer.attention.rope);
  EXPECT_EQ(ropes, (std::vector<int32_t>{0, 0, 0, -1, 0}));
}

}  // namespace
}  // namespace orrery::model
