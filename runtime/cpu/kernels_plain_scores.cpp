// Weights and scores of keys on the plain path, as their definitions read.
#include <algorithm>
#include <cmath>

#include "runtime/cpu/blocks.h"
#include "runtime/cpu/kernels_plain.h"

namespace orrery::cpu {

namespace {

constexpr float kLog2E = 1.44269504088896f;

// 2^(y - unit), the rounded part of y apart, so that a unit only changes the exponent; 0 for NaN.
float weight(float y, float unit) {
  const float whole = std::nearbyint(y), exponent = std::fmax(whole - unit, -1000.0f);
  const float w = std::ldexp(std::exp2(y - whole), static_cast<int>(exponent));
  return w > 0 ? w : 0.0f;
}

// What each tile's weights are worth in a row's softmax, in place of their units.
void units_to_shares(float* units, const float* sums, int64_t n_tiles) {
  float most = -INFINITY, total = 0;
  for (int64_t i = 0; i < n_tiles; ++i)
    if (sums[i] > 0) most = std::fmax(most, units[i]);
  const auto power = [&](int64_t i) { return sums[i] > 0 ? std::ldexp(1.0f, static_cast<int>(std::fmax(units[i] - most, -1000.0f))) : 0.0f; };
  for (int64_t i = 0; i < n_tiles; ++i) total += sums[i] * power(i);
  const float inverse = total > 0 ? 1.0f / total : 0.0f;
  for (int64_t i = 0; i < n_tiles; ++i) units[i] = power(i) * inverse;
}

void pool_row(const float* in, float* out, int64_t n, const KeyScoring& scoring) {
  const int64_t half = scoring.pool_width / 2;
  const bool max = scoring.pooling == KeyScoring::Pooling::max;
  for (int64_t i = 0; i < n; ++i) {
    float x = max ? -INFINITY : 0.0f;
    for (int64_t j = std::max<int64_t>(0, i - half); j <= std::min(n - 1, i + half); ++j)
      x = max ? std::fmax(x, in[j]) : x + in[j];
    out[i] = max ? x : x / static_cast<float>(scoring.pool_width);
  }
}

}  // namespace

void plain_widen(const float* x, float* low, float* high, int32_t n) {
  for (int32_t i = 0; i < n; ++i) low[i] = std::fmin(x[i], low[i]), high[i] = std::fmax(x[i], high[i]);
}

void plain_key_weights(const KeyWeightsTask& t) {
  float* key = reinterpret_cast<float*>(t.scratch);
  for (int64_t start = t.first_key; start < t.last_key; start += kPageTokens) {
    const int64_t n = std::min<int64_t>(kPageTokens, t.last_key - start), at = start - t.first_key;
    const int64_t tile = at / kPageTokens;
    for (int32_t i = 0; t.scored && i < t.n_queries; ++i) std::copy_n(t.q[i] + at, n, t.out[i] + at);
    for (int64_t k = 0; !t.scored && k < n; ++k) {
      const std::byte* at_key = kv_tile(t.kv, start / kPageTokens) + static_cast<uint64_t>(k) * 2 * t.kv.vector_bytes;
      float* lowest = key + t.kv.head_dim;
      load_kv(kv_tensor_type(t.kv.type), at_key, t.kv.head_dim, key);
      if (t.bounds) load_kv(kv_tensor_type(t.kv.type), at_key + t.kv.vector_bytes, t.kv.head_dim, lowest);
      for (int32_t i = 0; i < t.n_queries; ++i) {
        float dot = 0;
        for (int32_t j = 0; j < t.kv.head_dim; ++j)
          dot += t.bounds && t.q[i][j] < 0 ? t.q[i][j] * lowest[j] : t.q[i][j] * key[j];
        t.out[i][at + k] = dot * t.scale * kLog2E;
      }
    }
    for (int32_t i = 0; i < t.n_queries; ++i) {
      float* out = t.out[i] + at;
      float largest = -INFINITY, sum = 0;
      const int64_t seen = std::clamp<int64_t>(t.ends[i] - start, 0, n);
      for (int64_t k = 0; k < seen; ++k) largest = std::fmax(largest, out[k]);
      const float unit = largest == -INFINITY ? 0.0f : std::nearbyint(largest);
      for (int64_t k = 0; k < seen; ++k) sum += out[k] = weight(out[k], unit);
      for (int64_t k = seen; k < kPageTokens; ++k) out[k] = 0;
      t.units[i][tile] = unit;
      t.sums[i][tile] = sum;
    }
  }
}

float* plain_key_scores(const ScoresTask& t) {
  const bool pools = t.scoring.pooling != KeyScoring::Pooling::none;
  for (int32_t r = 0; r < t.n_rows; ++r) {
    float* row = t.rows + r * t.stride;
    float* shares = t.units + r * t.tile_stride;
    units_to_shares(shares, t.sums + r * t.tile_stride, (t.n + kPageTokens - 1) / kPageTokens);
    for (int64_t i = 0; i < t.n; ++i) row[i] *= shares[i / kPageTokens];
    if (!pools) continue;
    pool_row(row, t.spare, t.n, t.scoring);
    std::copy_n(t.spare, t.n, row);
  }
  for (int64_t i = 0; i < t.n; ++i) {
    float x = t.rows[i];
    for (int32_t r = 1; r < t.n_rows; ++r) {
      const float y = t.rows[r * t.stride + i];
      x = t.scoring.max_of_group ? std::fmax(x, y) : x + y;
    }
    t.rows[i] = t.scoring.max_of_group ? x : x / static_cast<float>(t.n_rows);
  }
  return t.rows;
}

}  // namespace orrery::cpu
