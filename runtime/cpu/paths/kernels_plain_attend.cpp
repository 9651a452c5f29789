// Attention of the plain kernels: online softmax over tiles of one page of keys, in ascending order.
//
// Decode and prefill share one function of a query and a range of keys. Decode stores the partial result (o, m, l); prefill divides
// by l. A tile's K and V are converted to floats once for all queries of a task.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/cpu/formats/blocks.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/paths/kernels_plain.h"

namespace orrery::cpu {

namespace {

constexpr float kLog2E = 1.44269504088896f;

float dot(const float* q, const float* key, int32_t dim) {
  float sum = 0;
  for (int32_t i = 0; i < dim; ++i) sum += q[i] * key[i];
  return sum;
}

// Loads keys and values of the positions [first, last) of one tile: (kPageTokens, head_dim) and (kPageTokens, value_dim).
void load_tile(const KvHead& kv, int64_t first, int64_t last, float* keys, float* values) {
  const int64_t tile = first / kPageTokens, start = tile * kPageTokens;
  for (int64_t t = first - start; t < last - start; ++t) {
    const std::byte* token = kv_tile(kv, tile) + static_cast<uint64_t>(t) * token_bytes(kv);
    load_kv(key_tensor_type(kv.type), token, kv.head_dim, keys + t * kv.head_dim);
    load_kv(value_tensor_type(kv.type), token + value_at(kv), kv.value_dim, values + t * kv.value_dim);
  }
}

// Adds the keys [first, last) of a tile, all visible, to a query's partial result. first < last.
void add_keys(const float* q, float scale, const float* keys, const float* values, int64_t first, int64_t last, int32_t dim,
              int32_t value_dim, float* m, float* l, float* o) {
  float scores[kPageTokens];
  float largest = -INFINITY;
  for (int64_t t = first; t < last; ++t) {
    scores[t] = dot(q, keys + t * dim, dim) * scale;
    largest = std::fmax(largest, scores[t]);
  }
  // Scores of -infinity get the weight 0, also when all scores are -infinity. A NaN stays visible.
  const float new_m = std::fmax(*m, largest);
  const float base = new_m == -INFINITY ? 0.0f : new_m;
  const float decay = *m == -INFINITY ? 0.0f : std::exp(*m - base);
  *m = new_m;
  *l *= decay;
  for (int32_t i = 0; i < value_dim; ++i) o[i] *= decay;
  for (int64_t t = first; t < last; ++t) {
    const float p = std::exp(scores[t] - base);
    *l += p;
    for (int32_t i = 0; i < value_dim; ++i) o[i] += p * values[t * value_dim + i];
  }
}

float inverse_or_zero(float l) { return l == 0 ? 0.0f : 1.0f / l; }

void decode_head(const DecodeTask& t) {
  float* keys = reinterpret_cast<float*>(t.scratch);
  float* values = keys + kPageTokens * t.kv.head_dim;
  for (int32_t h = 0; h < t.n_queries; ++h) {
    float* partial = t.partials + h * t.partial_stride;
    partial[0] = -INFINITY;
    partial[1] = 0;
    std::fill_n(partial + 16, t.kv.value_dim, 0.0f);
  }
  for (int64_t first = t.first_key; first < t.last_key;) {
    const int64_t start = first / kPageTokens * kPageTokens;
    const int64_t last = std::min<int64_t>(start + kPageTokens, t.last_key);
    load_tile(t.kv, first, last, keys, values);
    for (int32_t h = 0; h < t.n_queries; ++h) {
      float* partial = t.partials + h * t.partial_stride;
      const float* q = t.q + static_cast<int64_t>(h) * t.kv.head_dim;
      add_keys(q, t.scale, keys, values, first - start, last - start, t.kv.head_dim, t.kv.value_dim, &partial[0], &partial[1],
               partial + 16);
      if (t.exported.weights == nullptr) continue;
      float* row = t.exported.weights + h * t.exported.stride + first;
      for (int64_t k = 0; k < last - first; ++k) row[k] = dot(q, keys + k * t.kv.head_dim, t.kv.head_dim) * t.scale * kLog2E;
      const int64_t tile = h * t.exported.tile_stride + first / kPageTokens;
      plain_weigh_tile(row, last - first, row, t.exported.units + tile, t.exported.sums + tile);
    }
    first = last;
  }
}

}  // namespace

// keys, values (kPageTokens, head_dim); prefill's running m and l (kQueryTile) each, and o (kQueryTile, head_dim). Weights and
// digests need only three keys.
int64_t plain_attend_scratch_bytes(int32_t head_dim) {
  return static_cast<int64_t>(sizeof(float)) * (2 * kPageTokens * head_dim + kQueryTile * (2 + head_dim));
}

void plain_attend_decode(const DecodeTask& t) {
  for (int32_t h = 0; h < t.n_heads; ++h) {
    DecodeTask head = t;
    head.kv.offset += static_cast<uint64_t>(h) * kPageTokens * token_bytes(t.kv);
    head.q += int64_t{h} * t.n_queries * t.kv.head_dim;
    head.partials += int64_t{h} * t.n_queries * t.partial_stride;
    decode_head(head);
  }
}

void plain_merge_partials(const float* partials, int64_t n, int64_t partial_stride, int32_t value_dim, const float* sink, float* out) {
  float m = sink ? *sink : -INFINITY, l = 0;
  for (int64_t i = 0; i < n; ++i) m = std::fmax(m, partials[i * partial_stride]);
  std::fill_n(out, value_dim, 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    const float* partial = partials + i * partial_stride;
    if (partial[1] == 0) continue;
    const float weight = std::exp(partial[0] - m);
    l += weight * partial[1];
    for (int32_t j = 0; j < value_dim; ++j) out[j] += weight * partial[16 + j];
  }
  if (sink) l += std::exp(*sink - m);
  const float inverse = inverse_or_zero(l);
  for (int32_t j = 0; j < value_dim; ++j) out[j] *= inverse;
}

void plain_attend_prefill(const PrefillTask& t) {
  const int32_t dim = t.kv.head_dim, value_dim = t.kv.value_dim, n_queries = t.n_rows * t.n_heads;
  float* keys = reinterpret_cast<float*>(t.scratch);
  float* values = keys + kPageTokens * dim;
  float* m = values + kPageTokens * dim;
  float* l = m + kQueryTile;
  float* o = l + kQueryTile;
  std::fill_n(m, n_queries, -INFINITY);
  std::fill_n(l, n_queries, 0.0f);
  std::fill_n(o, static_cast<int64_t>(n_queries) * value_dim, 0.0f);

  const auto first_visible = [&](int64_t position) { return t.window > 0 ? std::max<int64_t>(0, position - t.window + 1) : 0; };
  const int64_t end = t.end_of(t.n_rows - 1);
  for (int64_t first = first_visible(t.first_position); first < end;) {
    const int64_t start = first / kPageTokens * kPageTokens;
    const int64_t last = std::min<int64_t>(start + kPageTokens, end);
    load_tile(t.kv, first, last, keys, values);
    for (int32_t i = 0; i < n_queries; ++i) {
      const int64_t position = t.first_position + i / t.n_heads;
      const int64_t from = std::max(first, first_visible(position)), to = std::min(last, t.end_of(i / t.n_heads));
      if (from >= to) continue;
      const float* q = t.q + i / t.n_heads * t.q_stride + static_cast<int64_t>(i % t.n_heads) * dim;
      add_keys(q, t.scale, keys, values, from - start, to - start, dim, value_dim, &m[i], &l[i], o + static_cast<int64_t>(i) * value_dim);
    }
    first = last;
  }
  for (int32_t i = 0; i < n_queries; ++i) {
    float* out = t.out + i / t.n_heads * t.out_stride + static_cast<int64_t>(i % t.n_heads) * value_dim;
    float kept = 1, sum = l[i];  // in units of the larger of m and the sink
    if (t.sinks) {
      const float sink = t.sinks[i % t.n_heads], most = std::fmax(m[i], sink);
      kept = std::exp(m[i] - most);
      sum = sum * kept + std::exp(sink - most);
    }
    const float inverse = kept * inverse_or_zero(sum);
    for (int32_t j = 0; j < value_dim; ++j) out[j] = o[static_cast<int64_t>(i) * value_dim + j] * inverse;
  }
}

}  // namespace orrery::cpu
