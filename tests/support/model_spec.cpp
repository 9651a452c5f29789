// See model_spec.h. The generator must match tests/golden/spec_weights.py bit for bit: 24 random bits for each weight, one float32
// multiplication, one float32 addition (the build forbids contraction to FMA).
#include "tests/support/model_spec.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>

#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::testing {

bool can_quantize(TensorType type) {
  switch (type) {
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
    case TensorType::q8_0:
    case TensorType::q4_0:
    case TensorType::q4_1:
    case TensorType::q5_0:
    case TensorType::q5_1: return true;
    default: return false;
  }
}

namespace {

using nlohmann::json;

uint64_t fnv1a64(const std::string& text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h;
}

uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t tensor_key(const json& spec, const json& tensor) {
  return mix64(fnv1a64(tensor.at("name").get<std::string>()) + spec.at("seed").get<uint64_t>());
}

bool is_matrix(const json& tensor) {
  const std::string name = tensor.at("name");
  const std::string ending = ".weight";
  return tensor.at("shape").size() >= 2 && name.size() > ending.size() &&
         name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
}

void add_key(GgufBuilder& file, const json& entry) {
  const std::string name = entry.at(0), type = entry.at(1);
  const json& value = entry.at(2);
  if (type == "u32") {
    file.key(name, value.get<uint32_t>());
  } else if (type == "i32") {
    file.key(name, value.get<int32_t>());
  } else if (type == "bool") {
    file.key(name, value.get<bool>());
  } else if (type == "f32") {
    file.key(name, static_cast<float>(value.get<double>()));
  } else if (type == "string") {
    file.key(name, value.get<std::string>());
  } else if (type == "u32[]") {
    file.array(name, value.get<std::vector<uint32_t>>());
  } else if (type == "i32[]") {
    file.array(name, value.get<std::vector<int32_t>>());
  } else if (type == "bool[]") {  // written as 0 and 1
    std::vector<bool> flags;
    for (const json& flag : value) flags.push_back(flag.get<int>() != 0);
    file.array(name, flags);
  } else {
    throw std::runtime_error("key " + name + ": type " + type + " is not one that specs have");
  }
}

// Pieces that any SentencePiece tokenizer accepts: the specials, "▁", printable ASCII, then "▁" and a letter,
// then pairs and threes.
void add_vocabulary(GgufBuilder& file, uint64_t size) {
  const std::string space = "\xE2\x96\x81";
  std::vector<std::string> pieces = {"<unk>", "<s>", "</s>", space};
  for (char c = '!'; c <= '~'; ++c) pieces.emplace_back(1, c);
  for (char c = 'a'; c <= 'z'; ++c) pieces.push_back(space + c);
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b) pieces.push_back(std::string{a, b});
  for (char a = 'a'; a <= 'z' && pieces.size() < size; ++a)
    for (char b = 'a'; b <= 'z'; ++b)
      for (char c = 'a'; c <= 'z'; ++c) pieces.push_back(std::string{a, b, c});
  if (size < 4 || size > pieces.size()) throw std::runtime_error("vocabulary size is outside what specs have");
  pieces.resize(size);
  std::vector<float> scores(size);
  std::vector<int32_t> types(size, 1);  // normal
  for (uint64_t i = 3; i < size; ++i) scores[i] = -static_cast<float>(i);
  types[0] = 2;             // unknown
  types[1] = types[2] = 3;  // control
  file.key("tokenizer.ggml.model", "llama");
  file.array("tokenizer.ggml.tokens", pieces);
  file.array("tokenizer.ggml.scores", scores);
  file.array("tokenizer.ggml.token_type", types);
  file.key("tokenizer.ggml.bos_token_id", uint32_t{1});
  file.key("tokenizer.ggml.eos_token_id", uint32_t{2});
  file.key("tokenizer.ggml.unknown_token_id", uint32_t{0});
}

