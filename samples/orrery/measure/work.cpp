#include "measure/work.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

namespace orrery::tool {
namespace {

// Reads an integer key of the model's architecture ("qwen3moe.expert_count"). Returns 0 if the file does not have the key.
uint64_t number(const Json& description, const char* key) {
  const auto metadata = description.find("metadata");
  if (metadata == description.end() || !metadata->is_object()) return 0;
  const auto value = metadata->find(description.value("architecture", std::string()) + "." + key);
  return value != metadata->end() && value->is_number_integer() ? static_cast<uint64_t>(std::max<int64_t>(value->get<int64_t>(), 0)) : 0;
}

bool contains(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

// Of "blk.12.attn_q.weight"; -1 of other tensors.
int64_t layer_of(const std::string& name) { return name.rfind("blk.", 0) == 0 ? std::atoll(name.c_str() + 4) : -1; }

}  // namespace

Work work_per_token(const Json& description) {
  const Json& tensors = description.at("tensors");
  const bool has_output =
      std::any_of(tensors.begin(), tensors.end(), [](const Json& tensor) { return tensor.at("name") == "output.weight"; });
  const uint64_t n_experts = number(description, "expert_count"), n_used = number(description, "expert_used_count");
  const auto n_layers = static_cast<int64_t>(number(description, "block_count"));
  const auto n_guessing = static_cast<int64_t>(number(description, "nextn_predict_layers"));
  const auto n_tail = static_cast<int64_t>(number(description, "attention.shared_kv_layers"));
  Work work;
  work.n_layers = static_cast<uint64_t>(std::max<int64_t>(n_layers - n_guessing, 0));
  uint64_t n_recurrent = 0;
  for (const Json& tensor : tensors) {
    const std::string name = tensor.at("name"), type = tensor.at("type");
    const bool embedding = name == "token_embd.weight";
    const int64_t layer = layer_of(name);
    const uint64_t bytes = tensor.at("bytes").get<uint64_t>();
    const bool guesses = n_guessing > 0 && layer >= n_layers - n_guessing, of_experts = n_experts > 0 && contains(name, "_exps.weight");
    const bool rows_alone = (embedding && has_output) || name == "per_layer_token_embd.weight";
    if (!guesses && !rows_alone) (of_experts ? work.expert_bytes : work.resident_bytes) += bytes;
    if (!guesses && !of_experts && layer >= 0 && tensor.at("shape").size() >= 2 && !contains(name, ".ffn_gate_inp."))
      work.layer_bytes += bytes;
    if (!guesses && (contains(name, ".ffn_gate.") || contains(name, ".ffn_up.") || contains(name, ".ffn_down."))) work.block_bytes += bytes;
    if (!guesses && of_experts && contains(name, "ffn_down_exps."))
      ++work.expert_layers, work.n_experts += n_experts, work.used_experts += n_used;
    if (rows_alone || guesses) continue;
    if (contains(name, ".ssm_a") && !contains(name, ".ssm_alpha")) ++n_recurrent;
    const double met = n_experts > 0 && contains(name, "_exps.") ? static_cast<double>(n_used) / static_cast<double>(n_experts) : 1.0;
    work.weights_bytes += static_cast<uint64_t>(static_cast<double>(bytes) * met);
    const Json& shape = tensor.at("shape");
    if (shape.size() < 2) continue;
    double ops = 2 * met;
    for (const Json& n : shape) ops *= n.get<double>();
    const bool last_alone = embedding || name == "output.weight" || (n_tail > 0 && layer >= n_layers - n_tail);
    Work::Ops& sum = last_alone ? work.last_ops : work.ops;
    (type == "F32" ? sum.floats : type == "F16" || type == "BF16" ? sum.halves : sum.quantized) += ops;
  }
  work.state_bytes = 2 * sizeof(float) * n_recurrent * number(description, "ssm.inner_size") * number(description, "ssm.state_size");
  return work;
}

}  // namespace orrery::tool
