// Decode's products: a few rows of activations times weights of any format, written once over V. Include after products/dot_avx2.h
// or products/dot_neon.h.
//
// Decode reads weights in the file's layout. It unpacks 256 weights of a row in registers and multiplies them with the quantized
// activations of a few rows (dot_row(), in a file for each instruction set). One pass over the weights and no other traffic: memory
// is the limit. Formats whose arithmetic takes longer than memory are placed in bands (products/bands_avx2.h).
//
// Every output is its own chain of sums in ascending columns, so its bits do not depend on the rows beside it.
#pragma once

#include "runtime/cpu/products/weights.h"

namespace orrery::cpu {
namespace {

template <TensorType kType, int R>
void dot_float_row(const std::byte* w, const float* const* x, int64_t n_columns, float* out) {
  constexpr int kSums = 4, kBytes = kType == TensorType::f32 ? 4 : 2;
  V::F sums[R][kSums];
  for (auto& s : sums)
    for (auto& v : s) v = V::zero();
  int64_t c = 0;
  for (; c + kSums * V::kLanes <= n_columns; c += kSums * V::kLanes) {
    prefetch_stream<1024>(w + c * kBytes, kSums * V::kLanes * kBytes);
    for (int j = 0; j < kSums; ++j) {
      const V::F weights = load_weights<kType>(w, c + j * V::kLanes);
      for (int r = 0; r < R; ++r) sums[r][j] = V::fma(weights, V::load(x[r] + c + j * V::kLanes), sums[r][j]);
    }
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

// Multiplies one weight row with all rows of activations, a few at a time. The weight row stays in the cache.
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

template <class Format, int R>
void decode_band(const MatmulTask& t, int64_t o, int64_t r) {
  QuantizedRow x[R];
  for (int i = 0; i < R; ++i) x[i] = quantized_row(t.quantized + (r + i) * t.quantized_stride, t.n_columns);
  V::F sums[R];
  Bands<Format>::template dot<R>(reinterpret_cast<const uint8_t*>(t.weight + o * t.row_bytes), x, t.n_columns, sums);
  for (int i = 0; i < R; ++i) {
    float values[kBandRows];
    V::store(values, sums[i]);
    store_outputs(t, r + i, o, values, kBandRows);
  }
}

template <class Format>
void decode_bands(const MatmulTask& t) {
  for (int64_t o = t.first_out; o < t.last_out; o += kBandRows) {
    int64_t r = t.first_row;
    for (; r + V::kDecodeRows <= t.last_row; r += V::kDecodeRows) decode_band<Format, V::kDecodeRows>(t, o, r);
    for (; r < t.last_row; ++r) decode_band<Format, 1>(t, o, r);
  }
}

template <class Format>
void decode_blocks(const MatmulTask& t) {
  if constexpr (Bands<Format>::kHas)
    if (t.in_bands) return decode_bands<Format>(t);
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

void matmul_decode(const MatmulTask& t) {
  by_type(
      t.type, [&](auto format) { decode_blocks<decltype(format)>(t); },
      [&](auto type) { decode_floats<decltype(type)::value>(t); });
}

}  // namespace
}  // namespace orrery::cpu
