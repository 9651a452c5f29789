// Files of models with short convolutions or Mamba2 that lie or leave something out: each is refused by the key's or the tensor's name.
#include "tests/unit/model/fixture.h"

namespace orrery::model::recurrent_test {
namespace {

// A letter for each layer: its mixer, then its FFN.
std::string kinds_of(const Description& d) {
  std::string kinds;
  for (const LayerShape& layer : d.layers) {
    kinds += layer.mixer == Mixer::attention ? 'a' : layer.mixer == Mixer::short_conv ? 'c' : layer.mixer == Mixer::mamba2 ? 'm' : '-';
    kinds += layer.experts ? 'e' : layer.feed_forward.width > 0 ? 'f' : '-';
  }
  return kinds;
}

json kv_heads(const char* name, const char* family, std::vector<int32_t> n) {
  return with(spec_of(name), std::string(family) + ".attention.head_count_kv", "i32[]", n);
}

TEST(ModelShortConv, LayersAreByTheirKvHeads) {
  EXPECT_EQ(kinds_of(described(spec_of("lfm2"))), "cfcfafcfaf");
  EXPECT_EQ(kinds_of(described(spec_of("lfm2moe"))), "cfaecece");
  EXPECT_EQ(described(spec_of("lfm2-taps")).kv().window, 20);
  EXPECT_EQ(described(spec_of("lfm2")).kv().window, 0);
  const Description d = described(spec_of("lfm2moe"));
  EXPECT_EQ(d.layers[1].experts.router.gating, Gating::sigmoid);
  EXPECT_TRUE(d.layers[1].experts.router.normalised);
  EXPECT_EQ(d.layers[1].experts.router.scale, 1.0f);
}

TEST(ModelShortConv, FilesThatLieAreRefused) {
  const json spec = spec_of("lfm2");
  expect_refused(kv_heads("lfm2", "lfm2", {0, 0, 0, 0, 0}), Code::unsupported_architecture,
                 "key 'lfm2.attention.head_count_kv' is 0 in all 5 layers; at least one with attention");
  expect_refused(kv_heads("lfm2", "lfm2", {0, 0, 2, 0}), Code::bad_model, "head_count_kv' has 4 values, expected one for each of 5 layers");
  expect_refused(kv_heads("lfm2", "lfm2", {0, 0, 2, 0, 1}), Code::unsupported_architecture,
                 "head_count_kv' differs between layers (2 and 1)");
  expect_refused(kv_heads("lfm2", "lfm2", {0, 0, 2, 2, 2}), Code::bad_model, "tensor 'blk.3.attn_q.weight' (128, 64) is missing");
  expect_refused(kv_heads("lfm2", "lfm2", {0, 0, 2, 0, 0}), Code::bad_model,
                 "tensor 'blk.4.shortconv.in_proj.weight' (192, 64) is missing");
  expect_refused(kv_heads("lfm2", "lfm2", {0, 0, -2, 0, 2}), Code::bad_model, "head_count_kv' value 2 is not a whole number");
  expect_refused(without(spec, "lfm2.attention.head_count_kv"), Code::bad_model, "'lfm2.attention.head_count_kv'");
  expect_refused(with(spec, "lfm2.attention.head_count", "u32[]", std::vector<uint32_t>{4, 4, 0, 4, 0}), Code::bad_model,
                 "key 'lfm2.attention.head_count' is 0 in layer 2, which has attention");
  EXPECT_TRUE(load(with(spec, "lfm2.attention.head_count", "u32[]", std::vector<uint32_t>{0, 0, 4, 0, 4})).ok());
  expect_refused(without(spec, "lfm2.shortconv.l_cache"), Code::bad_model, "'lfm2.shortconv.l_cache'");
  for (const uint32_t taps : {0u, 1u, 9u, 4000000000u})
    expect_refused(with(spec, "lfm2.shortconv.l_cache", "u32", taps), Code::bad_model,
                   "key 'lfm2.shortconv.l_cache' is " + std::to_string(taps) + ", expected 2 to 8");
  expect_refused(with(spec, "lfm2.shortconv.l_cache", "u32", 4), Code::bad_model,
                 "tensor 'blk.0.shortconv.conv.weight' has shape (64, 3), expected (64, 4)");
  // As a file of LFM2.5 in circulation: both numbers are named.
  expect_refused(with(spec, "lfm2.feed_forward_length", "u32", 144), Code::bad_model,
                 "tensor 'blk.0.ffn_gate.weight' has shape (96, 64), expected (144, 64)");
  for (const char* name : {"blk.0.shortconv.in_proj.weight", "blk.0.shortconv.conv.weight", "blk.0.shortconv.out_proj.weight",
                           "blk.2.attn_q_norm.weight", "token_embd_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"})
    expect_refused(without_tensor(spec, name), Code::bad_model, "tensor '" + std::string(name) + "'");
  for (const char* extra : {"blk.0.shortconv.conv.bias", "blk.0.shortconv.in_proj.bias", "output_norm.weight", "blk.0.attn_q.weight",
                            "blk.0.ffn_gate_inp.weight"})
    expect_refused(with_tensor(spec, extra, {64}), Code::unsupported_architecture, "tensor '" + std::string(extra) + "'");
}

TEST(ModelShortConv, ExpertsBehindDenseLayers) {
  const json spec = spec_of("lfm2moe");
  expect_refused(with(spec, "lfm2moe.leading_dense_block_count", "u32", 5), Code::bad_model,
                 "leading_dense_block_count' is 5, expected 0 to 4");
  expect_refused(with(spec, "lfm2moe.leading_dense_block_count", "u32", 2), Code::bad_model,
                 "tensor 'blk.1.ffn_gate.weight' (96, 64) is missing");
  expect_refused(without(spec, "lfm2moe.leading_dense_block_count"), Code::bad_model,
                 "tensor 'blk.0.ffn_gate_inp.weight' (8, 64) is missing");
  expect_refused(with(spec, "lfm2moe.expert_gating_func", "u32", 1), Code::unsupported_architecture, "expert_gating_func' is u32 1");
  expect_refused(with(spec, "lfm2moe.expert_weights_norm", "bool", false), Code::unsupported_architecture, "expert_weights_norm'");
  expect_refused(without_tensor(spec, "blk.1.exp_probs_b.bias"), Code::bad_model, "tensor 'blk.1.exp_probs_b.bias' (8) is missing");
  expect_refused(with_tensor(spec, "blk.0.exp_probs_b.bias", {8}), Code::unsupported_architecture, "tensor 'blk.0.exp_probs_b.bias'");
  EXPECT_EQ(described(with(spec, "lfm2moe.expert_weights_scale", "f32", 2.0)).experts().router.n_used, 3);
  EXPECT_EQ(described(with(spec, "lfm2moe.expert_weights_scale", "f32", 2.0)).layers[1].experts.router.scale, 2.0f);
  EXPECT_EQ(described(with(spec, "lfm2moe.expert_weights_scale", "f32", 0.0)).layers[1].experts.router.scale, 1.0f);
}

constexpr const char* kNemotron = "nemotron_h_moe.";
json nemotron(const char* key, const char* type, const json& value) {
  return with(spec_of("nemotron-h"), kNemotron + std::string(key), type, value);
}

TEST(ModelMamba2, LayersAreByTheirKvHeadsAndWidths) {
  const Description d = described(spec_of("nemotron-h"));
  EXPECT_EQ(kinds_of(d), "m--ea-m--e");
  EXPECT_EQ(d.layers[2].attention.rope, -1);
  EXPECT_EQ(d.layers[2].attention.query_rope, -1);
  EXPECT_EQ(d.norm_eps, 1e-5f);
  EXPECT_EQ(d.layers[1].experts.router.scale, 2.5f);
  EXPECT_TRUE(d.layers[1].experts.router.normalised);
  EXPECT_FALSE(d.layers[1].experts.shared_gated);
  const Description odd = described(spec_of("nemotron-h-odd"));
  EXPECT_EQ(odd.norm_eps, 0.02f);
  EXPECT_FALSE(odd.layers[0].experts.router.normalised);
  // No layer turns its keys, so what these keys say means nothing.
  EXPECT_TRUE(load(nemotron("rope.dimension_count", "u32", 84)).ok());
  EXPECT_TRUE(load(nemotron("rope.dimension_count", "u32", 31)).ok());
  // Of both epsilons, the RMS norm's.
  EXPECT_EQ(described(nemotron("attention.layer_norm_epsilon", "f32", 0.5)).norm_eps, 1e-5f);
}

TEST(ModelMamba2, FilesThatLieAreRefused) {
  const json spec = spec_of("nemotron-h");
  const auto key = [](const char* name) { return kNemotron + std::string(name); };
  for (const char* name :
       {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size", "feed_forward_length",
        "attention.head_count_kv", "expert_weights_norm", "expert_count", "expert_shared_feed_forward_length"})
    expect_refused(without(spec, key(name)), Code::bad_model, "'" + key(name) + "'");
  expect_refused(without(spec, key("attention.layer_norm_rms_epsilon")), Code::bad_model, "layer_norm_epsilon' is missing");
  const auto refused = [&](const char* name, uint32_t value, const std::string& words) {
    expect_refused(nemotron(name, "u32", value), Code::bad_model, words);
  };
  refused("ssm.conv_kernel", 1, "conv_kernel' is 1, expected 2 to 8");
  refused("ssm.conv_kernel", 3, "tensor 'blk.0.ssm_conv1d.weight' has shape (192, 4), expected (192, 3)");
  refused("ssm.state_size", 0, "state_size' is 0, expected 1 to 256");
  refused("ssm.state_size", 8, "tensor 'blk.0.ssm_in.weight' has shape ");
  refused("ssm.group_count", 3, "8 heads of Mamba2 layers do not divide among 3 groups");
  refused("ssm.group_count", 0, "group_count' is 0");
  refused("ssm.time_step_rank", 6, "inner_size' is 128, which does not divide into 6 heads");
  refused("ssm.inner_size", 8 * 257, "does not divide into 8 heads of at most 256");
  refused("ssm.inner_size", 1u << 31, "inner_size' is 2147483648");
  refused("expert_used_count", 9, "expert_used_count' is 9, expected 1 to 8");
  expect_refused(nemotron("feed_forward_length", "i32[]", std::vector<int32_t>{0, 32, 32, 0, 32}), Code::bad_model,
                 "layer 2 has 2 KV heads by 'nemotron_h_moe.attention.head_count_kv' and a width of 32 by");
  expect_refused(nemotron("feed_forward_length", "i32[]", std::vector<int32_t>{0, 0, 0, 0, 32}), Code::bad_model,
                 "tensor 'blk.1.ssm_in.weight' ");
  expect_refused(nemotron("feed_forward_length", "i32[]", std::vector<int32_t>{32, 32, 0, 0, 32}), Code::bad_model,
                 "tensor 'blk.0.ffn_gate_inp.weight' (8, 64) is missing");
  expect_refused(nemotron("attention.head_count_kv", "i32[]", std::vector<int32_t>{0, 0, 0, 0, 0}), Code::unsupported_architecture,
                 "is 0 in all 5 layers");
  expect_refused(nemotron("feed_forward_length", "i32[]", std::vector<int32_t>{32, 32, 0, 32, 32}), Code::unsupported_architecture,
                 "none of 5 layers is Mamba2");
  expect_refused(nemotron("moe_latent_size", "u32", 16), Code::unsupported_architecture, "key 'nemotron_h_moe.moe_latent_size' is u32 16");
  expect_refused(nemotron("expert_group_count", "u32", 2), Code::unsupported_architecture, "expert_group_count'");
  expect_refused(nemotron("expert_gating_func", "u32", 1), Code::unsupported_architecture, "expert_gating_func'");
  expect_refused(nemotron("expert_shared_count", "u32", 2), Code::unsupported_architecture, "expert_shared_count' is u32 2");
  expect_refused(nemotron("expert_weights_norm", "u32", 2), Code::bad_model, "expert_weights_norm' is u32 2, expected true or false");
  for (const char* name :
       {"blk.0.ssm_in.weight", "blk.0.ssm_conv1d.weight", "blk.0.ssm_conv1d.bias", "blk.0.ssm_dt.bias", "blk.0.ssm_a", "blk.0.ssm_d",
        "blk.0.ssm_norm.weight", "blk.0.ssm_out.weight", "blk.0.attn_norm.weight", "blk.1.attn_norm.weight", "blk.1.exp_probs_b.bias",
        "blk.1.ffn_up_exps.weight", "blk.1.ffn_down_shexp.weight", "blk.2.attn_k.weight", "output_norm.weight"})
    expect_refused(without_tensor(spec, name), Code::bad_model, "tensor '" + std::string(name) + "'");
  for (const char* extra : {"blk.0.ssm_in.bias", "blk.0.ffn_norm.weight", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_shexp.weight",
                            "blk.1.ffn_latent_down.weight", "blk.2.attn_q_norm.weight", "blk.2.ffn_up.weight", "token_embd_norm.weight"})
    expect_refused(with_tensor(spec, extra, {64}), Code::unsupported_architecture, "tensor '" + std::string(extra) + "'");
  // [1, heads] is how converters write them.
  json flat = spec;
  tensor(flat, "blk.0.ssm_a")["shape"] = {8};
  expect_refused(flat, Code::bad_model, "tensor 'blk.0.ssm_a' has shape (8), expected (8, 1)");
}

}  // namespace
}  // namespace orrery::model::recurrent_test