std::vector<std::byte> matrix_blocks(const json& spec, const json& tensor, TensorType type, const std::vector<float>& values) {
  if (!can_quantize(type)) {
    const float deviation = static_cast<float>(tensor.at("scale").get<double>() / std::sqrt(3.0));
    return random_blocks(type, values.size(), tensor_key(spec, tensor), deviation);
  }
  std::vector<std::byte> blocks(row_bytes(type, values.size()));
  gguf::quantize_row(type, values.data(), blocks.data(), values.size());
  return blocks;
}

std::string spec_path(const std::string& file) { return source_path("tests/golden/models/" + file); }

}  // namespace

std::vector<std::string> model_spec_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(spec_path("")))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

json load_model_spec(const std::string& name) {
  std::ifstream in(spec_path(name + ".json"));
  json spec = json::parse(in, nullptr, false);
  if (!spec.is_object()) throw std::runtime_error("model spec " + name + " is absent or no JSON object");
  return spec;
}

std::vector<float> spec_tensor_values(const json& spec, const json& tensor) {
  uint64_t count = 1;
  for (const json& d : tensor.at("shape")) count *= d.get<uint64_t>();
  std::vector<float> values;
  if (tensor.contains("values")) {
    for (const json& v : tensor.at("values")) values.push_back(static_cast<float>(v.get<double>()));
    if (values.size() != count) throw std::runtime_error(tensor.at("name").get<std::string>() + ": values do not fill the shape");
    return values;
  }
  const float scale = static_cast<float>(tensor.at("scale").get<double>());
  if (tensor.contains("bytes")) {  // of trained weights
    const std::string hex = tensor.at("bytes");
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
      values.push_back(scale * static_cast<float>(static_cast<int8_t>(std::stoi(hex.substr(i, 2), nullptr, 16))));
    if (values.size() != count) throw std::runtime_error(tensor.at("name").get<std::string>() + ": bytes do not fill the shape");
    return values;
  }
  const uint64_t key = tensor_key(spec, tensor);
  const float offset = static_cast<float>(tensor.at("offset").get<double>());
  values.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int32_t>(mix64(key + (i + 1) * 0x9E3779B97F4A7C15u) >> 40);
    values[i] = offset + scale * (static_cast<float>(bits - (1 << 23)) * 0x1p-23f);
  }
  return values;
}

bool can_store(const json& spec, TensorType type) {
  const uint64_t block = type_traits(type)->block_elements;
  const json& tensors = spec.at("tensors");
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const json& t) { return !is_matrix(t) || t.at("shape").at(0).get<uint64_t>() % block == 0; });
}

std::vector<std::byte> build_model_gguf(const json& spec, const MatrixStorage& matrices) {
  if (!can_store(spec, matrices.type))
    throw std::runtime_error(spec.at("name").get<std::string>() + ": rows are not whole blocks of " + type_traits(matrices.type)->name);
  GgufBuilder file;
  for (const json& entry : spec.at("keys")) add_key(file, entry);
  add_vocabulary(file, spec.at("vocab").at("size").get<uint64_t>());
  for (const json& tensor : spec.at("tensors")) {
    const std::string name = tensor.at("name");
    const auto shape = tensor.at("shape").get<std::vector<uint64_t>>();
    std::vector<float> values = spec_tensor_values(spec, tensor);
    TensorType type = is_matrix(tensor) ? matrices.type : matrices.vectors;
    std::vector<std::byte> data;
    if (type != TensorType::f32) {
      data = matrix_blocks(spec, tensor, type, values);
      if (matrices.dequantized) {
        gguf::dequantize_row(type, data.data(), values.data(), values.size());
        type = TensorType::f32;
      }
    }
    if (type == TensorType::f32) data = as_bytes(values);
    file.tensor(name, type, shape, std::move(data));
  }
  return file.build();
}

namespace {
// A program opens the same few models hundreds of times.
template <class Make>
std::vector<std::byte> made_once(const std::string& name, const MatrixStorage& matrices, const Make& make) {
  struct Made {
    std::mutex mutex;
    std::map<std::tuple<std::string, TensorType, bool, TensorType>, std::vector<std::byte>> files;
  };
  static Made made;
  const std::lock_guard<std::mutex> lock(made.mutex);
  std::vector<std::byte>& file = made.files[{name, matrices.type, matrices.dequantized, matrices.vectors}];
  if (file.empty()) file = make();
  return file;
}
}  // namespace

