// Decode attention over Q8_0 on AMX's tiles of bytes. Queries and weights are 16-bit words, as in attention/attend_blocks.h, and
// products are exact. Include after vectors/avx512.h.
//
// A tile multiplies every code with all queries and both bytes of their words at once:
//   scores (16 keys, high and low bytes of four queries)   = K (keys, 64 bytes)           * Q (64 bytes, high and low)
//   o (high and low bytes of the weights, 16 dimensions)   = weights (high and low, keys) * V (keys, dimensions)
// Keys are read in place. V's codes are first interleaved, four tokens at a time. README.md says how keys and words are ordered.
//
// Measurements: tests/bench/results/cpu-amx.md.
#pragma once

#include "runtime/cpu/products/amx.h"
#include "runtime/cpu/attention/softmax.h"
#include "runtime/cpu/attention/words.h"

namespace orrery::cpu {
namespace {

// The order of keys within a tile. Place 16 g + 4 j + i of the scores holds key 16 g + 4 i + j. Bytes 4 (4 j + g) .. + 3 of the
// weights hold the places 16 g + 4 j .. + 3: key first_of_four(4 j + g) and the keys 4, 8 and 12 after it.
constexpr int key_at(int place) { return place / 16 * 16 + place % 4 * 4 + place % 16 / 4; }
constexpr int first_of_four(int bytes) { return bytes % 4 * 16 + bytes / 4; }

// Prefetches the next tile, a little with each call, ordered after the instruction that made x (attention/attend.h). It has no
// branches, so some lines are prefetched twice, or past the end. Lines go to the first-level cache if it holds both tiles.
template <int kBytes, int kTimes>
class TileAhead {
 public:
  explicit TileAhead(const std::byte* at) : at_(at) {}
  template <class X>
  [[gnu::always_inline]] X ask_behind(X x) {
    kBytes <= 16384 ? V::ask_near_behind(x, at_) : V::ask_behind(x, at_);
    at_ += kBytes < 64 * kTimes ? kBytes / kTimes : 64;
    return x;
  }

 private:
  const std::byte* at_;
};

// Tile 0: keys. 1 and 2: queries. 3 and 4: scores. 5: weights. 6: values. 7: outputs.
template <int G>
constexpr TileConfig decode_config() {
  TileConfig config;
  config.rows[5] = config.rows[7] = 2 * G;
  return config;
}
template <int G>
inline constexpr TileConfig kDecodeConfig = decode_config<G>();

// The maximum, by max(), of each of four vectors. Lane i of the result belongs to vector i % 4.
template <class Max>
V::I largest_of_four(const V::I* x, const Max& max) {
  const V::I low = max(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
  const V::I high = max(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
  V::I all = max(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  all = max(all, _mm512_shuffle_i32x4(all, all, 0x4E));
  return max(all, _mm512_shuffle_i32x4(all, all, 0xB1));
}
inline V::F lane_of(V::F x, int i) { return _mm512_permutexvar_ps(V::set_i(i), x); }
// 32 bytes at a, then 32 bytes at b.
inline V::I two_halves(const void* a, const void* b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(a))),
                            _mm256_loadu_si256(static_cast<const __m256i*>(b)), 1);
}

// G queries. A set is four queries side by side in vectors. Dimensions are processed as pairs of blocks.
template <int G, int kDim>
class TiledDecode {
  static_assert((G == 4 || G == 8) && kDim % 64 == 0);
  static constexpr int kSets = G / 4, kBlocksOfHead = kDim / 32, kPairs = kDim / 64;
  static constexpr int64_t kBlockBytes = 34, kVectorBytes = kBlocksOfHead * kBlockBytes, kTokenBytes = 2 * kVectorBytes;
  using Ahead = TileAhead<kTile * kTokenBytes, 32 * kBlocksOfHead*(kSets + 1) + 4 * G>;

