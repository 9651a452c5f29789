// Small random encoders (encoders/NAME.json): the rows of their texts, vectors and scores, on every instruction set of this machine. What is
// expected comes from oracle_encoder.py, which shares no code with the engine.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/embed/embed.h"
#include "tests/support/shared.h"
#include "tests/support/weights_away.h"

namespace orrery::encoder_goldens_test {
namespace {

using namespace orrery::testing;
using nlohmann::json;

std::string path_of(const std::string& file) { return source_path("tests/golden/encoders/" + file); }

json spec_of(const std::string& name) {
  std::ifstream file(path_of(name + ".json"));
  return json::parse(file);
}

engine::EncodedTexts texts_of(const json& spec, int32_t dimensions) {
  engine::EncodedTexts texts;
  texts.dimensions = dimensions;
  for (const json& text : spec.at("texts")) texts.add(text.at("tokens").get<std::vector<int32_t>>(), text.at("second").get<size_t>());
  return texts;
}

class EncoderGoldens : public ::testing::TestWithParam<std::string> {};

// Arithmetic in float32 against float64.
TEST_P(EncoderGoldens, RowsAndScores) {
  const json spec = spec_of(GetParam());
  const GoldenFile golden = GoldenFile::open(path_of(GetParam() + ".golden"));
  std::vector<std::vector<float>> of_paths;
  for (const char* path : cpu::available_paths()) {
    SCOPED_TRACE(path);
    const auto model = open_bytes(build_model_gguf(spec), runtime_options(2, path));
    const model::Description& d = model->description();
    const engine::EncodedTexts texts = texts_of(spec, d.n_embd);
    engine::EmbedOptions options;
    options.pooling = model::Pooling::none, options.normalize = false;
    const std::vector<float> rows = unwrap(engine::embed(model, texts, options));
    double worst = 0, largest = 0;
    size_t at = 0;
    for (size_t i = 0; i < texts.tokens.size(); ++i) {
      const GoldenArray& expected = golden.at("rows." + std::to_string(i));
      ASSERT_EQ(expected.values.size(), texts.tokens[i].size() * static_cast<size_t>(d.n_embd));
      for (const float x : expected.values) {
        worst = std::max(worst, std::fabs(static_cast<double>(rows[at++]) - static_cast<double>(x)));
        largest = std::max(largest, std::fabs(static_cast<double>(x)));
      }
    }
    EXPECT_EQ(at, rows.size());
    EXPECT_LE(worst, 2e-5 * largest);
    ASSERT_EQ(d.dense_width > 0, GetParam() == "gemma-embedding-dense");
    if (d.dense_width > 0) {
      const GoldenArray& expected = golden.at("dense");
      const auto n_embd = static_cast<size_t>(d.n_embd);
      options.pooling = model::Pooling::mean;
      for (const size_t dimensions : {n_embd, size_t{16}}) {  // cut behind the products
        engine::EncodedTexts cut = texts;
        cut.dimensions = static_cast<int32_t>(dimensions);
        const std::vector<float> vectors = unwrap(engine::embed(model, cut, options));
        ASSERT_EQ(vectors.size() * n_embd, expected.values.size() * dimensions);
        for (size_t i = 0; i < vectors.size(); ++i)
          EXPECT_NEAR(vectors[i], expected.values[i / dimensions * n_embd + i % dimensions], 3e-5) << i;
      }
    }
    if (d.score) {
      const std::vector<float> scores = unwrap(engine::rank(model, texts, options));
      const GoldenArray& expected = golden.at("scores");
      ASSERT_EQ(scores.size(), expected.values.size());
      for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], expected.values[i], 1e-4) << i;
    }
  }
}

// A text's rows depend neither on the texts beside it, nor on threads, nor on pauses between layers.
TEST_P(EncoderGoldens, TheSameBitsInAnyListAndOnAnyThreads) {
  const json spec = spec_of(GetParam());
  engine::RuntimeOptions in_parts = runtime_options(1);
  in_parts.prompt_part_us = 0;  // a layer at a time
  const auto one = open_bytes(build_model_gguf(spec), in_parts), three = open_bytes(build_model_gguf(spec), runtime_options(3));
  const engine::EncodedTexts all = texts_of(spec, one->description().n_embd);
  engine::EmbedOptions options;
  options.pooling = model::Pooling::mean;
  const std::vector<float> together = unwrap(engine::embed(three, all, options));
  EXPECT_EQ(unwrap(engine::embed(one, all, options)), together);
  in_parts.link.bytes_per_second = uint64_t{4} << 30;
  const auto away = open_with(build_model_gguf(spec), in_parts, with_layers(0));
  EXPECT_TRUE(away->weights().layers);
  EXPECT_EQ(unwrap(engine::embed(away, all, options)), together) << "layers in host memory";
  const auto n = static_cast<size_t>(all.dimensions);
  for (size_t i = all.tokens.size(); i-- > 0;) {
    engine::EncodedTexts alone;
    alone.dimensions = all.dimensions;
    alone.add(all.tokens[i], all.second[i]);
    EXPECT_EQ(unwrap(engine::embed(three, alone, options)),
              std::vector<float>(together.begin() + static_cast<ptrdiff_t>(i * n), together.begin() + static_cast<ptrdiff_t>((i + 1) * n)))
        << i;
  }
}

