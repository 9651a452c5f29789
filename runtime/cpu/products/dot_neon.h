// dot_rows() of products/decode.h on 64-bit ARM: a row of quantized weights times rows of activations. The dot product instructions
// multiply four signed bytes with four others and add them to each of four int32, so codes and activations need no conversion. 256
// weights are unpacked in registers at a time.
#pragma once

#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/products/blocks_neon.h"
#include "runtime/cpu/products/grids_neon.h"
#include "runtime/cpu/products/weights.h"

namespace orrery::cpu {
namespace {

// The sum of the quantized activations of a group.
template <int kGroup>
float activation_sum(const QuantizedRow& x, int64_t column) {
  const int16_t* s = x.sums + column / 16;
  return static_cast<float>(kGroup == 32 ? s[0] + s[1] : s[0]);
}

// out (n) = a weight row times n <= kFewRows rows of activations.
template <class Format>
void dot_rows(const uint8_t* w, const QuantizedRow* x, int n, int64_t n_columns, float* out) {
  float32x4_t sums[kFewRows][2];
  float minima[kFewRows];
  for (int r = 0; r < n; ++r) sums[r][0] = sums[r][1] = vdupq_n_f32(0.0f), minima[r] = 0.0f;
  for (int64_t c = 0; c < n_columns; c += 256, w += Format::kBytes) {
    Unpacked u;
    unpack_next<Format>(w, n_columns - c, u);
    const int groups = n_groups<Format>(n_columns - c);
    for (int r = 0; r < n; ++r) {
      float32x4_t row[2] = {sums[r][0], sums[r][1]};
      for (int g = 0; g < groups; ++g) {
        const int64_t at = c + g * Format::kGroup;
        const float d = x[r].d[at / 32];
        int32x4_t dot = vdupq_n_s32(0);
        for (int j = 0; j < Format::kGroup; j += 16) dot = vdotq_s32(dot, u.q[(g * Format::kGroup + j) / 16], vld1q_s8(x[r].q + at + j));
        row[g % 2] = vfmaq_n_f32(row[g % 2], vcvtq_f32_s32(dot), u.scale[g] * d);
        if (Format::kHasMin) minima[r] += u.min[g] * d * activation_sum<Format::kGroup>(x[r], at);
      }
      sums[r][0] = row[0], sums[r][1] = row[1];
    }
  }
  for (int r = 0; r < n; ++r) out[r] = vaddvq_f32(vaddq_f32(sums[r][0], sums[r][1])) - minima[r];
}

}  // namespace
}  // namespace orrery::cpu
