// The definition of each block format's values in plain C++: exact, slow, the oracle of every kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/gguf/gguf.h"

namespace orrery::gguf {

// Writes the values of the `n` weights at `src` to out[0..n). `n` is a multiple of the type's block_elements. The
// values are exact bit for bit: float32 arithmetic in the order of the format's reference implementation.
void dequantize_row(TensorType type, const std::byte* src, float* out, uint64_t n);

}  // namespace orrery::gguf