// An encoder cannot chat, and says so.
TEST_P(EncoderGoldens, NoSessionOpens) {
  const auto model = open_bytes(build_model_gguf(spec_of(GetParam())));
  auto session = engine::Session::open(model, {});
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::unsupported);
  EXPECT_NE(std::string(session.status().message()).find("is an encoder"), std::string::npos) << session.status().message();
}

// A model of the changed spec is refused with a message that names the part.
void refused(const json& changed, const char* part) {
  const TempDir dir;
  auto model = engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options())),
                                           dir.write("model.gguf", build_model_gguf(changed)), {});
  ASSERT_FALSE(model.ok()) << part;
  EXPECT_NE(std::string(model.status().message()).find(part), std::string::npos) << model.status().message();
}
json without(json spec, const char* tensor) {
  for (size_t i = 0; i < spec["tensors"].size(); ++i)
    if (spec["tensors"][i]["name"] == tensor) spec["tensors"].erase(i--);
  return spec;
}

// Files that lie, one key or tensor at a time.
TEST(EncoderFiles, WhatDoesNotFitIsRefusedByName) {
  const json spec = spec_of("bert");
  for (const char* name : {"position_embd.weight", "token_embd_norm.weight", "blk.0.attn_output_norm.weight",
                           "blk.2.layer_output_norm.weight", "blk.1.ffn_up.weight", "blk.0.attn_v.weight"})
    refused(without(spec, name), name);
  for (const char* more : {"output_norm.weight", "output.weight", "blk.0.attn_norm.weight", "blk.0.ffn_gate.weight"}) {
    json with = spec;
    with["tensors"].push_back({{"name", more}, {"shape", {48}}, {"scale", 1.0}, {"offset", 0.0}});
    refused(with, more);
  }
  const auto with_key = [&](const char* key, const json& value) {
    json changed = spec;
    for (json& each : changed["keys"])
      if (each[0] == key) each[2] = value;
    return changed;
  };
  refused(with_key("bert.attention.causal", true), "bert.attention.causal");
  refused(with_key("bert.pooling_type", 5), "bert.pooling_type");
  refused(with_key("bert.pooling_type", 4), "cls.output.weight");
  refused(with_key("bert.context_length", 161), "position_embd.weight");
  json types = spec;
  for (json& each : types["tensors"])
    if (each["name"] == "token_types.weight") each["shape"][1] = 17;
  refused(types, "token_types.weight");
}

TEST(EncoderFiles, DenseModulesComeInPairs) {
  const json spec = spec_of("gemma-embedding-dense");
  for (const char* name : {"dense_2.weight", "dense_3.weight"}) refused(without(spec, name), name);
  for (const char* key : {"dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"}) {
    json changed = spec;
    for (json& each : changed["keys"])
      if (each[0] == std::string("gemma-embedding.") + key) each[2] = 70;
    refused(changed, key);
  }
  json narrow = spec;
  for (json& each : narrow["tensors"])
    if (each["name"] == "dense_3.weight") each["shape"][0] = 75;
  refused(narrow, "dense_3.weight");
}

// The published all-MiniLM-L6-v2, where convert_bert.py has made it: its tokens are those of PyPI's `tokenizers`, its vectors those of
// sentence-transformers.
TEST(PublishedEncoder, AllMiniLm) {
  size_t n_files = 0;
  constexpr struct {
    const char* name;
    double bound;  // of 1 - cosine; weights of F16 are multiplied as bf16 on "avx512bf16" and "amx"
  } kFiles[] = {{"all-minilm-l6-v2.gguf", 1e-6}, {"all-minilm-l6-v2-f16.gguf", 1e-4}};
  for (const auto& [name, bound] : kFiles) {
    const char* const folder = std::getenv("ORRERY_MODELS");
    const std::string path = (folder ? std::string(folder) : source_path("build/models")) + "/" + name;
    if (!std::ifstream(path)) continue;
    ++n_files;
    std::ifstream file(path_of("minilm.json"));
    const json texts = json::parse(file);
    for (const char* set : cpu::available_paths()) {
      SCOPED_TRACE(path + " " + set);
      const auto model =
          unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options(2, set, 512u << 20))), path, {}));
      for (const json& text : texts) {
        const std::string words = text.at("text");
        const std::string_view one(words);
        engine::EmbedOptions options;
        options.pooling = engine::default_pooling(model->description());
        const engine::EncodedTexts encoded = unwrap(engine::encode_texts(*model, {&one, 1}, options));
        EXPECT_EQ(encoded.tokens[0], text.at("ids").get<std::vector<int32_t>>()) << words;
        const std::vector<float> vector = unwrap(engine::embed(model, encoded, options));
        const auto expected = text.at("vector").get<std::vector<double>>();
        double cosine = 0;
        for (size_t i = 0; i < expected.size(); ++i) cosine += static_cast<double>(vector[i]) * expected[i];
        EXPECT_GT(cosine, 1 - bound) << words;
      }
    }
  }
  if (n_files == 0) GTEST_SKIP() << "build/models has no all-minilm-l6-v2.gguf (tests/golden/convert_bert.py)";
}

INSTANTIATE_TEST_SUITE_P(, EncoderGoldens,
                         ::testing::Values("bert", "bert-plain", "bert-rank", "bert-rank-short", "nomic-bert", "gemma-embedding",
                                           "gemma-embedding-odd", "gemma-embedding-dense"),
                         [](const auto& spec) {
                           std::string name = spec.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace orrery::encoder_goldens_test
