// Low-rank keys (LowRankKeys): products of the keys' dimensions with each other, of keys with the basis, and keys rebuilt from the
// basis. Each output is one chain of sums in a fixed order, so its bits do not depend on the outputs beside it. Written over V;
// include after a file of vectors/.
#pragma once

#include "runtime/cpu/products/gemm.h"
#include "runtime/cpu/products/rows.h"

namespace orrery::cpu {
namespace {

// Rows of the products are the keys' own columns, transposed to a strip on the stack.
void add_gram(const GramTask& t) {
  alignas(64) float strip[kGramRows * LowRankKeys::kBatch];
  const int64_t n_rows = t.last - t.first, first = t.first / 16 * 16;
  for (int k = 0; k < t.n_keys; ++k)
    for (int64_t i = 0; i < n_rows; ++i) strip[i * LowRankKeys::kBatch + k] = t.keys[k * t.stride + t.first + i];
  const Gemm<Start::keep> product{
      strip, LowRankKeys::kBatch, t.keys + first, t.stride, t.out + t.first * t.stride + first, t.stride, 0, t.n_keys, nullptr};
  product.run(n_rows, static_cast<int>((t.width - first) / V::kLanes));
}

// R keys times N rows of the basis: a sum in each lane, then the sum of the lanes.
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
      const V::F x = V::load(keys + r * t.stride + i);  // zeros behind the last dimension
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

void pack_basis(const BasisTask& t) {
  const int left = t.dim % V::kLanes, whole = t.dim - left;
  for (int32_t r = 0; r < t.rank; ++r) {
    const std::byte* row = t.rows + r * t.row_bytes;
    float* out = t.out + r * t.width;
    for (int64_t i = 0; i < t.width; i += V::kLanes)
      V::store(out + i, i < whole ? V::load_half(row + 2 * i) : i < t.dim ? V::load_half_part(row + 2 * i, left) : V::zero());
  }
}

void rebuild_keys(const RebuildTask& t) {
  const int n_vectors = static_cast<int>(t.width / V::kLanes), left = t.rank % V::kLanes, whole = t.rank - left;
  const int64_t stride = (t.rank + 15) / 16 * 16;
  for (int32_t k = 0; k < t.n_keys; ++k) {
    float* row = t.scratch + k * stride;
    for (int i = 0; i < whole; i += V::kLanes) V::store(row + i, V::load_half(t.rows[k] + 2 * i));
    if (left > 0) V::store(row + whole, V::load_half_part(t.rows[k] + 2 * whole, left));
  }
  const auto run = [&](const auto& product) { product.run(t.n_keys, n_vectors); };
  if (t.add) run(Gemm<Start::keep>{t.scratch, stride, t.basis, t.width, t.out, t.width, 0, t.rank, nullptr});
  else run(Gemm<Start::zero>{t.scratch, stride, t.basis, t.width, t.out, t.width, 0, t.rank, nullptr});
}

// The rotation of a position is composed of the rotation of its page's first position and the rotation by the place in the page.
// This rounds each value once more, in its last place. Holds one vector of pairs, from the i-th on.
struct Rotation {
  V::F cosines, sines;
  Rotation(const float* page, const float* rotation, int32_t half, int32_t i) {
    const V::F pc = V::load(page + i), ps = V::load(page + half + i), tc = V::load(rotation + i), ts = V::load(rotation + half + i);
    cosines = V::sub(V::mul(pc, tc), V::mul(ps, ts));
    sines = V::add(V::mul(ps, tc), V::mul(pc, ts));
  }
};

// Whole vectors of halves are rotated on their way from the products to their slots.
void rotate_keys(const RotateTask& t) {
  const int32_t half = t.n_rot / 2;
  const bool whole = half % V::kLanes == 0;
  const bool at_once = whole && t.type == KvType::f16 && t.head_dim % V::kLanes == 0;
  for (int32_t k = 0; k < t.n_keys; ++k) {
    const float* page = t.page_rotations + int64_t{t.positions[k] / kPageTokens} * t.n_rot;
    const float* rotation = t.rotations + int64_t{t.positions[k] % kPageTokens} * t.n_rot;
    float* key = t.keys + k * t.width;
    if (at_once) {
      std::byte* to = t.to[k];
      for (int32_t i = 0; i < half; i += V::kLanes) {
        const Rotation by(page, rotation, half, i);
        const int32_t first = t.interleaved ? 2 * i : i, second = t.interleaved ? 2 * i + V::kLanes : half + i;
        V::F a = V::load(key + first), b = V::load(key + second);
        if (t.interleaved) V::apart(a, b);
        V::F x = V::sub(V::mul(a, by.cosines), V::mul(b, by.sines)), y = V::add(V::mul(a, by.sines), V::mul(b, by.cosines));
        if (t.interleaved) V::beside(x, y);
        V::store_half(to + 2 * first, x);
        V::store_half(to + 2 * second, y);
      }
      for (int32_t i = t.n_rot; i < t.head_dim; i += V::kLanes) V::store_half(to + 2 * i, V::load(key + i));
      if (t.values && t.values[k]) {  // a vector of floats copies twice as many halves
        const auto* from = reinterpret_cast<const float*>(t.values[k]);
        auto* behind = reinterpret_cast<float*>(to + 2 * t.head_dim);
        int32_t i = 0;
        for (; i + V::kLanes <= t.head_dim / 2; i += V::kLanes) V::store(behind + i, V::load(from + i));
        if (2 * i < t.head_dim) V::store_part(behind + i, V::load_part(from + i, t.head_dim / 2 - i), t.head_dim / 2 - i);
      }
      continue;
    }
    for (int32_t i = 0; i < (whole ? half : 0); i += V::kLanes) {
      const Rotation by(page, rotation, half, i);
      V::store(t.table + i, by.cosines), V::store(t.table + half + i, by.sines);
    }
    for (int32_t i = whole ? half : 0; i < half; ++i) {
      t.table[i] = page[i] * rotation[i] - page[half + i] * rotation[half + i];
      t.table[half + i] = page[half + i] * rotation[i] + page[i] * rotation[half + i];
    }
    rope(key, t.table, t.table + half, t.n_rot, t.interleaved, 1, t.head_dim);
    store_kv_vector(key_type(t.type), key, t.head_dim, t.to[k]);
    const KvFormat slot{t.type, 1, 1, t.head_dim};
    if (t.values && t.values[k]) __builtin_memcpy(t.to[k] + slot.key_bytes(), t.values[k], slot.value_bytes());
  }
}

}  // namespace
}  // namespace orrery::cpu
