// Files of mixtures of experts that lie or leave something out: each is refused by the key's or the tensor's name.
#include "tests/unit/model/fixture.h"

namespace orrery::model::experts_test {
namespace {

constexpr const char* kSpecs[] = {"qwen3moe", "qwen35moe", "qwen3next"};

std::string of(const char* name, const char* key) { return std::string(name) + "." + key; }

TEST(ModelExperts, CountsAreBounded) {
  for (const char* name : kSpecs) {
    const json spec = spec_of(name);
    const auto refused = [&](const char* key, const json& value, const char* words) {
      expect_refused(with(spec, of(name, key), "u32", value), Code::bad_model, "key '" + of(name, key) + "' is " + words);
    };
    refused("expert_count", 0, "0, expected 1 to 1024");
    refused("expert_count", 1025, "1025, expected 1 to 1024");
    refused("expert_used_count", 0, "0, expected 1 to ");
    refused("expert_used_count", 11, "11, expected 1 to ");
    refused("expert_feed_forward_length", 0, "0, expected 1 to ");
    refused("expert_feed_forward_length", 1 << 21, "2097152, expected 1 to ");
    for (const char* key : {"expert_count", "expert_used_count"})
      expect_refused(without(spec, of(name, key)), Code::bad_model, "'" + of(name, key) + "'");
    expect_refused(with(spec, of(name, "expert_used_count"), "u32[]", std::vector<uint32_t>{3}), Code::bad_model,
                   "expert_used_count' has 1 values");
  }
  std::vector<uint32_t> used(2, 3);
  expect_refused(with(spec_of("qwen3moe"), "qwen3moe.expert_used_count", "u32[]", (used[1] = 2, used)), Code::unsupported_architecture,
                 "expert_used_count' differs between layers (3 and 2)");
  EXPECT_TRUE(load(with(spec_of("qwen3moe"), "qwen3moe.expert_used_count", "u32[]", std::vector<uint32_t>{3, 3})).ok());
  expect_refused(
      with(with(spec_of("qwen3moe"), "qwen3moe.expert_feed_forward_length", "u32", 1 << 20), "qwen3moe.expert_used_count", "u32", 2),
      Code::bad_model, "2 experts of 1048576 for each token are wider");
}

// The number of experts, or their width, beside tensors of other ones.
TEST(ModelExperts, KeysAndTensorsMustAgree) {
  for (const char* name : kSpecs) {
    const json spec = spec_of(name);
    expect_refused(with(spec, of(name, "expert_count"), "u32", 7), Code::bad_model, "tensor 'blk.0.ffn_gate_inp.weight' has shape ");
    expect_refused(with(spec, of(name, "expert_feed_forward_length"), "u32", 16), Code::bad_model,
                   "tensor 'blk.0.ffn_gate_exps.weight' has shape ");
    for (const char* part : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
      const std::string full = "blk.0." + std::string(part) + ".weight";
      json other = spec;
      tensor(other, full)["shape"][2] = 3;
      expect_refused(other, Code::bad_model, "tensor '" + full + "' has shape (3, ");
      other = spec;
      tensor(other, full)["shape"].erase(2);
      expect_refused(other, Code::bad_model, "tensor '" + full + "' has shape (");
      other = spec;
      tensor(other, full)["shape"][1] = 7;
      expect_refused(other, Code::bad_model, "tensor '" + full + "' has shape (");
      expect_refused(without_tensor(spec, full), Code::bad_model, "tensor '" + full + "' (");
    }
    expect_refused(without_tensor(spec, "blk.0.ffn_gate_inp.weight"), Code::bad_model, "'blk.0.ffn_gate_inp.weight'");
    for (const char* extra : {"blk.0.ffn_gate_inp.bias", "blk.0.exp_probs_b.bias", "blk.0.ffn_up_exps.bias", "blk.0.ffn_up_exps.scale",
                              "blk.0.ffn_gate.weight"})
      expect_refused(with_tensor(spec, extra, {64}), Code::unsupported_architecture, "tensor '" + std::string(extra) + "'");
  }
  // Beside a tensor of both, gate and up are read by nobody.
  expect_refused(with_tensor(spec_of("qwen3moe-fused"), "blk.0.ffn_up_exps.weight", {64, 20, 11}), Code::unsupported_architecture,
                 "'blk.0.ffn_up_exps.weight'");
}

TEST(ModelExperts, SharedExpertsAreNeededWhereTheFamilyHasThem) {
  for (const char* name : {"qwen35moe", "qwen3next"}) {
    const json spec = spec_of(name);
    for (const char* part : {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_inp_shexp"})
      expect_refused(without_tensor(spec, "blk.0." + std::string(part) + ".weight"), Code::bad_model,
                     "'blk.0." + std::string(part) + ".weight'");
    expect_refused(without(spec, of(name, "expert_shared_feed_forward_length")), Code::bad_model, "expert_shared_feed_forward_length'");
    expect_refused(with(spec, of(name, "expert_shared_feed_forward_length"), "u32", 0), Code::bad_model,
                   "expert_shared_feed_forward_length' is 0");
    json flat = spec;  // other writers leave the second dimension out
    tensor(flat, "blk.0.ffn_gate_inp_shexp.weight")["shape"] = {64};
    EXPECT_TRUE(load(flat).ok());
  }
  expect_refused(with(spec_of("qwen3moe"), "qwen3moe.expert_shared_feed_forward_length", "u32", 48), Code::unsupported_architecture,
                 "expert_shared_feed_forward_length'");
  expect_refused(with_tensor(spec_of("qwen3moe"), "blk.0.ffn_up_shexp.weight", {64, 48}), Code::unsupported_architecture,
                 "'blk.0.ffn_up_shexp.weight'");
}

// What the family fixes may be said by the file, but not otherwise.
TEST(ModelExperts, WhatTheRouterDoesIsTheFamilys) {
  for (const char* name : kSpecs) {
    const json spec = spec_of(name);
    EXPECT_TRUE(load(with(spec, of(name, "expert_weights_norm"), "bool", true)).ok());
    EXPECT_TRUE(load(with(spec, of(name, "expert_gating_func"), "u32", 1)).ok());
    EXPECT_TRUE(load(with(spec, of(name, "expert_weights_scale"), "f32", 1.0)).ok());
    EXPECT_TRUE(load(with(spec, of(name, "expert_group_count"), "u32", 1)).ok());
    expect_refused(with(spec, of(name, "expert_weights_norm"), "bool", false), Code::unsupported_architecture, "expert_weights_norm'");
    expect_refused(with(spec, of(name, "expert_gating_func"), "u32", 2), Code::unsupported_architecture, "expert_gating_func' is u32 2");
    expect_refused(with(spec, of(name, "expert_weights_scale"), "f32", 2.5), Code::unsupported_architecture, "expert_weights_scale'");
    expect_refused(with(spec, of(name, "expert_group_count"), "u32", 2), Code::unsupported_architecture, "expert_group_count'");
  }
  // Without a width of their own, experts share the dense one.
  expect_refused(with(spec_of("qwen3moe-fused"), "qwen3moe.feed_forward_length", "u32", 101), Code::bad_model,
                 "is 101, which does not divide among 5 experts");
}

}  // namespace
}  // namespace orrery::model::experts_test
