// The number formats of weights, with the numbers that GGUF gives them, and the sizes of their blocks. The meaning of a block's
// bits is defined once, in runtime/gguf/dequantize.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace orrery {

enum class TensorType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  bf16 = 30,
  mxfp4 = 39,
  nvfp4 = 40,
};

struct TypeTraits {
  TensorType type;
  const char* name;         // "Q4_K"
  uint32_t block_elements;  // weights per block
  uint32_t block_bytes;
};

inline constexpr TypeTraits kTypeTraits[] = {
    {TensorType::f32, "F32", 1, 4},           {TensorType::f16, "F16", 1, 2},
    {TensorType::bf16, "BF16", 1, 2},         {TensorType::q8_0, "Q8_0", 32, 34},
    {TensorType::q4_0, "Q4_0", 32, 18},       {TensorType::q4_1, "Q4_1", 32, 20},
    {TensorType::q5_0, "Q5_0", 32, 22},       {TensorType::q5_1, "Q5_1", 32, 24},
    {TensorType::q2_k, "Q2_K", 256, 84},      {TensorType::q3_k, "Q3_K", 256, 110},
    {TensorType::q4_k, "Q4_K", 256, 144},     {TensorType::q5_k, "Q5_K", 256, 176},
    {TensorType::q6_k, "Q6_K", 256, 210},     {TensorType::iq4_nl, "IQ4_NL", 32, 18},
    {TensorType::iq4_xs, "IQ4_XS", 256, 136}, {TensorType::iq3_xxs, "IQ3_XXS", 256, 98},
    {TensorType::iq3_s, "IQ3_S", 256, 110},   {TensorType::iq2_xxs, "IQ2_XXS", 256, 66},
    {TensorType::iq2_xs, "IQ2_XS", 256, 74},  {TensorType::iq2_s, "IQ2_S", 256, 82},
    {TensorType::nvfp4, "NVFP4", 64, 36},     {TensorType::mxfp4, "MXFP4", 32, 17},
};

// Null for a type that the library does not read.
constexpr const TypeTraits* type_traits(TensorType type) {
  for (const TypeTraits& t : kTypeTraits)
    if (t.type == type) return &t;
  return nullptr;
}
constexpr const TypeTraits* type_traits_by_name(std::string_view name) {  // exact, as in TypeTraits::name
  for (const TypeTraits& t : kTypeTraits)
    if (name == t.name) return &t;
  return nullptr;
}

// Bytes of `n` values, a multiple of the type's block.
constexpr uint64_t row_bytes(TensorType type, uint64_t n) {
  const TypeTraits* t = type_traits(type);
  return n / t->block_elements * t->block_bytes;
}

}  // namespace orrery
