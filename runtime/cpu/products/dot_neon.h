// dot_row() of products/decode.h on 64-bit ARM: a row of quantized weights times rows of activations. The dot product instructions
// multiply four signed bytes with four others and add them to each of four int32, so codes and activations need no conversion. 256
// weights are unpacked in registers at a time.
#pragma once

#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/products/blocks_neon.h"
#include "runtime/cpu/products/weights.h"

namespace orrery::cpu {
namespace {

// The sum of the quantized activations of a group.
template <int kGroup>
float activation_sum(const QuantizedRow& x, int64_t column) {
  const int16_t* s = x.sums + column / 16;
  return static_cast<float>(kGroup == 32 ? s[0] + s[1] : s[0]);
}

template <class Format, int R>
void dot_row(const uint8_t* w, const QuantizedRow* x, int64_t n_columns, float* out) {
  float32x4_t sums[R][2];
  float minima[R] = {};
  for (auto& s : sums) s[0] = s[1] = vdupq_n_f32(0.0f);
  uint8_t buffer[kMostBytes];
  for (int64_t c = 0; c < n_columns; c += 256, w += Format::kBytes) {
    Unpacked u;
    Format::unpack(whole_block<Format>(w, n_columns - c, buffer), u);
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < 256 / Format::kGroup; ++g) {
        const int64_t at = c + g * Format::kGroup;
        const float d = x[r].d[at / 32];
        int32x4_t dot = vdupq_n_s32(0);
        for (int j = 0; j < Format::kGroup; j += 16)
          dot = vdotq_s32(dot, u.q[(g * Format::kGroup + j) / 16], vld1q_s8(x[r].q + at + j));
        sums[r][g % 2] = vfmaq_n_f32(sums[r][g % 2], vcvtq_f32_s32(dot), u.scale[g] * d);
        if (Format::kHasMin) minima[r] += u.min[g] * d * activation_sum<Format::kGroup>(x[r], at);
      }
  }
  for (int r = 0; r < R; ++r) out[r] = vaddvq_f32(vaddq_f32(sums[r][0], sums[r][1])) - minima[r];
}

}  // namespace
}  // namespace orrery::cpu
