// Attention, written once over V. Include after a file of vectors/.
//
// Online softmax over tiles of one page of keys, in ascending order, always from the page's first slot. So the start of a chunk or
// of a split changes no bit. A key that a query may not see is left out of every sum, whatever its bytes are.
//
// Decode reads K and V once and converts them in registers; memory is the limit. Eight dot products at a time (8 keys x 1 query ...
// 1 key x 8 queries) are summed across lanes together, and up to 8 query heads share each load. Scores lie [key][query], so the
// softmax needs no transposition. Prefill converts a tile once, transposes K, and computes scores and outputs as small float matrix
// products (products/gemm.h). README.md says how decode prefetches, with measurements.
#pragma once

#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/products/gemm.h"
#include "runtime/cpu/attention/kv.h"
#include "runtime/cpu/products/rows.h"
#include "runtime/cpu/attention/softmax.h"

namespace orrery::cpu {
namespace {

constexpr int kQueryLanes = 8;  // queries in one pass over the keys

inline int32_t padded_dim(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

template <KvType kType>
void load_kv_chunks(const std::byte* x, int32_t n, float* out) {
  const int whole = n / V::kLanes, left = n % V::kLanes;
  for (int i = 0; i < whole; ++i) V::store(out + i * V::kLanes, load_chunk<kType>(x, i));
  if (left) V::store_part(out + whole * V::kLanes, load_last<kType>(x, whole, left), left);
}

// The same bits as the portable reading: a half is exact in a float, and a block's value is one product.
inline void load_kv_vector(KvType type, const std::byte* x, int32_t n, float* out) {
  with_kv_type<false>(type, [&](auto of) { load_kv_chunks<decltype(of)::value>(x, n, out); });
}

// ---- Decode ----

// Block formats keep 32 values and their scale together. Decode takes the integers in the cheapest order and units, which for Q4_0
// are V's own (q4_dim, q4_unit). q has the order of K, o of V.
constexpr bool by_integers(KvType type) { return V::kAttendsInIntegers && in_blocks(type); }  // attention/attend_blocks.h
constexpr int kBlockChunks = 32 / V::kLanes;
constexpr uint64_t block_bytes(KvType type) { return static_cast<uint64_t>(kv_type_row(type).block_bytes); }

template <KvType kType>
const uint8_t* block_of(const std::byte* vector, int block) {
  return reinterpret_cast<const uint8_t*>(vector) + static_cast<uint64_t>(block) * block_bytes(kType);
}
// Chunk `i` of a block without its scale.
template <KvType kType>
V::F block_chunk(const uint8_t* block, int i) {
  return kType == KvType::q8_0 ? V::integers_q8(block, i) : V::integers_q4(block, i);
}
// dim_at(): the dimension at place `i` of q and o. unit_at(): the unit of its integers.
template <KvType kType>
int32_t dim_at(int32_t i) {
  return kType == KvType::q4_0 ? i / 32 * 32 + V::q4_dim(i % 32) : i;
}
template <KvType kType>
float unit_at(int32_t i) {
  return kType == KvType::q4_0 ? V::q4_unit(i % 32 / V::kLanes) : 1.0f;
}

// A head's shape. kDim: kernels for this head_dim alone, with fully unrolled loops (with F16 and 64 dimensions, a sixth faster from
// memory, on an AMD EPYC with AVX2). 0: any head_dim, and V may be a part of K.
template <KvType kType, int kDim>
struct DecodeHead {
  static constexpr KvType kKeys = key_type(kType), kValues = value_type(kType);
  static constexpr uint64_t kKeyBytes = orrery::key_bytes(kType, kDim), kValueBytes = orrery::value_bytes(kType, kDim);
  static constexpr uint64_t kHalfBytes = (kKeyBytes + kValueBytes) / 2;
  const KvHead& kv;
  int32_t dim() const { return kDim > 0 ? kDim : kv.head_dim; }
  int32_t value_dim() const { return kDim > 0 ? kDim : kv.value_dim; }
  uint64_t value_at() const { return kDim > 0 ? kKeyBytes : cpu::value_at(kv); }
  uint64_t token_bytes() const { return kDim > 0 ? kKeyBytes + kValueBytes : cpu::token_bytes(kv); }
  // The scale of V's block b, from where K's block b lies.
  const uint8_t* value_scale(const uint8_t* key_block, int b) const {
    return key_block + value_at() - static_cast<uint64_t>(b) * (block_bytes(kKeys) - block_bytes(kValues));
  }
  uint64_t half_bytes() const { return token_bytes() / 2; }  // of a token: scores prefetch half of the next tile, values the other
};

struct DecodeScratch {
  float* q;        // (padded_dim / kLanes, queries, kLanes), scaled
  float* o;        // (8, padded_dim)
  float* scores;   // (kTile, queries)
  float* weights;  // (blocks, kTile, queries): for block formats, the softmax's weights times the scales of V

  // Each head has its own q and o.
  DecodeScratch(std::byte* scratch, int32_t dim, int32_t head) {
    float* at = reinterpret_cast<float*>(scratch);
    q = at + head * 2 * kQueryLanes * dim;
    o = q + kQueryLanes * dim;
    scores = at + kDecodeHeads * 2 * kQueryLanes * dim;
    weights = scores + (kTile + 1) * kQueryLanes;
  }
};

// Prefetches part `part` of n_parts of the kLines lines at `soon`, ordered after the instruction that made x.
template <int kLines>
[[gnu::always_inline]] inline void ask_part(V::F& x, const std::byte* soon, int part, int n_parts) {
  if constexpr (kLines > 0)
    ORRERY_UNROLL for (int l = part * kLines / n_parts; l < (part + 1) * kLines / n_parts; ++l) V::ask_behind(x, soon + 64 * l);
}

// scores[t][query] for N of G queries and the keys [first, last) of a tile. kPart: the last dimensions are less than a vector.
template <KvType kType, int kDim, int G, int N, bool kPart>
void decode_scores(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* next, int first, int last,
                   const DecodeScratch& s) {
  constexpr int kSets = N == 3 ? 2 : 1;  // three queries: twelve sums keep the multipliers busy, and six do not
  constexpr int kKeys = kSets * 8 / G;
  constexpr KvType kKeyType = key_type(kType);
  constexpr int kUnit = in_blocks(kType) ? kBlockChunks : 1;  // chunks at a time
  const int whole = head.dim() / V::kLanes, left = head.dim() % V::kLanes;
  for (int t = first; t < last; t += kKeys) {
    const std::byte* keys[kKeys];
    for (int k = 0; k < kKeys; ++k) {
      const int at = t + k < last ? t + k : last - 1;  // beyond the end: recomputed, and not stored
      keys[k] = tile + static_cast<uint64_t>(at) * head.token_bytes();
    }
    const std::byte* soon = next + static_cast<uint64_t>(t) * head.half_bytes();  // the first half of the next tile
    if (kDim == 0)
      for (uint64_t b = 0; b < kKeys * head.half_bytes(); b += 64) V::ask(soon + b);
    V::F sums[8 * kSets];
    ORRERY_UNROLL for (int i = 0; i < 8 * kSets; ++i) sums[i] = V::zero();
    const auto add = [&](const V::F* x, int i) {
      ORRERY_UNROLL for (int g = 0; g < N; ++g) {
        V::F q = V::load(s.q + (i * G + g) * V::kLanes);
        // Loaded once for all keys. Compilers would load it again for every product, and loads are the limit.
        if (kKeys > 1) V::hold(q);
        ask_part<kDim == 0 ? 0 : static_cast<int>((kKeys * DecodeHead<kType, kDim>::kHalfBytes + 63) / 64)>(q, soon, i * N + g,
                                                                                                            kDim / V::kLanes * N);
        ORRERY_UNROLL for (int k = 0; k < kKeys; ++k) sums[k * G + g] = V::fma(x[k], q, sums[k * G + g]);
      }
    };
    V::F x[kKeys], d[kKeys];
    const auto add_unit = [&](int i) {
      if (in_blocks(kType)) ORRERY_UNROLL for (int k = 0; k < kKeys; ++k) d[k] = V::set_half(block_of<kKeyType>(keys[k], i / kUnit));
      ORRERY_UNROLL for (int u = 0; u < kUnit; ++u) {
        ORRERY_UNROLL for (int k = 0; k < kKeys; ++k) x[k] =
            in_blocks(kType) ? V::mul(block_chunk<kKeyType>(block_of<kKeyType>(keys[k], i / kUnit), u), d[k])
                             : load_chunk<kKeyType>(keys[k], i);
        add(x, i + u);
      }
    };
    if (kDim > 0) ORRERY_UNROLL for (int i = 0; i < kDim / V::kLanes; i += kUnit) add_unit(i);
    else
      for (int i = 0; i + kUnit <= whole; i += kUnit) add_unit(i);
    if (kPart) {
      ORRERY_UNROLL for (int k = 0; k < kKeys; ++k) x[k] = load_last<kType>(keys[k], whole, left);
      add(x, whole);
    }
    // Beyond the last key this writes up to 15 more scores. The caller overwrites them or does not read them.
    ORRERY_UNROLL for (int set = 0; set < kSets; ++set) V::store_eight(s.scores + t * G + 8 * set, V::sum_eight(sums + 8 * set));
  }
}

// weights[block][t][query] = scores[t][query] * the scale of V[t]'s block, so that the sums take V's integers. First the scale is
// written out for each query, a whole vector at a time. Values past a token's queries are overwritten by the next token.
template <KvType kType, int kDim, int G>
void scale_weights(const DecodeHead<kType, kDim>& head, const std::byte* tile, int first, int last, const DecodeScratch& s) {
  for (int b = 0; b < head.value_dim() / 32; ++b) {
    float* out = s.weights + b * kTile * G;
    const uint8_t* scale = block_of<value_type(kType)>(tile + static_cast<uint64_t>(first) * head.token_bytes() + head.value_at(), b);
    for (int t = first; t < last; ++t, scale += head.token_bytes()) V::store(out + t * G, V::set_half(scale));
    for (int i = first * G; i < last * G; i += V::kLanes) V::store(out + i, V::mul(V::load(out + i), V::load(s.scores + i)));
  }
}

// o[query] = o[query] * decay[query] + sum over keys of p[t][query] * V[t], for C chunks and N of G queries at a time.
template <KvType kType, int kDim, int G, int N, int C>
void decode_values_block(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* next, int first, int last,
                         const float* decay, int chunk, int part, const DecodeScratch& s) {
  constexpr KvType kValueType = value_type(kType);
  constexpr int kShared = in_blocks(kType) && C > kBlockChunks ? kBlockChunks : C;  // chunks that share the same weights
  const int32_t dim = padded_dim(head.dim());
  float* out = s.o + chunk * V::kLanes;
  V::F o[N * C];
  ORRERY_UNROLL for (int i = 0; i < N * C; ++i) o[i] = V::mul(V::load(out + i / C * dim + i % C * V::kLanes), V::set(decay[i / C]));
  const std::byte* value = tile + static_cast<uint64_t>(first) * head.token_bytes() + head.value_at();
  const float* weights = (in_blocks(kType) ? s.weights + chunk / kBlockChunks * kTile * G : s.scores) + first * G;
  // This pass prefetches its share of the next tile's second half. Some lines are prefetched twice.
  constexpr int kLines = (C * V::kLanes * (kType == KvType::f32 ? 4 : kType == KvType::f16 ? 2 : 1) + 63) / 64;
  const uint64_t chunks = static_cast<uint64_t>(head.value_dim() / V::kLanes + (part != 0));
  const uint64_t step = head.half_bytes() * C / chunks;
  const std::byte* soon =
      next + kTile * head.half_bytes() * (chunks + static_cast<uint64_t>(chunk)) / chunks + static_cast<uint64_t>(first) * step;
  for (int t = first; t < last; ++t, value += head.token_bytes(), weights += G, soon += step) {
    ORRERY_UNROLL for (int c0 = 0; c0 < C; c0 += kShared) {
      V::F x[kShared];
      const uint8_t* block = block_of<kValueType>(value, (chunk + c0) / kBlockChunks);
      ORRERY_UNROLL for (int c = 0; c < kShared; ++c) x[c] = in_blocks(kType)
                                                                 ? block_chunk<kValueType>(block, (chunk + c0 + c) % kBlockChunks)
                                                             : part ? load_last<kValueType>(value, chunk + c0 + c, part)
                                                                    : load_chunk<kValueType>(value, chunk + c0 + c);
      ORRERY_UNROLL for (int j = 0; j < N * kShared; ++j) {
        const int g = j / kShared, c = j % kShared;
        V::F p = V::set(weights[c0 / kBlockChunks * kTile * G + g]);
        if (c == 0) ask_part<kLines>(p, soon, c0 / kShared * N + g, C / kShared * N);
        o[g * C + c0 + c] = V::fma(p, x[c], o[g * C + c0 + c]);
      }
    }
  }
  ORRERY_UNROLL for (int i = 0; i < N * C; ++i) V::store(out + i / C * dim + i % C * V::kLanes, o[i]);
}

template <KvType kType, int kDim, int G, int N>
void decode_values(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* next, int first, int last,
                   const float* decay, const DecodeScratch& s) {
  constexpr int kChunks = V::kAccumulators / G;
  const int whole = head.value_dim() / V::kLanes, left = head.value_dim() % V::kLanes;
  if (in_blocks(kType)) scale_weights<kType, kDim, G>(head, tile, first, last, s);
  int c = 0;
  for (; c + kChunks <= whole; c += kChunks) decode_values_block<kType, kDim, G, N, kChunks>(head, tile, next, first, last, decay, c, 0, s);
  if (kChunks > 2)
    for (; c + 2 <= whole; c += 2) decode_values_block<kType, kDim, G, N, 2>(head, tile, next, first, last, decay, c, 0, s);
  for (; c < whole; ++c) decode_values_block<kType, kDim, G, N, 1>(head, tile, next, first, last, decay, c, 0, s);
  if (left) decode_values_block<kType, kDim, G, N, 1>(head, tile, next, first, last, decay, whole, left, s);
}

// Turns scores[t][query] into weights in units of 2^m. m is rounded to a whole number. Lane i of m, l and decay belongs to query i
// % G. All lanes of a query have the same m; l is a sum in parts.
template <int G>
void decode_softmax(float* scores, int first, int last, V::F* m, V::F* l, float* decays) {
  constexpr int kVectors = kTile * G / V::kLanes;
  for (int i = 0; i < first * G; ++i) scores[i] = -kInfinity;
  for (int i = last * G; i < kTile * G; ++i) scores[i] = -kInfinity;
  V::F largest = *m;
  for (int i = 0; i < kVectors; ++i) largest = V::max(V::load(scores + i * V::kLanes), largest);
  largest = V::nearest(V::fold_max(largest, G));
  // Scores of -infinity get the weight 0, also when all scores are -infinity.
  const V::F base = V::equal_select(largest, -kInfinity, V::zero(), largest);
  const V::F decay = power_of_two(V::sub(*m, base));
  V::F sum = V::mul(*l, decay);
  for (int i = 0; i < kVectors; ++i) {
    const V::F p = weight_of(V::load(scores + i * V::kLanes), base);
    V::store(scores + i * V::kLanes, p);
    sum = V::add(sum, p);
  }
  *m = largest;
  *l = sum;
  V::store(decays, decay);
}

// Copies a tile's weights[t][query] to a row for each query: n <= G queries from first_query on.
template <int G>
void export_weights(const float* weights, V::F m, int first_query, int n, int64_t tile, const WeightRows& rows) {
  constexpr int kQueries = 4, kParts = V::kLanes / kQueries;  // queries of one transposition; vectors of keys that it gives each of them
  alignas(64) float units[V::kLanes];
  V::store(units, V::equal_select(m, -kInfinity, V::zero(), m));
  const auto row = [&](int g) { return rows.weights + (first_query + g) * rows.stride + tile * kTile; };
  V::F sums[G];
  for (int g = 0; g < G; ++g) sums[g] = V::zero();
  const auto put = [&](int g, int t, V::F x) {
    x = V::max(x, V::zero());  // a NaN gets the weight 0
    V::store_past(row(g) + t, x);
    sums[g] = V::add(sums[g], x);
  };
  if (G < kQueries) {
    for (int g = 0; g < n; ++g)
      for (int t = 0; t < kTile; t += V::kLanes) {
        alignas(64) float x[V::kLanes];
        for (int i = 0; i < V::kLanes; ++i) x[i] = weights[(t + i) * G + g];
        put(g, t, V::load(x));
      }
  } else {
    for (int t = 0; t < kTile; t += kParts * V::kLanes)
      for (int first = 0; first < n; first += kQueries) {
        V::F x[V::kLanes];
        for (int i = 0; i < V::kLanes; ++i) x[i] = V::load_fours(weights + (t + i) * G + first, V::kLanes * G);
        V::transpose(x);
        for (int g = 0; g < kQueries && first + g < n; ++g)
          for (int part = 0; part < kParts; ++part) put(first + g, t + part * V::kLanes, x[part * kQueries + g]);
      }
  }
  for (int g = 0; g < n; ++g) {
    rows.units[(first_query + g) * rows.tile_stride + tile] = units[g];
    rows.sums[(first_query + g) * rows.tile_stride + tile] = V::sum(sums[g]);
  }
}

// Loads query g, scaled, in the layout of decode_scores(), and zeroes its sums. q null: all zeros.
template <KvType kType, int kDim, int G>
void load_query(const float* q, int32_t head_dim, float scale, int g, const DecodeScratch& s) {
  const int32_t dim = padded_dim(head_dim);
  const V::F factor = V::set(scale);
  for (int32_t i = 0; i < dim; i += V::kLanes) {
    alignas(64) float x[V::kLanes] = {};
    for (int32_t j = 0; q != nullptr && j < V::kLanes && i + j < head_dim; ++j)
      x[j] = key_type(kType) == KvType::q4_0 ? q[dim_at<key_type(kType)>(i + j)] * unit_at<key_type(kType)>(i + j) : q[i + j];
    V::store(s.q + (i / V::kLanes * G + g) * V::kLanes, V::mul(V::load(x), factor));
    V::store(s.o + g * dim + i, V::zero());
  }
}

}  // namespace
}  // namespace orrery::cpu

#include "runtime/cpu/attention/attend_blocks.h"

namespace orrery::cpu {
namespace {

// Attends with `n` <= N <= G queries of each head, from first_query on. Arrays have room for G queries, and N are computed. Heads that
// lie side by side alternate, tile by tile, so that memory is read in longer stretches.
template <KvType kType, int kDim, int G, int N = G>
void decode_queries(const DecodeTask& t, int first_query, int n) {
  constexpr bool kIntegers = by_integers(kType);
  const DecodeHead<kType, kDim> head{t.kv};
  const int32_t head_dim = head.dim(), dim = padded_dim(head_dim), value_dim = padded_dim(head.value_dim());
  V::F m[kDecodeHeads], l[kDecodeHeads];
  for (int32_t h = 0; h < t.n_heads; ++h) {
    const DecodeScratch s(t.scratch, dim, h);
    for (int g = 0; g < G; ++g) {
      const float* q = g < n ? t.q + (int64_t{h} * t.n_queries + first_query + g) * head_dim : nullptr;
      if constexpr (kIntegers) load_block_query<V, kType, G>(q, head_dim, t.scale * kLog2E, g, BlockScratch<V>(s, dim, G));
      else load_query<kType, kDim, G>(q, head_dim, t.scale * kLog2E, g, s);
    }
    m[h] = V::set(-kInfinity), l[h] = V::zero();
  }
  const uint64_t head_bytes = kTile * head.token_bytes();
  for (int64_t key = t.first_key; key < t.last_key;) {
    const int64_t start = key / kTile * kTile;
    const int first = static_cast<int>(key - start);
    const int last = static_cast<int>(t.last_key - start < kTile ? t.last_key - start : kTile);
    const std::byte* tile = kv_tile(t.kv, start / kTile);
    const std::byte* then = start + kTile < t.last_key ? kv_tile(t.kv, start / kTile + 1) : t.next ? t.next : tile;
    for (int32_t h = 0; h < t.n_heads; ++h, tile += head_bytes) {
      const DecodeScratch s(t.scratch, dim, h);
      const std::byte* next = h + 1 < t.n_heads ? tile + head_bytes : then;
      if constexpr (kIntegers) block_scores<V, kType, kDim, G, N>(head, tile, next, first, last, BlockScratch<V>(s, dim, G));
      else if (!in_blocks(kType) && head_dim % V::kLanes != 0)
        decode_scores<kType, kDim, G, N, !in_blocks(kType) && kDim == 0>(head, tile, next, first, last, s);
      else decode_scores<kType, kDim, G, N, false>(head, tile, next, first, last, s);
      alignas(64) float decays[V::kLanes];
      decode_softmax<G>(s.scores, first, last, &m[h], &l[h], decays);
      if (t.exported.weights != nullptr) export_weights<G>(s.scores, m[h], first_query, n, start / kTile, t.exported);
      if constexpr (kIntegers) block_values<V, kType, kDim, G, N>(head, tile, next, first, last, decays, BlockScratch<V>(s, dim, G));
      else decode_values<kType, kDim, G, N>(head, tile, next, first, last, decays, s);
    }
    key = start + last;
  }
  for (int32_t h = 0; h < t.n_heads; ++h) {
    const DecodeScratch s(t.scratch, dim, h);
    alignas(64) float ms[V::kLanes], ls[V::kLanes];
    V::store(ms, m[h]);
    V::store(ls, V::fold_sum(l[h], G));
    for (int g = 0; g < n; ++g) {
      float* partial = t.partials + (int64_t{h} * t.n_queries + first_query + g) * t.partial_stride;
      partial[0] = ms[g];
      partial[1] = ls[g];
      if constexpr (kIntegers)
        for (int32_t i = 0; i < value_dim; i += 4)
          __builtin_memcpy(partial + 16 + block_dim_at<V>(i), s.o + g * dim + i, 4 * sizeof(float));
      else
        for (int32_t i = 0; i < value_dim; ++i)
          partial[16 + dim_at<value_type(kType)>(i)] = s.o[g * dim + i] * unit_at<value_type(kType)>(i);
    }
  }
  if (t.exported.weights != nullptr) V::finish_stores();
}

template <KvType kType, int kDim>
void decode_group(const DecodeTask& t) {
  for (int first = 0; first < t.n_queries; first += kQueryLanes) {
    const int n = t.n_queries - first < kQueryLanes ? t.n_queries - first : kQueryLanes;
    switch (n) {
      case 1: decode_queries<kType, kDim, by_integers(kType) ? 2 : 1>(t, first, n); break;
      case 2: decode_queries<kType, kDim, 2>(t, first, n); break;
      case 3: decode_queries<kType, kDim, 4, 3>(t, first, n); break;
      case 4: decode_queries<kType, kDim, 4>(t, first, n); break;
      case 7: decode_queries<kType, kDim, 8, 7>(t, first, n); break;
      default: decode_queries<kType, kDim, 8>(t, first, n); break;
    }
  }
}

template <KvType kType>
void decode_type(const DecodeTask& t) {
  switch (t.kv.value_bytes > 0 ? t.kv.head_dim : 0) {
    case 64: return decode_group<kType, 64>(t);
    case 128: return decode_group<kType, 128>(t);
    default: return decode_group<kType, 0>(t);
  }
}

inline void attend_decode(const DecodeTask& t) {
  with_kv_type(t.kv.type, [&](auto of) { decode_type<decltype(of)::value>(t); });
}

inline float power_of_two(float x) {
  alignas(64) float lanes[V::kLanes];
  V::store(lanes, power_of_two(V::set(x)));
  return lanes[0];
}

inline void merge_partials(const float* partials, int64_t n, int64_t partial_stride, int32_t value_dim, const float* sink, float* out) {
  float m = sink ? *sink * kLog2E : -kInfinity, l = 0;
  for (int64_t i = 0; i < n; ++i)
    if (partials[i * partial_stride] > m) m = partials[i * partial_stride];
  const int32_t whole = value_dim / V::kLanes * V::kLanes;
  for (int32_t j = 0; j < value_dim; ++j) out[j] = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* partial = partials + i * partial_stride;
    if (partial[1] == 0) continue;
    const float weight = m == -kInfinity ? 1.0f : power_of_two(partial[0] - m);
    l += weight * partial[1];
    for (int32_t j = 0; j < whole; j += V::kLanes) V::store(out + j, V::fma(V::set(weight), V::load(partial + 16 + j), V::load(out + j)));
    for (int32_t j = whole; j < value_dim; ++j) out[j] += weight * partial[16 + j];
  }
  if (sink) l += power_of_two(*sink * kLog2E - m);
  const float inverse = l == 0 ? 0.0f : 1.0f / l;
  for (int32_t j = 0; j < value_dim; ++j) out[j] *= inverse;
}

// ---- Prefill ----

struct PrefillScratch {
  float* keys;           // (padded_dim, kTile): transposed
  float* values;         // (kTile, padded_dim of V)
  float* q;              // (kQueryTile, padded_dim), scaled
  float* o;              // (kQueryTile, padded_dim of V)
  float* scores;         // (kQueryTile, kTile)
  float *m, *l, *decay;  // (kQueryTile)
};

PrefillScratch prefill_scratch(std::byte* scratch, int32_t dim) {
  float* at = reinterpret_cast<float*>(scratch);
  const auto take = [&](int64_t n) {
    float* p = at;
    at += n;
    return p;
  };
  PrefillScratch s;
  s.keys = take(static_cast<int64_t>(dim) * kTile);
  s.values = take(static_cast<int64_t>(dim) * kTile);
  s.q = take(static_cast<int64_t>(dim) * kQueryTile);
  s.o = take(static_cast<int64_t>(dim) * kQueryTile);
  s.scores = take(int64_t{kTile} * kQueryTile);
  s.m = take(kQueryTile);
  s.l = take(kQueryTile);
  s.decay = take(kQueryTile);
  return s;
}

// Decode's arrays fit into prefill's: q and o (8, dim) for each head, 8 scores for each key plus the ones that decode_scores()
// writes past the end, and the weights of block formats.
inline int64_t attend_scratch_bytes(int32_t head_dim) {
  const int64_t dim = padded_dim(head_dim);
  const int64_t prefill = dim * (2 * kTile + 2 * kQueryTile) + int64_t{kTile} * kQueryTile + 3 * kQueryTile;
  return prefill * static_cast<int64_t>(sizeof(float));
}

// Converts slots [first, last) of a tile to floats. Other slots and the padding become zeros.
template <KvType kType>
void convert_tile(const KvHead& kv, const std::byte* tile, int first, int last, const PrefillScratch& s) {
  const int32_t dim = padded_dim(kv.head_dim), value_dim = padded_dim(kv.value_dim);
  const uint64_t n_bytes = token_bytes(kv);
  const auto chunk = [&](auto type, const std::byte* vector, int i, int32_t n) {
    constexpr KvType kOne = decltype(type)::value;
    const int whole = n / V::kLanes, left = n % V::kLanes;
    if (i < whole) return load_chunk<kOne>(vector, i);
    return i == whole && left ? load_last<kOne>(vector, i, left) : V::zero();
  };
  constexpr OfType<key_type(kType)> kKey;
  constexpr OfType<value_type(kType)> kValue;
  for (int t = 0; t < kTile; t += V::kLanes)
    for (int i = 0; i < dim / V::kLanes; ++i) {
      V::F rows[V::kLanes];
      for (int j = 0; j < V::kLanes; ++j) {
        const bool in = t + j >= first && t + j < last;
        const std::byte* key = tile + static_cast<uint64_t>(t + j) * n_bytes;
        rows[j] = in ? chunk(kKey, key, i, kv.head_dim) : V::zero();
        if (i * V::kLanes < value_dim)
          V::store(s.values + static_cast<int64_t>(t + j) * value_dim + i * V::kLanes,
                   in ? chunk(kValue, key + value_at(kv), i, kv.value_dim) : V::zero());
      }
      V::transpose(rows);
      for (int j = 0; j < V::kLanes; ++j) V::store(s.keys + (static_cast<int64_t>(i) * V::kLanes + j) * kTile + t, rows[j]);
    }
}

// Turns one query's scores into weights. Keys [from, to) of the tile are visible, from < to.
void soften(float* scores, int from, int to, float* m, float* l, float* decay) {
  constexpr int kVectors = kTile / V::kLanes;
  V::F x[kVectors], largest = V::set(*m);
  for (int i = 0; i < kVectors; ++i) {
    const int low = i * V::kLanes;
    const auto within = [&](int t) { return t < low ? 0 : t > low + V::kLanes ? V::kLanes : t - low; };
    x[i] = V::load(scores + low);
    if (from > low || to < low + V::kLanes) x[i] = V::keep(x[i], within(from), within(to));
    largest = V::max(x[i], largest);
  }
  const float new_m = V::largest(largest);
  const float base = new_m == -kInfinity ? 0.0f : new_m;
  V::F sum = V::zero();
  for (int i = 0; i < kVectors; ++i) {
    const V::F p = power_of_two(V::sub(x[i], V::set(base)));
    V::store(scores + i * V::kLanes, p);
    sum = V::add(sum, p);
  }
  *decay = power_of_two(*m - base);
  *l = *l * *decay + V::sum(sum);
  *m = new_m;
}

template <KvType kType>
void prefill_group(const PrefillTask& t) {
  const int32_t head_dim = t.kv.head_dim, dim = padded_dim(head_dim), value_dim = padded_dim(t.kv.value_dim);
  const int n_queries = t.n_rows * t.n_heads;
  const PrefillScratch s = prefill_scratch(t.scratch, dim);
  for (int i = 0; i < n_queries; ++i) {
    const float* q = t.q + i / t.n_heads * t.q_stride + static_cast<int64_t>(i % t.n_heads) * head_dim;
    for (int32_t j = 0; j < dim; ++j) s.q[static_cast<int64_t>(i) * dim + j] = j < head_dim ? q[j] * (t.scale * kLog2E) : 0.0f;
    for (int32_t j = 0; j < value_dim; ++j) s.o[static_cast<int64_t>(i) * value_dim + j] = 0;
    s.m[i] = -kInfinity;
    s.l[i] = 0;
  }
  const auto first_visible = [&](int64_t position) { return t.window > 0 && position >= t.window ? position - t.window + 1 : int64_t{0}; };
  const int64_t end = t.end_of(t.n_rows - 1);
  for (int64_t start = first_visible(t.first_position) / kTile * kTile; start < end; start += kTile) {
    // The keys of this tile that row r sees: [from(r), to(r)).
    const auto from = [&](int r) {
      const int64_t v = first_visible(t.first_position + r) - start;
      return static_cast<int>(v < 0 ? 0 : v);
    };
    const auto to = [&](int r) {
      const int64_t v = t.end_of(r) - start;
      return static_cast<int>(v > kTile ? kTile : v);
    };
    convert_tile<kType>(t.kv, kv_tile(t.kv, start / kTile), from(0), to(t.n_rows - 1), s);
    const Gemm<Start::zero> score{s.q, dim, s.keys, kTile, s.scores, kTile, 0, dim, nullptr};
    score.run(n_queries, kTile / V::kLanes);
    for (int i = 0; i < n_queries; ++i) {
      const int r = i / t.n_heads;
      if (from(r) < to(r)) soften(s.scores + i * kTile, from(r), to(r), &s.m[i], &s.l[i], &s.decay[i]);
    }
    const auto add_values = [&](int first_query, int n, int first, int last) {
      const int64_t at = first_query;
      const Gemm<Start::scale> output{s.scores + at * kTile, kTile, s.values, value_dim, s.o + at * value_dim, value_dim, first, last,
                                      s.decay + at};
      output.run(n, value_dim / V::kLanes);
    };
    if (from(t.n_rows - 1) == 0 && to(0) == kTile) {
      add_values(0, n_queries, 0, kTile);
    } else {  // each row has its own bounds
      for (int r = 0; r < t.n_rows; ++r)
        if (from(r) < to(r)) add_values(r * t.n_heads, t.n_heads, from(r), to(r));
    }
  }
  for (int i = 0; i < n_queries; ++i) {
    float* out = t.out + i / t.n_heads * t.out_stride + static_cast<int64_t>(i % t.n_heads) * t.kv.value_dim;
    float kept = 1, sum = s.l[i];  // in units of the larger of m and the sink
    if (t.sinks) {
      const float sink = t.sinks[i % t.n_heads] * kLog2E, most = sink > s.m[i] ? sink : s.m[i];
      kept = power_of_two(s.m[i] - most);
      sum = sum * kept + power_of_two(sink - most);
    }
    const float inverse = sum == 0 ? 0.0f : kept / sum;
    for (int32_t j = 0; j < t.kv.value_dim; ++j) out[j] = s.o[static_cast<int64_t>(i) * value_dim + j] * inverse;
  }
}

inline int32_t prefill_queries(KvType, int32_t) { return kQueryTile; }

inline void attend_prefill(const PrefillTask& t) {
  with_kv_type(t.kv.type, [&](auto of) { prefill_group<decltype(of)::value>(t); });
}

}  // namespace
}  // namespace orrery::cpu
