// Prefill's products on 64-bit ARM: many rows of activations times weights of any format.
//
// Eight weight rows are transposed, 256 columns at a time, so that lanes are weight rows. Four columns of an activation row are one
// lane of a register, and an instruction multiplies them with four columns of four weight rows. Scales are applied once for each
// group of columns.
//
// Every output is its own chain of sums in ascending columns, so its bits do not depend on the rows beside it.
#pragma once

#include "runtime/cpu/products/dot_neon.h"
#include "runtime/cpu/products/gemm.h"

namespace orrery::cpu {
namespace {

constexpr int kTileOut = V::kLanes;
constexpr int kTaskOut = kTileOut;
constexpr int kTileRows = 256, kIntegerRows = kTileRows;
constexpr int kPanel = 256;  // columns of a panel
constexpr int kRows = 4;     // activation rows in registers

struct Panel {
  alignas(64) int8_t codes[kPanel / 4][kTileOut][4];
  alignas(64) float scale[16][kTileOut];
  alignas(64) float min[16][kTileOut];
};
struct MatmulScratch {
  union {
    Panel panel;
    alignas(64) float values[kPanel][kTileOut];
  };
  alignas(64) float sums[kTileRows][kTileOut];
};

// Columns [c, c + 256), or as many as there are, of the weight rows [o, o + n), n <= kTileOut; further rows are zeros.
template <class Format>
void fill_panel(const MatmulTask& t, int64_t o, int64_t n, int64_t c, Panel* panel) {
  const int groups = n_groups<Format>(t.n_columns - c);
  for (int64_t i = 0; i < kTileOut; ++i) {
    Unpacked u;
    if (i < n) {
      const uint8_t* w = reinterpret_cast<const uint8_t*>(t.weight + (o + i) * t.row_bytes) + c / 256 * Format::kBytes;
      unpack_next<Format>(w, t.n_columns - c, u);
    } else {
      __builtin_memset(&u, 0, sizeof u);
    }
    for (int j = 0; j < groups * Format::kGroup / 16; ++j) {
      int32_t dwords[4];
      vst1q_s32(dwords, vreinterpretq_s32_s8(u.q[j]));
      for (int k = 0; k < 4; ++k) __builtin_memcpy(panel->codes[4 * j + k][i], &dwords[k], 4);
    }
    for (int g = 0; g < groups; ++g) {
      panel->scale[g][i] = u.scale[g];
      if (Format::kHasMin) panel->min[g][i] = u.min[g];
    }
  }
}

// dots += four columns of eight weight rows times lane kLane of the activations.
template <int kLane, int R>
void multiply_columns(const int8_t (*codes)[4], const int8x16_t* x, int32x4_t (*dots)[2]) {
  const int8x16_t low = vld1q_s8(codes[0]), high = vld1q_s8(codes[4]);
  for (int r = 0; r < R; ++r) {
    dots[r][0] = vdotq_laneq_s32(dots[r][0], low, x[r], kLane);
    dots[r][1] = vdotq_laneq_s32(dots[r][1], high, x[r], kLane);
  }
}

// sums (R, kTileOut) += the first `groups` groups of the panel times columns from c on of R rows of activations.
template <class Format, int R>
void multiply_panel(const Panel& panel, int groups, const QuantizedRow* x, int64_t c, float (*sums)[kTileOut]) {
  V::F s[R];
  for (int r = 0; r < R; ++r) s[r] = V::load(sums[r]);
  for (int g = 0; g < groups; ++g) {
    const int64_t at = c + g * Format::kGroup;
    int32x4_t dots[R][2];
    for (auto& d : dots) d[0] = d[1] = vdupq_n_s32(0);
    for (int k = 0; k < Format::kGroup / 16; ++k) {
      int8x16_t a[R];
      for (int r = 0; r < R; ++r) a[r] = vld1q_s8(x[r].q + at + 16 * k);
      const int8_t(*codes)[kTileOut][4] = panel.codes + g * Format::kGroup / 4 + 4 * k;
      multiply_columns<0, R>(codes[0], a, dots);
      multiply_columns<1, R>(codes[1], a, dots);
      multiply_columns<2, R>(codes[2], a, dots);
      multiply_columns<3, R>(codes[3], a, dots);
    }
    const V::F scale = V::load(panel.scale[g]);
    for (int r = 0; r < R; ++r) {
      const float d = x[r].d[at / 32];
      const V::F dot = {vcvtq_f32_s32(dots[r][0]), vcvtq_f32_s32(dots[r][1])};
      s[r] = V::fma(dot, V::mul(scale, V::set(d)), s[r]);
      if (Format::kHasMin) s[r] = V::fnma(V::load(panel.min[g]), V::set(d * activation_sum<Format::kGroup>(x[r], at)), s[r]);
    }
  }
  for (int r = 0; r < R; ++r) V::store(sums[r], s[r]);
}

// Calls panels(first_out, n_out, first_row, last_row) for every tile, then stores its sums.
template <class Panels>
void for_tiles(const MatmulTask& t, const Panels& panels) {
  MatmulScratch* scratch = reinterpret_cast<MatmulScratch*>(t.scratch);
  for (int64_t o = t.first_out; o < t.last_out; o += kTileOut) {
    const int64_t n = t.last_out - o < kTileOut ? t.last_out - o : kTileOut;
    for (int64_t first = t.first_row; first < t.last_row; first += kTileRows) {
      const int64_t last = t.last_row - first < kTileRows ? t.last_row : first + kTileRows;
      __builtin_memset(scratch->sums, 0, static_cast<size_t>(last - first) * sizeof scratch->sums[0]);
      panels(*scratch, o, n, first, last);
      for (int64_t r = first; r < last; ++r) store_outputs(t, r, o, scratch->sums[r - first], static_cast<int>(n));
    }
  }
}

template <class Format>
void prefill_blocks(const MatmulTask& t) {
  for_tiles(t, [&](MatmulScratch& scratch, int64_t o, int64_t n, int64_t first, int64_t last) {
    for (int64_t c = 0; c < t.n_columns; c += kPanel) {
      fill_panel<Format>(t, o, n, c, &scratch.panel);
      const int groups = n_groups<Format>(t.n_columns - c);
      float(*sums)[kTileOut] = scratch.sums;
      QuantizedRow x[kRows];
      int64_t r = first;
      for (; r + kRows <= last; r += kRows, sums += kRows) {
        for (int i = 0; i < kRows; ++i) x[i] = quantized_row(t.quantized + (r + i) * t.quantized_stride, t.n_columns);
        multiply_panel<Format, kRows>(scratch.panel, groups, x, c, sums);
      }
      for (; r < last; ++r, ++sums) {
        x[0] = quantized_row(t.quantized + r * t.quantized_stride, t.n_columns);
        multiply_panel<Format, 1>(scratch.panel, groups, x, c, sums);
      }
    }
  });
}

template <TensorType kType>
void prefill_floats(const MatmulTask& t) {
  for_tiles(t, [&](MatmulScratch& scratch, int64_t o, int64_t n, int64_t first, int64_t last) {
    for (int64_t c = 0; c < t.n_columns; c += kPanel) {
      const int width = static_cast<int>(t.n_columns - c < kPanel ? t.n_columns - c : kPanel);
      for (int k = 0; k < width; k += V::kLanes) {
        V::F rows[V::kLanes];
        const int left = width - k < V::kLanes ? width - k : V::kLanes;
        for (int i = 0; i < V::kLanes; ++i) {
          const std::byte* w = t.weight + (o + i) * t.row_bytes;
          rows[i] = i >= n ? V::zero() : left == V::kLanes ? load_weights<kType>(w, c + k) : load_weights_part<kType>(w, c + k, left);
        }
        V::transpose(rows);
        for (int i = 0; i < left; ++i) V::store(scratch.values[k + i], rows[i]);
      }
      const Gemm<Start::keep> gemm{
          t.x + first * t.x_stride + c, t.x_stride, scratch.values[0], kTileOut, scratch.sums[0], kTileOut, 0, width, nullptr};
      gemm.run(last - first, 1);
    }
  });
}

void matmul_prefill(const MatmulTask& t) {
  by_type(
      t.type, [&](auto format) { prefill_blocks<decltype(format)>(t); }, [&](auto type) { prefill_floats<decltype(type)::value>(t); });
}

}  // namespace
}  // namespace orrery::cpu
