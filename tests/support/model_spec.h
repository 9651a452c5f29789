// Small random models. A JSON spec (tests/golden/models/NAME.json) becomes the bytes of a GGUF file, and the runs that an engine must
// reproduce.
//
// A weight is a pure function of (spec seed, tensor name, index), with the same bits here and in tests/golden/spec_weights.py. So the
// repository contains expected logits, but no weights. A broken spec throws std::runtime_error.
//
// A test that changes a spec includes <nlohmann/json.hpp>. The others do not compile it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/tensor_type.h"
#include "tests/support/golden_file.h"

namespace orrery::testing {

// The names of all specs, sorted; and one of them.
std::vector<std::string> model_spec_names();
nlohmann::json load_model_spec(const std::string& name);

// The values of one of the spec's "tensors".
std::vector<float> spec_tensor_values(const nlohmann::json& spec, const nlohmann::json& tensor);

// Whether gguf::quantize_row() supports the type.
bool can_quantize(TensorType type);

// How matrices (two-dimensional *.weight tensors) are stored, and how all other tensors are.
struct MatrixStorage {
  // Types that can_quantize() knows hold the spec's values, rounded; the others hold random valid
  // blocks of about the same deviation, so the spec's expected logits do not apply to them.
  TensorType type = TensorType::f32;
  // Store the blocks' values as F32: the oracle of a run on the blocks themselves.
  bool dequantized = false;
  // Of norms, biases and factors: F32, F16 or BF16.
  TensorType vectors = TensorType::f32;
};

// Whether every matrix of the spec is made of whole blocks of the type (256-weight blocks: the spec
// llama-256).
bool can_store(const nlohmann::json& spec, TensorType type);

// The file's bytes, with a vocabulary of spec.vocab.size SentencePiece pieces (0 <unk>, 1 <s>, 2 </s>).
// Throws if can_store() is false.
std::vector<std::byte> build_model_gguf(const nlohmann::json& spec, const MatrixStorage& matrices = {});
// Those of a spec as it stands in its file; and with a chat template.
std::vector<std::byte> named_model_gguf(const std::string& name, const MatrixStorage& matrices = {});
// A spec with three times as many layers, and its model. Layers before its first mixture stay the first ones, and nextn blocks the last.
nlohmann::json deep_model_spec(const std::string& name);
std::vector<std::byte> deep_model_gguf(const std::string& name, const MatrixStorage& matrices = {});
std::vector<std::byte> chat_model_gguf(const std::string& name, const std::string& chat_template);

// A run that an engine must reproduce. Feed `prompt` at positions 0, 1, ...: prompt_logits are the logits at `positions`. Then decode
// greedily: answer[0] is the argmax of the last prompt row, and row i of step_logits has the logits after answer[i] has been fed.
struct ModelRun {
  std::string name;
  uint32_t n_ctx = 0;           // the context to configure: phi3's long factors depend on it
  std::vector<int32_t> prompt;  // (64)
  std::vector<uint32_t> positions;
  std::vector<int32_t> answer;  // (16)
  float min_margin = 0;         // the least margin between the two largest logits, over all chosen tokens
  GoldenArray prompt_logits;    // (positions, vocabulary)
  GoldenArray step_logits;      // (16, vocabulary)
};
std::vector<ModelRun> load_model_runs(const std::string& name);

}  // namespace orrery::testing
