// Logits and key scores of the plain path, as their definitions read.
#include <algorithm>
#include <cmath>

#include "runtime/cpu/blocks.h"
#include "runtime/cpu/kernels_plain.h"

namespace orrery::cpu {

namespace {

void softmax_row(float* x, int64_t n) {
  float largest = -INFINITY;
  for (int64_t i = 0; i < n; ++i) largest = std::fmax(largest, x[i]);
  const float base = largest == -INFINITY ? 0.0f : largest;
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float p = std::exp(x[i] - base);
    x[i] = p > 0 ? p : 0.0f;  // NaN weighs nothing
    sum += x[i];
  }
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  for (int64_t i = 0; i < n; ++i) x[i] *= inverse;
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

void plain_key_logits(const LogitsTask& t) {
  float* key = reinterpret_cast<float*>(t.scratch);
  for (int64_t k = t.first_key; k < t.last_key; ++k) {
    load_kv(kv_tensor_type(t.kv.type),
            kv_tile(t.kv, k / kPageTokens) + static_cast<uint64_t>(k % kPageTokens) * 2 * t.kv.vector_bytes,
            t.kv.head_dim, key);
    for (int32_t i = 0; i < t.n_queries; ++i) {
      float dot = 0;
      for (int32_t j = 0; j < t.kv.head_dim; ++j) dot += t.q[i][j] * key[j];
      t.out[i][k - t.first_key] = dot * t.scale;
    }
  }
}

float* plain_key_scores(const ScoresTask& t) {
  const bool pools = t.scoring.pooling != KeyScoring::Pooling::none;
  for (int32_t r = 0; r < t.n_rows; ++r) {
    float* row = t.rows + r * t.stride;
    softmax_row(row, t.n);
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
