// Decode attention over Q8_0, Q4_0 and K8V4, in integers. Written over V; needs V::kAttendsInIntegers. attention/attend.h includes this
// file, and its softmax runs between scores and values.
//
// As floats, each code takes a conversion and a product for each query: twice the arithmetic for which memory leaves time. Here a
// block's 32 codes are multiplied with 32 bytes of a query in one or two products. Queries, and weights times V's scales, are
// 16-bit words in units of 1 / 32512 of a block's (a tile's) largest. README.md bounds the error and the sums.
//
// Scales lie between codes, 34 or 18 bytes apart. V's scales are copied while scores are computed, and are converted to floats
// whole vectors at a time. Measurements: tests/bench/results.
#pragma once

#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/products/rows.h"
#include "runtime/cpu/attention/words.h"

namespace orrery::cpu {
namespace {

constexpr int kHalfTile = kTile / 2;

template <class V, KvType kType, int G>
struct BlockShape {
  static constexpr int kSide = G < V::kLaneQueries ? G : V::kLaneQueries;  // queries side by side
  static constexpr int kSets = G / kSide;
  static constexpr int kVectors = 2 * kSide / V::kLaneQueries;  // vectors for a block's codes
  static constexpr bool kByteKeys = key_type(kType) == KvType::q8_0, kByteValues = value_type(kType) == KvType::q8_0;
  static constexpr int kOffset = kByteKeys ? 128 : 8;  // offset of K's codes in products with queries
  static constexpr int kUnitDims = 2 * V::kLanes;      // dimensions of V at once
  static typename V::I key(const uint8_t* codes, int i) {
    return kByteKeys ? V::template key_bytes<kSide>(codes, i) : V::template key_nibbles<kSide>(codes, i);
  }
  static typename V::I key_words(const uint8_t* codes, int part) {
    return kByteKeys ? V::words_of_bytes(codes, part) : V::words_of_nibbles(codes, part);
  }
  static typename V::I value(const uint8_t* codes, int part) {
    return kByteValues ? V::words_of_bytes(codes, part) : V::words_of_nibbles(codes, part);
  }
};

// The arrays of a task: first those of each head, then those of a tile.
template <class V>
struct BlockScratch {
  int8_t* q;         // (sets, blocks, 2: high and low bytes, 32, side): half a block, for all queries side by side
  float* q_scales;   // (sets, blocks, kLanes): each lane belongs to a query
  int32_t* offsets;  // (sets, blocks, kLanes): what the codes' offset adds to a block's sums
  float* o;          // (queries, dim): in the order of V's words
  float* scores;     // (kTile, queries)
  float* weights;    // (kTile, queries)
  int32_t* words;    // (blocks, kHalfTile, queries): two tokens, half a tile apart
  float* factors;    // (blocks, kLanes): each lane belongs to a query
  uint16_t* scales;  // (blocks, kTile): V's scales, as stored

