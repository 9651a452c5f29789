// Logits of queries against keys, and what a group's logits come to for each key; written over V, after
// simd_attend.h.  A tile of keys is converted and transposed once for all queries of a task, as prefill's attention
// does it; the softmax is three passes over a row, which is bound by the exponential.
#pragma once

#include "runtime/cpu/simd_attend.h"

namespace orrery::cpu {
namespace {

// (padded_dim, kTile): the tile's keys, transposed; slots from `n` on become zeros.
template <KvType kType>
void convert_keys(const KvHead& kv, const std::byte* tile, int n, float* keys) {
  const int32_t dim = padded_dim(kv.head_dim);
  const int whole = kv.head_dim / V::kLanes, left = kv.head_dim % V::kLanes;
  const uint64_t token_bytes = 2 * kv.vector_bytes;
  for (int t = 0; t < kTile; t += V::kLanes)
    for (int i = 0; i < dim / V::kLanes; ++i) {
      V::F rows[V::kLanes];
      for (int j = 0; j < V::kLanes; ++j) {
        const std::byte* key = tile + static_cast<uint64_t>(t + j) * token_bytes;
        rows[j] = t + j >= n               ? V::zero()
                  : i < whole              ? load_chunk<kType>(key, i)
                  : i == whole && left > 0 ? load_last<kType>(key, i, left)
                                           : V::zero();
      }
      V::transpose(rows);
      for (int j = 0; j < V::kLanes; ++j)
        V::store(keys + (static_cast<int64_t>(i) * V::kLanes + j) * kTile + t, rows[j]);
    }
}

template <KvType kType>
void logits_of(const LogitsTask& t) {
  const int32_t head_dim = t.kv.head_dim, dim = padded_dim(head_dim);
  const PrefillScratch s = prefill_scratch(t.scratch, dim);
  for (int i = 0; i < t.n_queries; ++i)
    for (int32_t j = 0; j < dim; ++j)
      s.q[static_cast<int64_t>(i) * dim + j] = j < head_dim ? t.q[i][j] * t.scale : 0.0f;
  for (int64_t start = t.first_key; start < t.last_key; start += kTile) {
    const int n = static_cast<int>(t.last_key - start < kTile ? t.last_key - start : kTile);
    convert_keys<kType>(t.kv, kv_tile(t.kv, start / kTile), n, s.keys);
    const Gemm<Start::zero> product{s.q, dim, s.keys, kTile, s.scores, kTile, 0, dim, nullptr};
    product.run(t.n_queries, kTile / V::kLanes);
    for (int i = 0; i < t.n_queries; ++i)
      __builtin_memcpy(t.out[i] + (start - t.first_key), s.scores + i * kTile,
                       static_cast<size_t>(n) * sizeof(float));
  }
}

void key_logits(const LogitsTask& t) {
  switch (t.kv.type) {
    case KvType::f32:
      return logits_of<KvType::f32>(t);
    case KvType::f16:
      return logits_of<KvType::f16>(t);
    case KvType::q8_0:
      return logits_of<KvType::q8_0>(t);
    case KvType::q4_0:
      return logits_of<KvType::q4_0>(t);
  }
}

// Vectors over a row run up to kLanes - 1 floats beyond its end, into its room.
void softmax_row(float* x, int64_t n) {
  for (int64_t i = n; i % V::kLanes != 0; ++i) x[i] = -kInfinity;
  V::F most = V::set(-kInfinity);
  for (int64_t i = 0; i < n; i += V::kLanes) most = V::max(V::load(x + i), most);  // in this order NaN never wins
  const float largest = V::largest(most);
  const V::F base = V::set(largest == -kInfinity ? 0.0f : largest);
  V::F sum = V::zero();
  for (int64_t i = 0; i < n; i += V::kLanes) {
    const V::F p = V::max(exponential(V::sub(V::load(x + i), base)), V::zero());  // NaN weighs nothing
    V::store(x + i, p);
    sum = V::add(sum, p);
  }
  const float total = V::sum(sum);
  const V::F inverse = V::set(total > 0 ? 1.0f / total : 0.0f);
  for (int64_t i = 0; i < n; i += V::kLanes) V::store(x + i, V::mul(V::load(x + i), inverse));
}

void pool_row(float* in, float* out, int64_t n, const KeyScoring& scoring) {
  const int half = scoring.pool_width / 2;
  const bool max = scoring.pooling == KeyScoring::Pooling::max;
  for (int i = 0; i < half; ++i) in[-1 - i] = in[n + i] = max ? -kInfinity : 0.0f;
  const V::F share = V::set(1.0f / static_cast<float>(scoring.pool_width));
  for (int64_t i = 0; i < n; i += V::kLanes) {
    V::F x = V::load(in + i - half);
    if (max) {
      for (int j = 1; j < scoring.pool_width; ++j) x = V::max(V::load(in + i - half + j), x);
    } else {
      for (int j = 1; j < scoring.pool_width; ++j) x = V::add(x, V::load(in + i - half + j));
      x = V::mul(x, share);
    }
    V::store(out + i, x);
  }
}

// rows[0] becomes the mean or the maximum of all rows.
void reduce_rows(const ScoresTask& t) {
  const V::F share = V::set(1.0f / static_cast<float>(t.n_rows));
  for (int64_t i = 0; i < t.n; i += V::kLanes) {
    V::F x = V::load(t.rows + i);
    for (int32_t r = 1; r < t.n_rows; ++r) {
      const V::F y = V::load(t.rows + r * t.stride + i);
      x = t.scoring.max_of_group ? V::max(y, x) : V::add(x, y);
    }
    V::store(t.rows + i, t.scoring.max_of_group ? x : V::mul(x, share));
  }
}

float* key_scores(const ScoresTask& t) {
  using Pooling = KeyScoring::Pooling;
  for (int32_t r = 0; r < t.n_rows; ++r) softmax_row(t.rows + r * t.stride, t.n);
  const bool pools = t.scoring.pooling != Pooling::none;
  // Mean and average commute, and so do the two maxima: one row is pooled instead of all.
  const bool commute = t.scoring.max_of_group == (t.scoring.pooling == Pooling::max);
  if (pools && !commute) {
    for (int32_t r = 0; r < t.n_rows; ++r) {
      float* row = t.rows + r * t.stride;
      pool_row(row, t.spare, t.n, t.scoring);
      __builtin_memcpy(row, t.spare, static_cast<size_t>(t.n) * sizeof(float));
    }
  }
  reduce_rows(t);
  if (!pools || !commute) return t.rows;
  pool_row(t.rows, t.spare, t.n, t.scoring);
  return t.spare;
}

}  // namespace
}  // namespace orrery::cpu
