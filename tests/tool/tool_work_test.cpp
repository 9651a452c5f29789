// The work of a token, counted from descriptions of files.
#include <gtest/gtest.h>

#include "measure/division.h"
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
  EXPECT_EQ(work.resident_bytes, 8192u + 288);
  EXPECT_EQ(work.expert_bytes, 6400u);
  EXPECT_GT(work.layer_bytes, 0u);
}

// A mixture of 10 layers with 64 experts of a million bytes, 8 of them chosen, behind 100 million bytes of other weights.
Division mixture() {
  Division d;
  d.work.resident_bytes = 120'000'000, d.work.expert_bytes = 640'000'000;
  d.work.n_experts = 640, d.work.used_experts = 80, d.work.expert_layers = 10;
  d.work.weights_bytes = 180'000'000;
  d.session_bytes = 50e6, d.kv_bytes = 20e6;
  return d;
}

TEST(Division, MemoryGoesToExpertsLast) {
  const Division d = mixture();
  EXPECT_EQ(d.least(), 128u);
  EXPECT_DOUBLE_EQ(d.bytes(0), 170e6);
  EXPECT_EQ(d.fitting(170e6), 0u);
  EXPECT_EQ(d.fitting(100e6), 0u) << "not even the rest fits";
  EXPECT_EQ(d.fitting(490.5e6), 320u);
  EXPECT_EQ(d.fitting(2e9), 640u);
}

TEST(Division, ATokensTimeByPart) {
  const Division d = mixture();
  const Rates rates = {100e9, 10e9, 0.5};
  const TokenTime all = d.time(rates, 640, Reuse::uniform);
  EXPECT_DOUBLE_EQ(all.weights, 1.0e-3);
  EXPECT_DOUBLE_EQ(all.kv, 0.2e-3);
  EXPECT_DOUBLE_EQ(all.experts, 0.8e-3);
  EXPECT_DOUBLE_EQ(all.total(), 2.0e-3);
  // Half of 80 experts cross the link, 4 ms: half of them are guessed, and 2 ms are as long as the computation.
  const TokenTime half = d.time(rates, 320, Reuse::uniform);
  EXPECT_DOUBLE_EQ(half.link, 4.0e-3);
  EXPECT_DOUBLE_EQ(half.exposed, 2.0e-3);
  // Where more is guessed than the computation hides, the computation bounds it.
  EXPECT_DOUBLE_EQ(d.time({100e9, 10e9, 0.9}, 320, Reuse::uniform).exposed, 2.0e-3);
  EXPECT_LT(d.time(rates, 320, Reuse::reused).link, half.link);
  EXPECT_DOUBLE_EQ(d.time({100e9, 10e9, 0.5, 30e-6}, 320, Reuse::uniform).exposed, 2.3e-3) << "ten layers ask the host";
  EXPECT_DOUBLE_EQ(d.time({100e9, 10e9, 0.5, 30e-6}, 640, Reuse::uniform).exposed, 0.0);
}

// A dense model of 20 layers of 40 million bytes, behind 100 million bytes of other weights.
TEST(Division, LayersOfADenseModel) {
  Division d;
  d.work.resident_bytes = 900'000'000, d.work.layer_bytes = 800'000'000, d.work.n_layers = 20;
  d.work.weights_bytes = 900'000'000;
  d.session_bytes = 50e6, d.kv_bytes = 20e6;
  EXPECT_EQ(d.least(), 0u);
  EXPECT_DOUBLE_EQ(d.bytes(20), 950e6);
  EXPECT_DOUBLE_EQ(d.bytes(19), 950e6) << "the one layer has a slot";
  EXPECT_DOUBLE_EQ(d.bytes(10), 630e6) << "ten have two slots";
  EXPECT_DOUBLE_EQ(d.bytes(0), 230e6);
  EXPECT_EQ(d.fitting(950e6), 20u);
  EXPECT_EQ(d.fitting(949e6), 17u);
  EXPECT_EQ(d.fitting(630e6), 10u);
  EXPECT_EQ(d.fitting(100e6), 0u);
  const Rates rates = {100e9, 10e9, 0.5, 30e-6};
  const TokenTime all = d.time(rates, 20, Reuse::uniform), half = d.time(rates, 10, Reuse::uniform);
  EXPECT_DOUBLE_EQ(all.total(), 9.2e-3);
  EXPECT_DOUBLE_EQ(half.link, 40e-3);
  EXPECT_DOUBLE_EQ(half.exposed, 40e-3 - 9.2e-3 + 10 * 30e-6);
  EXPECT_DOUBLE_EQ(d.time({1e9, 10e9, 0.5, 0}, 10, Reuse::uniform).exposed, 0.0) << "computation is longer";
}

// The processor computes as many bytes of feed-forward blocks as ten layers have; of all layers' bytes a part is no block, and crosses the link.
TEST(Division, ColumnsByTheProcessor) {
  Division d;
  d.work.resident_bytes = 900'000'000, d.work.layer_bytes = 800'000'000, d.work.n_layers = 20;
  d.work.weights_bytes = 900'000'000, d.work.block_bytes = 600'000'000;
  d.kv_bytes = 20e6;
  const Rates rates = {100e9, 10e9, 0.5, 30e-6, 50e9};
  EXPECT_DOUBLE_EQ(d.time_by_host(rates, 20).total(), 9.2e-3) << "all are there";
  const TokenTime half = d.time_by_host(rates, 10);
  EXPECT_DOUBLE_EQ(half.weights, 5e-3);
  EXPECT_DOUBLE_EQ(half.link, 0.0);
  EXPECT_DOUBLE_EQ(half.exposed, 400e6 / 50e9 + 20 * 30e-6 - 200e6 / 100e9) << "less what the device computes of the blocks meanwhile";
  const TokenTime none = d.time_by_host(rates, 0);
  EXPECT_DOUBLE_EQ(none.weights, 3e-3);
  EXPECT_DOUBLE_EQ(none.link, 20e-3);
  EXPECT_DOUBLE_EQ(none.total(), 20e-3) << "the link is busy all the time, and hides everything else";
  EXPECT_DOUBLE_EQ(d.time_by_host({100e9, 10e9, 0.5, 0, 1e12}, 10).exposed, 0.0) << "the device's part is longer";
}

TEST(Division, PublishedReuse) {
  EXPECT_NEAR(hit_share(0.25, Reuse::reused), 0.67, 0.015);
  EXPECT_NEAR(hit_share(0.5, Reuse::reused), 0.81, 0.015);
  EXPECT_EQ(hit_share(1, Reuse::reused), 1.0);
  EXPECT_EQ(find_card("rtx-9090"), nullptr);
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
