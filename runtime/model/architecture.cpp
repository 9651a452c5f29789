#include "runtime/model/architecture.h"

#include <iterator>

namespace orrery::model {

namespace {

// In any family, QKV may be fused (attn_qkv) or separate, with or without biases. The tensors decide.
constexpr Architecture kArchitectures[] = {
    // name      interleaved qk_norm post_norms fused_gate_up longrope windows
    {"llama",    true,       false,  false,     false,        false,   false},  // Llama, Mistral, Yi, R1-Distill
    {"qwen2",    false,      false,  false,     false,        false,   false},  // and R1-Distill-Qwen
    {"qwen3",    false,      true,   false,     false,        false,   false},
    {"phi3",     false,      false,  false,     true,         true,    true},   // Phi-3, 3.5, Phi-4
    {"glm4",     true,       false,  true,      true,         false,   false},  // GLM-4-0414
    {"chatglm",  true,       false,  false,     true,         false,   false},  // GLM-4-9B, ChatGLM3
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& a : kArchitectures)
    if (name == a.name) return &a;
  return nullptr;
}

Span<const Architecture> architectures() { return {kArchitectures, std::size(kArchitectures)}; }

}  // namespace orrery::model
