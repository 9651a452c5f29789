// Scores of decode attention over Q8_0, Q4_0 and K8V4 with keys as 16-bit words, for instruction sets that multiply bytes in 16 bits
// (V::kKeysAsBytes is false: AVX2). Written over V; attention/attend_blocks.h includes it.
//
// A code becomes a word once for all queries. One instruction multiplies 16 words and adds them in pairs. A block's eight sums, of 8
// keys and 1 query ... 1 key and 8 queries, are added across lanes together, so one conversion and one product with the scales serve
// all eight. The sums are those of the queries' two bytes: the same integers as with keys as bytes.
#pragma once

#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/attention/words.h"

namespace orrery::cpu {
namespace {

// Arrays of BlockScratch: q (blocks, G, 32) words; q_scales (blocks, kLanes), lane i belongs to query i % G.
template <class V, int G>
void load_word_query(const float* q, int32_t dim, float scale, int g, const BlockScratch<V>& s) {
  int16_t* words = reinterpret_cast<int16_t*>(s.q);
  for (int32_t b = 0; b < dim / 32; ++b) {
    const QueryWords x = query_words<V>(q ? q + 32 * b : nullptr, scale);
    for (int i = 0; i < 32; ++i) words[(b * G + g) * 32 + i] = static_cast<int16_t>(x.words[i]);
    for (int lane = g; lane < V::kLanes; lane += G) s.q_scales[b * V::kLanes + lane] = x.unit;
  }
}

template <class V, KvType kType, int kDim, int G, int N>
void word_scores(const DecodeHead<kType, kDim>& head, const std::byte* tile, const std::byte* next, int first, int last,
                 const BlockScratch<V>& s) {
  using Shape = BlockShape<V, kType, G>;
  constexpr int kKeys = 8 / G;
  constexpr int kLines = kDim == 0 ? 0 : static_cast<int>((kKeys * DecodeHead<kType, kDim>::kHalfBytes + 63) / 64);
  for (int t = first / kKeys * kKeys; t < last; t += kKeys) {
    const std::byte* soon = next + static_cast<uint64_t>(t) * head.half_bytes();  // the first half of the next tile
    if (kDim == 0)
      for (uint64_t b = 0; b < kKeys * head.half_bytes(); b += 64) V::ask(soon + b);
    const std::byte* keys[kKeys];
    for (int k = 0; k < kKeys; ++k)  // memory may end at the last key
      keys[k] = tile + static_cast<uint64_t>(t + k < last ? t + k : last - 1) * head.token_bytes();
    typename V::F sums = V::zero();
    const auto add = [&](int b) {
      const uint8_t* at[kKeys];
      typename V::I dots[8];
      ORRERY_UNROLL for (int k = 0; k < kKeys; ++k) {
        at[k] = block_of<key_type(kType)>(keys[k], b);
        typename V::I low = Shape::key_words(at[k] + 2, 0);
        const typename V::I high = Shape::key_words(at[k] + 2, 1);
        ask_part<V, kLines>(low, soon, b * kKeys + k, kDim / 32 * kKeys);
        ORRERY_UNROLL for (int g = N; g < G; ++g) dots[k * G + g] = V::zero_i();
        ORRERY_UNROLL for (int g = 0; g < N; ++g) {
          const int8_t* q = s.q + (b * G + g) * 64;
          dots[k * G + g] = V::dot_words(V::times_words(low, V::load_i(q)), high, V::load_i(q + 32));
        }
        __builtin_memcpy(s.scales + b * kTile + t + k, head.value_scale(at[k], b), 2);
      }
      const typename V::F unit = V::mul(V::template key_scales<G>(at), V::load(s.q_scales + b * V::kLanes));
      sums = V::fma(V::to_float(V::sums_of_eight(dots)), unit, sums);
    };
    if (kDim > 0) ORRERY_UNROLL for (int b = 0; b < kDim / 32; ++b) add(b);
    else
      for (int b = 0; b < head.dim() / 32; ++b) add(b);
    V::store(s.scores + t * G, sums);
  }
}

}  // namespace
}  // namespace orrery::cpu
