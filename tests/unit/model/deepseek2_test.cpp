// DeepSeek-V2 and GLM-4.7-Flash: what their descriptions say, and the files that are refused.
#include <cmath>

#include "runtime/model/description/rope.h"
#include "tests/unit/model/fixture.h"

namespace orrery::model {
namespace {

TEST(ModelDeepseek2, ARowIsKeyAndValue) {
  const Description d = described(spec_of("glm47"));
  ASSERT_EQ(d.n_layers, 3);
  EXPECT_EQ(d.n_skipped_blocks, 1);
  for (int32_t i = 0; i < 3; ++i) {
    const LayerShape& layer = d.layer(i);
    EXPECT_EQ(layer.mixer, Mixer::attention);
    EXPECT_EQ(layer.attention.n_heads, 5);
    EXPECT_EQ(layer.attention.n_kv_heads, 1);
    EXPECT_EQ(layer.attention.head_dim, 48);
    EXPECT_EQ(layer.attention.shared_values, 32);
    EXPECT_FLOAT_EQ(layer.attention.scale, 1.0f / 6.0f);  // of a head's own key: 20 + 16
    EXPECT_EQ(layer.latent.q_rank, 24);
    EXPECT_EQ(layer.latent.nope, 20);
    EXPECT_EQ(layer.latent.value_dim, 24);
    EXPECT_EQ(static_cast<bool>(layer.experts), i > 0);
    EXPECT_EQ(layer.feed_forward.width, i > 0 ? 0 : 96);
  }
  const ExpertsShape& experts = d.layer(1).experts;
  EXPECT_EQ(experts.router.gating, Gating::sigmoid);
  EXPECT_TRUE(experts.router.normalised && experts.choice_bias && !experts.shared_gated);
  EXPECT_FLOAT_EQ(experts.router.scale, 1.8f);
  EXPECT_EQ(experts.shared_width, 32);
  ASSERT_EQ(d.groups.size(), 1u);
  EXPECT_EQ(d.kv().shared_values, 32);
  EXPECT_TRUE(d.shares_values());
  EXPECT_FALSE(described(spec_of("llama-plain")).shares_values());
  EXPECT_GE(d.max_in(), 5 * 256);            // each head's input is quantized by itself, in whole blocks
  EXPECT_GE(d.mixer_floats(), 24 + 5 * 36);  // of a row: the queries' vector, then the queries
}

// YaRN's magnitude multiplies the scores, twice, and leaves cos and sin as they are.
TEST(ModelDeepseek2, YarnIsInTheScores) {
  const Description d = described(spec_of("deepseek2-lite"));
  const double m = 1.0 + 0.0707 * std::log(16.0);
  EXPECT_NEAR(static_cast<double>(d.layer(0).attention.scale), m * m / 8.0, 1e-6);  // 1 / sqrt(32 + 32)
  EXPECT_EQ(make_rope_table(d.rope(), {}, 512).magnitude, 1.0f);
  EXPECT_EQ(d.layer(0).latent.q_rank, 0);
  const ExpertsShape& experts = d.layer(1).experts;
  EXPECT_EQ(experts.router.gating, Gating::softmax);
  EXPECT_FALSE(experts.router.normalised || experts.choice_bias);
  EXPECT_EQ(experts.shared_width, 40);  // of two
  // A scaling that the caller asks for, with the file's multiplier.
  const std::vector<std::byte> bytes = build_model_gguf(spec_of("deepseek2-lite"));
  RopeOverride linear, wider;
  linear.set = wider.set = true;
  linear.scaling = RopeScaling::linear, linear.factor = 4.0f;
  wider.scaling = RopeScaling::yarn, wider.factor = 64.0f;
  auto file = gguf::File::parse(bytes, "m.gguf");
  ASSERT_TRUE(file.ok());
  EXPECT_FLOAT_EQ(read_description(*file, linear)->layer(0).attention.scale, 0.125f);
  const double wide = 1.0 + 0.0707 * std::log(64.0);
  EXPECT_NEAR(static_cast<double>(read_description(*file, wider)->layer(0).attention.scale), wide * wide / 8.0, 1e-6);
}

// Early files lack the key of the gating function. GLM-4.7-Flash is known by its layers and tokens.
TEST(ModelDeepseek2, GatingWithoutAKey) {
  const auto gating = [](const json& spec) { return described(spec).layers.back().experts.router.gating; };
  const json small = without(spec_of("glm47"), "deepseek2.expert_gating_func");
  EXPECT_EQ(gating(small), Gating::softmax);
  EXPECT_EQ(gating(with(small, "deepseek2.expert_gating_func", "u32", 0)), Gating::softmax);
  EXPECT_EQ(gating(with(small, "deepseek2.expert_gating_func", "u32", 2)), Gating::sigmoid);
  // The header alone decides: of these files neither layers nor tokens are there.
  const auto header = [&](int n_layers, int n_tokens, const json& key) {
    json spec = with(key, "deepseek2.block_count", "u32", n_layers);
    spec["vocab"]["size"] = 128;
    tensor(spec, "token_embd.weight")["shape"] = {64, n_tokens};
    return spec;
  };
  const json whole = without(small, "deepseek2.nextn_predict_layers");
  EXPECT_EQ(gating(header(47, 154880, whole)), Gating::sigmoid);
  EXPECT_EQ(gating(header(48, 154880, whole)), Gating::sigmoid);
  EXPECT_EQ(gating(header(46, 154880, whole)), Gating::softmax);
  EXPECT_EQ(gating(header(47, 154879, whole)), Gating::softmax);
  EXPECT_EQ(gating(header(47, 154880, with(whole, "deepseek2.expert_gating_func", "u32", 1))), Gating::softmax);
}

TEST(ModelDeepseek2, FilesThatLackAKeyAreRefused) {
  const json spec = spec_of("glm47");
  for (const char* key :
       {"attention.kv_lora_rank", "attention.key_length", "attention.value_length", "attention.value_length_mla", "attention.head_count_kv",
        "rope.dimension_count", "expert_feed_forward_length", "expert_count", "expert_used_count", "feed_forward_length"})
    expect_refused(without(spec, std::string("deepseek2.") + key), Code::bad_model, std::string("'deepseek2.") + key + "'");
  EXPECT_TRUE(load(without(spec, "deepseek2.expert_group_count")).ok());
  EXPECT_EQ(described(without(spec, "deepseek2.expert_weights_norm")).layers[1].experts.router.normalised, false);
  EXPECT_EQ(described(without(spec, "deepseek2.expert_weights_scale")).layers[1].experts.router.scale, 1.0f);
}

TEST(ModelDeepseek2, FilesThatLieAreRefused) {
  const json spec = spec_of("glm47"), lite = spec_of("deepseek2-lite");
  const auto changed = [&](const char* key, int value) { return with(spec, std::string("deepseek2.") + key, "u32", value); };
  expect_refused(changed("attention.head_count_kv", 5), Code::bad_model, "head_count_kv' is 5");
  expect_refused(changed("attention.key_length", 56), Code::bad_model, "key_length' is 56, expected 48");
  expect_refused(changed("attention.value_length", 24), Code::bad_model, "value_length' is 24, expected 32");
  expect_refused(changed("attention.kv_lora_rank", 1024), Code::bad_model, "kv_lora_rank' is 1024");
  expect_refused(changed("attention.kv_lora_rank", 36), Code::unsupported_architecture, "kv_lora_rank' is 36; multiples of 8");
  expect_refused(changed("attention.value_length_mla", 20), Code::unsupported_architecture, "value_length_mla' is 20; multiples of 8");
  expect_refused(changed("attention.key_length_mla", 16), Code::bad_model, "key_length_mla' is 16");  // nothing without RoPE
  expect_refused(changed("attention.key_length_mla", 40), Code::bad_model, "attn_q_b.weight' has shape (180, 24), expected (200, 24)");
  expect_refused(changed("attention.q_lora_rank", 16), Code::bad_model, "attn_q_a.weight' has shape (24, 64), expected (16, 64)");
  expect_refused(changed("attention.q_lora_rank", 0), Code::bad_model, "attn_q.weight' (180, 64) is missing");
  expect_refused(changed("rope.dimension_count", 14), Code::unsupported_architecture, "rope.dimension_count' is 14; multiples of 8");
  expect_refused(changed("attention.head_count", 4), Code::bad_model, "attn_q_b.weight' has shape");
  expect_refused(changed("attention.sliding_window", 8), Code::unsupported_architecture, "sliding_window' is 8");
  expect_refused(changed("expert_gating_func", 3), Code::bad_model, "expert_gating_func' is 3");
  expect_refused(changed("expert_group_count", 4), Code::unsupported_architecture, "expert_group_count' is u32 4");
  expect_refused(changed("expert_shared_count", 2), Code::bad_model, "ffn_gate_shexp.weight' has shape (32, 64), expected (64, 64)");
  expect_refused(changed("expert_shared_count", 0), Code::unsupported_architecture, "shexp.weight' is not a part");
  expect_refused(changed("leading_dense_block_count", 2), Code::bad_model, "blk.1.ffn_gate.weight' (96, 64) is missing");
  expect_refused(changed("leading_dense_block_count", 4), Code::bad_model, "leading_dense_block_count' is 4");
  expect_refused(changed("nextn_predict_layers", 4), Code::bad_model, "nextn_predict_layers' is 4");
  expect_refused(with(spec, "deepseek2.expert_weights_norm", "string", "yes"), Code::bad_model, "expert_weights_norm");
  expect_refused(with(lite, "deepseek2.expert_gating_func", "u32", 2), Code::bad_model, "exp_probs_b.bias' (11) is missing");
}

TEST(ModelDeepseek2, FilesThatLackATensorAreRefused) {
  for (const auto& [name, tensors] :
       {std::pair<const char*, std::vector<const char*>>{
            "glm47",
            {"blk.0.attn_q_a.weight", "blk.1.attn_q_a_norm.weight", "blk.2.attn_q_b.weight", "blk.0.attn_kv_a_mqa.weight",
             "blk.0.attn_kv_a_norm.weight", "blk.1.attn_k_b.weight", "blk.2.attn_v_b.weight", "blk.0.attn_output.weight",
             "blk.0.ffn_gate.weight", "blk.1.ffn_gate_inp.weight", "blk.1.exp_probs_b.bias", "blk.2.exp_probs_b.bias",
             "blk.1.ffn_up_shexp.weight", "blk.2.ffn_down_exps.weight"}},
        {"deepseek2-lite", {"blk.0.attn_q.weight", "blk.1.attn_k_b.weight", "blk.2.ffn_gate_shexp.weight"}}})
    for (const char* tensor : tensors)
      expect_refused(without_tensor(spec_of(name), tensor), Code::bad_model, std::string("tensor '") + tensor);
  expect_refused(with_tensor(spec_of("glm47"), "blk.0.attn_q.weight", {64, 180}), Code::unsupported_architecture,
                 "blk.0.attn_q.weight' is not a part");
  // Of a softmax: a bias in the first mixture must be there in all.
  expect_refused(with_tensor(spec_of("deepseek2-lite"), "blk.1.exp_probs_b.bias", {11}), Code::bad_model,
                 "blk.2.exp_probs_b.bias' (11) is missing");
}

// Files of before 2025 have keys and values of heads in one tensor.
TEST(ModelDeepseek2, TheOlderFormIsRefusedByName) {
  json older = without(without(spec_of("deepseek2-lite"), "deepseek2.attention.key_length_mla"), "deepseek2.attention.value_length_mla");
  older = with(with(with(older, "deepseek2.attention.head_count_kv", "u32", 12), "deepseek2.attention.key_length", "u32", 64),
               "deepseek2.attention.value_length", "u32", 40);
  expect_refused(older, Code::unsupported_architecture, "the file has no sizes of a head's keys");
  older = with_tensor(without_tensor(without_tensor(older, "blk.0.attn_k_b.weight"), "blk.0.attn_v_b.weight"), "blk.0.attn_kv_b.weight",
                      {64, 12 * 72});
  expect_refused(older, Code::unsupported_architecture, "the file has tensor 'blk.0.attn_kv_b.weight'");
}

}  // namespace
}  // namespace orrery::model