  // 16 rows, in the layout of a tile.
  template <class T>
  struct alignas(64) Rows {
    T at[16][64 / sizeof(T)];
  };
  struct Head {
    Rows<int8_t> q[kPairs][kSets];          // (64 bytes of a key / 4; the queries' high bytes for both blocks, then low bytes; 4)
    int32_t first_codes[kPairs][G];         // two words, for the first two codes of a pair of blocks
    float units[kBlocksOfHead][G];          // units of the words
    alignas(64) float m[kSets][V::kLanes];  // the softmax's unit: lane i belongs to query i % 4
    alignas(64) float l[G][V::kLanes];      // the sums of the weights, in parts
    alignas(64) float o[G][kDim];           // in the order of dimensions that the products give (dim_at)
  };
  struct Work {  // for one tile
    alignas(64) uint16_t key_scales[kBlocksOfHead][kTile];
    alignas(64) uint16_t first_codes[kPairs][kTile];  // two for each key
    alignas(64) uint16_t value_scales[kBlocksOfHead][kTile];
    Rows<int32_t> products[kPairs][kSets][4];  // of 16 keys
    alignas(64) float scores[G][kTile];
    alignas(64) int8_t words[kBlocksOfHead][2 * G][kTile];
    Rows<uint8_t> values[kBlocksOfHead][2];  // dwords: one dimension of four tokens; 16 dimensions in a row
    alignas(64) int32_t outputs[kBlocksOfHead][2][2 * G][16];
    float factors[kBlocksOfHead][G];
    alignas(64) float decays[kSets][V::kLanes];
    alignas(64) std::byte whole[kTile * kTokenBytes];
  };

 public:
  static constexpr int64_t kScratchBytes = kDecodeHeads * sizeof(Head) + sizeof(Work);
  explicit TiledDecode(std::byte* scratch)
      : heads_(reinterpret_cast<Head*>(scratch)), work_(*reinterpret_cast<Work*>(heads_ + kDecodeHeads)) {}

  // Attends with n <= G queries of each head, from first_query on.
  void run(const DecodeTask& t, int first_query, int n) {
    for (int32_t h = 0; h < t.n_heads; ++h) {
      __builtin_memset(heads_[h].q, 0, sizeof heads_[h].q);
      for (int g = 0; g < G; ++g)
        begin(heads_[h], g, g < n ? t.q + (int64_t{h} * t.n_queries + first_query + g) * kDim : nullptr, t.scale * kLog2E);
    }
    {
      const ConfiguredTiles tiles(kDecodeConfig<G>);
      for (int64_t key = t.first_key; key < t.last_key;) {
        const int64_t start = key / kTile * kTile;
        const int first = static_cast<int>(key - start);
        const int last = static_cast<int>(t.last_key - start < kTile ? t.last_key - start : kTile);
        const std::byte* tile = kv_tile(t.kv, start / kTile);
        const std::byte* then = start + kTile < t.last_key ? kv_tile(t.kv, start / kTile + 1) : t.next ? t.next : tile;
        for (int32_t h = 0; h < t.n_heads; ++h, tile += kTile * kTokenBytes)
          attend(heads_[h], tile, h + 1 < t.n_heads ? tile + kTile * kTokenBytes : then, first, last);
        key = start + last;
      }
    }
    add_outputs();
    for (int32_t h = 0; h < t.n_heads; ++h)
      for (int g = 0; g < n; ++g) write_partial(heads_[h], g, t.partials + (int64_t{h} * t.n_queries + first_query + g) * t.partial_stride);
  }

 private:
  static const std::byte* block(const std::byte* vector, int b) { return vector + b * kBlockBytes; }

