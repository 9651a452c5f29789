// The quantized block formats, for kernels. Every format becomes small integers with a scale for each group, and for some formats a
// minimum: weight = scale * q - min. This is the portable reading. It is tested against the definition of the formats in
// runtime/gguf/dequantize.h. The vector versions (formats/blocks_x86.h, products/blocks_neon.h) have the same shape and are tested
// against this one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/tensor_type.h"

namespace orrery::cpu {

// Up to 256 weights.
struct UnpackedBlock {
  int8_t q[256];
  float scale[16];  // per group
  float min[16];
};

struct BlockFormat {
  int32_t n_weights;  // weights in a block: 32, 64 or 256
  int32_t n_bytes;
  int32_t group;  // weights that share a scale: 16 or 32
  bool has_min;
  void (*unpack)(const uint8_t* block, UnpackedBlock* out);
};

// Null for float types.
const BlockFormat* block_format(TensorType type);

// out (n) = the values of a row of any type; n is a multiple of the type's block.
void dequantize(TensorType type, const std::byte* row, int64_t n, float* out);

// Converts a KV vector to floats, and floats to a KV vector. Blocks of Q8_0 and Q4_0 have the layout of the weight formats with the
// same names. store_kv() writes zero into such a block for a value that is not finite.
void load_kv(TensorType type, const std::byte* vector, int32_t head_dim, float* out);
void store_kv(TensorType type, const float* x, int32_t head_dim, std::byte* vector);

}  // namespace orrery::cpu
