// From float to the simple block formats, exactly defined: for KV rows, and for tests that need quantized data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/gguf/gguf.h"

namespace orrery::gguf {

// Writes the `n` values at `src` as `type` to dst[0..row_bytes(type, n)). `type` is F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1. `n` is a
// multiple of the type's block_elements. Values must be finite. All arithmetic is float32 in the order given. Per block of 32 values x:
//   F16, BF16   round to nearest, ties to even
//   Q8_0        d = max|x| / 127;  q = x * (1 / d) rounded to nearest, ties away from zero
//   Q4_0, Q5_0  d = m / -8 (Q5_0: / -16), m the first value of greatest magnitude, sign kept;
//               q = x * (1 / d) + 8.5 (16.5) truncated, at most 15 (31)
//   Q4_1, Q5_1  d = (max - min) / 15 (31), m = min;  q = (x - min) * (1 / d) + 0.5 truncated, at most 15 (31)
// 1 / d counts as 0 where d is 0, or where d is so small that 1 / d is not finite. Stored scales are halves, rounded
// from d and m afterwards.
void quantize_row(TensorType type, const float* src, std::byte* dst, uint64_t n);

}  // namespace orrery::gguf