std::vector<std::byte> named_model_gguf(const std::string& name, const MatrixStorage& matrices) {
  return made_once(name, matrices, [&] { return build_model_gguf(load_model_spec(name), matrices); });
}

nlohmann::json deep_model_spec(const std::string& name) {
  nlohmann::json spec = load_model_spec(name);
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
  };
  size_t n = 0, n_dense = 0, n_guessing = 0;
  for (const auto& key : spec["keys"]) {
    if (ends_with(key[0], ".block_count")) n = key[2];
    if (ends_with(key[0], ".leading_dense_block_count")) n_dense = key[2];
    if (ends_with(key[0], ".nextn_predict_layers")) n_guessing = key[2];
  }
  n -= n_guessing;
  const auto source = [&](size_t layer) { return layer < n ? layer : n_dense + (layer - n_dense) % (n - n_dense); };
  for (auto& key : spec["keys"]) {
    if (ends_with(key[0], ".block_count")) key[2] = 3 * n + n_guessing;
    nlohmann::json& last = key[key.size() - 1];
    if (!last.is_array() || last.size() != n) continue;
    for (size_t layer = n; layer < 3 * n; ++layer) last.push_back(last[source(layer)]);
  }
  nlohmann::json tensors = nlohmann::json::array();
  const auto copy = [&](size_t from, size_t to) {
    const std::string prefix = "blk." + std::to_string(from) + ".";
    for (nlohmann::json tensor : spec["tensors"]) {
      const std::string its = tensor["name"];
      if (its.rfind(prefix, 0) != 0) continue;
      tensor["name"] = "blk." + std::to_string(to) + "." + its.substr(prefix.size());
      tensors.push_back(tensor);
    }
  };
  for (const auto& tensor : spec["tensors"])
    if (std::string(tensor["name"]).rfind("blk.", 0) != 0) tensors.push_back(tensor);
  for (size_t layer = 0; layer < 3 * n; ++layer) copy(source(layer), layer);
  for (size_t layer = 0; layer < n_guessing; ++layer) copy(n + layer, 3 * n + layer);
  spec["tensors"] = tensors;
  return spec;
}

std::vector<std::byte> deep_model_gguf(const std::string& name, const MatrixStorage& matrices) {
  return made_once(name + ", deep", matrices, [&] { return build_model_gguf(deep_model_spec(name), matrices); });
}

std::vector<std::byte> chat_model_gguf(const std::string& name, const std::string& chat_template) {
  json spec = load_model_spec(name);
  spec["keys"].push_back({"tokenizer.chat_template", "string", chat_template});
  return build_model_gguf(spec);
}

std::vector<ModelRun> load_model_runs(const std::string& name) {
  const json spec = load_model_spec(name);
  const GoldenFile golden = GoldenFile::open(spec_path(name + ".golden"));
  const uint64_t vocabulary = spec.at("vocab").at("size").get<uint64_t>();
  std::vector<ModelRun> runs;
  for (const json& entry : spec.at("runs")) {
    ModelRun run;
    run.name = entry.at("name");
    run.n_ctx = entry.at("n_ctx").get<uint32_t>();
    run.prompt = entry.at("prompt").get<std::vector<int32_t>>();
    run.positions = entry.at("positions").get<std::vector<uint32_t>>();
    run.answer = entry.at("answer").get<std::vector<int32_t>>();
    run.min_margin = static_cast<float>(entry.at("min_margin").get<double>());
    run.prompt_logits = golden.at(run.name + ".prompt");
    run.step_logits = golden.at(run.name + ".steps");
    if (run.prompt_logits.shape != std::vector<uint64_t>{run.positions.size(), vocabulary} ||
        run.step_logits.shape != std::vector<uint64_t>{run.answer.size(), vocabulary})
      throw std::runtime_error(name + "." + run.name + ": spec and golden disagree on shapes");
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace orrery::testing
