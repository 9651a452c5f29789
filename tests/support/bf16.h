// What the CPU's paths round: to bf16 where they compute prompts, or rebuild keys, and how; to words where they attend to blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/base/tensor_type.h"
#include "runtime/backend/backend.h"

namespace orrery::testing {

// Weights of this type, and the activations that they meet: on AMX's tiles all but F32, on vectors what would be floats otherwise.
inline bool rounds_weights(const std::string& path, TensorType type) {
  return path == "amx" ? type != TensorType::f32 : path == "avx512bf16" && (type == TensorType::f16 || type == TensorType::bf16);
}
// Queries, keys, values and their weights.
inline bool rounds_attention(const std::string& path, KvType type) {
  return (path == "amx" || path == "avx512bf16") && type != KvType::f32;
}

// Rows and bases of low-rank keys that are kept as this type.
inline bool rounds_low_rank(const std::string& path, KvType type) { return rounds_attention(path, type); }

// A generated token's queries, and their weights, over quantized KV: simd_attend_blocks.h.
inline bool attends_in_words(const std::string& path, KvType type) {
  return (type == KvType::q8_0 || type == KvType::q4_0) && path != "plain" && path != "avx2" && path != "neon";
}

// How far q k moves at most, of n dimensions, where q is words in units of each block's largest / 32512; 0 where it is not.
inline double word_error(const std::string& path, KvType type, const float* q, const float* k, size_t n) {
  if (!attends_in_words(path, type)) return 0;
  double error = 0;
  for (size_t block = 0; block < n; block += 32) {
    double largest = 0, sum = 0;
    for (size_t i = block; i < std::min(n, block + 32); ++i)
      largest = std::max(largest, std::fabs(static_cast<double>(q[i]))), sum += std::fabs(static_cast<double>(k[i]));
    error += .5 / 32512 * largest * sum;
  }
  return error;
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
