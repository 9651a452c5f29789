// Numbers rounded to bf16, for the instructions that multiply bf16: AMX's tiles (products/amx.h) and vectors
// (products/bf16_products.h). Include after vectors/avx512.h.
//
// bf16 keeps 8 bits, as wherever bf16 models are computed. The relative error of weights and of activations is at most 2^-9. (The
// quantized activations of decode have errors up to 2^-8 of the largest of 32.) Sums are floats. Activations are packed
// (kernels/kernels.h): strips of 16 rows, a lane for each row, with pairs of columns.
#pragma once

#include "runtime/cpu/products/prefill.h"

namespace orrery::cpu {
namespace {

constexpr int kBlock = kPackedColumns;  // columns of a packed tile

// 32 floats as bf16, to nearest.
inline V::I rounded(V::F a, V::F b) { return __builtin_bit_cast(V::I, _mm512_cvtne2ps_pbh(b, a)); }

// Sixteen floats of a row that has `left` more; zeros after them.
template <TensorType kType>
V::F load_left(const std::byte* row, int64_t at, int64_t left) {
  return left >= 16 ? load_weights<kType>(row, at) : left <= 0 ? V::zero() : load_weights_part<kType>(row, at, static_cast<int>(left));
}

// Kernels::pack_rows.
inline void pack_strip(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, std::byte* out) {
  for (int64_t c = 0; c < n; c += kPackedColumns, out += kPackedTileBytes) {
    V::F pairs[kPackedRows];
    for (int64_t r = 0; r < kPackedRows; ++r) {
      const std::byte* row = reinterpret_cast<const std::byte*>(x + r * x_stride);
      pairs[r] = r < n_rows ? __builtin_bit_cast(V::F, rounded(load_left<TensorType::f32>(row, c, n - c),
                                                               load_left<TensorType::f32>(row, c + 16, n - c - 16)))
                            : V::zero();
    }
    V::transpose(pairs);
    for (int i = 0; i < kPackedRows; ++i) V::store(reinterpret_cast<float*>(out) + i * kPackedRows, pairs[i]);
  }
}

// Rounds columns [c, c + n) of the float weight rows [o, o + n_out) and writes zeros up to a whole block. place(i, at) is the
// target of row o + i's columns from c + at on.
template <TensorType kType, class Place>
void round_weights(const MatmulTask& t, int64_t o, int n_out, int64_t c, int64_t n, const Place& place) {
  for (int i = 0; i < n_out; ++i) {
    const std::byte* row = t.weight + (o + i) * t.row_bytes;
    for (int64_t at = 0; at < n; at += kBlock) {
      std::byte* to = place(i, at);
      if (n - at < kBlock) V::store_i(to, rounded(load_left<kType>(row, c + at, n - at), load_left<kType>(row, c + at + 16, n - at - 16)));
      else if (kType == TensorType::bf16) V::store_i(to, V::load_i(row + 2 * (c + at)));
      else V::store_i(to, rounded(load_weights<kType>(row, c + at), load_weights<kType>(row, c + at + 16)));
    }
  }
}

// Stores outputs [o, o + n), n <= kStoredOut, of the rows [first, first + n_rows) of a strip. sums: (kStoredOut, kPackedRows).
// Whole cache lines go past the caches: reading lines before overwriting them, for rows that are pages apart, takes a fifth of all
// time.
constexpr int kStoredOut = 32;
inline void store_strip(const MatmulTask& t, int64_t o, int64_t n, int64_t first, int64_t n_rows, const float* sums) {
  V::F turned[2][kPackedRows];
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kPackedRows; ++i) turned[half][i] = V::load(sums + (half * kPackedRows + i) * kPackedRows);
    V::transpose(turned[half]);
  }
  const uintptr_t first_line = reinterpret_cast<uintptr_t>(t.out + o), stride = static_cast<uintptr_t>(t.out_stride) * sizeof(float);
  if (n == kStoredOut && ((first_line | stride) & 63) == 0 && !t.accumulate && !t.bias) {
    for (int64_t r = 0; r < n_rows; ++r)
      for (int half = 0; half < 2; ++half) V::store_past(t.out + (first + r) * t.out_stride + o + half * kPackedRows, turned[half][r]);
    return;
  }
  for (int64_t r = 0; r < n_rows; ++r) {
    alignas(64) float row[kStoredOut];
    for (int half = 0; half < 2; ++half) V::store(row + half * kPackedRows, turned[half][r]);
    store_outputs(t, first + r, o, row, static_cast<int>(n));
  }
}

}  // namespace
}  // namespace orrery::cpu