  BlockScratch(const DecodeScratch& s, int32_t dim, int n_queries)
      : q(reinterpret_cast<int8_t*>(s.q)), q_scales(s.q + n_queries * dim / 2), offsets(reinterpret_cast<int32_t*>(q_scales + dim)), o(s.o),
        scores(s.scores), weights(s.weights), words(reinterpret_cast<int32_t*>(weights + kTile * kQueryLanes)),
        factors(reinterpret_cast<float*>(words + dim / 32 * kHalfTile * kQueryLanes)),
        scales(reinterpret_cast<uint16_t*>(factors + dim / 32 * V::kLanes)) {}
};

// The dimension at place i of o. Valid for four places in a row.
template <class V>
int32_t block_dim_at(int32_t i) {
  const int32_t lane = i % V::kLanes;
  return i / (2 * V::kLanes) * 2 * V::kLanes + lane / 4 * 8 + i / V::kLanes % 2 * 4 + lane % 4;
}

// Loads query g, times `scale`, as pairs of bytes. q null: zeros. A value that is not finite makes its block's unit not finite, and so
// every score.
template <class V, KvType kType, int G>
void load_byte_query(const float* q, int32_t dim, float scale, int g, const BlockScratch<V>& s) {
  using Shape = BlockShape<V, kType, G>;
  const int32_t n_blocks = dim / 32, set = g / Shape::kSide, side = g % Shape::kSide;
  for (int32_t b = 0; b < n_blocks; ++b) {
    const QueryWords x = query_words<V>(q ? q + 32 * b : nullptr, scale);
    int32_t offsets[2];  // corrections of the codes' offset, for each half
    for (int half = 0; half < 2; ++half) {
      uint32_t sum = 0;
      for (int i = 0; i < 16; ++i) sum += static_cast<uint32_t>(x.words[16 * half + i]);
      offsets[half] = static_cast<int32_t>(0u - static_cast<uint32_t>(Shape::kOffset) * sum);
      int8_t* out = s.q + ((set * n_blocks + b) * 4 + half) * 16 * Shape::kSide + 16 * side;
      __builtin_memcpy(out, x.high + 16 * half, 16);
      __builtin_memcpy(out + 32 * Shape::kSide, x.low + 16 * half, 16);
    }
    for (int lane = 0; lane < V::kLanes; lane += 4) {
      if (lane / 4 % Shape::kSide != side) continue;
      const int32_t offset = Shape::kSide == V::kLaneQueries ? offsets[0] + offsets[1] : offsets[lane / 4 / Shape::kSide];
      for (int i = lane; i < lane + 4; ++i) {
        s.q_scales[(set * n_blocks + b) * V::kLanes + i] = x.unit;
        s.offsets[(set * n_blocks + b) * V::kLanes + i] = offset;
      }
    }
  }
}

// Prefetches part `part` of n_parts of the kLines lines at `soon`, ordered after the instruction that made x.
template <class V, int kLines>
[[gnu::always_inline]] inline void ask_part(typename V::I& x, const std::byte* soon, int part, int n_parts) {
  if constexpr (kLines > 0)
    ORRERY_UNROLL for (int l = part * kLines / n_parts; l < (part + 1) * kLines / n_parts; ++l) V::ask_behind(x, soon + 64 * l);
}

// block_scores(), with keys as bytes, four at a time.
template <class V, KvType kType, int kDim, int G>
void byte_scores(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* next, int first, int last,
                 const BlockScratch<V>& s) {
  using Shape = BlockShape<V, kType, G>;
  constexpr int kQBytes = 2 * 32 * Shape::kSide;
  constexpr int kLines = kDim == 0 ? 0 : static_cast<int>((4 * DecodeHead<kType, kDim>::kHalfBytes + 63) / 64);
  const int32_t n_blocks = head.dim() / 32;
  for (int t = first / 4 * 4; t < last; t += 4) {
    const std::byte* soon = next + static_cast<uint64_t>(t) * head.half_bytes();  // the first half of the next tile
    if (kDim == 0)
      for (uint64_t b = 0; b < 4 * head.half_bytes(); b += 64) V::ask(soon + b);
    typename V::F sums[Shape::kSets];
    ORRERY_UNROLL for (int i = 0; i < Shape::kSets; ++i) sums[i] = V::zero();
    const auto add = [&](int b, const auto& token) {
      const uint8_t* at[4];
      ORRERY_UNROLL for (int j = 0; j < 4; ++j) at[j] = block_of<key_type(kType)>(token(j), b);
      const typename V::F scales = V::four_halves(at[0], at[1], at[2], at[3]);
      ORRERY_UNROLL for (int set = 0; set < Shape::kSets; ++set) {
        const int8_t* q = s.q + (set * n_blocks + b) * kQBytes;
        typename V::I dots[4];
        ORRERY_UNROLL for (int j = 0; j < 4; ++j) {
          typename V::I k[Shape::kVectors], sum = V::zero_i();
          ORRERY_UNROLL for (int v = 0; v < Shape::kVectors; ++v) k[v] = Shape::key(at[j] + 2, v);
          ORRERY_UNROLL for (int v = 0; v < Shape::kVectors; ++v) sum = V::dot_bytes(sum, k[v], V::load_i(q + 4 * V::kLanes * v));
          sum = V::times_256(sum);
          ORRERY_UNROLL for (int v = 0; v < Shape::kVectors; ++v) sum =
              V::dot_bytes(sum, k[v], V::load_i(q + kQBytes / 2 + 4 * V::kLanes * v));
          if (set == 0) ask_part<V, kLines>(sum, soon, 4 * b + j, kDim / 8);  // also makes compilers release k
          dots[j] = sum;
        }
        const typename V::I whole =
            V::widened(V::sum_fours(dots[0], dots[1], dots[2], dots[3]), V::load_i(s.offsets + (set * n_blocks + b) * V::kLanes));
        const typename V::F unit = V::mul(scales, V::load(s.q_scales + (set * n_blocks + b) * V::kLanes));
        sums[set] = V::fma(V::to_float(whole), unit, sums[set]);
      }
      ORRERY_UNROLL for (int j = 0; j < 4; ++j) __builtin_memcpy(s.scales + b * kTile + t + j, head.value_scale(at[j], b), 2);
    };
    const auto add_all = [&](const auto& token) {
      if (kDim > 0) ORRERY_UNROLL for (int b = 0; b < kDim / 32; ++b) add(b, token);
      else
        for (int b = 0; b < n_blocks; ++b) add(b, token);
    };
    const std::byte* keys = tile + static_cast<uint64_t>(t) * head.token_bytes();
    if (t + 4 <= last) add_all([&](int j) { return keys + static_cast<uint64_t>(j) * head.token_bytes(); });
    else  // memory may end at the last key
      add_all([&](int j) { return keys + static_cast<uint64_t>(t + j < last ? j : last - 1 - t) * head.token_bytes(); });
    V::template store_keys<G>(s.scores + t * G, sums);
  }
}

}  // namespace
}  // namespace orrery::cpu