  // Loads query g as words and zeroes its sums.
  static void begin(Head& head, int g, const float* q, float scale) {
    const int set = g / 4, column = 4 * (g % 4);
    for (int b = 0; b < kBlocksOfHead; ++b) {
      const QueryWords x = query_words<V>(q ? q + 32 * b : nullptr, scale);
      head.units[b][g] = x.unit;
      // Columns: high bytes of both blocks, then low bytes of both blocks.
      int8_t* out = head.q[b / 2][set].at[b % 2 * 8] + b % 2 * 16 + column;
      const auto put = [&](int code, size_t n) {
        __builtin_memcpy(out, x.high + code, n);
        __builtin_memcpy(out + 32, x.low + code, n);
        out += 64;
      };
      if (b % 2 == 1) {
        for (int code = 0; code < 32; code += 4) put(code, 4);
        continue;
      }
      for (int code = 2; code < 30; code += 4) put(code, 4);
      put(30, 2);  // the next block's scale, after these two, meets zeros
      head.first_codes[b / 2][g] =
          static_cast<int32_t>((static_cast<uint32_t>(x.words[0]) & 0xFFFF) | static_cast<uint32_t>(x.words[1]) << 16);
    }
    for (int i = 0; i < V::kLanes; ++i) head.m[set][i] = -kInfinity, head.l[g][i] = 0;
    for (float& o : head.o[g]) o = 0;
  }

  void attend(Head& head, const std::byte* tile, const std::byte* next, int first, int last) {
    const bool part = last - first < kTile;
    Ahead ahead(next);
    if (part) tile = made_whole(tile, first, last);
    multiply_keys(head, tile, ahead);
    add_outputs();  // of the tile before, whose products had time to finish
    make_scores(head, ahead);
    if (part)
      for (int place = 0; place < kTile; ++place)
        for (int g = 0; (key_at(place) < first || key_at(place) >= last) && g < G; ++g) work_.scores[g][place] = -kInfinity;
    for (int set = 0; set < kSets; ++set) {
      soften(head, set, ahead);
      make_words(set);
    }
    multiply_values();
    pending_ = &head;
  }

  // A copy of a tile that may hold only slots [first, last); the other slots are zeros.
  const std::byte* made_whole(const std::byte* tile, int first, int last) {
    __builtin_memset(work_.whole, 0, sizeof work_.whole);
    __builtin_memcpy(work_.whole + first * kTokenBytes, tile + first * kTokenBytes, static_cast<size_t>((last - first) * kTokenBytes));
    return work_.whole;
  }

