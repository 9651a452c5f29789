// Prefill attention by products of bf16: the part that AMX's tiles (attention/amx_attend.h) and vectors (attention/bf16_vectors.h)
// share. Include after vectors/avx512.h.
//
// Q, K, V and the softmax's weights are bf16; sums of products are floats. A block is sixteen queries, a lane each, from the scores
// to the output. So nothing is summed or transposed across lanes between the two products:
//   scores (64 keys, 16 queries)   = K (keys, dims)   * Q (pairs of dims, 16 queries)
//   o (dims, 16 queries)          += V (dims, keys)   * weights (pairs of keys, 16 queries)
// The softmax works on integers. README.md explains it, and the use of the caches.
//
// Every query is its own chain of sums in ascending pages, from the first page that it sees. So chunks, and the other queries of a
// block or task, change no bit. Keys that a query may not see get an exact weight of 0. Subnormal operands count as zero.
#pragma once

#include "runtime/cpu/products/bf16.h"
#include "runtime/cpu/attention/kv.h"
#include "runtime/cpu/attention/softmax.h"

namespace orrery::cpu {
namespace {

constexpr int kQueries = kPackedRows;  // queries of a block
constexpr int kStepDims = kBlock;      // dimensions of one product of keys and queries
// Steps of a head: up to 256 dimensions; of any larger one 512; and 576 of keys whose first 512 dimensions are the values (latent
// attention).
constexpr int kMostSteps = 8, kLargeSteps = 16, kLatentSteps = 18;
constexpr int64_t kTileBytes = 1024;
constexpr int kKeys = kPageTokens, kPairs = kKeys / 2;
static_assert(kKeys == 4 * kQueries, "four times sixteen scores of a query");

// A block's numbers for each lane, in the layout that tiles and vectors read.
struct alignas(64) BlockLanes {
  float start[kQueries];  // kStart - unit; a score is stored relative to its unit, a whole number
  float sum[kQueries];    // sum of the weights; 0: no weights yet
  int32_t row[kQueries];
};

struct BlockScratch {
  std::byte* keys;     // (dim / 32, 4, 16 keys, 32 dims) bf16
  std::byte* values;   // (dim / 16, 2, 16 dims, 32 keys)
  std::byte* cleared;  // (dim / 16, 2, 16 dims, 32 keys), without the values that a row may not see
  float* scores[2];    // (kKeys, kQueries)
  std::byte* weights;  // (2, or blocks, kPairs, kQueries, 2) bf16
  BlockLanes* lanes;   // (blocks)
  std::byte* q;        // (blocks, dim / 32, 16 pairs of dims, kQueries, 2)
  float* o;            // (blocks, dim, kQueries)
};
// Here `dim` is that of keys and queries for `keys` and `q`, and that of values for the other arrays.

// True if keys, values and the rest of a block's data exceed a first-level cache.
constexpr bool in_two_passes(int64_t dim) { return dim > 64; }
constexpr int64_t n_steps(int64_t head_dim) {
  const int64_t steps = (head_dim + kStepDims - 1) / kStepDims;
  return steps > kLargeSteps ? kLatentSteps : steps > kMostSteps ? kLargeSteps : steps;
}
constexpr int64_t value_steps(int64_t steps) { return steps > kLargeSteps ? kLargeSteps : steps; }  // of a head with that many
constexpr int64_t whole_dim(int64_t head_dim) { return n_steps(head_dim) * kStepDims; }

// Lays out the arrays for `n_blocks` blocks in `scratch`, unless it is null. Returns their bytes.
inline int64_t block_scratch(std::byte* scratch, int64_t steps, int64_t n_blocks, BlockScratch* s) {
  const int64_t dim = steps * kStepDims, value_dim = value_steps(steps) * kStepDims;
  int64_t total = 0;
  const auto take = [&](int64_t bytes) {
    std::byte* at = scratch ? scratch + total : nullptr;
    total += bytes;
    return at;
  };
  s->keys = take(2 * dim * kKeys);
  s->values = take(2 * value_dim * kKeys);
  s->cleared = take(2 * value_dim * kKeys);
  for (float*& scores : s->scores) scores = reinterpret_cast<float*>(take(4 * kKeys * kQueries));
  s->weights = take((in_two_passes(dim) ? n_blocks : 2) * 2 * kKeys * kQueries);
  s->lanes = reinterpret_cast<BlockLanes*>(take(n_blocks * static_cast<int64_t>(sizeof(BlockLanes))));
  s->q = take(n_blocks * 2 * dim * kQueries);
  s->o = reinterpret_cast<float*>(take(n_blocks * 4 * value_dim * kQueries));
  return total;
}

// ---- Conversion to bf16 ----

// Chunk i, 16 dimensions; zeros beyond the last dimension.
template <KvType kType>
V::F chunk_of(const std::byte* vector, int i, int32_t head_dim) {
  const int32_t left = head_dim - i * V::kLanes;
  return left >= V::kLanes ? load_chunk<kType>(vector, i) : left > 0 ? load_last<kType>(vector, i, left) : V::zero();
}

// Converts slots [first, last) of a page; other slots become zeros. Returns whether all values are finite.
template <KvType kType>
bool convert_page_of(const KvHead& kv, const std::byte* page, int first, int last, const BlockScratch& s) {
  alignas(64) static constexpr int16_t kInterleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const int64_t dim = whole_dim(kv.head_dim), value_dim = value_steps(n_steps(kv.head_dim)) * kStepDims;
  const auto in = [&](int t) { return t >= first && t < last; };
  const auto token = [&](int t) { return page + static_cast<uint64_t>(t) * token_bytes(kv); };
  const auto key = [&](int t, int i) { return in(t) ? chunk_of<key_type(kType)>(token(t), i, kv.head_dim) : V::zero(); };
  const auto value = [&](int t, int i) {
    return in(t) ? chunk_of<value_type(kType)>(token(t) + value_at(kv), i, kv.value_dim) : V::zero();
  };
  for (int t = 0; t < kKeys; ++t)
    for (int step = 0; step < dim / kStepDims; ++step)
      V::store_i(s.keys + (step * kKeys + t) * 64, rounded(key(t, 2 * step), key(t, 2 * step + 1)));
  V::F odd = V::zero();  // 0 * x is NaN where x is NaN or infinite
  for (int i = 0; i < value_dim / kQueries; ++i)
    for (int half = 0; half < 2; ++half) {
      V::F rows[kQueries];
      for (int pair = 0; pair < kQueries; ++pair) {
        const int t = half * kStepDims + 2 * pair;
        const V::F a = value(t, i), b = value(t + 1, i);
        odd = V::fma(b, V::zero(), V::fma(a, V::zero(), odd));
        rows[pair] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(V::load_i(kInterleaved), rounded(a, b)));
      }
      V::transpose(rows);
      float* tile = reinterpret_cast<float*>(s.values + (2 * i + half) * kTileBytes);
      for (int j = 0; j < kQueries; ++j) V::store(tile + j * kQueries, rows[j]);
    }
  return _mm512_cmp_ps_mask(odd, odd, _CMP_UNORD_Q) == 0;
}
inline bool convert_page(const KvHead& kv, const std::byte* page, int first, int last, const BlockScratch& s) {
  switch (kv.type) {
    case KvType::f16: return convert_page_of<KvType::f16>(kv, page, first, last, s);
    case KvType::q8_0: return convert_page_of<KvType::q8_0>(kv, page, first, last, s);
    case KvType::k8v4: return convert_page_of<KvType::k8v4>(kv, page, first, last, s);
    default: return convert_page_of<KvType::q4_0>(kv, page, first, last, s);
  }
}

// Packs queries [first, first + n) of a task, n <= kQueries, scaled; zeros up to a whole block.
inline void pack_queries(const PrefillTask& t, int64_t first, int n, std::byte* tiles) {
  const V::F scale = V::set(t.scale * 1.44269504088896f);
  for (int step = 0; step < n_steps(t.kv.head_dim); ++step) {
    V::F rows[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      V::F a = V::zero(), b = V::zero();
      if (i < n) {
        const int64_t row = (first + i) / t.n_heads, head = (first + i) % t.n_heads;
        const std::byte* q = reinterpret_cast<const std::byte*>(t.q + row * t.q_stride + head * t.kv.head_dim);
        a = V::mul(chunk_of<KvType::f32>(q, 2 * step, t.kv.head_dim), scale);
        b = V::mul(chunk_of<KvType::f32>(q, 2 * step + 1, t.kv.head_dim), scale);
      }
      rows[i] = __builtin_bit_cast(V::F, rounded(a, b));
    }
    V::transpose(rows);
    for (int i = 0; i < kQueries; ++i) V::store(reinterpret_cast<float*>(tiles + step * kTileBytes + i * 64), rows[i]);
  }
}

// ---- The softmax ----
//
// kStart - unit is added to every score. With x = score - unit and 0 <= x < 64, the last 16 bits of the float are then x in steps
// of 2^-10. Outside this range the float's other bits are smaller or larger. Shifted by 3, the bits are the bf16 2^(x - 127), but
// with a mantissa of 1 + f instead of 2^f, f the fraction of x. A table of 64 entries has the excess, and the result is exact to
// 2^-8.7 of the weight. The table also subtracts half of a last place, so that truncation rounds. Below x = 1 weights are
// subnormal: zero.
constexpr float kWholeStart = 12288;
constexpr float kStart = kWholeStart + 4.0f / 1024;  // plus half of a bf16's last place, for the truncation
constexpr uint32_t kStartBits = 0x46400000;
constexpr float kLargest = 58;  // the largest score after a new unit is chosen

struct Corrections {
  uint8_t at[64] = {};
  constexpr Corrections() {
    double power = 1.0027112750502025;  // 2^f in the middle of f's first 64th, f = 4 / 1024
    for (int i = 0; i < 64; ++i, power *= 1.0108892860517005) at[i] = static_cast<uint8_t>(16 * i + 4 - 1024 * (power - 1) + 0.5);
  }
};
alignas(64) constexpr Corrections kCorrections;

// Turns the scores of key pairs [first, last) into weights. kRaised: subtracts `units` first. Returns `seen` combined (or) with the
// bits of all these scores.
template <bool kRaised>
inline __m512i soften_pairs(const float* scores, int first, int last, V::F units, std::byte* weights, __m512i seen) {
  alignas(64) static constexpr int8_t kLower[64] = {0, 0, 0,  1,  0, 0, 4, 5, 0,  0,  8, 9, 0, 0, 12, 13, 0, 0, 0,  1, 0, 0,
                                                    4, 5, 0,  0,  8, 9, 0, 0, 12, 13, 0, 0, 0, 1, 0,  0,  4, 5, 0,  0, 8, 9,
                                                    0, 0, 12, 13, 0, 0, 0, 1, 0,  0,  4, 5, 0, 0, 8,  9,  0, 0, 12, 13};
  const __m512i lower = V::load_i(kLower), corrections = V::load_i(&kCorrections), least = V::set_i(kStartBits);
#pragma GCC unroll 4
  for (int i = first; i < last; ++i) {
    const auto bits = [&](int t) {
      const V::F x = V::load(scores + t * kQueries);
      return kRaised ? _mm512_max_epi32(_mm512_castps_si512(V::sub(x, units)), least) : _mm512_max_epu32(_mm512_castps_si512(x), least);
    };
    const __m512i a = bits(2 * i), b = bits(2 * i + 1);
    seen = _mm512_ternarylogic_epi32(seen, a, b, 0xFE);
    const __m512i pair = _mm512_mask_shuffle_epi8(a, 0xCCCCCCCCCCCCCCCCu, b, lower);
    const __m512i lack = _mm512_maskz_permutexvar_epi8(0x5555555555555555u, _mm512_srli_epi16(pair, 4), corrections);
    V::store_i(weights + i * 64, _mm512_srli_epi16(_mm512_subs_epu16(pair, lack), 3));
  }
  return seen;
}

// The lanes that have a score above the range, or a negative one (thousands below it, or hidden), or a NaN.
inline __mmask16 out_of_range(__m512i seen) { return _mm512_test_epi32_mask(seen, V::set_i(static_cast<int32_t>(~(kStartBits | 0xFFFF)))); }

// Sets scores to -infinity for keys that a lane's query does not see. It sees keys [position - window + 1, PrefillTask::end_of()).
inline void hide(const PrefillTask& t, const BlockLanes& lanes, int64_t start, float* scores) {
  const __m512i position = _mm512_add_epi32(V::load_i(lanes.row), V::set_i(static_cast<int32_t>(t.first_position - start)));
  const __m512i last =
      t.ahead > 0 ? _mm512_min_epi32(_mm512_add_epi32(position, V::set_i(t.ahead)), V::set_i(static_cast<int32_t>(t.n_keys - 1 - start)))
                  : position;
  const __m512i before = t.window > 0 ? _mm512_sub_epi32(position, V::set_i(t.window)) : V::set_i(-1);
  for (int i = 0; i < kKeys; ++i) {
    const __m512i key = V::set_i(i);
    const __mmask16 hidden = _mm512_cmpgt_epi32_mask(key, last) | _mm512_cmple_epi32_mask(key, before);
    V::store(scores + i * kQueries, _mm512_mask_blend_ps(hidden, V::load(scores + i * kQueries), V::set(-__builtin_inff())));
  }
}

// Gives the lanes in `marked` a unit that fits this page's scores, and rescales what is in the old unit.
inline void raise_units(const float* scores, __mmask16 marked, int64_t dim, BlockLanes* lanes, float* o, std::byte* weights) {
  const V::F none = V::set(-__builtin_inff());
  V::F largest = none;
  __mmask16 odd = 0;
  for (int i = 0; i < kKeys; ++i) {
    const V::F x = V::load(scores + i * kQueries);
    largest = V::max(x, largest);
    odd |= _mm512_cmp_ps_mask(x, V::set(__builtin_inff()), _CMP_NLT_UQ);
  }
  const V::F sum = V::load(lanes->sum);
  const __mmask16 fresh = _mm512_cmp_ps_mask(sum, V::zero(), _CMP_EQ_OQ);
  V::F units = V::nearest(V::sub(largest, V::set(kWholeStart + kLargest)));
  units = _mm512_mask_blend_ps(fresh, V::max(units, V::zero()), units);
  const __mmask16 changed = marked & ~odd & _mm512_cmp_ps_mask(largest, none, _CMP_NEQ_UQ);
  units = _mm512_mask_blend_ps(changed, V::zero(), units);
  V::store(lanes->start, V::sub(V::load(lanes->start), units));
  const V::F decay = _mm512_mask_blend_ps(fresh, V::scale_by_power(V::set(1.0f), V::sub(V::zero(), units)), V::set(1.0f));
  // A score that is NaN or infinite makes the result NaN.
  V::store(lanes->sum, _mm512_mask_blend_ps(odd, V::mul(sum, decay), V::set(__builtin_nanf(""))));
  if (_mm512_cmp_ps_mask(decay, V::set(1.0f), _CMP_NEQ_UQ) != 0)
    for (int64_t i = 0; i < dim; ++i) V::store(o + i * kQueries, V::mul(V::load(o + i * kQueries), decay));
  soften_pairs<true>(scores, 0, kPairs, units, weights, V::zero_i());
}

// ---- A task ----

// Attention over kSteps * kStepDims dimensions of keys, and value_steps(kSteps) * kStepDims dimensions of values. Path derives from it and
// does the products:
//  work<kSoften, kNext, kLast>(b)   kSoften: turns block b's scores into weights and returns the bits of all of them. kNext: computes
//                                   block b + 1's scores. kLast: multiplies block b - 1's weights with the values and sums the weights.
//  add_weights(b)                   adds block b's weights to its sums
//  add_values(b, step, values, out) out (kStepDims, kQueries) = the block's outputs of these dimensions + its weights times `values`
template <int kSteps, class Path>
class BlockAttention {
 public:
  explicit BlockAttention(const PrefillTask& t)
      : t_(t), n_queries_(int64_t{t.n_rows} * t.n_heads), n_blocks_((n_queries_ + kQueries - 1) / kQueries) {
    block_scratch(t.scratch, kSteps, n_blocks_, &s_);
  }

