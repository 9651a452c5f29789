// Models that lie: every key and tensor of each family missing, or of the wrong type, shape or value. A refusal has the right code and
// names the key or tensor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/model/families/family.h"
#include "tests/unit/model/fixture.h"

namespace orrery::model::load_test {
namespace {

// A backend that reads weights as they lie repacks none where that took more than half of the arena, whatever is free; where it
// repacks, vectors lie beside the matrices.
TEST(ModelLoad, RepacksWithinHalfOfTheArena) {
  MatrixStorage storage;
  storage.type = TensorType::q4_0;
  const std::vector<std::byte> bytes = build_model_gguf(spec_of("llama-256"), storage);
  for (const char* path : cpu::available_paths()) {
    auto backend = cpu::make_backend({2, path});
    ASSERT_TRUE(backend.ok());
    ASSERT_TRUE((*backend)->reserve_arena(kArenaBytes).ok());
    Turns turns(std::move(backend).value());
    const Device& device = turns.device();
    const auto parse = [&] { return gguf::File::parse(bytes, "m.gguf"); };
    const gguf::File file = parse().value();
    uint64_t matrices = 0, vectors = 0;
    for (const gguf::Tensor& t : file.tensors()) {
      if (t.dims[1] == 1) vectors += (t.n_elements * sizeof(float) + 63) / 64 * 64;
      else if (t.name != "token_embd.weight" || file.find_tensor("output.weight") == nullptr)  // a step reads one of its rows
        matrices += device.weight_bytes(t.type, static_cast<int64_t>(t.dims[1]), static_cast<int64_t>(t.dims[0]));
    }
    for (const uint64_t arena_bytes : {uint64_t{kArenaBytes}, 2 * matrices, 2 * matrices - 64}) {
      if (arena_bytes == 0 || arena_bytes > kArenaBytes) continue;  // nothing is repacked on this path
      const bool repacks = matrices > 0 && 2 * matrices <= arena_bytes;
      const Placement placement = place_weights(file, read_description(file, {}).value(), device, arena_bytes).value();
      EXPECT_EQ(placement.repacks, repacks) << path;
      EXPECT_EQ(placement.arena_bytes, repacks ? matrices + vectors : 0) << path;
      kv::Arena arena(&turns.device(), arena_bytes);
      auto model = load_model(parse().value(), &turns, &arena, {});
      ASSERT_TRUE(model.ok()) << model.status().message();
      EXPECT_EQ(arena.used(), placement.arena_bytes) << path;
      const model::Layer& layer = (*model)->weights.layers[0];
      for (const uint64_t address : {layer.feed_forward.down.data.address, layer.attn_norm.address})
        EXPECT_EQ(address - device.arena().address < kArenaBytes, repacks) << path;
    }
  }
}

TEST(ModelLoad, EveryFamilyLoads) {
  for (const std::string& name : model_spec_names()) {
    if (name == "llama-layers-differ") continue;
    const Status status = load(spec_of(name));
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  }
}

TEST(ModelLoad, EveryNeededKeyIsMissed) {
  for (const char* name : {"llama-plain", "qwen2", "qwen3", "phi3", "glm4", "chatglm"}) {
    const json spec = spec_of(name);
    const std::string family = spec["keys"][0][2];
    expect_refused(without(spec, "general.architecture"), Code::bad_model, "'general.architecture'");
    for (const char* key : {"block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count"}) {
      const std::string full = family + "." + key;
      expect_refused(without(spec, full), Code::bad_model, "'" + full + "'");
      expect_refused(with(spec, full, "string", "64"), Code::bad_model, "'" + full + "'");
      expect_refused(with(spec, full, "f32", 64.5), Code::bad_model, "'" + full + "'");
      expect_refused(with(spec, full, "u32", 0), Code::bad_model, "'" + full + "'");
      expect_refused(with(spec, full, "u32", 0xFFFFFFFFu), Code::bad_model, "'" + full + "'");
      expect_refused(with(spec, full, "u32[]", std::vector<uint32_t>(7, 64)), Code::bad_model, "'" + full + "'");
    }
  }
}

TEST(ModelLoad, ValuesOutOfRangeAreNamed) {
  const json base = spec_of("llama-bias");  // 64 wide, 4 query heads and 2 KV heads of 16
  const auto number = [&](const char* key, double value) {
    expect_refused(with(base, key, "f32", value), Code::bad_model, std::string("'") + key + "'");
  };
  const auto integer = [&](const char* key, uint32_t value, const std::string& words = "") {
    expect_refused(with(base, key, "u32", value), Code::bad_model, words.empty() ? std::string("'") + key + "'" : words);
  };
  for (const double bad : {-1e-5, 2.0, std::nan(""), 1e39}) number("llama.attention.layer_norm_rms_epsilon", bad);
  for (const double bad : {0.0, 0.5, -1.0, 1e13, std::nan(""), 1e39}) number("llama.rope.freq_base", bad);
  for (const double bad : {0.0, -4.0, 1e7, std::nan("")}) {
    number("llama.rope.scaling.factor", bad);
    number("llama.rope.scale_linear", bad);
  }
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    number("llama.rope.scaling.attn_factor", bad);
    number("llama.rope.scaling.yarn_beta_fast", bad);
    number("llama.rope.scaling.yarn_beta_slow", bad);
  }
  integer("llama.rope.scaling.original_context_length", 0xFFFFFFFFu);
  integer("llama.attention.head_count_kv", 0);
  integer("llama.attention.head_count_kv", 3, "4 query heads do not divide among 3 KV heads");
  integer("llama.attention.head_count_kv", 8, "4 query heads do not divide among 8 KV heads");
  integer("llama.attention.head_count", 6, "an embedding of 64 does not divide among 6 heads");
  integer("llama.attention.key_length", 0);
  for (const uint32_t bad : {0u, 1u, 15u, 18u, 1u << 31}) integer("llama.rope.dimension_count", bad);