  // The products of K. In parallel it interleaves V and copies scales.
  void multiply_keys(const Head& head, const std::byte* tile, Ahead& ahead) {
    for (int pair = 0; pair < kPairs; ++pair) {
      const std::byte* keys = block(tile, 2 * pair);
      auto& products = work_.products[pair];
      written();
      _tile_loadd(1, head.q[pair][0].at, 64);
      if (kSets > 1) _tile_loadd(2, head.q[pair][kSets - 1].at, 64);
      ORRERY_UNROLL for (int i = 0; i < 4; ++i) {
        _tile_loadd(0, keys + 16 * i * kTokenBytes + 4, kTokenBytes);
        _tile_zero(3);
        _tile_dpbssd(3, 0, 1);
        if (kSets > 1) _tile_zero(4);
        if (kSets > 1) _tile_dpbssd(4, 0, 2);
        ORRERY_UNROLL for (int j = 0; j < 4; ++j) {
          put_in_turns(tile, 2 * pair + i / 2, i % 2 * 8 + 2 * j, ahead);
          copy_scales(keys + (16 * i + j) * kTokenBytes, pair, 16 * i + 4 * j);
        }
        _tile_stored(3, products[0][i].at, 64);
        if (kSets > 1) _tile_stored(4, products[kSets - 1][i].at, 64);
      }
      written();
    }
  }
  // Copies the bytes in front of blocks, of every fourth key, to four places from `place` on. One store for all four, because
  // stores limit this loop.
  void copy_scales(const std::byte* key, int pair, int place) {
    uint64_t keys[2] = {}, codes = 0, values[2] = {};
    ORRERY_UNROLL for (int i = 0; i < 4; ++i, key += 4 * kTokenBytes) {
      const auto here = [&](int64_t at) { return uint64_t{word<uint16_t>(reinterpret_cast<const uint8_t*>(key + at))} << 16 * i; };
      keys[0] |= here(0), codes |= here(2), keys[1] |= here(kBlockBytes);
      values[0] |= here(kVectorBytes), values[1] |= here(kVectorBytes + kBlockBytes);
    }
    __builtin_memcpy(work_.first_codes[pair] + place, &codes, 8);
    for (int b = 0; b < 2; ++b) __builtin_memcpy(work_.key_scales[2 * pair + b] + place, &keys[b], 8);
    for (int b = 0; b < 2; ++b) __builtin_memcpy(work_.value_scales[2 * pair + b] + place, &values[b], 8);
  }
  // Interleaves two rows of V's codes. Column 8 h + 4 l + i of a block's first half holds dimension 16 l + 4 h + i; the second half
  // holds the dimension 8 higher.
  void put_in_turns(const std::byte* tile, int b, int row, Ahead& ahead) {
    const std::byte* codes = block(tile + kVectorBytes, b) + 2;
    auto& values = work_.values[b];
    const auto token = [&](int i) {
      return two_halves(codes + (first_of_four(row) + 4 * i) * kTokenBytes, codes + (first_of_four(row + 1) + 4 * i) * kTokenBytes);
    };
    const V::I x0 = token(0), x1 = token(1), x2 = token(2), x3 = token(3);
    const V::I a = _mm512_unpacklo_epi8(x0, x1), c = _mm512_unpackhi_epi8(x0, x1);
    const V::I d = _mm512_unpacklo_epi8(x2, x3), e = _mm512_unpackhi_epi8(x2, x3);
    const auto put = [&](int half, V::I low, V::I high) {  // a line at a time
      low = ahead.ask_behind(low), high = ahead.ask_behind(high);
      auto* to = reinterpret_cast<__m256i*>(values[half].at[row]);
      _mm256_store_si256(to, _mm512_castsi512_si256(low));
      _mm256_store_si256(to + 1, _mm512_castsi512_si256(high));
      _mm256_store_si256(to + 2, _mm512_extracti64x4_epi64(low, 1));
      _mm256_store_si256(to + 3, _mm512_extracti64x4_epi64(high, 1));
    };
    put(0, _mm512_unpacklo_epi16(a, d), _mm512_unpackhi_epi16(a, d));
    put(1, _mm512_unpacklo_epi16(c, e), _mm512_unpackhi_epi16(c, e));
  }

