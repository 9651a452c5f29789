// 16-bit words, as two signed bytes: the form of queries in decode attention over blocks (attention/attend_blocks.h,
// attention/amx_decode.h).
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

constexpr float kWordUnits = 32512;  // the largest word, 127 * 256: the high byte fits

// 32 numbers in units of their largest / kWordUnits: words, and the bytes with word = 256 high + low.
struct QueryWords {
  alignas(64) int32_t words[32];
  int8_t high[32], low[32];
  float unit;
};

// A block of a query, times `scale`. q null: zeros. If a value is not finite, `unit` is NaN or infinite.
template <class V>
QueryWords query_words(const float* q, float scale) {
  QueryWords w;
  alignas(64) float x[32] = {}, largest[V::kLanes];
  typename V::F m = V::zero();
  for (int i = 0; q != nullptr && i < 32; i += V::kLanes) {
    const typename V::F v = V::mul(V::load(q + i), V::set(scale));
    V::store(x + i, v);
    m = V::larger(m, v);
  }
  V::store(largest, V::fold_larger(m, 1));
  const bool tiny = largest[0] < kSmallestBlockMax;
  const float inverse = tiny ? 0.0f : kWordUnits / largest[0];
  w.unit = tiny ? 0.0f : largest[0] / kWordUnits;
  for (int i = 0; i < 32; i += V::kLanes) V::store_i(w.words + i, V::nearest_i(V::mul(V::load(x + i), V::set(inverse))));
  for (int i = 0; i < 32; ++i) {
    const auto word = static_cast<uint32_t>(w.words[i]);
    w.low[i] = static_cast<int8_t>(word);
    w.high[i] = static_cast<int8_t>((word + 128) >> 8);  // the rest after `low`, which is signed
  }
  return w;
}

}  // namespace
}  // namespace orrery::cpu