  // A phi3 file's window is read; a llama file's must not hide anything.
  const json phi = spec_of("phi3-window");
  expect_refused(with(phi, "phi3.attention.sliding_window", "u32", 0xFFFFFFFFu), Code::bad_model, "sliding_window'");
  expect_refused(with(phi, "phi3.attention.sliding_window", "string", "24"), Code::bad_model, "sliding_window'");
  EXPECT_TRUE(load(with(base, "llama.attention.sliding_window", "u32", 0xFFFFFFFFu)).ok());
}

TEST(ModelLoad, WhatIsNotRunIsRefusedByName) {
  const json base = spec_of("llama-plain");
  const auto refused = [&](const json& spec, const std::string& words) { expect_refused(spec, Code::unsupported_architecture, words); };
  refused(with(base, "general.architecture", "string", "mamba"), "'mamba' is not supported; these are: llama, qwen2");
  refused(with(base, "general.architecture", "string", std::string(500, 'a')), "'" + std::string(64, 'a') + "'");
  refused(with(base, "general.architecture", "string", ""), "architecture ''");
  expect_refused(with(base, "general.architecture", "u32", 3), Code::bad_model, "'general.architecture'");
  refused(with(base, "llama.rope.scaling.type", "string", "dynamic"), "'dynamic'");
  expect_refused(with(base, "llama.rope.scaling.type", "u32", 1), Code::bad_model, "'llama.rope.scaling.type'");
  refused(with(base, "llama.expert_count", "u32", 8), "'llama.expert_count'");
  EXPECT_TRUE(load(with(base, "llama.expert_count", "u32", 0)).ok());
  refused(with(base, "llama.expert_count", "string", "8"), "'llama.expert_count'");
  refused(with(base, "llama.attn_logit_softcapping", "f32", 50.0), "'llama.attn_logit_softcapping'");
  refused(with(base, "llama.final_logit_softcapping", "f32", 30.0), "'llama.final_logit_softcapping'");
  refused(with(base, "llama.attention.key_length", "u32", 520), "a head dimension of 520");
  refused(with(base, "llama.attention.key_length", "u32", 20), "a head dimension of 20");
  refused(with(base, "llama.attention.value_length", "u32", 32), "key heads of 16 with value heads of 32");
  refused(with(base, "llama.attention.head_count", "u32[]", {4, 2}), "'llama.attention.head_count' differs between layers");
  refused(with(base, "llama.attention.head_count_kv", "u32[]", {4, 1}), "(4 and 1)");
  for (const char* extra : {"output.bias", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_up.bias", "blk.0.ffn_down.bias"})
    refused(with_tensor(base, extra, {64}), "tensor '" + std::string(extra) + "'");
  expect_refused(with(base, "llama.feed_forward_length", "u32[]", {96, 0}), Code::bad_model, "feed_forward_length'");
  expect_refused(with(base, "llama.feed_forward_length", "u32[]", {96}), Code::bad_model, "one for each of 2 layers");
  // Many heads of many dimensions.
  json wide = with(base, "llama.attention.head_count", "u32", 1 << 20);
  expect_refused(with(wide, "llama.attention.key_length", "u32", 256), Code::bad_model, "wider than any model");
}

// Which tensors a family can do without: biases, the output where it is tied, and factors.
bool optional_tensor(const std::string& name) {
  const auto ends = [&](const std::string& end) {
    return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends(".bias") || name == "output.weight" || name == "rope_freqs.weight";
}

TEST(ModelLoad, EveryTensorMissingOrMisshapenIsNamed) {
  for (const char* name : {"llama-bias", "llama3-factors", "qwen3", "phi3-longrope", "glm4"}) {
    SCOPED_TRACE(name);
    const json spec = spec_of(name);
    for (const json& t : spec["tensors"]) {
      const std::string tensor_name = t["name"];
      SCOPED_TRACE(tensor_name);
      const std::string quoted = "'" + tensor_name + "'";
      if (optional_tensor(tensor_name)) {
        EXPECT_TRUE(load(without_tensor(spec, tensor_name)).ok());
      } else {
        // Without a fused QKV, those apart are looked for.
        std::string words = quoted;
        const size_t fused = words.find("attn_qkv");
        if (fused != std::string::npos) words.replace(fused, 8, "attn_q");
        expect_refused(without_tensor(spec, tensor_name), Code::bad_model, words);
      }
      const auto shape = t["shape"].get<std::vector<uint64_t>>();
      const auto reshaped = [&](std::vector<uint64_t> other) {
        json changed = spec;
        json& target = tensor(changed, tensor_name);
        target = {{"name", tensor_name}, {"shape", other}, {"scale", 0.1}, {"offset", 0.5}};
        expect_refused(changed, Code::bad_model,
                       tensor_name == "token_embd.weight" && other.size() != 2 ? "no matrix 'token_embd.weight'" : "tensor " + quoted);
      };
      for (size_t d = 0; d < shape.size(); ++d) {
        if (tensor_name == "token_embd.weight" && d == 1) continue;  // it says how large the vocabulary is
        for (const int64_t change : {-8, 8}) {
          std::vector<uint64_t> other = shape;
          other[d] += static_cast<uint64_t>(change);
          reshaped(other);
        }
      }
      if (shape.size() == 2 && shape[0] != shape[1] && tensor_name != "token_embd.weight") reshaped({shape[1], shape[0]});
      if (shape.size() == 2) reshaped({shape[0] * shape[1]});
      std::vector<uint64_t> deeper = shape;
      while (deeper.size() < 3) deeper.push_back(2);
      reshaped(deeper);
    }
  }
}

TEST(ModelLoad, TheVocabularyIsTheEmbeddingsRows) {
  json spec = spec_of("llama-plain");
  tensor(spec, "token_embd.weight")["shape"] = {64, 120};
  expect_refused(spec, Code::bad_model, "tensor 'output.weight' has shape (128, 64), expected (120, 64)");
  json transposed = spec_of("llama-plain");
  tensor(transposed, "token_embd.weight")["shape"] = {128, 64};
  expect_refused(transposed, Code::bad_model, "tensor 'token_embd.weight' has shape (64, 128), expected (64, 64)");
}

TEST(ModelLoad, FactorsOfZeroOrNoNumberAreRefused) {
  for (const auto& [model, factors] :
       {std::pair{"llama3-factors", "rope_freqs.weight"}, std::pair{"phi3-longrope", "rope_factors_long.weight"},
        std::pair{"phi3-longrope", "rope_factors_short.weight"}})
    for (const double bad : {0.0, -1.0, std::nan(""), 1e39, -1e39}) {
      json spec = spec_of(model);
      std::vector<double> values(16, 1.0);
      values[11] = bad;
      tensor(spec, factors) = {{"name", factors}, {"shape", {16}}, {"values", values}};
      expect_refused(spec, Code::bad_model, std::string("tensor '") + factors + "' value 11");
    }
  // One without the other, or a type that says they should be there.
  const json longrope = spec_of("phi3-longrope");
  expect_refused(without_tensor(longrope, "rope_factors_long.weight"), Code::bad_model, "'rope_factors_long.weight'");
  expect_refused(without_tensor(longrope, "rope_factors_short.weight"), Code::bad_model, "'rope_factors_short.weight'");
  expect_refused(with(spec_of("phi3"), "phi3.rope.scaling.type", "string", "longrope"), Code::bad_model, "'rope_factors_long.weight'");
}

TEST(ModelLoad, ProgressMayCancelAtAnyTensorAndAnArenaMayBeTooSmall) {
  const json spec = spec_of("glm4");
  uint64_t last = 0;
  int calls = 0;
  LoadOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    return ++calls, true;
  };
  EXPECT_TRUE(load(spec, options).ok());
  EXPECT_EQ(static_cast<size_t>(calls), spec["tensors"].size() + 1);
  for (int stop = 1; stop <= calls; stop += 5) {
    int n = 0;
    options.progress = [&](uint64_t, uint64_t) { return ++n < stop; };
    expect_refused(spec, Code::cancelled, "cancelled", options);
    EXPECT_EQ(n, stop);
  }
}

// Whatever the order of the file, its bytes are read from its beginning to its end.
TEST(ModelLoad, PlacesTensorsInTheFilesOrder) {
  for (const bool reversed : {false, true}) {
    json spec = spec_of("llama-bias");
    if (reversed) std::reverse(spec["tensors"].begin(), spec["tensors"].end());
    const std::vector<std::byte> bytes = build_model_gguf(spec);
    const gguf::File file = gguf::File::parse(bytes, "m.gguf").value();
    std::vector<uint64_t> expected = {0};  // what is done before each tensor
    for (const gguf::Tensor& t : file.tensors()) expected.push_back(expected.back() + t.bytes);
    expected.back() = file.file_bytes();  // the last call is at the end
    std::vector<uint64_t> done;
    LoadOptions options;
    options.progress = [&](uint64_t n, uint64_t) { return done.push_back(n), true; };
    EXPECT_TRUE(load(spec, options).ok());
    EXPECT_EQ(done, expected) << reversed;
  }
}

}  // namespace
}  // namespace orrery::model::load_test
