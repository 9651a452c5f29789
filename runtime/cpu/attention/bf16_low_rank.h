// Rebuilds low-rank keys by products of bf16: the part that vectors and AMX's tiles (attention/amx_low_rank.h) share, and the
// vectors' own part. Include after vectors/avx512.h.
//
// Rows and basis are halves. Rounded to bf16, each is off by at most 2^-9 of itself. Rows are padded with zeros to whole steps of
// kBlock of the rank. The basis is stored as pairs of its rows, side by side for each dimension: tiles take it as second factor,
// and vectors multiply it with a pair of a token's row repeated in all lanes. A task reads half the bytes that floats take. An
// instruction multiplies twice as many numbers, on tiles sixteen times as many.
//
// Every output is its own chain of sums in ascending pairs, so its bits do not depend on the tokens beside it.
#pragma once

#include "runtime/cpu/products/bf16_products.h"

namespace orrery::cpu {
namespace {

inline int64_t whole_rank(int64_t rank) { return (rank + kBlock - 1) / kBlock * kBlock; }

// Sixteen halves, of which `left` are in the row; zeros after them.
inline V::F halves_left(const std::byte* at, int64_t left) {
  return left >= V::kLanes ? V::load_half(at) : left <= 0 ? V::zero() : V::load_half_part(at, static_cast<int>(left));
}

// Kernels::pack_basis: (whole_rank / 2, width, 2) bf16.
inline void pack_pairs(const BasisTask& t) {
  alignas(64) static constexpr uint16_t kSideBySide[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const V::I order = V::load_i(kSideBySide);
  float* out = t.out;
  for (int64_t r = 0; r < whole_rank(t.rank); r += 2)
    for (int64_t i = 0; i < t.width; i += V::kLanes, out += V::kLanes) {
      const std::byte* at = t.rows + r * t.row_bytes + 2 * i;
      const V::F first = r < t.rank ? halves_left(at, t.dim - i) : V::zero(),
                 second = r + 1 < t.rank ? halves_left(at + t.row_bytes, t.dim - i) : V::zero();
      V::store_i(out, _mm512_permutexvar_epi16(order, rounded(first, second)));
    }
}

// Rounds a task's rows to its scratch: (n_keys, whole_rank) bf16.
inline void round_rows(const RebuildTask& t) {
  std::byte* out = reinterpret_cast<std::byte*>(t.scratch);
  for (int32_t k = 0; k < t.n_keys; ++k)
    for (int64_t j = 0; j < t.rank; j += kBlock, out += 2 * kBlock) {
      const std::byte* at = t.rows[k] + 2 * j;
      V::store_i(out, rounded(halves_left(at, t.rank - j), halves_left(at + 2 * V::kLanes, t.rank - j - V::kLanes)));
    }
}

// N vectors of R tokens, with the sums in registers.
template <int R, int N>
void rebuild_block(const RebuildTask& t, int64_t token, int64_t vector) {
  const int64_t stride = 2 * whole_rank(t.rank);
  const std::byte* rows = reinterpret_cast<const std::byte*>(t.scratch) + token * stride;
  const float* basis = t.basis + vector * V::kLanes;
  float* out = t.out + token * t.width + vector * V::kLanes;
  V::F sums[R][N];
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) sums[i][j] = t.add ? V::load(out + i * t.width + j * V::kLanes) : V::zero();
  for (int64_t pair = 0; 2 * pair < t.rank; ++pair, basis += t.width) {
    V::I b[N];
    for (int j = 0; j < N; ++j) b[j] = V::load_i(basis + j * V::kLanes);
    for (int i = 0; i < R; ++i) {
      const V::I x = repeated_pair(rows + i * stride + 4 * pair);
      for (int j = 0; j < N; ++j) sums[i][j] = add_pairs(sums[i][j], b[j], x);
    }
  }
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) V::store(out + i * t.width + j * V::kLanes, sums[i][j]);
}
constexpr int kRebuiltRows = 6;
template <int N, int R = kRebuiltRows>
void rebuild_vectors(const RebuildTask& t, int64_t vector, int64_t token = 0) {
  for (; token + R <= t.n_keys; token += R) rebuild_block<R, N>(t, token, vector);
  if constexpr (R > 1) rebuild_vectors<N, R - 1>(t, vector, token);
}

inline void rebuild_by_vectors(const RebuildTask& t) {
  round_rows(t);
  const int64_t n_vectors = t.width / V::kLanes;
  int64_t v = 0;
  for (; v + 4 <= n_vectors; v += 4) rebuild_vectors<4>(t, v);
  for (; v < n_vectors; ++v) rebuild_vectors<1>(t, v);
}

}  // namespace
}  // namespace orrery::cpu
