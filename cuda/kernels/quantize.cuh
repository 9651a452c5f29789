// Quantizes activations to int8, as runtime/cpu/kernels/kernels.h defines it: with the bits that the CPU backend's plain kernels give.
#pragma once

#include "cuda/kernels/kernels.h"
#include "cuda/device/ptx.h"

namespace orrery::cuda {

// A warp quantizes columns 32 g .. 32 g + 31 of a row. Lane i has the value of column 32 g + i, or zero behind the row's end.
__device__ __forceinline__ void quantize_group(float x, const QuantizedRows& out, int64_t row, int g) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t bits = __float_as_uint(x) & 0x7FFFFFFFu;   // ordered like magnitudes; infinity and NaN are above all numbers
  for (int i = 16; i > 0; i /= 2) bits = max(bits, __shfl_xor_sync(0xFFFFFFFFu, bits, i));
  const float largest = __uint_as_float(bits);
  const bool not_finite = bits >= 0x7F800000u, vanishes = !not_finite && largest < kSmallestBlockMax;
  const int q = not_finite || vanishes ? 0 : __float2int_rn(x * (127.0f / largest));
  int sum = q;
  for (int i = 8; i > 0; i /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, i);
  out.q[row * out.n_padded + 32 * g + lane] = static_cast<int8_t>(q);
  if (lane % 16 == 0) out.sums[row * (out.n_padded / 16) + 2 * g + lane / 16] = static_cast<int16_t>(sum);
  if (lane == 0) out.d[row * (out.n_padded / 32) + g] = not_finite ? __uint_as_float(0x7FC00000u) : vanishes ? 0.0f : largest / 127.0f;
}

}  // namespace orrery::cuda
