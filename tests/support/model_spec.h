// Small random models without files: from a JSON spec (tests/golden/models/NAME.json) to the bytes of a GGUF
// file, and to the runs that an engine must reproduce on it.
//
// A weight is a pure function of (spec seed, tensor name, index), the same bits here and in tests/golden/
// spec_weights.py, so the repository carries expected logits and no weights.  Broken specs throw
// std::runtime_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
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

// How matrices (two-dimensional *.weight tensors) are stored, and all else.
struct MatrixStorage {
  // Types that gguf::can_quantize() knows hold the spec's values, rounded; the others hold random valid
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
// Throws where can_store() is false.
std::vector<std::byte> build_model_gguf(const nlohmann::json& spec, const MatrixStorage& matrices = {});

// What an engine must give: `prompt` at positions 0.., logits of the prompt's rows named by `positions`, then
// greedy: answer[0] is the argmax of the last of them, step_logits row i the logits after answer[i] has been
// fed.
struct ModelRun {
  std::string name;
  uint32_t n_ctx = 0;           // the context to configure: phi3's long factors depend on it
  std::vector<int32_t> prompt;  // (64)
  std::vector<uint32_t> positions;
  std::vector<int32_t> answer;  // (16)
  float min_margin = 0;         // least top-1 minus top-2 logit where a token was chosen
  GoldenArray prompt_logits;    // (positions, vocabulary)
  GoldenArray step_logits;      // (16, vocabulary)
};
std::vector<ModelRun> load_model_runs(const std::string& name);

}  // namespace orrery::testing
