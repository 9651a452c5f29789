// Decode's products: a few rows of activations times weights of any format, written once over V. Include after products/dot_avx2.h
// or products/dot_neon.h.
//
// Decode reads weights in bands (products/bands_avx2.h), where the instruction set has them for the format, or in the file's layout:
// it unpacks 256 weights of a row and multiplies them with the quantized activations of up to kFewRows rows (dot_rows(), in a file
// for each instruction set). One pass over the weights and no other traffic: memory is the limit for few rows.
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
    prefetch_stream<1024, true>(w + c * kBytes, kSums * V::kLanes * kBytes);
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
  for (int r = 0; r < R; ++r) out[r] = V::sum(V::add(V::add(sums[r][0], sums[r][1]), V::add(sums[r][2], sums[r][3])));
}

// out (n) = a weight row times n <= kFewRows rows of activations, two at a time. The weight row stays in the first-level cache, and
// its conversion is one instruction.
template <TensorType kType>
void dot_floats(const std::byte* w, const float* const* x, int n, int64_t n_columns, float* out) {
  int r = 0;
  for (; r + 2 <= n; r += 2) dot_float_row<kType, 2>(w, x + r, n_columns, out + r);
  if (r < n) dot_float_row<kType, 1>(w, x + r, n_columns, out + r);
}

// Multiplies each weight row with all rows of activations, kFewRows at a time: dot(o, first row, n, sums).
template <class Dot>
void decode_rows(const MatmulTask& t, const Dot& dot) {
  float sums[kFewRows];
  for (int64_t o = t.first_out; o < t.last_out; ++o)
    for (int64_t r = t.first_row; r < t.last_row; r += kFewRows) {
      const int n = static_cast<int>(t.last_row - r < kFewRows ? t.last_row - r : kFewRows);
      dot(o, r, n, sums);
      for (int i = 0; i < n; ++i) store_outputs(t, r + i, o, sums + i, 1);
    }
}

// Stores the sums of n rows of activations, from row r on, with B bands from output o on.
template <int B>
void store_bands(const MatmulTask& t, int64_t o, int64_t r, int n, const V::F (*sums)[kFewRows]) {
  for (int i = 0; i < n; ++i)
    for (int b = 0; b < B; ++b) {
      float values[kBandRows];
      V::store(values, sums[b][i]);
      store_outputs(t, r + i, o + b * kBandRows, values, kBandRows);
    }
}

// sums (n) = the band at w times n <= R rows of activations.
template <class Format, int R>
void dot_at_once(const uint8_t* w, const QuantizedRow* x, int n, int64_t n_columns, V::F* sums) {
  if (n == R) Bands<Format>::template dot<R>(w, x, n_columns, sums);
  else if constexpr (R > 1) dot_at_once<Format, R - 1>(w, x, n, n_columns, sums);
}

// Up to Bands::kDirect rows of activations meet a band in a few passes, of up to kAtOnce rows whose sums are in registers. Each pass
// unpacks the codes, and the first one brings them to the caches. More rows share one unpacking (dot_many()).
template <class Format>
void decode_bands(const MatmulTask& t) {
  if constexpr (WideRows<Format>::kFewest > 0)
    if (t.last_row - t.first_row >= WideRows<Format>::kFewest) return WideRows<Format>::multiply(t);
  using Own = Bands<Format>;
  for (int64_t r = t.first_row; r < t.last_row; r += kFewRows) {
    const int n = static_cast<int>(t.last_row - r < kFewRows ? t.last_row - r : kFewRows);
    QuantizedRow x[kFewRows];
    for (int i = 0; i < n; ++i) x[i] = quantized_row(t.quantized + (r + i) * t.quantized_stride, t.n_columns);
    const auto* band = reinterpret_cast<const uint8_t*>(t.weight + t.first_out * t.row_bytes);
    const int64_t band_bytes = kBandRows * t.row_bytes;
    V::F sums[2][kFewRows];
    if (n <= Own::kDirect) {
      const int passes = (n + Own::kAtOnce - 1) / Own::kAtOnce;
      for (int64_t o = t.first_out; o < t.last_out; o += kBandRows, band += band_bytes) {
        for (int pass = 0; pass < passes; ++pass) {
          const int first = n * pass / passes, end = n * (pass + 1) / passes;
          dot_at_once<Format, Own::kAtOnce>(band, x + first, end - first, t.n_columns, sums[0] + first);
        }
        store_bands<1>(t, o, r, n, sums);
      }
      continue;
    }
    if constexpr (Own::kDirect < kFewRows) {
      auto* factors = reinterpret_cast<typename Own::RowFactors*>(t.scratch);
      Own::fill(x, n, t.n_columns, factors);
      int64_t o = t.first_out;
      for (; o + kBandRows < t.last_out; o += 2 * kBandRows, band += 2 * band_bytes) {
        Own::template dot_many<2>(band, band_bytes, x, n, factors, t.n_columns, sums);
        store_bands<2>(t, o, r, n, sums);
      }
      if (o == t.last_out) continue;
      Own::template dot_many<1>(band, band_bytes, x, n, factors, t.n_columns, sums);
      store_bands<1>(t, o, r, n, sums);
    }
  }
}

template <class Format>
void decode_blocks(const MatmulTask& t) {
  if constexpr (Bands<Format>::kHas)
    if (t.in_bands) return decode_bands<Format>(t);
  decode_rows(t, [&](int64_t o, int64_t r, int n, float* sums) {
    QuantizedRow x[kFewRows];
    for (int i = 0; i < n; ++i) x[i] = quantized_row(t.quantized + (r + i) * t.quantized_stride, t.n_columns);
    dot_rows<Format>(reinterpret_cast<const uint8_t*>(t.weight + o * t.row_bytes), x, n, t.n_columns, sums);
  });
}

template <TensorType kType>
void decode_floats(const MatmulTask& t) {
  decode_rows(t, [&](int64_t o, int64_t r, int n, float* sums) {
    const float* x[kFewRows];
    for (int i = 0; i < n; ++i) x[i] = t.x + (r + i) * t.x_stride;
    dot_floats<kType>(t.weight + o * t.row_bytes, x, n, t.n_columns, sums);
  });
}

void matmul_decode(const MatmulTask& t) {
  by_type(
      t.type, [&](auto format) { decode_blocks<decltype(format)>(t); }, [&](auto type) { decode_floats<decltype(type)::value>(t); });
}

}  // namespace
}  // namespace orrery::cpu
