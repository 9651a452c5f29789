// The float tile product that attention and float weights share: c (rows, width) from a (rows, k) and b (k, width), a few rows by a
// few vectors in registers. Written over V; include after a file of vectors/.
//
// Each element is one chain of fused multiply-adds in ascending k. So its bits do not depend on the rows beside it, or on where k
// is cut.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

constexpr int kGemmRows = 6;  // rows in registers

enum class Start { zero, keep, scale };  // initial c: 0, itself, or itself times a factor for each row

template <Start kStart>
struct Gemm {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  int k_begin, k_end;
  const float* factors;  // one for each row, for Start::scale

  // Rows [r, r + R), vectors [v, v + N).
  template <int R, int N>
  void block(int64_t r, int v) const {
    V::F sums[R][N];
    const float* rows[R];
    for (int i = 0; i < R; ++i) {
      rows[i] = a + (r + i) * a_stride;
      for (int j = 0; j < N; ++j) {
        const float* from = c + (r + i) * c_stride + (v + j) * V::kLanes;
        sums[i][j] = kStart == Start::zero   ? V::zero()
                     : kStart == Start::keep ? V::load(from)
                                             : V::mul(V::load(from), V::set(factors[r + i]));
      }
    }
    const float* column = b + k_begin * b_stride + v * V::kLanes;
    for (int k = k_begin; k < k_end; ++k, column += b_stride) {
      V::F values[N];
      for (int j = 0; j < N; ++j) values[j] = V::load(column + j * V::kLanes);
      for (int i = 0; i < R; ++i) {
        const V::F x = V::set(rows[i][k]);
        for (int j = 0; j < N; ++j) sums[i][j] = V::fma(x, values[j], sums[i][j]);
      }
    }
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < N; ++j) V::store(c + (r + i) * c_stride + (v + j) * V::kLanes, sums[i][j]);
  }

  template <int N>
  void columns(int64_t n_rows, int v) const {
    int64_t r = 0;
    for (; r + kGemmRows <= n_rows; r += kGemmRows) block<kGemmRows, N>(r, v);
    switch (n_rows - r) {
      case 5: return block<5, N>(r, v);
      case 4: return block<4, N>(r, v);
      case 3: return block<3, N>(r, v);
      case 2: return block<2, N>(r, v);
      case 1: return block<1, N>(r, v);
      default: return;
    }
  }

  void run(int64_t n_rows, int n_vectors) const {
    int v = 0;
    for (; v + V::kGemmVectors <= n_vectors; v += V::kGemmVectors) columns<V::kGemmVectors>(n_rows, v);
    if (V::kGemmVectors > 2)
      for (; v + 2 <= n_vectors; v += 2) columns<2>(n_rows, v);
    for (; v < n_vectors; ++v) columns<1>(n_rows, v);
  }
};

}  // namespace
}  // namespace orrery::cpu
