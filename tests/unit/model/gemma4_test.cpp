// Gemma 4: what its descriptions say, where its tables lie, and the files that are refused.
#include "runtime/model/description/rope.h"
#include "tests/unit/model/fixture.h"

namespace orrery::model {
namespace {

TEST(ModelGemma4, LayersOfTwoKindsHaveHeadsAndRopesOfTheirOwn) {
  const Description d = described(spec_of("gemma4-moe"));
  for (int32_t i = 0; i < 4; ++i) {
    const AttentionShape& a = d.layer(i).attention;
    const bool windowed = i < 3;
    EXPECT_EQ(a.window, windowed ? 20 : 0);
    EXPECT_EQ(a.head_dim, windowed ? 32 : 64);
    EXPECT_EQ(a.n_kv_heads, windowed ? 2 : 1);
    EXPECT_EQ(a.rope, windowed ? 1 : 0);
    EXPECT_EQ(a.scale, 1.0f);
    EXPECT_TRUE(a.qk_norm && a.v_norm);
    EXPECT_TRUE(d.layer(i).experts.beside_ffn);
  }
  ASSERT_EQ(d.ropes.size(), 2u);
  EXPECT_EQ(d.ropes[0].n_rot, 64);
  EXPECT_EQ(d.ropes[1].n_rot, 32);
  EXPECT_EQ(d.ropes[1].scaling, RopeScaling::none);
  EXPECT_EQ(d.groups.size(), 2u);
  EXPECT_EQ(d.n_per_layer, 0);
}

TEST(ModelGemma4, FactorsAreThoseOfFullLayers) {
  const Description d = described(spec_of("gemma4"));
  RopeFactors factors;
  factors.llama3.assign(32, 2.0f);
  const RopeTables tables(d, factors, 512);
  EXPECT_EQ(tables.tables()[0].inverse_frequency[0], 0.5f);
  EXPECT_EQ(tables.tables()[1].inverse_frequency[0], 1.0f);
}

TEST(ModelGemma4, TheLastLayersReadTheKvOfTheirKind) {
  const Description d = described(spec_of("gemma4-alike"));
  std::vector<int32_t> sources;
  for (const LayerShape& layer : d.layers) sources.push_back(layer.attention.kv_of);
  EXPECT_EQ(sources, (std::vector<int32_t>{-1, -1, -1, -1, 3, 2, 3}));
  EXPECT_TRUE(d.shares_kv());
  EXPECT_EQ(d.n_per_layer, 24);
}

// The table of per-layer embeddings takes no byte of any arena.
TEST(ModelGemma4, TheTableOfLayersEmbeddingsStaysInTheFile) {
  const json spec = spec_of("gemma4-alike");
  const std::vector<std::byte> bytes = build_model_gguf(spec);
  auto backend = cpu::make_backend({1, "plain"});
  ASSERT_TRUE(backend.ok());
  ASSERT_TRUE((*backend)->reserve_arena(kArenaBytes).ok());
  Turns turns(std::move(backend).value());
  kv::Arena arena(&turns.device(), kArenaBytes);
  auto model = load_model(std::move(gguf::File::parse(bytes, "m.gguf")).value(), &turns, &arena, {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const gguf::Tensor* table = (*model)->file->find_tensor("per_layer_token_embd.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ((*model)->weights.per_layer.table.data.address, reinterpret_cast<uint64_t>(table->data));
  EXPECT_EQ(repacked_bytes(*(*model)->file, *table, turns.device()), 0u);
}

TEST(ModelGemma4, FilesThatLackAKeyAreRefused) {
  const json spec = spec_of("gemma4");
  for (const char* key : {"attention.sliding_window", "attention.sliding_window_pattern", "attention.key_length",
                          "attention.key_length_swa", "rope.freq_base", "rope.freq_base_swa", "embedding_length_per_layer_input"})
    expect_refused(without(spec, std::string("gemma4.") + key), Code::bad_model, std::string("'gemma4.") + key + "'");
}

TEST(ModelGemma4, FilesThatLieAreRefused) {
  const json spec = spec_of("gemma4"), alike = spec_of("gemma4-alike"), moe = spec_of("gemma4-moe");
  expect_refused(with(spec, "gemma4.attention.sliding_window_pattern", "u32", 2), Code::bad_model, "sliding_window_pattern' is not a list");
  expect_refused(with(spec, "gemma4.attention.sliding_window", "u32", 0), Code::bad_model, "sliding_window' is 0");
  expect_refused(with(spec, "gemma4.attention.value_length_swa", "u32", 64), Code::unsupported_architecture,
                 "key heads of 32 with value heads of 64");
  expect_refused(with(spec, "gemma4.rope.dimension_count_swa", "u32", 34), Code::bad_model, "rope.dimension_count_swa' is 34");
  expect_refused(with(spec, "gemma4.attention.shared_kv_layers", "u32", 6), Code::bad_model, "shared_kv_layers' is 6");
  // Five of six: no layer without a window has KV of its own.
  expect_refused(with(spec, "gemma4.attention.shared_kv_layers", "u32", 5), Code::bad_model, "is one without a window");
  expect_refused(with(alike, "gemma4.attention.head_count_kv", "u32[]", {2, 2, 2, 2, 2, 1, 2}), Code::unsupported_architecture,
                 "layer 5 has 4 heads with 1 KV heads");
  expect_refused(with(spec, "gemma4.embedding_length_per_layer_input", "u32", 1 << 19), Code::bad_model,
                 "embedding_length_per_layer_input' is 524288");
  expect_refused(with(spec, "gemma4.embedding_length_per_layer_input", "u32", 0), Code::unsupported_architecture,
                 "per_layer_token_embd.weight' is not a part");
  expect_refused(with(spec, "gemma4.attn_logit_softcapping", "f32", 50.0), Code::unsupported_architecture, "attn_logit_softcapping");
  expect_refused(with(spec, "gemma4.rope.scaling.type", "string", "yarn"), Code::unsupported_architecture, "rope.scaling.type");
  expect_refused(with(moe, "gemma4.expert_weights_norm", "bool", false), Code::unsupported_architecture, "expert_weights_norm");
  expect_refused(with(moe, "gemma4.expert_feed_forward_length", "u32", 24), Code::bad_model,
                 "ffn_gate_exps.weight' has shape (11, 20, 64), expected (11, 24, 64)");
  // Six layers of six shapes: more KV groups than a session has.
  const json apart = with(spec, "gemma4.attention.shared_kv_layers", "u32", 0);
  expect_refused(with(apart, "gemma4.attention.head_count_kv", "u32[]", {1, 1, 2, 2, 4, 4}), Code::unsupported_architecture,
                 "6 pairs of a shape of KV heads and a window; at most 4");
  LoadOptions scaled;
  scaled.rope.set = true;
  scaled.rope.scaling = RopeScaling::linear;
  scaled.rope.factor = 4.0f;
  expect_refused(spec, Code::unsupported, "RoPE scaling was asked for", scaled);
}

TEST(ModelGemma4, FilesThatLackATensorAreRefused) {
  for (const auto& [name, tensors] :
       {std::pair<const char*, std::vector<const char*>>{
            "gemma4",
            {"rope_freqs.weight", "per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight",
             "blk.1.inp_gate.weight", "blk.1.proj.weight", "blk.5.post_norm.weight", "blk.0.attn_k.weight", "blk.0.attn_k_norm.weight",
             "blk.5.attn_q_norm.weight"}},
        {"gemma4-moe",
         {"blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.scale", "blk.0.pre_ffw_norm_2.weight", "blk.0.post_ffw_norm_1.weight",
          "blk.3.post_ffw_norm_2.weight", "blk.3.ffn_down_exps.scale", "blk.2.ffn_up.weight", "blk.2.ffn_gate_exps.weight"}}})
    for (const char* tensor : tensors)
      expect_refused(without_tensor(spec_of(name), tensor), Code::bad_model, std::string("tensor '") + tensor);
  // Of a layer that reads the KV of another, a tensor of the wrong shape or one that no file has.
  expect_refused(with_tensor(spec_of("gemma4-alike"), "blk.5.attn_k.weight", {64, 32}), Code::bad_model,
                 "blk.5.attn_k.weight' has shape (32, 64)");
  expect_refused(with_tensor(spec_of("gemma4-alike"), "blk.5.attn_k.bias", {64}), Code::unsupported_architecture,
                 "blk.5.attn_k.bias' is not a part");
  // Optional: what shared layers have left, a scale of a layer, a matrix of values.
  EXPECT_TRUE(load(without_tensor(spec_of("gemma4"), "blk.5.attn_k.weight")).ok());
  EXPECT_TRUE(load(without_tensor(spec_of("gemma4"), "blk.2.layer_output_scale.weight")).ok());
  EXPECT_TRUE(load(without_tensor(spec_of("gemma4"), "blk.0.attn_v.weight")).ok());
}

}  // namespace
}  // namespace orrery::model
