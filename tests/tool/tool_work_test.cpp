// The work of a token, counted from descriptions of files.
#include <gtest/gtest.h>

#include "measure/work.h"

namespace orrery::tool {
namespace {

Json tensor(const char* name, const char* type, std::vector<uint64_t> shape, uint64_t bytes) {
  return {{"name", name}, {"type", type}, {"shape", shape}, {"bytes", bytes}};
}

TEST(Work, DenseModels) {
  Json file = {{"architecture", "llama"},
               {"metadata", {{"llama.block_count", 1}}},
               {"tensors",
                {tensor("token_embd.weight", "Q8_0", {100, 32}, 3400), tensor("blk.0.attn_norm.weight", "F32", {32}, 128),
                 tensor("blk.0.ffn_up.weight", "Q4_0", {64, 32}, 1152), tensor("blk.0.ffn_down.weight", "F16", {32, 64}, 4096)}}};
  Work work = work_per_token(file);
  EXPECT_EQ(work.weights_bytes, 3400u + 128 + 1152 + 4096) << "the embedding is the output matrix, too";
  EXPECT_EQ(work.bytes(), work.weights_bytes);
  EXPECT_EQ(work.ops.quantized, 2.0 * 64 * 32);
  EXPECT_EQ(work.ops.halves, 2.0 * 64 * 32);
  EXPECT_EQ(work.last_ops.quantized, 2.0 * 100 * 32);
  file["tensors"].push_back(tensor("output.weight", "F32", {100, 32}, 12800));
  work = work_per_token(file);
  EXPECT_EQ(work.weights_bytes, 12800u + 128 + 1152 + 4096) << "one row of the embedding";
  EXPECT_EQ(work.last_ops.quantized, 0.0);
  EXPECT_EQ(work.last_ops.floats, 2.0 * 100 * 32);
}

TEST(Work, ExpertsThatATokenMeets) {
  const Json file = {
      {"architecture", "qwen3moe"},
      {"metadata", {{"qwen3moe.block_count", 1}, {"qwen3moe.expert_count", 64}, {"qwen3moe.expert_used_count", 8}}},
      {"tensors",
       {tensor("blk.0.ffn_up_exps.weight", "Q4_0", {64, 16, 32}, 6400), tensor("blk.0.ffn_gate_inp.weight", "F32", {64, 32}, 8192),
        tensor("blk.0.ffn_up_shexp.weight", "Q4_0", {16, 32}, 288)}}};
  const Work work = work_per_token(file);
  EXPECT_EQ(work.weights_bytes, 800u + 8192 + 288);
  EXPECT_EQ(work.ops.quantized, 2.0 * 8 * 16 * 32 + 2.0 * 16 * 32);
}

TEST(Work, StatesAndBlocksThatGuess) {
  const Json file = {
      {"architecture", "qwen35"},
      {"metadata",
       {{"qwen35.block_count", 3}, {"qwen35.nextn_predict_layers", 1}, {"qwen35.ssm.inner_size", 256}, {"qwen35.ssm.state_size", 128}}},
      {"tensors",
       {tensor("blk.0.ssm_a", "F32", {2}, 8), tensor("blk.0.ssm_alpha.weight", "F32", {2, 8}, 64),
        tensor("blk.1.attn_q.weight", "F32", {4, 8}, 128), tensor("blk.2.nextn.eh_proj.weight", "F32", {8, 16}, 512)}}};
  const Work work = work_per_token(file);
  EXPECT_EQ(work.weights_bytes, 8u + 64 + 128);
  EXPECT_EQ(work.state_bytes, 2u * 4 * 256 * 128) << "one layer's, read and written";
  EXPECT_EQ(work.bytes(), work.weights_bytes + work.state_bytes);
}

TEST(Work, TablesOfRowsAndLayersOfTheLastToken) {
  const Json file = {{"architecture", "gemma4"},
                     {"metadata", {{"gemma4.block_count", 2}, {"gemma4.attention.shared_kv_layers", 1}}},
                     {"tensors",
                      {tensor("per_layer_token_embd.weight", "Q8_0", {100, 64}, 6800), tensor("blk.0.ffn_up.weight", "F32", {8, 8}, 256),
                       tensor("blk.1.ffn_up.weight", "F32", {8, 8}, 256)}}};
  const Work work = work_per_token(file);
  EXPECT_EQ(work.weights_bytes, 512u);
  EXPECT_EQ(work.ops.floats, 128.0);
  EXPECT_EQ(work.last_ops.floats, 128.0);
}

}  // namespace
}  // namespace orrery::tool
