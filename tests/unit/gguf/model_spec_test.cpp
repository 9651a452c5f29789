// The model specs: the builder makes exactly the weights of the goldens, its files are valid GGUF in every storage type, and the golden
// reader refuses damaged files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_spec.h"
#include "tests/support/shared.h"

namespace orrery::testing::model_spec_test {
namespace {

using nlohmann::json;

gguf::File parse(const std::vector<std::byte>& bytes, const std::string& name) {
  auto file = gguf::File::parse(Span<const std::byte>(bytes.data(), bytes.size()), name);
  if (!file.ok()) throw std::runtime_error(file.status().message());
  return std::move(file).value();
}

// tests/golden/spec_weights.py: weights_hash().
struct WeightsHash {
  uint64_t total = 0;
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  void add(const float* values, uint64_t n) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, values + i, sizeof bits);
      sum += mix(bits ^ (i + 1) * 0x9E3779B97F4A7C15u);
    }
    total = mix(total + sum);
  }
};

size_t argmax(const float* logits, uint64_t n) { return static_cast<size_t>(std::max_element(logits, logits + n) - logits); }

TEST(ModelSpec, EverySpecBuildsTheWeightsOfItsGolden) {
  const std::vector<std::string> names = model_spec_names();
  ASSERT_GE(names.size(), 27u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const json spec = load_model_spec(name);
    EXPECT_EQ(spec.at("name"), name);
    const std::vector<std::byte> bytes = build_model_gguf(spec);
    const gguf::File file = parse(bytes, name);
    ASSERT_EQ(file.tensors().size(), spec.at("tensors").size());
    WeightsHash hash;
    for (const json& t : spec.at("tensors")) {
      const gguf::Tensor* tensor = file.find_tensor(t.at("name").get<std::string>());
      ASSERT_NE(tensor, nullptr) << t;
      EXPECT_EQ(tensor->type, TensorType::f32);
      ASSERT_EQ(tensor->n_dims, t.at("shape").size());
      for (uint32_t d = 0; d < tensor->n_dims; ++d) EXPECT_EQ(tensor->dims[d], t.at("shape").at(d));
      hash.add(reinterpret_cast<const float*>(tensor->data), tensor->n_elements);
    }
    EXPECT_EQ(hash.total, std::stoull(spec.at("weights_hash").get<std::string>(), nullptr, 16));

    for (const json& key : spec.at("keys")) {
      const gguf::Value* value = file.find(key.at(0).get<std::string>());
      ASSERT_NE(value, nullptr) << key;
      double number = 0;
      bool flag = false;
      std::string_view text;
      if (key.at(1) == "string") {
        ASSERT_TRUE(value->as_string(&text)) << key;
        EXPECT_EQ(key.at(2), text);
      } else if (key.at(2).is_boolean()) {
        ASSERT_TRUE(value->as_bool(&flag)) << key;
        EXPECT_EQ(key.at(2), flag) << key;
      } else if (key.at(2).is_number()) {
        ASSERT_TRUE(value->as_f64(&number)) << key;
        EXPECT_FLOAT_EQ(static_cast<float>(number), static_cast<float>(key.at(2).get<double>())) << key;
      } else {
        EXPECT_EQ(value->size(), key.at(2).size()) << key;
      }
    }
    const gguf::Value* tokens = file.find("tokenizer.ggml.tokens");
    ASSERT_NE(tokens, nullptr);
    EXPECT_EQ(tokens->size(), file.find_tensor("token_embd.weight")->dims[1]);
  }
}

TEST(ModelSpec, RunsAgreeWithThemselves) {
  for (const std::string& name : model_spec_names()) {
    SCOPED_TRACE(name);
    const std::vector<ModelRun> runs = load_model_runs(name);
    ASSERT_FALSE(runs.empty());
    for (const ModelRun& run : runs) {
      ASSERT_EQ(run.prompt.size(), 64u);
      ASSERT_EQ(run.answer.size(), 16u);
      EXPECT_GE(run.n_ctx, 80u);
      EXPECT_GT(run.min_margin, 0.1f);
      ASSERT_EQ(run.positions.back(), 63u);
      const uint64_t vocabulary = run.step_logits.row_size();
      EXPECT_EQ(argmax(run.prompt_logits.row(run.positions.size() - 1), vocabulary), static_cast<size_t>(run.answer[0]));
      for (size_t i = 0; i + 1 < run.answer.size(); ++i)
        EXPECT_EQ(argmax(run.step_logits.row(i), vocabulary), static_cast<size_t>(run.answer[i + 1])) << i;
    }
  }
}

