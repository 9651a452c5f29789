// The matrices of published models, by their numbers: what bench_cpu multiplies (section shapes) and make_model writes; and which of them
// Q4_K_M gives more bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace orrery::bench {

struct ModelShape {
  const char* name;
  int32_t n_embd, n_layers, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
};

constexpr ModelShape kModelShapes[] = {
    {"smollm2-135m", 576, 30, 9, 3, 64, 1536, 49152},      {"smollm2-360m", 960, 32, 15, 5, 64, 2560, 49152},
    {"qwen2.5-0.5b", 896, 24, 14, 2, 64, 4864, 151936},    {"llama-3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256},
    {"qwen2.5-1.5b", 1536, 28, 12, 2, 128, 8960, 151936},  {"smollm2-1.7b", 2048, 24, 32, 32, 64, 8192, 49152},
    {"qwen2.5-3b", 2048, 36, 16, 2, 128, 11008, 151936},   {"llama-3.2-3b", 3072, 28, 24, 8, 128, 8192, 128256},
    {"phi-3.5-mini", 3072, 32, 32, 32, 96, 8192, 32064},   {"qwen2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064},
    {"llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256}, {"qwen2.5-14b", 5120, 48, 40, 8, 128, 13824, 152064},
};

inline const ModelShape* model_shape(std::string_view name) {
  for (const ModelShape& shape : kModelShapes)
    if (name == shape.name) return &shape;
  return nullptr;
}

// Whether Q4_K_M keeps a layer's V and down in Q6_K and not in Q4_K, as llama.cpp chooses: the first and the last eighth, and of the rest
// each third layer. The output matrix is Q6_K, everything else Q4_K.
constexpr bool q4_k_m_has_more_bits(int32_t layer, int32_t n_layers) {
  const int32_t eighth = n_layers / 8;
  return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

}  // namespace orrery::bench
