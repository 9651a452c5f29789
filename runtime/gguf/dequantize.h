// Each block format's own definition of its values, in plain C++: exact, slow, the oracle of every kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/gguf/gguf.h"

namespace orrery::gguf {

// out[0..n) = the values of `n` weights at `src`; n is a multiple of the type's block_elements. Bit for bit what the
// format defines (float32 arithmetic in the order of the reference implementation of the format).
void dequantize_row(TensorType type, const std::byte* src, float* out, uint64_t n);

}  // namespace orrery::gguf