TEST(ModelSpec, ContextSizeChangesLongrope) {
  const std::vector<ModelRun> runs = load_model_runs("phi3-longrope");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].prompt, runs[1].prompt);
  EXPECT_NE(runs[0].prompt_logits.values, runs[1].prompt_logits.values);
}

TEST(ModelSpec, EveryTypeCanHoldTheMatrices) {
  const json spec = load_model_spec("llama-256");
  const std::vector<std::byte> plain_bytes = build_model_gguf(spec);
  const gguf::File plain = parse(plain_bytes, "plain");
  for (const TypeTraits& traits : kTypeTraits) {
    SCOPED_TRACE(traits.name);
    ASSERT_TRUE(can_store(spec, traits.type));
    const std::vector<std::byte> bytes = build_model_gguf(spec, {traits.type, false});
    const gguf::File file = parse(bytes, traits.name);
    const std::vector<std::byte> oracle_bytes = build_model_gguf(spec, {traits.type, true});
    const gguf::File oracle = parse(oracle_bytes, traits.name);
    for (const gguf::Tensor& tensor : file.tensors()) {
      EXPECT_EQ(tensor.type, tensor.n_dims == 2 ? traits.type : TensorType::f32) << tensor.name;
      const gguf::Tensor* values = oracle.find_tensor(tensor.name);
      const gguf::Tensor* exact = plain.find_tensor(tensor.name);
      ASSERT_EQ(values->type, TensorType::f32);
      const auto* got = reinterpret_cast<const float*>(values->data);
      const auto* want = reinterpret_cast<const float*>(exact->data);
      double energy = 0, expected_energy = 0;
      for (uint64_t i = 0; i < values->n_elements; ++i) {
        ASSERT_TRUE(std::isfinite(got[i])) << tensor.name;
        energy += double{got[i]} * double{got[i]};
        expected_energy += double{want[i]} * double{want[i]};
      }
      // Rounded or random, the matrix has about the deviation that the spec asks for, so logits stay in
      // range.
      EXPECT_NEAR(std::sqrt(energy / expected_energy), 1.0, 0.3) << tensor.name;
    }
  }
}

TEST(ModelSpec, RefusesRowsThatAreNotWholeBlocks) {
  const json spec = load_model_spec("llama-plain");
  EXPECT_TRUE(can_store(spec, TensorType::q8_0));
  EXPECT_FALSE(can_store(spec, TensorType::q4_k));
  EXPECT_THROW(build_model_gguf(spec, {TensorType::q4_k, false}), std::runtime_error);
}

TEST(GoldenFile, RefusesDamage) {
  const std::string header = R"({"arrays":{"a":{"dtype":"f32","shape":[2,3],"offset":0}}})";
  const auto file_of = [](const std::string& head, size_t n_floats) {
    std::string bytes = "ORGOLD1\n";
    const uint64_t n = head.size();
    bytes.append(reinterpret_cast<const char*>(&n), sizeof n).append(head);
    bytes.resize((bytes.size() + 63) / 64 * 64);
    for (size_t i = 0; i < n_floats; ++i) {
      const float value = static_cast<float>(i) + 0.5f;
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return bytes;
  };
  const GoldenFile good = GoldenFile::parse(file_of(header, 6), "good");
  EXPECT_EQ(good.at("a").row_size(), 3u);
  EXPECT_EQ(good.at("a").row(1)[2], 5.5f);
  EXPECT_THROW(good.at("b"), std::runtime_error);

  EXPECT_THROW(GoldenFile::open(source_path("tests/golden/models/absent.golden")), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse("", "empty"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(file_of(header, 6).substr(1), "magic"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(file_of(header, 6).substr(0, 40), "cut header"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(file_of(header, 5), "cut data"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(file_of(header, 7), "data too long"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(file_of("{", 6), "json"), std::runtime_error);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = header;
    changed.replace(changed.find(from), from.size(), to);
    return file_of(changed, 6);
  };
  EXPECT_THROW(GoldenFile::parse(with("f32", "f16"), "dtype"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(with("[2,3]", "[2,4]"), "shape"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(with("[2,3]", "[4294967296,4294967296]"), "wrapping shape"), std::runtime_error);
  EXPECT_THROW(GoldenFile::parse(with(":0}", ":4}"), "offset"), std::runtime_error);
}

}  // namespace
}  // namespace orrery::testing::model_spec_test