#include "runtime/cpu/attention/key_words.h"

namespace orrery::cpu {
namespace {

template <class V, KvType kType, int G>
void load_block_query(const float* q, int32_t dim, float scale, int g, const BlockScratch<V>& s) {
  if constexpr (V::kKeysAsBytes) load_byte_query<V, kType, G>(q, dim, scale, g, s);
  else load_word_query<V, G>(q, dim, scale, g, s);
  for (int32_t i = 0; i < dim; i += V::kLanes) V::store(s.o + g * dim + i, V::zero());
}

// scores[t][query] of the keys [first, last) of a tile. Other keys of the same groups get arbitrary scores. Also copies V's scales.
template <class V, KvType kType, int kDim, int G, int N>
void block_scores(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* next, int first, int last,
                  const BlockScratch<V>& s) {
  if constexpr (V::kKeysAsBytes) byte_scores<V, kType, kDim, G>(head, tile, next, first, last, s);
  else word_scores<V, kType, kDim, G, N>(head, tile, next, first, last, s);
  if (last - first < kTile)
    for (int b = 0; b < head.dim() / 32; ++b) {  // slots without a token get the weight 0
      __builtin_memset(s.scales + b * kTile, 0, sizeof(uint16_t) * static_cast<size_t>(first));
      __builtin_memset(s.scales + b * kTile + last, 0, sizeof(uint16_t) * static_cast<size_t>(kTile - last));
    }
}

// The softmax's weights times V's scales, as words, and each block's unit.
template <class V, int G>
void block_weights(int32_t n_blocks, const BlockScratch<V>& s) {
  constexpr int kVectors = kTile * G / V::kLanes;
  for (int b = 0; b < n_blocks; ++b) {
    float scales[kTile + 8] = {};  // + 8: whole vectors are read
    for (int t = 0; t < kTile; t += V::kLanes) V::store(scales + t, V::load_half(s.scales + b * kTile + t));
    typename V::F largest = V::zero();
    for (int i = 0; i < kVectors; ++i) {
      const typename V::F w = V::mul(V::load(s.scores + i * V::kLanes), V::template each<G>(scales + i * V::kLanes / G));
      V::store(s.weights + i * V::kLanes, w);
      largest = V::larger(largest, w);
    }
    largest = V::fold_larger(largest, G);
    const typename V::F inverse = V::div(V::set(kWordUnits), largest);
    V::store(s.factors + b * V::kLanes, V::mul(largest, V::set(1 / kWordUnits)));
    int32_t* words = s.words + b * kHalfTile * G;
    for (int i = 0; i < kVectors / 2; ++i) {
      const typename V::F low = V::load(s.weights + i * V::kLanes), high = V::load(s.weights + (i + kVectors / 2) * V::kLanes);
      V::store_i(words + i * V::kLanes, V::word_pairs(V::mul(low, inverse), V::mul(high, inverse)));
    }
  }
}

// o[query] = o[query] * decay[query] + sum over tokens of weight * V, for C units and Q of G queries, from `unit` and `query` on.
// Reads tokens [from, to) of both half tiles. The second half ends at `last`. kPasses: over each unit.
template <class V, KvType kType, int kDim, int G, int Q, int C, int kPasses>
void block_values_part(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* soon, uint64_t step, int from, int to,
                       int last, const float* decay, int unit, int query, const BlockScratch<V>& s) {
  using Shape = BlockShape<V, kType, G>;
  constexpr int kPerBlock = 32 / Shape::kUnitDims;
  constexpr int kLines = static_cast<int>((C * (block_bytes(key_type(kType)) + block_bytes(value_type(kType))) / kPasses / kPerBlock + 63) /
                                          64);  // of one token pair
  typename V::I sums[2 * Q * C];
  ORRERY_UNROLL for (int i = 0; i < 2 * Q * C; ++i) sums[i] = V::zero_i();
  const std::byte* value = tile + static_cast<uint64_t>(from) * head.token_bytes() + head.value_at();
  const int32_t* words = s.words + unit / kPerBlock * kHalfTile * G + from * G + query;
  soon += static_cast<uint64_t>(from) * step;
  for (int t = from; t < to; ++t, value += head.token_bytes(), words += G, soon += step) {
    const std::byte* other = value + (t + kHalfTile < last ? kHalfTile * head.token_bytes() : 0);  // weight 0: may not exist
    ORRERY_UNROLL for (int c = 0; c < C; ++c) {
      const int block = (unit + c) / kPerBlock, part = (unit + c) % kPerBlock;
      const typename V::I a = Shape::value(block_of<value_type(kType)>(value, block) + 2, part),
                          b = Shape::value(block_of<value_type(kType)>(other, block) + 2, part);
      typename V::I low = V::low_in_turns(a, b);
      const typename V::I high = V::high_in_turns(a, b);
      ask_part<V, kLines>(low, soon, c, C);
      ORRERY_UNROLL for (int g = 0; g < Q; ++g) {
        const typename V::I w = V::set_i(words[(block - unit / kPerBlock) * kHalfTile * G + g]);
        sums[(c * Q + g) * 2] = V::dot_words(sums[(c * Q + g) * 2], low, w);
        sums[(c * Q + g) * 2 + 1] = V::dot_words(sums[(c * Q + g) * 2 + 1], high, w);
      }
    }
  }
  const int32_t dim = head.dim();
  ORRERY_UNROLL for (int i = 0; i < 2 * Q * C; ++i) {
    const int c = i / (2 * Q), g = query + i / 2 % Q;
    float* o = s.o + g * dim + (unit + c) * Shape::kUnitDims + i % 2 * V::kLanes;
    const typename V::F factor = V::set(s.factors[(unit + c) / kPerBlock * V::kLanes + g]);
    V::store(o, V::fma(V::to_float(sums[i]), factor, V::mul(V::load(o), V::set(decay[g]))));
  }
}

template <int N>
struct Count {
  static constexpr int value = N;
};
template <class V, KvType kType, int kDim, int G, int N>
void block_values(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* next, int first, int last,
                  const float* decay, const BlockScratch<V>& s) {
  using Shape = BlockShape<V, kType, G>;
  block_weights<V, G>(head.value_dim() / 32, s);
  const int from = last <= kHalfTile ? first : first >= kHalfTile ? first - kHalfTile : 0;
  const int to = last <= kHalfTile ? last : first >= kHalfTile ? last - kHalfTile : kHalfTile;
  constexpr int kQueries = V::kAccumulators / 2 < N ? V::kAccumulators / 2 : N, kUnits = V::kAccumulators / 2 / kQueries;
  constexpr int kPasses = (N + kQueries - 1) / kQueries;
  const int n_units = head.value_dim() / Shape::kUnitDims;
  // Each pass prefetches its share of the next tile's second half.
  const uint64_t step = head.token_bytes() / static_cast<uint64_t>(n_units * kPasses);
  const std::byte* soon = next + kTile * head.half_bytes();
  const auto pass_over = [&](auto queries, int g) {
    int unit = 0;
    const auto pass = [&](auto units) {
      constexpr int kCount = decltype(units)::value;
      block_values_part<V, kType, kDim, G, decltype(queries)::value, kCount, kPasses>(head, tile, soon, step * kCount, from, to, last,
                                                                                      decay, unit, g, s);
      soon += step * kCount * kHalfTile;
      unit += kCount;
    };
    while (unit + kUnits <= n_units) pass(Count<kUnits>{});
    if (kUnits > 1)
      while (unit < n_units) pass(Count<1>{});
  };
  for (int g = 0; g + kQueries <= N; g += kQueries) pass_over(Count<kQueries>{}, g);
  if constexpr (N % kQueries != 0) pass_over(Count<N % kQueries>{}, N / kQueries * kQueries);
}

}  // namespace
}  // namespace orrery::cpu
