// Softmax weights of queries over keys, and what a group's weights come to for each key; written over V, after
// simd_attend.h.  A tile of keys is converted and transposed once for all queries of a task, as prefill's attention
// does it, and its scores become weights before they leave the cache; rows are then read once more.
#pragma once

#include "runtime/cpu/simd_attend.h"

namespace orrery::cpu {
namespace {

// (padded_dim, kTile): the tile's keys, transposed; slots from `n` on become zeros. Those of the `next` tile, if there is one,
// are asked for meanwhile: they come while this one is multiplied, where reading them at once would wait for memory (half of the time).
template <KvType kType>
void convert_keys(const KvHead& kv, const std::byte* tile, const std::byte* next, int n, float* keys) {
  const int32_t dim = padded_dim(kv.head_dim);
  const int whole = kv.head_dim / V::kLanes, left = kv.head_dim % V::kLanes;
  const uint64_t token_bytes = 2 * kv.vector_bytes;
  for (int t = 0; t < kTile; t += V::kLanes) {
    for (int j = 0; next != nullptr && j < V::kLanes; ++j)
      for (uint64_t b = 0; b < kv.vector_bytes; b += 64)
        __builtin_prefetch(next + static_cast<uint64_t>(t + j) * token_bytes + b, 0, 2);
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
}

// A tile's scores y of one query, `n` of them of keys that it sees (none if less than 0), become weights (KeyWeightsTask).
void weigh_tile(const float* scores, int n, float* out, float* unit, float* sum) {
  constexpr int kVectors = kTile / V::kLanes;
  V::F y[kVectors], largest = V::set(-kInfinity), total = V::zero();
  for (int i = 0; i < kVectors; ++i) {
    const int left = n - i * V::kLanes;
    y[i] = V::load(scores + i * V::kLanes);
    if (left < V::kLanes) y[i] = V::keep(y[i], 0, left < 0 ? 0 : left);
    largest = V::max(y[i], largest);  // in this order NaN never wins
  }
  const float most = V::largest(largest);
  const V::F base = V::nearest(V::set(most == -kInfinity ? 0.0f : most));
  for (int i = 0; i < kVectors; ++i) {
    const V::F whole = V::nearest(y[i]), z = V::sub(whole, base);
    const V::F w = V::mul(power_of_fraction(V::sub(y[i], whole)), V::exponent(V::add(z, V::set(kWhole))));
    const V::F x = V::max(V::zero_below(w, z, -126.0f), V::zero());  // NaN weighs nothing
    V::store(out + i * V::kLanes, x);
    total = V::add(total, x);
  }
  alignas(64) float lanes[V::kLanes];
  V::store(lanes, base);
  *unit = lanes[0];
  *sum = V::sum(total);
}

void weigh_scores(const KeyWeightsTask& t) {
  for (int64_t start = t.first_key; start < t.last_key; start += kTile) {
    const int n = static_cast<int>(t.last_key - start < kTile ? t.last_key - start : kTile);
    const int64_t at = start - t.first_key;
    for (int i = 0; i < t.n_queries; ++i) {
      const int64_t seen = t.ends[i] - start;
      weigh_tile(t.q[i] + at, seen < n ? static_cast<int>(seen) : n, t.out[i] + at, t.units[i] + at / kTile,
                 t.sums[i] + at / kTile);
    }
  }
}

template <KvType kType>
void weights_of(const KeyWeightsTask& t) {
  const int32_t head_dim = t.kv.head_dim, dim = padded_dim(head_dim);
  const PrefillScratch s = prefill_scratch(t.scratch, dim);
  // Of bounds, what is positive of a query meets K (in s.q), what is negative V (in s.o).
  for (int i = 0; i < t.n_queries; ++i)
    for (int32_t j = 0; j < dim; ++j) {
      const float x = j < head_dim ? t.q[i][j] * (t.scale * kLog2E) : 0.0f;
      s.q[static_cast<int64_t>(i) * dim + j] = t.bounds && x < 0 ? 0.0f : x;
      if (t.bounds) s.o[static_cast<int64_t>(i) * dim + j] = x < 0 ? x : 0.0f;
    }
  // Rows in parts of nearly one size: few rows at a time do not fill the multipliers.
  const int n_parts = (t.n_queries + 5) / 6;
  for (int64_t start = t.first_key; start < t.last_key; start += kTile) {
    const int n = static_cast<int>(t.last_key - start < kTile ? t.last_key - start : kTile);
    const int64_t at = start - t.first_key;
    const std::byte* next = start + kTile < t.last_key ? kv_tile(t.kv, start / kTile + 1) : nullptr;
    convert_keys<kType>(t.kv, kv_tile(t.kv, start / kTile), next, n, s.keys);
    if (t.bounds) convert_keys<kType>(t.kv, kv_tile(t.kv, start / kTile) + t.kv.vector_bytes, nullptr, n, s.values);
    for (int part = 0; part < n_parts; ++part) {
      const int first = t.n_queries * part / n_parts, last = t.n_queries * (part + 1) / n_parts;
      const Gemm<Start::zero> product{s.q + static_cast<int64_t>(first) * dim, dim, s.keys, kTile,
                                      s.scores + first * kTile, kTile, 0, dim, nullptr};
      product.run(last - first, kTile / V::kLanes);
      if (!t.bounds) continue;
      const Gemm<Start::keep> rest{s.o + static_cast<int64_t>(first) * dim, dim, s.values, kTile,
                                   s.scores + first * kTile, kTile, 0, dim, nullptr};
      rest.run(last - first, kTile / V::kLanes);
    }
    for (int i = 0; i < t.n_queries; ++i) {
      const int64_t seen = t.ends[i] - start;
      weigh_tile(s.scores + i * kTile, seen < n ? static_cast<int>(seen) : n, t.out[i] + at, t.units[i] + at / kTile,
                 t.sums[i] + at / kTile);
    }
  }
}

void widen(const float* x, float* low, float* high, int32_t n) {
  int32_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    const V::F v = V::load(x + i);
    V::store(low + i, V::sub(V::zero(), V::max(V::sub(V::zero(), v), V::sub(V::zero(), V::load(low + i)))));
    V::store(high + i, V::max(v, V::load(high + i)));
  }
  for (; i < n; ++i) {
    low[i] = x[i] < low[i] ? x[i] : low[i];
    high[i] = x[i] > high[i] ? x[i] : high[i];
  }
}

void key_weights(const KeyWeightsTask& t) {
  if (t.scored) return weigh_scores(t);
  switch (t.kv.type) {
    case KvType::f32:
      return weights_of<KvType::f32>(t);
    case KvType::f16:
      return weights_of<KvType::f16>(t);
    case KvType::q8_0:
      return weights_of<KvType::q8_0>(t);
    case KvType::q4_0:
      return weights_of<KvType::q4_0>(t);
  }
}

// What each tile's weights are worth in the softmax of a row, times `factor`, in place of their units.
void units_to_shares(float* units, const float* sums, int64_t n_tiles, float factor) {
  float most = -kInfinity, total = 0;
  for (int64_t i = 0; i < n_tiles; ++i)
    if (sums[i] > 0 && units[i] > most) most = units[i];
  for (int64_t i = 0; i < n_tiles; ++i) {
    units[i] = sums[i] > 0 ? power_of_two(units[i] - most) : 0.0f;
    total += sums[i] * units[i];
  }
  const float inverse = total > 0 ? factor / total : 0.0f;
  for (int64_t i = 0; i < n_tiles; ++i) units[i] *= inverse;
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

// rows[0] becomes the sum or the maximum of all rows, each tile times its share.
template <bool kMax>
void reduce_rows(const ScoresTask& t) {
  for (int64_t tile = 0; tile * kTile < t.n; ++tile) {
    const int64_t first = tile * kTile, last = t.n - first < kTile ? t.n : first + kTile;
    for (int64_t i = first; i < last; i += V::kLanes) {
      V::F x = V::mul(V::load(t.rows + i), V::set(t.units[tile]));
      for (int32_t r = 1; r < t.n_rows; ++r) {
        const V::F w = V::load(t.rows + r * t.stride + i), share = V::set(t.units[r * t.tile_stride + tile]);
        x = kMax ? V::max(V::mul(w, share), x) : V::fma(w, share, x);
      }
      V::store(t.rows + i, x);
    }
  }
}

float* key_scores(const ScoresTask& t) {
  using Pooling = KeyScoring::Pooling;
  const bool pools = t.scoring.pooling != Pooling::none;
  const int64_t n_tiles = (t.n + kTile - 1) / kTile;
  // Mean and average commute, and so do the two maxima: one row is pooled instead of all.
  const bool commute = t.scoring.max_of_group == (t.scoring.pooling == Pooling::max);
  for (int32_t r = 0; r < t.n_rows; ++r) {
    float* shares = t.units + r * t.tile_stride;
    units_to_shares(shares, t.sums + r * t.tile_stride, n_tiles,
                    t.scoring.max_of_group ? 1.0f : 1.0f / static_cast<float>(t.n_rows));
    if (!pools || commute) continue;
    ScoresTask row = t;
    row.rows += r * t.stride, row.units = shares, row.n_rows = 1;
    reduce_rows<false>(row);
    pool_row(row.rows, t.spare, t.n, t.scoring);
    __builtin_memcpy(row.rows, t.spare, static_cast<size_t>(t.n) * sizeof(float));
    for (int64_t i = 0; i < n_tiles; ++i) shares[i] = 1.0f;
  }
  if (t.scoring.max_of_group)
    reduce_rows<true>(t);
  else
    reduce_rows<false>(t);
  if (!pools || !commute) return t.rows;
  pool_row(t.rows, t.spare, t.n, t.scoring);
  return t.spare;
}

}  // namespace
}  // namespace orrery::cpu
