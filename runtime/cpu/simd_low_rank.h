// Low-rank keys (LowRankKeys): products of keys' dimensions with each other, of keys with the basis, and keys from it. Each output
// is one chain of sums in a fixed order, whatever stands beside it. Written over V, after simd_gemm.h.
#pragma once

#include "runtime/cpu/simd_gemm.h"

namespace orrery::cpu {
namespace {

// A strip of the products' rows is the keys' own columns, transposed on the stack.
void add_gram(const GramTask& t) {
  alignas(64) float strip[kGramRows * LowRankKeys::kBatch];
  const int64_t n_rows = t.last - t.first, first = t.first / 16 * 16;
  for (int k = 0; k < t.n_keys; ++k)
    for (int64_t i = 0; i < n_rows; ++i) strip[i * LowRankKeys::kBatch + k] = t.keys[k * t.stride + t.first + i];
  const Gemm<Start::keep> product{strip,      LowRankKeys::kBatch, t.keys + first, t.stride, t.out + t.first * t.stride + first,
                                  t.stride, 0,        t.n_keys,       nullptr};
  product.run(n_rows, static_cast<int>((t.width - first) / V::kLanes));
}

// R keys with N rows of the basis: lanes of their own, then the lanes' sum.
template <int R, int N>
void project_block(const ProjectTask& t, int64_t key, int64_t row) {
  const float* keys = t.keys + key * t.stride;
  const std::byte* basis = t.basis + 2 * row * t.width;
  const int left = static_cast<int>(t.width % V::kLanes);
  V::F sums[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sums[r][n] = V::zero();
  for (int64_t i = 0; i < t.width; i += V::kLanes) {
    V::F b[N];
    for (int n = 0; n < N; ++n) {
      const std::byte* at = basis + 2 * (n * t.width + i);
      b[n] = i + V::kLanes <= t.width ? V::load_half(at) : V::load_half_part(at, left);
    }
    for (int r = 0; r < R; ++r) {
      const V::F x = V::load(keys + r * t.stride + i);   // zeros behind the last
      for (int n = 0; n < N; ++n) sums[r][n] = V::fma(x, b[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) t.out[(key + r) * t.rank + row + n] = V::sum(sums[r][n]);
}

void project_keys(const ProjectTask& t) {
  int64_t key = 0;
  for (; key + 4 <= t.n_keys; key += 4) {
    int64_t row = 0;
    for (; row + 2 <= t.rank; row += 2) project_block<4, 2>(t, key, row);
    if (row < t.rank) project_block<4, 1>(t, key, row);
  }
  for (; key < t.n_keys; ++key)
    for (int64_t row = 0; row < t.rank; ++row) project_block<1, 1>(t, key, row);
}

// R keys, N vectors of their dimensions from `at` on; `left` > 0: of a single one so many lanes.
template <int R, int N>
void rebuild_block(const RebuildTask& t, int64_t key, int32_t at, int left) {
  const std::byte *rows = t.rows + 2 * key * t.rank, *basis = t.basis + 2 * at;
  V::F sums[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sums[r][n] = V::zero();
  for (int64_t j = 0; j < t.rank; ++j, basis += 2 * t.basis_stride) {
    V::F b[N];
    for (int n = 0; n < N; ++n)
      b[n] = left > 0 ? V::load_half_part(basis, left) : V::load_half(basis + 2 * n * V::kLanes);
    for (int r = 0; r < R; ++r) {
      const V::F x = V::set_half(reinterpret_cast<const uint8_t*>(rows + 2 * (r * t.rank + j)));
      for (int n = 0; n < N; ++n) sums[r][n] = V::fma(x, b[n], sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      float* out = t.out + (key + r) * t.dim + at + n * V::kLanes;
      if (left > 0)
        V::store_part(out, sums[r][n], left);
      else
        V::store(out, sums[r][n]);
    }
}

template <int R>
void rebuild_rows(const RebuildTask& t, int64_t key) {
  int32_t at = 0;
  for (; at + 2 * V::kLanes <= t.dim; at += 2 * V::kLanes) rebuild_block<R, 2>(t, key, at, 0);
  for (; at + V::kLanes <= t.dim; at += V::kLanes) rebuild_block<R, 1>(t, key, at, 0);
  if (at < t.dim) rebuild_block<R, 1>(t, key, at, t.dim - at);
}

void rebuild_keys(const RebuildTask& t) {
  int64_t key = 0;
  for (; key + 4 <= t.n_keys; key += 4) rebuild_rows<4>(t, key);
  for (; key < t.n_keys; ++key) rebuild_rows<1>(t, key);
}

}  // namespace
}  // namespace orrery::cpu
