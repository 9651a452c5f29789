// Which values the CPU backend's instruction sets round, and how, so that tests know what error to allow: to bf16 in prompts and in rebuilt
// keys, to 16-bit words in attention over quantized KV.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/base/tensor_type.h"
#include "runtime/backend/backend.h"

namespace orrery::testing {

// Whether products round weights of this type, and their activations: amx all types but F32, avx512bf16 F16 and BF16.
inline bool rounds_weights(const std::string& path, TensorType type) {
  return path == "amx" ? type != TensorType::f32 : path == "avx512bf16" && (type == TensorType::f16 || type == TensorType::bf16);
}
// Whether attention over KV of this type rounds queries, keys, values and softmax weights.
inline bool rounds_attention(const std::string& path, KvType type) {
  return (path == "amx" || path == "avx512bf16") && type != KvType::f32;
}

// Whether rebuilt keys of this type come from rounded coefficients and bases.
inline bool rounds_low_rank(const std::string& path, KvType type) { return rounds_attention(path, type); }

// Whether a generated token's attention over quantized KV rounds queries and softmax weights to 16-bit words.
inline bool attends_in_words(const std::string& path, KvType type) { return in_blocks(type) && path != "plain" && path != "neon"; }

// The largest error of q k over n dimensions, if q is rounded to words in units of each block's largest / 32512; else 0.
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

inline float to_bf16(float x) {  // rounds to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7FFFFFFF) < 0x7F800000) bits += 0x7FFF + (bits >> 16 & 1);
  bits &= 0xFFFF0000;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace orrery::testing