  void make_scores(const Head& head, Ahead& ahead) {
    for (int i = 0; i < 4; ++i)
      for (int set = 0; set < kSets; ++set) {
        V::F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
        ORRERY_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
          const auto& rows = work_.products[pair][set][i].at;
          V::I x[2][4];  // for each block: the sums of four keys
          ORRERY_UNROLL for (int k = 0; k < 4; ++k) {
            const auto two_keys = [&](int key) {
              return V::widened(V::times_256(two_halves(rows[key], rows[key + 1])), two_halves(rows[key] + 8, rows[key + 1] + 8));
            };
            const V::I two = ahead.ask_behind(two_keys(4 * k)), more = ahead.ask_behind(two_keys(4 * k + 2));
            x[0][k] = _mm512_shuffle_i32x4(two, more, 0x88);
            x[1][k] = _mm512_shuffle_i32x4(two, more, 0xDD);
          }
          const V::I codes = _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(work_.first_codes[pair] + 16 * i)));
          ORRERY_UNROLL for (int b = 0; b < 2; ++b) {
            const V::I p = _mm512_unpacklo_epi32(x[b][0], x[b][1]), q = _mm512_unpackhi_epi32(x[b][0], x[b][1]);
            const V::I r = _mm512_unpacklo_epi32(x[b][2], x[b][3]), s = _mm512_unpackhi_epi32(x[b][2], x[b][3]);
            const V::I of_query[4] = {_mm512_unpacklo_epi64(p, r), _mm512_unpackhi_epi64(p, r), _mm512_unpacklo_epi64(q, s),
                                      _mm512_unpackhi_epi64(q, s)};
            const V::F scales = V::load_half(work_.key_scales[2 * pair + b] + 16 * i);
            ORRERY_UNROLL for (int k = 0; k < 4; ++k) {
              const int g = 4 * set + k;
              const V::I whole = b == 0 ? V::dot_words(of_query[k], codes, V::set_i(head.first_codes[pair][g])) : of_query[k];
              const V::F unit = ahead.ask_behind(V::mul(scales, V::set(head.units[2 * pair + b][g])));
              sums[k] = V::fma(V::to_float(whole), unit, sums[k]);
            }
          }
        }
        ORRERY_UNROLL for (int k = 0; k < 4; ++k) V::store(work_.scores[4 * set + k] + 16 * i, sums[k]);
      }
  }

  // Turns scores into weights in units of 2^m. m is a whole number.
  void soften(Head& head, int set, Ahead& ahead) {
    V::I most[4];
    ORRERY_UNROLL for (int i = 0; i < 4; ++i) {
      V::F x = V::set(-kInfinity);
      ORRERY_UNROLL for (int j = 0; j < 4; ++j) x = V::max(V::load(work_.scores[4 * set + i] + 16 * j), x);  // this order ignores NaN
      most[i] = _mm512_castps_si512(x);
    }
    const V::F seen = _mm512_castsi512_ps(
        largest_of_four(most, [](V::I a, V::I b) { return _mm512_castps_si512(V::max(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b))); }));
    const V::F before = V::load(head.m[set]), m = V::nearest(V::max(seen, before));
    // Scores of -infinity get the weight 0, also when all scores are -infinity.
    const V::F base = V::equal_select(m, -kInfinity, V::zero(), m), decay = power_of_two(V::sub(before, base));
    V::store(head.m[set], m);
    V::store(work_.decays[set], decay);
    ORRERY_UNROLL for (int i = 0; i < 4; ++i) {
      float *scores = work_.scores[4 * set + i], *l = head.l[4 * set + i];
      const V::F own = lane_of(base, i);
      V::F sum = V::mul(V::load(l), lane_of(decay, i));
      ORRERY_UNROLL for (int j = 0; j < 4; ++j) {
        const V::F weight = ahead.ask_behind(weight_of(V::load(scores + 16 * j), own));
        V::store(scores + 16 * j, weight);
        sum = V::add(sum, weight);
      }
      V::store(l, sum);
    }
  }

  // A set's weights times V's scales, as words in units of each query's largest. First a row of high bytes for each query, then the
  // rows of low bytes.
  void make_words(int set) {
    const V::I mask = V::set_i(0x7FFFFFFF), half = _mm512_set1_epi16(128);
    for (int b = 0; b < kBlocksOfHead; ++b) {
      V::F x[4][4];
      V::I most[4];
      ORRERY_UNROLL for (int j = 0; j < 4; ++j) {
        const V::F scales = V::load_half(work_.value_scales[b] + 16 * j);
        ORRERY_UNROLL for (int i = 0; i < 4; ++i) {
          x[i][j] = V::mul(V::load(work_.scores[4 * set + i] + 16 * j), scales);
          const V::I size = _mm512_and_si512(_mm512_castps_si512(x[i][j]), mask);  // a NaN is the largest
          most[i] = j == 0 ? size : _mm512_max_epi32(most[i], size);
        }
      }
      const V::F largest = _mm512_castsi512_ps(largest_of_four(most, [](V::I a, V::I c) { return _mm512_max_epi32(a, c); }));
      const V::F inverse = V::div(V::set(kWordUnits), largest);
      _mm_storeu_ps(work_.factors[b] + 4 * set, _mm512_castps512_ps128(V::mul(largest, V::set(1 / kWordUnits))));
      ORRERY_UNROLL for (int i = 0; i < 4; ++i) {
        const V::F own = lane_of(inverse, i);
        const auto word = [&](int j) { return V::nearest_i(V::mul(x[i][j], own)); };
        const V::I a = _mm512_packs_epi32(word(0), word(1)), c = _mm512_packs_epi32(word(2), word(3));
        const auto high = [&](V::I w) { return _mm512_srai_epi16(_mm512_add_epi16(w, half), 8); };
        const auto low = [](V::I w) { return _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8); };
        V::store_i(work_.words[b][4 * set + i], _mm512_packs_epi16(high(a), high(c)));
        V::store_i(work_.words[b][G + 4 * set + i], _mm512_packs_epi16(low(a), low(c)));
      }
    }
  }

  static constexpr int dim_at(int i) { return i / 32 * 32 + i % 8 / 4 * 16 + i % 32 / 16 * 8 + i % 16 / 8 * 4; }

  void multiply_values() {
    written();
    for (int b = 0; b < kBlocksOfHead; ++b) {
      _tile_loadd(5, work_.words[b], 64);
      for (int half = 0; half < 2; ++half) {
        _tile_loadd(6, work_.values[b][half].at, 64);
        _tile_zero(7);
        _tile_dpbssd(7, 5, 6);
        _tile_stored(7, work_.outputs[b][half], 64);
      }
    }
    written();
  }
  // Adds the outputs of the last multiply_values() to its head's sums.
  void add_outputs() {
    if (!pending_) return;
    for (int g = 0; g < G; ++g) {
      const V::F decay = V::set(work_.decays[g / 4][g % 4]);
      float* o = pending_->o[g];
      ORRERY_UNROLL for (int i = 0; i < 2 * kBlocksOfHead; ++i, o += 16) {
        const auto& rows = work_.outputs[i / 2][i % 2];
        const V::I whole = V::widened(V::times_256(V::load_i(rows[g])), V::load_i(rows[G + g]));
        V::store(o, V::fma(V::to_float(whole), V::set(work_.factors[i / 2][g]), V::mul(V::load(o), decay)));
      }
    }
    pending_ = nullptr;
  }

  static void write_partial(const Head& head, int g, float* partial) {
    partial[0] = head.m[g / 4][g % 4];
    partial[1] = V::sum(V::load(head.l[g]));
    for (int i = 0; i < kDim; i += 4) __builtin_memcpy(partial + 16 + dim_at(i), head.o[g] + i, 4 * sizeof(float));
  }

  Head* const heads_;  // (kDecodeHeads)
  Work& work_;
  Head* pending_ = nullptr;  // the head whose outputs still wait
};