  void run() {
    for (int64_t b = 0; b < n_blocks_; ++b) begin(b);
    const int64_t end = t_.end_of(t_.n_rows - 1);
    for (int64_t start = first_seen(0) / kKeys * kKeys; start < end; start += kKeys) add_page(start, end);
    for (int64_t b = 0; b < n_blocks_; ++b) finish(b);
  }

 protected:
  static constexpr int kValueSteps = static_cast<int>(value_steps(kSteps));
  static constexpr int64_t kDim = kValueSteps * kStepDims;  // of values
  static constexpr bool kApart = in_two_passes(kDim);

  const std::byte* keys(int step) const { return s_.keys + step * 4 * kTileBytes; }
  const std::byte* values(int step) const { return s_.values + step * 4 * kTileBytes; }
  std::byte* weights(int64_t b) const { return s_.weights + (kApart ? b : b & 1) * 2 * kTileBytes; }
  float* scores(int64_t b) const { return s_.scores[b & 1]; }
  const std::byte* q(int64_t b, int step) const { return s_.q + (b * kSteps + step) * kTileBytes; }
  float* o(int64_t b, int step = 0) const { return s_.o + (b * kDim + step * kStepDims) * kQueries; }
  BlockLanes& lanes(int64_t b) const { return s_.lanes[b]; }

