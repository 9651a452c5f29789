// What the CPU's paths round to bf16 where they compute prompts, and how.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/base/tensor_type.h"
#include "runtime/backend.h"

namespace orrery::testing {

// Weights of this type, and the activations that they meet: on AMX's tiles all but F32, on vectors what would be floats otherwise.
inline bool rounds_weights(const std::string& path, TensorType type) {
  return path == "amx" ? type != TensorType::f32 : path == "avx512bf16" && (type == TensorType::f16 || type == TensorType::bf16);
}
// Queries, keys, values and their weights.
inline bool rounds_attention(const std::string& path, KvType type) {
  return (path == "amx" || path == "avx512bf16") && type != KvType::f32;
}

inline float to_bf16(float x) {   // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7FFFFFFF) < 0x7F800000) bits += 0x7FFF + (bits >> 16 & 1);
  bits &= 0xFFFF0000;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace orrery::testing
