// Products with weights in any format, written once over V; include after simd_avx2.h or simd_avx512.h.
//
// Decode reads the weights as they lie: 256 of a row are unpacked in registers (simd_blocks.h) and multiplied
// with the quantized activations of a few rows, four bytes per lane; a lane's integer sum becomes float,
// times the product of its group's two scales.  One pass over the weights, nothing else moves: bound by
// memory.
//
// Prefill turns a tile of weight rows, 256 columns at a time, so that lanes are weight rows:
//     codes [column / 4][row][4], scales [group][row]
// Then four activations broadcast to all lanes meet four columns of every row in one instruction, and scales
// are applied once per group of a whole tile.  The unpacking is paid once for up to kTileRows rows of
// activations, and the kernel over the tile knows nothing of formats.
//
// Every output is its own chain of sums in ascending columns: which rows stand beside it changes nothing.
#pragma once

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/simd_blocks.h"
#include "runtime/cpu/simd_gemm.h"

namespace orrery::cpu {
namespace {

constexpr int kTileOut = 2 * V::kLanes;
constexpr int kTileRows = 256;
constexpr int kPanel = 256;       // columns of an integer tile's panel
constexpr int kFloatPanel = 128;  // and of a float one

struct Panel {
  alignas(64) uint8_t codes[kPanel / 4][kTileOut][4];
  alignas(64) float scale[16][kTileOut];
  alignas(64) float min[16][kTileOut];
};
struct FloatPanel {
  alignas(64) float values[kFloatPanel][kTileOut];
};
struct MatmulScratch {
  union {
    Panel panel;
    FloatPanel floats;
  };
  alignas(64) float sums[kTileRows][kTileOut];
};

// What of a row's 256 columns is left, followed by zero blocks: for formats of 32 whose rows end within 256.
constexpr int kMostBytes = 8 * 34;
template <class Format>
const uint8_t* whole_block(const uint8_t* p, int64_t columns_left, uint8_t* buffer) {
  if (Format::kBlock == 256 || columns_left >= 256) return p;
  const size_t bytes = static_cast<size_t>(columns_left / 32 * (Format::kBytes / 8));
  __builtin_memcpy(buffer, p, bytes);
  __builtin_memset(buffer + bytes, 0, kMostBytes - bytes);
  return buffer;
}

inline void store_outputs(const MatmulTask& t, int64_t row, int64_t o, const float* sums, int n) {
  float* out = t.out + row * t.out_stride + o;
  for (int i = 0; i < n; ++i) {
    float sum = sums[i];
    if (t.bias) sum += t.bias[o + i];
    out[i] = t.accumulate ? out[i] + sum : sum;
  }
}

// ---- Decode, quantized weights ----

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
      const V::Scales scales = V::scales<Format::kGroup>(u.scale, d);
      const V::Corrections corrections = V::corrections<V::kOffset<Format>>(activation_sums);
      if (Format::kHasMin)
        sums[r][0] = V::subtract_minima<Format::kGroup>(sums[r][0], V::scales<Format::kGroup>(u.min, d),
                                                        activation_sums);
      for (int i = 0; i < V::kChunks; ++i) {
        const V::I start = V::kOffset<Format> ? V::chunk_correction(corrections, i) : V::zero_i();
        const V::I dot = V::dot < Format::kSigned ||
                         Format::kOffset != 0 > (start, codes[i], V::load_i(x[r].q + c + i * 4 * V::kLanes));
        sums[r][i % 2] = V::fma(V::to_float(dot), V::chunk_scale<Format::kGroup>(scales, i), sums[r][i % 2]);
      }
    }
  }
  for (int r = 0; r < R; ++r) out[r] = V::sum(V::add(sums[r][0], sums[r][1]));
}

// ---- Decode, float weights ----

