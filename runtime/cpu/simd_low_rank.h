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

void rebuild_keys(const RebuildTask& t) {
  const int n_vectors = static_cast<int>(t.width / V::kLanes);
  const auto run = [&](const auto& product) { product.run(t.n_keys, n_vectors); };
  if (t.add)
    run(Gemm<Start::keep>{t.rows, t.row_stride, t.basis, t.width, t.out, t.width, 0, t.rank, nullptr});
  else
    run(Gemm<Start::zero>{t.rows, t.row_stride, t.basis, t.width, t.out, t.width, 0, t.rank, nullptr});
}

}  // namespace
}  // namespace orrery::cpu
