// What the quantized block formats mean, for kernels: every format becomes small integers with a scale, and
// for some a minimum, per group.  weight = scale * q - min.  This is the portable reading; the vector paths
// have their own of the same shape and are tested against it, and this one is tested against the formats'
// definition in dequantize.h.
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
  int32_t n_weights;  // of a block: 32 or 256
  int32_t n_bytes;
  int32_t group;  // weights that share a scale: 16 or 32
  bool has_min;
  void (*unpack)(const uint8_t* block, UnpackedBlock* out);
};

// Null for float types.
const BlockFormat* block_format(TensorType type);

// out (n) = the values of a row of any type; n is a multiple of the type's block.
void dequantize(TensorType type, const std::byte* row, int64_t n, float* out);

// A KV vector as floats, and back.  Blocks of Q8_0 and Q4_0 are those of the weight formats of that name;
// values that are not finite become zero there.
void load_kv(TensorType type, const std::byte* vector, int32_t head_dim, float* out);
void store_kv(TensorType type, const float* x, int32_t head_dim, std::byte* vector);

}  // namespace orrery::cpu
