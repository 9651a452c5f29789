// Nothing in a file is ignored: opening, planning and inspecting refuse an unread tensor or an unknown key by name. A key that changes no
// result is accepted at the values where it changes nothing.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/model/families/family.h"
#include "tests/unit/model/fixture.h"

namespace orrery::model::strict_test {
namespace {

constexpr const char* kFamilies[] = {"llama-plain", "qwen2", "qwen3", "phi3", "glm4", "chatglm"};

void expect_loads(const json& spec, const std::string& what) {
  const Status status = load(spec);
  EXPECT_TRUE(status.ok()) << what << ": " << status.message();
}

// ---- Tensors ----

TEST(ModelStrict, ATensorThatNobodyReadsIsNamed) {
  for (const char* name : kFamilies) {
    const json spec = spec_of(name);
    for (const char* extra : {"output.bias",
                              "output_norm.bias",
                              "token_embd_norm.weight",
                              "position_embd.weight",
                              "blk.0.attn_norm.bias",
                              "blk.1.attn_norm.bias",
                              "blk.1.attn_norm_2.weight",
                              "blk.1.ffn_gate_inp.weight",
                              "blk.1.ffn_up_exps.weight",
                              "blk.1.ffn_gate.bias",
                              "blk.1.ffn_down.bias",
                              "blk.1.ffn_norm.bias",
                              "blk.0.attn_sinks",
                              "attn_sinks",
                              "blk.0.attn_sinks.weight",
                              "blk.0.attn_q.scale",
                              "blk.0.ffn_down.input_scale",
                              "blk.0.layer_output_scale.weight",
                              "blk.7.attn_norm.weight",
                              "blk.7.nextn.eh_proj.weight",
                              "cls.output.weight",
                              "x"})
      expect_refused(with_tensor(spec, extra, {64}), Code::unsupported_architecture, "tensor '" + std::string(extra) + "'");
  }
  // Parts of other families.
  expect_refused(with_tensor(spec_of("llama-plain"), "blk.0.attn_q_norm.weight", {16}), Code::unsupported_architecture,
                 "'blk.0.attn_q_norm.weight'");
  expect_refused(with_tensor(spec_of("qwen2"), "blk.1.post_attention_norm.weight", {64}), Code::unsupported_architecture,
                 "'blk.1.post_attention_norm.weight'");
  expect_refused(with_tensor(spec_of("phi3"), "blk.0.ffn_gate.weight", {96, 64}), Code::unsupported_architecture,
                 "'blk.0.ffn_gate.weight'");
  expect_refused(with_tensor(spec_of("llama-plain"), "rope_factors_long.weight", {8}), Code::unsupported_architecture,
                 "'rope_factors_long.weight'");
  // Beside a fused tensor its parts are read by nobody.
  expect_refused(with_tensor(spec_of("phi3"), "blk.0.attn_q.weight", {64, 64}), Code::unsupported_architecture, "'blk.0.attn_q.weight'");
}

TEST(ModelStrict, FewerLayersThanTensorsAreRefused) {
  for (const char* name : kFamilies) {
    const json spec = spec_of(name);
    const std::string family = spec["keys"][0][2];
    expect_refused(with(spec, family + ".block_count", "u32", 1), Code::unsupported_architecture,
                   "' is not a part of architecture '" + family + "' with 1 layers");
  }
}

TEST(ModelStrict, LeftoversOfRotaryTablesAreHarmless) {
  for (const char* name : kFamilies)
    for (const char* extra : {"blk.0.attn_rot_embd", "model.layers.1.self_attn.rotary_emb.inv_freq"})
      expect_loads(with_tensor(spec_of(name), extra, {8}), extra);
}

// A combined file: the towers for images and sound are left out, and text runs.
TEST(ModelStrict, TowersAreLeftOut) {
  for (const char* name : kFamilies) {
    const json spec = spec_of(name);
    const std::string family = spec["keys"][0][2];
    for (const char* tower : {"v.blk.0.attn_q.weight", "a.conv1d.0.weight", "mm.input_projection.weight", "v.position_embd.weight"})
      expect_loads(with_tensor(spec, tower, {8}), tower);
    for (const char* other : {"vision.weight", "v", "audio.weight", "mmm.weight", "blk.0.v.weight"})
      expect_refused(with_tensor(spec, other, {8}), Code::unsupported_architecture, std::string("tensor '") + other + "'");
    expect_loads(with(spec, family + ".vision.block_count", "u32", 27), name);
    expect_loads(with(spec, family + ".audio.embedding_length", "u32", 512), name);
    expect_loads(with(spec, family + ".mm.tokens_per_image", "u32", 256), name);
    expect_refused(with(spec, family + ".visions", "u32", 1), Code::unsupported_architecture, "visions'");
  }
}

// ---- Keys ----

TEST(ModelStrict, AKeyThatNobodyKnowsIsNamed) {
  for (const char* name : kFamilies) {
    const json spec = spec_of(name);
    const std::string family = spec["keys"][0][2];
    for (const char* key : {"a_key_of_tomorrow", "attention.sinks", "ssm.conv_kernel", "rope.scaling.types", "block_count2", "."}) {
      const std::string full = family + "." + key;
      expect_refused(with(spec, full, "u32", 0), Code::unsupported_architecture, "key '" + full + "' is u32 0");
      expect_refused(with(spec, full, "string", "none"), Code::unsupported_architecture, "key '" + full + "' is string 'none'");
    }
    // Of another architecture, or of nobody's: no concern of this model.
    expect_loads(with(spec, "gemma2.attn_logit_softcapping", "f32", 50.0), name);
    expect_loads(with(spec, "quantize.imatrix.chunks_count", "i32", 128), name);
    expect_loads(with(spec, family, "u32", 1), name);
  }
}

TEST(ModelStrict, WhatChangesResultsIsAcceptedWhereItChangesNone) {
  struct Case {
    const char* key;
    const char* type;
    std::vector<json> neutral, binding;
  };
  const std::vector<Case> cases = {
      {"logit_scale", "f32", {1.0, 0.0}, {0.0625, 2.0}},
      {"residual_scale", "f32", {1.0, 0.0}, {0.22}},
      {"embedding_scale", "f32", {1.0}, {12.0}},
      {"attention.output_scale", "f32", {1.0}, {0.5}},
      {"attention.clamp_kqv", "f32", {0.0}, {8.0}},
      {"attention.max_alibi_bias", "f32", {0.0}, {8.0}},
      {"attn_logit_softcapping", "f32", {0.0}, {50.0}},
      {"final_logit_softcapping", "f32", {0.0}, {30.0}},
      {"attention.causal", "bool", {true}, {false}},
      {"use_parallel_residual", "bool", {false}, {true}},
      {"expert_count", "u32", {0}, {8}},
      {"expert_used_count", "u32", {0}, {2}},
      {"expert_shared_count", "u32", {0}, {1}},
      {"nextn_predict_layers", "u32", {0}, {1}},
      {"pooling_type", "u32", {0, 1, 2, 3}, {}},
      {"rope.scaling.alpha", "f32", {1.0, 0.0}, {1000.0}},
      {"rope.scaling.yarn_log_multiplier", "f32", {0.0}, {0.1}},
      {"rope.scaling.yarn_ext_factor", "f32", {-1.0, 0.0}, {0.5, 1.0}},
      {"rope.scaling.yarn_attn_factor", "f32", {1.0}, {0.8}},
      {"rope.dimension_sections", "u32[]", {{0, 0, 0, 0}}, {{8, 12, 12, 0}, {0, 0, 0, 1}}},
      {"rope.scaling.finetuned", "bool", {true, false}, {}},
      {"attention.layer_norm_epsilon", "f32", {1e-5, 0.3}, {}},
  };
  for (const char* name : kFamilies) {
    const json spec = spec_of(name);
    const std::string family = spec["keys"][0][2];
    for (const Case& c : cases) {
      const std::string full = family + "." + c.key;
      for (const json& value : c.neutral) expect_loads(with(spec, full, c.type, value), full + " " + value.dump());
      for (const json& value : c.binding)
        expect_refused(with(spec, full, c.type, value), Code::unsupported_architecture, "key '" + full + "'");
      if (!c.binding.empty()) expect_refused(with(spec, full, "string", "1"), Code::unsupported_architecture, "key '" + full + "'");
    }
  }
  expect_loads(with(spec_of("llama-yarn"), "llama.rope.scaling.yarn_ext_factor", "f32", 1.0), "yarn's own");
  expect_refused(with(spec_of("llama-yarn"), "llama.rope.scaling.yarn_ext_factor", "f32", 0.0), Code::unsupported_architecture,
                 "yarn_ext_factor' is f32 0");
}

TEST(ModelStrict, WhatIsSaidTwiceMustAgree) {
  const json spec = spec_of("llama-bias");  // 64 wide, heads of 16, 128 tokens
  const auto twice = [&](const char* key, const char* type, const json& right, const json& wrong) {
    expect_loads(with(spec, key, type, right), key);
    expect_refused(with(spec, key, type, wrong), Code::unsupported_architecture, std::string("key '") + key + "'");
  };
  twice("llama.vocab_size", "u32", 128, 127);
  twice("llama.embedding_length_out", "u32", 64, 32);
  twice("llama.attention.key_length_swa", "u32", 16, 32);
  twice("llama.attention.value_length_swa", "u32", 16, 32);
  twice("llama.rope.dimension_count_swa", "u32", 16, 8);
  twice("llama.rope.freq_base_swa", "f32", 10000.0, 1e6);
  twice("llama.tensor_data_layout", "string", "Meta AI original pth", "reference");
  expect_refused(with(spec_of("qwen2"), "qwen2.tensor_data_layout", "string", "Meta AI original pth"), Code::unsupported_architecture,
                 "tensor_data_layout'");
}

TEST(ModelStrict, AWindowThatHidesTokensIsRefusedWhereNoneIsRun) {
  for (const char* name : {"llama-plain", "qwen2", "qwen3", "glm4", "chatglm"}) {
    const json spec = spec_of(name);  // trained on 512 tokens
    const std::string family = spec["keys"][0][2], key = family + ".attention.sliding_window";
    for (const uint32_t window : {1u, 16u, 511u})
      expect_refused(with(spec, key, "u32", window), Code::unsupported_architecture,
                     "key '" + key + "' is " + std::to_string(window) + ", less than the context of 512 tokens");
    for (const uint32_t window : {0u, 512u, 4096u}) {
      const json whole = with(spec, key, "u32", window);
      expect_loads(whole, key);
      expect_loads(with(whole, key + "_pattern", "u32", 4), key);
    }
    expect_refused(with(spec, key, "string", "16"), Code::bad_model, "key '" + key + "'");
  }
  expect_loads(with(spec_of("phi3"), "phi3.attention.sliding_window_pattern", "u32", 2), "without a window");
}

TEST(ModelStrict, LongropeIsRunWhereItsFactorsAreRead) {
  expect_refused(with(spec_of("llama-plain"), "llama.rope.scaling.type", "string", "longrope"), Code::unsupported_architecture,
                 "'llama.rope.scaling.type' is 'longrope'");
  expect_refused(with(spec_of("llama3-factors"), "llama.rope.scaling.type", "string", "longrope"), Code::unsupported_architecture,
                 "'llama.rope.scaling.type' is 'longrope'");
}

TEST(ModelStrict, TheNormsConstantIsNotGuessed) {
  expect_refused(without(spec_of("llama-plain"), "llama.attention.layer_norm_rms_epsilon"), Code::bad_model,
                 "key 'llama.attention.layer_norm_rms_epsilon' is missing");
}

TEST(ModelStrict, AFileThatIsNoModelIsRefused) {
  const json spec = spec_of("llama-plain");
  expect_loads(with(spec, "general.type", "string", "model"), "model");
  for (const char* type : {"adapter", "mmproj", "imatrix", ""})
    expect_refused(with(spec, "general.type", "string", type), Code::unsupported_architecture,
                   "'general.type' is '" + std::string(type) + "', expected 'model'");
  for (const uint32_t version : {0u, 2u}) expect_loads(with(spec, "general.quantization_version", "u32", version), "version");
  for (const uint32_t version : {1u, 3u})
    expect_refused(with(spec, "general.quantization_version", "u32", version), Code::unsupported_quantization,
                   "'general.quantization_version' is " + std::to_string(version));
}

TEST(ModelStrict, MoreTokensThanRowsAreRefusedBeforeAnybodyReadsThem) {
  json spec = spec_of("llama3-tied");
  const uint64_t rows = tensor(spec, "token_embd.weight")["shape"][1].get<uint64_t>();
  spec["vocab"]["size"] = rows + 1;
  expect_refused(
      spec, Code::bad_model,
      "the tokenizer has " + std::to_string(rows + 1) + " tokens, tensor 'token_embd.weight' only " + std::to_string(rows) + " rows");
}

// What planning looks at is what loading looks at, from the header alone.
TEST(ModelStrict, ThePlanRefusesWhatLoadingRefuses) {
  const std::vector<std::byte> bytes = build_model_gguf(with_tensor(spec_of("qwen2"), "blk.1.attn_norm.bias", {64}));
  const gguf::File file = gguf::File::parse(bytes, "m.gguf").value();
  const Description description = read_description(file, {}).value();
  auto backend = cpu::make_backend({1, "plain"});
  const auto refused = [](const Status& status) {
    EXPECT_EQ(status.code(), Code::unsupported_architecture);
    EXPECT_NE(std::string(status.message()).find("'blk.1.attn_norm.bias'"), std::string::npos) << status.message();
  };
  refused(check_tensors(file, description));
  refused(place_weights(file, description, **backend, kArenaBytes).take_status());
}

}  // namespace
}  // namespace orrery::model::strict_test