template <TensorType kType>
V::F load_weights(const std::byte* w, int64_t i) {
  if (kType == TensorType::f32) return V::load(reinterpret_cast<const float*>(w) + i);
  return kType == TensorType::f16 ? V::load_half(w + 2 * i) : V::load_bfloat(w + 2 * i);
}
template <TensorType kType>
V::F load_weights_part(const std::byte* w, int64_t i, int n) {
  if (kType == TensorType::f32) return V::load_part(reinterpret_cast<const float*>(w) + i, n);
  return kType == TensorType::f16 ? V::load_half_part(w + 2 * i, n) : V::load_bfloat_part(w + 2 * i, n);
}

template <TensorType kType, int R>
void dot_float_row(const std::byte* w, const float* const* x, int64_t n_columns, float* out) {
  constexpr int kSums = 4;
  V::F sums[R][kSums];
  for (auto& s : sums)
    for (auto& v : s) v = V::zero();
  int64_t c = 0;
  for (; c + kSums * V::kLanes <= n_columns; c += kSums * V::kLanes)
    for (int j = 0; j < kSums; ++j) {
      const V::F weights = load_weights<kType>(w, c + j * V::kLanes);
      for (int r = 0; r < R; ++r) sums[r][j] = V::fma(weights, V::load(x[r] + c + j * V::kLanes), sums[r][j]);
    }
  for (; c + V::kLanes <= n_columns; c += V::kLanes) {
    const V::F weights = load_weights<kType>(w, c);
    for (int r = 0; r < R; ++r) sums[r][0] = V::fma(weights, V::load(x[r] + c), sums[r][0]);
  }
  if (c < n_columns) {
    const int left = static_cast<int>(n_columns - c);
    const V::F weights = load_weights_part<kType>(w, c, left);
    for (int r = 0; r < R; ++r) sums[r][1] = V::fma(weights, V::load_part(x[r] + c, left), sums[r][1]);
  }
  for (int r = 0; r < R; ++r)
    out[r] = V::sum(V::add(V::add(sums[r][0], sums[r][1]), V::add(sums[r][2], sums[r][3])));
}

// One weight row against all rows, a few at a time; the weight row stays in the cache.
template <class F1, class FR>
void decode_rows(const MatmulTask& t, const F1& one, const FR& several) {
  float sums[V::kDecodeRows];
  for (int64_t o = t.first_out; o < t.last_out; ++o) {
    int64_t r = t.first_row;
    for (; r + V::kDecodeRows <= t.last_row; r += V::kDecodeRows) {
      several(o, r, sums);
      for (int i = 0; i < V::kDecodeRows; ++i) store_outputs(t, r + i, o, sums + i, 1);
    }
    for (; r < t.last_row; ++r) {
      one(o, r, sums);
      store_outputs(t, r, o, sums, 1);
    }
  }
}

template <class Format>
void decode_blocks(const MatmulTask& t) {
  const auto weights = [&](int64_t o) {
    return reinterpret_cast<const uint8_t*>(t.weight + o * t.row_bytes);
  };
  const auto row = [&](int64_t r) {
    return quantized_row(t.quantized + r * t.quantized_stride, t.n_columns);
  };
  decode_rows(
      t,
      [&](int64_t o, int64_t r, float* sums) {
        const QuantizedRow x = row(r);
        dot_row<Format, 1>(weights(o), &x, t.n_columns, sums);
      },
      [&](int64_t o, int64_t r, float* sums) {
        QuantizedRow x[V::kDecodeRows];
        for (int i = 0; i < V::kDecodeRows; ++i) x[i] = row(r + i);
        dot_row<Format, V::kDecodeRows>(weights(o), x, t.n_columns, sums);
      });
}

template <TensorType kType>
void decode_floats(const MatmulTask& t) {
  decode_rows(
      t,
      [&](int64_t o, int64_t r, float* sums) {
        const float* x = t.x + r * t.x_stride;
        dot_float_row<kType, 1>(t.weight + o * t.row_bytes, &x, t.n_columns, sums);
      },
      [&](int64_t o, int64_t r, float* sums) {
        const float* x[V::kDecodeRows];
        for (int i = 0; i < V::kDecodeRows; ++i) x[i] = t.x + (r + i) * t.x_stride;
        dot_float_row<kType, V::kDecodeRows>(t.weight + o * t.row_bytes, x, t.n_columns, sums);
      });
}

