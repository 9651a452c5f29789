// A row of quantized weights against rows of activations, 512 bits wide: dot_row() of simd_decode.h.
//
// Four bytes per lane are multiplied and summed by one VNNI instruction; a lane's integer becomes float, times
// the product of its group's two scales.
#pragma once

#include "runtime/cpu/simd_avx512.h"
#include "runtime/cpu/simd_weights.h"

namespace orrery::cpu {
namespace {

// The scales of 256 weights' groups, 8 or 16, times those of their activations.
template <int kGroup>
V::F group_scales(const __m256* s, __m256 d) {
  if (kGroup == 32) return _mm512_castps256_ps512(_mm256_mul_ps(s[0], d));
  const V::I twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return V::mul(_mm512_insertf32x8(_mm512_castps256_ps512(s[0]), s[1], 1),
                _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d)));
}
// Spread over the lanes of chunk i.
template <int kGroup>
V::F chunk_scale(V::F scales, int i) {
  const V::I index = kGroup == 32 ? _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)
                                  : _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(i * 64 / kGroup)), scales);
}
// acc - sum over groups of scale * sum of the group's activations.
template <int kGroup>
V::F subtract_minima(V::F acc, V::F scales, const int16_t* sums) {
  const __m256i sixteen = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
  if (kGroup == 32) {
    const __m256 eight = _mm256_cvtepi32_ps(_mm256_madd_epi16(sixteen, _mm256_set1_epi16(1)));
    return V::fnma(_mm512_zextps256_ps512(_mm512_castps512_ps256(scales)), _mm512_zextps256_ps512(eight), acc);
  }
  return V::fnma(scales, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(sixteen)), acc);
}
// What the dots start from so that the codes' offset disappears: minus offset * sum of each group of 16,
inline V::I corrections(int32_t offset, const int16_t* sums) {
  const V::I wide = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)));
  return _mm512_mullo_epi32(wide, V::set_i(-offset));
}
// once per group in chunk i.
inline V::I chunk_correction(V::I corrections, int i) {
  const V::I index = _mm512_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0);
  return _mm512_maskz_permutexvar_epi32(0x1111, _mm512_add_epi32(index, V::set_i(4 * i)), corrections);
}

template <class Format, int R>
void dot_row(const uint8_t* w, const QuantizedRow* x, int64_t n_columns, float* out) {
  V::F sums[R][2];
  for (auto& s : sums) s[0] = s[1] = V::zero();
  uint8_t buffer[kMostBytes];
  for (int64_t c = 0; c < n_columns; c += 256, w += Format::kBytes) {
    Unpacked u;
    Format::unpack(whole_block<Format>(w, n_columns - c, buffer), u);
    V::I codes[V::kChunks];
    V::codes<Format>(u, codes);
    for (int r = 0; r < R; ++r) {
      const int16_t* activation_sums = x[r].sums + c / 16;
      const __m256 d = _mm256_loadu_ps(x[r].d + c / 32);
      const V::F scales = group_scales<Format::kGroup>(u.scale, d);
      const V::I offsets = corrections(V::kOffset<Format>, activation_sums);
      if (Format::kHasMin)
        sums[r][0] = subtract_minima<Format::kGroup>(sums[r][0], group_scales<Format::kGroup>(u.min, d),
                                                     activation_sums);
      for (int i = 0; i < V::kChunks; ++i) {
        const V::I start = V::kOffset<Format> ? chunk_correction(offsets, i) : V::zero_i();
        const V::I dot = V::dot<true>(start, codes[i], V::load_i(x[r].q + c + i * 4 * V::kLanes));
        sums[r][i % 2] = V::fma(V::to_float(dot), chunk_scale<Format::kGroup>(scales, i), sums[r][i % 2]);
      }
    }
  }
  for (int r = 0; r < R; ++r) out[r] = V::sum(V::add(sums[r][0], sums[r][1]));
}

}  // namespace
}  // namespace orrery::cpu