// True for tasks that tiles do faster than vectors. Vectors take as long for two queries as tiles for one. Eight queries of 128
// dimensions are more than a first-level cache holds beside a tile.
inline bool decodes_by_tiles(const DecodeTask& t) {
  return t.kv.type == KvType::q8_0 && t.n_queries > 2 && !t.exported.weights &&
         (t.kv.head_dim == 64 || (t.kv.head_dim == 128 && t.n_queries <= 4));
}
inline void decode_by_tiles(const DecodeTask& t) {
  if (t.kv.head_dim == 128) return TiledDecode<4, 128>(t.scratch).run(t, 0, t.n_queries);
  for (int first = 0; first < t.n_queries; first += 8) {
    const int left = t.n_queries - first;
    if (left <= 4) TiledDecode<4, 64>(t.scratch).run(t, first, left);
    else TiledDecode<8, 64>(t.scratch).run(t, first, left < 8 ? left : 8);
  }
}
constexpr int64_t kTiledDecodeBytes = TiledDecode<4, 128>::kScratchBytes > TiledDecode<8, 64>::kScratchBytes
                                          ? TiledDecode<4, 128>::kScratchBytes
                                          : TiledDecode<8, 64>::kScratchBytes;

}  // namespace
}  // namespace orrery::cpu