// ---- Prefill ----

// Transposes kLanes rows of `n` dwords, rows `stride` bytes apart, to `out`: dword c of every row at out + c
// * kTileOut.
inline void transpose_rows(const void* rows, int64_t stride, int n, float* out) {
  for (int c = 0; c < n; c += V::kLanes) {
    V::F r[V::kLanes];
    for (int i = 0; i < V::kLanes; ++i)
      r[i] = V::load(reinterpret_cast<const float*>(static_cast<const std::byte*>(rows) + i * stride) + c);
    V::transpose(r);
    for (int i = 0; i < V::kLanes && c + i < n; ++i) V::store(out + (c + i) * kTileOut, r[i]);
  }
}

// Columns [c, c + 256) of the weight rows [o, o + n), n <= kTileOut; rows beyond are zeros.
template <class Format>
void fill_panel(const MatmulTask& t, int64_t o, int64_t n, int64_t c, Panel* panel) {
  struct Row {
    alignas(64) uint8_t codes[kPanel];
    float scale[16], min[16];
  };
  Row rows[V::kLanes];
  uint8_t buffer[kMostBytes];
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < V::kLanes; ++i) {
      Row& row = rows[i];
      const int64_t out = half * V::kLanes + i;
      if (out >= n) {
        __builtin_memset(&row, 0, sizeof row);
        continue;
      }
      const uint8_t* w =
          reinterpret_cast<const uint8_t*>(t.weight + (o + out) * t.row_bytes) + c / 256 * Format::kBytes;
      Unpacked u;
      Format::unpack(whole_block<Format>(w, t.n_columns - c, buffer), u);
      V::I codes[V::kChunks];
      V::codes<Format>(u, codes);
      for (int j = 0; j < V::kChunks; ++j) V::store_i(row.codes + j * 4 * V::kLanes, codes[j]);
      for (int j = 0; j < (Format::kGroup == 16 ? 2 : 1); ++j) {
        _mm256_storeu_ps(row.scale + 8 * j, u.scale[j]);
        if (Format::kHasMin) _mm256_storeu_ps(row.min + 8 * j, u.min[j]);
      }
    }
    const int64_t at = half * V::kLanes;
    transpose_rows(rows[0].codes, sizeof(Row), kPanel / 4, reinterpret_cast<float*>(panel->codes[0][at]));
    transpose_rows(rows[0].scale, sizeof(Row), 256 / Format::kGroup, &panel->scale[0][at]);
    if (Format::kHasMin) transpose_rows(rows[0].min, sizeof(Row), 256 / Format::kGroup, &panel->min[0][at]);
  }
}

// sums (R, kTileOut) += the panel times columns [c, c + 256) of R rows of activations.
template <int kGroup, bool kSigned, bool kHasMin, int R>
void multiply_panel(const Panel& panel, int32_t offset, const QuantizedRow* x, int64_t c,
                    float (*sums)[kTileOut]) {
  for (int g = 0; g < 256 / kGroup; ++g) {
    const int64_t at = c + g * kGroup;
    V::I dots[R][2];
    float activation_sum[R];
    for (int r = 0; r < R; ++r) {
      const int16_t* s = x[r].sums + at / 16;
      const int32_t sum = kGroup == 32 ? s[0] + s[1] : s[0];
      activation_sum[r] = static_cast<float>(sum);
      dots[r][0] = dots[r][1] = V::set_i(-offset * sum);
    }
    for (int k = 0; k < kGroup / 4; ++k) {
      const uint8_t(*codes)[4] = panel.codes[g * kGroup / 4 + k];
      const V::I low = V::load_i(codes), high = V::load_i(codes + V::kLanes);
      for (int r = 0; r < R; ++r) {
        const V::I a = V::set_i(word<int32_t>(reinterpret_cast<const uint8_t*>(x[r].q + at + 4 * k)));
        dots[r][0] = V::dot<kSigned>(dots[r][0], low, a);
        dots[r][1] = V::dot<kSigned>(dots[r][1], high, a);
      }
    }
    for (int r = 0; r < R; ++r) {
      const V::F d = V::set(x[r].d[at / 32]), minus = V::set(x[r].d[at / 32] * activation_sum[r]);
      for (int j = 0; j < 2; ++j) {
        float* sum = sums[r] + j * V::kLanes;
        V::F s =
            V::fma(V::to_float(dots[r][j]), V::mul(V::load(panel.scale[g] + j * V::kLanes), d), V::load(sum));
        if (kHasMin) s = V::fnma(V::load(panel.min[g] + j * V::kLanes), minus, s);
        V::store(sum, s);
      }
    }
  }
}