 private:
  Path& path() { return static_cast<Path&>(*this); }

  int64_t first_seen(int64_t row) const {
    const int64_t position = t_.first_position + row;
    return t_.window > 0 && position >= t_.window ? position - t_.window + 1 : 0;
  }
  int64_t first_row(int64_t b) const { return b * kQueries / t_.n_heads; }
  int64_t last_row(int64_t b) const { return ((b + 1) * kQueries < n_queries_ ? (b + 1) * kQueries - 1 : n_queries_ - 1) / t_.n_heads; }

  void begin(int64_t b) {
    const int64_t left = n_queries_ - b * kQueries;
    pack_queries(t_, b * kQueries, static_cast<int>(left < kQueries ? left : kQueries), s_.q + b * kSteps * kTileBytes);
    BlockLanes& lanes = s_.lanes[b];
    for (int i = 0; i < kQueries; ++i) {
      lanes.start[i] = kStart;
      lanes.sum[i] = 0;
      lanes.row[i] = static_cast<int32_t>((b * kQueries + i < n_queries_ ? b * kQueries + i : n_queries_ - 1) / t_.n_heads);
    }
    __builtin_memset(o(b), 0, kDim * kQueries * sizeof(float));
  }

  // Adds the page that begins at key `start`, for all blocks that see some of its keys.
  void add_page(int64_t start, int64_t end) {
    const auto within = [&](int64_t key) { return static_cast<int>(key < start ? 0 : key > start + kKeys ? kKeys : key - start); };
    const std::byte* page = kv_tile(t_.kv, start / kKeys);
    start_ = start;
    finite_ = convert_page(t_.kv, page, within(first_seen(0)), within(end), s_);
    const int64_t seen_from = t_.first_position + t_.ahead, first_row = start > seen_from ? start - seen_from : 0;
    const int64_t first = first_row * t_.n_heads / kQueries;
    int64_t last = n_blocks_;
    if (t_.window > 0) {  // rows from here on see later keys only
      const int64_t row = start + kKeys - 1 + t_.window - t_.first_position;
      if (row < t_.n_rows) last = (row * t_.n_heads + kQueries - 1) / kQueries;
    }
    const std::byte* next = start + kKeys < end ? kv_tile(t_.kv, start / kKeys + 1) : page;
    const int64_t page_bytes = static_cast<int64_t>(kKeys * token_bytes(t_.kv)), share = page_bytes / (last - first) + 64;

    path().template work<false, true, false>(first - 1);
    for (int64_t b = first; b < last; ++b) {
      for (int64_t at = (b - first) * share; at < (b - first + 1) * share && at < page_bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
      if (sees_part(b)) hide(t_, lanes(b), start, scores(b));
      const bool meets = !kApart && b > first && !cleared(b - 1);
      const __m512i seen = b + 1 == last
                               ? meets ? path().template work<true, false, !kApart>(b) : path().template work<true, false, false>(b)
                           : meets ? path().template work<true, true, !kApart>(b)
                                   : path().template work<true, true, false>(b);
      const __mmask16 marked = out_of_range(seen) | _mm512_cmp_ps_mask(V::load(lanes(b).sum), V::zero(), _CMP_EQ_OQ);
      if (marked) raise_units(scores(b), marked, kDim, &lanes(b), o(b), weights(b));
      if (!kApart && b > first && cleared(b - 1)) values_by_rows(b - 1);
    }
    for (int64_t b = kApart ? first : last - 1; b < last; ++b)
      if (cleared(b)) values_by_rows(b);
      else path().template work<false, false, true>(b + 1);
  }

  bool sees_part(int64_t b) const { return start_ + kKeys > t_.end_of(first_row(b)) || start_ < first_seen(last_row(b)); }
  // True if a weight of 0 could multiply a value that is not finite, and so not cancel it.
  bool cleared(int64_t b) const { return !finite_ && sees_part(b); }

  // Multiplies a block's weights with the values once for each row, and keeps the sums of that row's lanes. Values that the row
  // does not see are cleared first.
  void values_by_rows(int64_t b) {
    path().add_weights(b);
    for (int64_t row = first_row(b); row <= last_row(b); ++row) {
      const int64_t from = first_seen(row) - start_, to = t_.end_of(row) - start_;
      for (int64_t i = 0; i < kDim * kKeys; ++i) {
        const int64_t key = i / (kQueries * kStepDims) % 2 * kStepDims + i % kStepDims;
        __builtin_memset(s_.cleared + 2 * i, 0, 2);
        if (key >= from && key < to) __builtin_memcpy(s_.cleared + 2 * i, s_.values + 2 * i, 2);
      }
      const __mmask16 of_row = _mm512_cmpeq_epi32_mask(V::load_i(s_.lanes[b].row), V::set_i(static_cast<int32_t>(row)));
      for (int step = 0; step < kValueSteps; ++step) {
        alignas(64) float sums[kStepDims][kQueries];
        float* out = o(b, step);
        path().add_values(b, step, s_.cleared + step * 4 * kTileBytes, sums[0]);
        for (int i = 0; i < kStepDims; ++i)
          V::store(out + i * kQueries, _mm512_mask_blend_ps(of_row, V::load(out + i * kQueries), V::load(sums[i])));
      }
    }
  }

  void finish(int64_t b) {
    V::F sum = V::load(s_.lanes[b].sum), kept = V::set(1.0f);
    if (t_.sinks) {  // in units of the larger of the lane's unit and the sink; a weight's bits, without a bias, are those of 2^(x - 127)
      alignas(64) float sinks[kQueries];
      for (int i = 0; i < kQueries; ++i) sinks[i] = t_.sinks[(b * kQueries + i) % t_.n_heads] * kLog2E;
      const V::F unit = V::sub(V::set(kStart + 127.0f), V::load(s_.lanes[b].start)), most = V::max(unit, V::load(sinks));
      kept = power_of_two(V::sub(unit, most));
      sum = V::fma(sum, kept, power_of_two(V::sub(V::load(sinks), most)));
    }
    const V::F inverse = V::equal_select(sum, 0.0f, V::zero(), V::div(kept, sum));
    for (int32_t d = 0; d < t_.kv.value_dim; d += kQueries) {
      V::F rows[kQueries];
      for (int i = 0; i < kQueries; ++i) rows[i] = V::mul(V::load(o(b) + (d + i) * kQueries), inverse);
      V::transpose(rows);
      for (int i = 0; i < kQueries && b * kQueries + i < n_queries_; ++i) {
        const int64_t query = b * kQueries + i;
        float* out = t_.out + query / t_.n_heads * t_.out_stride + query % t_.n_heads * t_.kv.value_dim + d;
        if (t_.kv.value_dim - d >= kQueries) V::store(out, rows[i]);
        else V::store_part(out, rows[i], t_.kv.value_dim - d);
      }
    }
  }

  const PrefillTask& t_;
  const int64_t n_queries_, n_blocks_;
  BlockScratch s_;
  int64_t start_ = 0;
  bool finite_ = true;
};

// Kernels::attend_prefill, by Attention<kSteps>.
template <template <int> class Attention, int kSteps = kLatentSteps>
void attend_blocks(const PrefillTask& t) {
  if (n_steps(t.kv.head_dim) == kSteps) return Attention<kSteps>(t).run();
  if constexpr (kSteps == kLatentSteps) attend_blocks<Attention, kLargeSteps>(t);
  else if constexpr (kSteps == kLargeSteps) attend_blocks<Attention, kMostSteps>(t);
  else if constexpr (kSteps > 1) attend_blocks<Attention, kSteps - 1>(t);
}

// block_queries(): the queries of a task, at most `most`, and so few that queries and outputs have at most `values` numbers each; at least
// kQueryTile.
// block_scratch_bytes(): the scratch memory for n_queries queries.
constexpr int32_t block_queries(int32_t head_dim, int64_t most, int64_t values) {
  const int64_t fitting = values / whole_dim(head_dim);
  return static_cast<int32_t>(fitting > most ? most : fitting < kQueryTile ? kQueryTile : fitting);
}
inline int64_t block_scratch_bytes(int32_t head_dim, int64_t n_queries) {
  BlockScratch s;
  return block_scratch(nullptr, n_steps(head_dim), (n_queries + kQueries - 1) / kQueries, &s);
}

}  // namespace
}  // namespace orrery::cpu
