// Products of many rows of activations with weights in any format, written once over V; include after
// simd_avx2.h or simd_avx512.h.
//
// Prefill turns a tile of weight rows, 256 columns at a time, so that lanes are weight rows:
//     codes [column / 4][row][4], scales [group][row]
// Then four activations broadcast to all lanes meet four columns of every row in one instruction, and scales
// are applied once per group of a whole tile.  The unpacking is paid once for up to kTileRows rows of
// activations, and the kernel over the tile knows nothing of formats.
//
// Every output is its own chain of sums in ascending columns: which rows stand beside it changes nothing.
#pragma once

#include "runtime/cpu/simd_gemm.h"
#include "runtime/cpu/simd_weights.h"

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