template <int kGroup, bool kSigned, bool kHasMin>
void multiply_panel_rows(const Panel& panel, int32_t offset, const MatmulTask& t, int64_t first, int64_t last,
                         int64_t c, float (*sums)[kTileOut]) {
  QuantizedRow x[V::kIntRows];
  for (int64_t r = first; r < last; r += V::kIntRows, sums += V::kIntRows) {
    const int n = static_cast<int>(last - r < V::kIntRows ? last - r : V::kIntRows);
    for (int i = 0; i < n; ++i) x[i] = quantized_row(t.quantized + (r + i) * t.quantized_stride, t.n_columns);
    if (n == V::kIntRows) {
      multiply_panel<kGroup, kSigned, kHasMin, V::kIntRows>(panel, offset, x, c, sums);
    } else {
      switch (n) {
        case 5:
          multiply_panel<kGroup, kSigned, kHasMin, 5>(panel, offset, x, c, sums);
          break;
        case 4:
          multiply_panel<kGroup, kSigned, kHasMin, 4>(panel, offset, x, c, sums);
          break;
        case 3:
          multiply_panel<kGroup, kSigned, kHasMin, 3>(panel, offset, x, c, sums);
          break;
        case 2:
          multiply_panel<kGroup, kSigned, kHasMin, 2>(panel, offset, x, c, sums);
          break;
        default:
          multiply_panel<kGroup, kSigned, kHasMin, 1>(panel, offset, x, c, sums);
          break;
      }
    }
  }
}

// Calls panels(first_out, n_out, first_row, last_row) for every tile, then stores its sums.
template <class F>
void for_tiles(const MatmulTask& t, MatmulScratch* scratch, const F& panels) {
  for (int64_t o = t.first_out; o < t.last_out; o += kTileOut) {
    const int64_t n = t.last_out - o < kTileOut ? t.last_out - o : kTileOut;
    for (int64_t first = t.first_row; first < t.last_row; first += kTileRows) {
      const int64_t last = t.last_row - first < kTileRows ? t.last_row : first + kTileRows;
      __builtin_memset(scratch->sums, 0, static_cast<size_t>(last - first) * sizeof scratch->sums[0]);
      panels(o, n, first, last);
      for (int64_t r = first; r < last; ++r)
        store_outputs(t, r, o, scratch->sums[r - first], static_cast<int>(n));
    }
  }
}

template <class Format>
void prefill_blocks(const MatmulTask& t) {
  MatmulScratch* scratch = reinterpret_cast<MatmulScratch*>(t.scratch);
  for_tiles(t, scratch, [&](int64_t o, int64_t n, int64_t first, int64_t last) {
    for (int64_t c = 0; c < t.n_columns; c += kPanel) {
      fill_panel<Format>(t, o, n, c, &scratch->panel);
      multiply_panel_rows<Format::kGroup, Format::kSigned || Format::kOffset != 0, Format::kHasMin>(
          scratch->panel, V::kOffset<Format>, t, first, last, c, scratch->sums);
    }
  });
}

template <TensorType kType>
void prefill_floats(const MatmulTask& t) {
  MatmulScratch* scratch = reinterpret_cast<MatmulScratch*>(t.scratch);
  float(*values)[kTileOut] = scratch->floats.values;
  for_tiles(t, scratch, [&](int64_t o, int64_t n, int64_t first, int64_t last) {
    for (int64_t c = 0; c < t.n_columns; c += kFloatPanel) {
      const int width = static_cast<int>(t.n_columns - c < kFloatPanel ? t.n_columns - c : kFloatPanel);
      for (int half = 0; half < 2; ++half)
        for (int k = 0; k < width; k += V::kLanes) {
          V::F r[V::kLanes];
          const int left = width - k < V::kLanes ? width - k : V::kLanes;
          for (int i = 0; i < V::kLanes; ++i) {
            const int64_t out = half * V::kLanes + i;
            const std::byte* w = t.weight + (o + out) * t.row_bytes;
            r[i] = out >= n            ? V::zero()
                   : left == V::kLanes ? load_weights<kType>(w, c + k)
                                       : load_weights_part<kType>(w, c + k, left);
          }
          V::transpose(r);
          for (int i = 0; i < left; ++i) V::store(values[k + i] + half * V::kLanes, r[i]);
        }
      const Gemm<Start::keep> gemm{t.x + first * t.x_stride + c,
                                   t.x_stride,
                                   values[0],
                                   kTileOut,
                                   scratch->sums[0],
                                   kTileOut,
                                   0,
                                   width,
                                   nullptr};
      gemm.run(last - first, 2);
    }
  });
}

void matmul_decode(const MatmulTask& t) {
  switch (t.type) {
    case TensorType::f32:
      return decode_floats<TensorType::f32>(t);
    case TensorType::f16:
      return decode_floats<TensorType::f16>(t);
    case TensorType::bf16:
      return decode_floats<TensorType::bf16>(t);
    case TensorType::q8_0:
      return decode_blocks<Q8_0>(t);
    case TensorType::q4_0:
      return decode_blocks<Q4_0>(t);
    case TensorType::q4_1:
      return decode_blocks<Q4_1>(t);
    case TensorType::q5_0:
      return decode_blocks<Q5_0>(t);
    case TensorType::q5_1:
      return decode_blocks<Q5_1>(t);
    case TensorType::q2_k:
      return decode_blocks<Q2K>(t);
    case TensorType::q3_k:
      return decode_blocks<Q3K>(t);
    case TensorType::q4_k:
      return decode_blocks<Q4K>(t);
    case TensorType::q5_k:
      return decode_blocks<Q5K>(t);
    case TensorType::q6_k:
      return decode_blocks<Q6K>(t);
    case TensorType::iq4_nl:
      return decode_blocks<Iq4Nl>(t);
    case TensorType::iq4_xs:
      return decode_blocks<Iq4Xs>(t);
  }
}

void matmul_prefill(const MatmulTask& t) {
  switch (t.type) {
    case TensorType::f32:
      return prefill_floats<TensorType::f32>(t);
    case TensorType::f16:
      return prefill_floats<TensorType::f16>(t);
    case TensorType::bf16:
      return prefill_floats<TensorType::bf16>(t);
    case TensorType::q8_0:
      return prefill_blocks<Q8_0>(t);
    case TensorType::q4_0:
      return prefill_blocks<Q4_0>(t);
    case TensorType::q4_1:
      return prefill_blocks<Q4_1>(t);
    case TensorType::q5_0:
      return prefill_blocks<Q5_0>(t);
    case TensorType::q5_1:
      return prefill_blocks<Q5_1>(t);
    case TensorType::q2_k:
      return prefill_blocks<Q2K>(t);
    case TensorType::q3_k:
      return prefill_blocks<Q3K>(t);
    case TensorType::q4_k:
      return prefill_blocks<Q4K>(t);
    case TensorType::q5_k:
      return prefill_blocks<Q5K>(t);
    case TensorType::q6_k:
      return prefill_blocks<Q6K>(t);
    case TensorType::iq4_nl:
      return prefill_blocks<Iq4Nl>(t);
    case TensorType::iq4_xs:
      return prefill_blocks<Iq4Xs>(t);
  }
}

}  // namespace
}  // namespace orrery::cpu
