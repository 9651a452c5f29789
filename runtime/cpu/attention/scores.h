// Key scoring: softmax weights of queries over keys, and one score per key from the weights of a group. Written over V; include
// after a file of vectors/.
//
// A tile of keys is converted and transposed once for all queries of a task, as in prefill attention. Its scores become weights
// before they leave the cache. A second pass reads the rows once. Attention exports weights in the same form, and for an exported
// query only the second pass remains.
#pragma once

#include "runtime/cpu/attention/attend.h"

namespace orrery::cpu {
namespace {

// Prefetches the lines of `n` keys one by one, evenly over `n_times` calls of ask() (attention/README.md says why).
class KeysAhead {
 public:
  KeysAhead(const std::byte* keys, uint64_t stride, uint64_t key_bytes, int n, int n_times)
      : at_(keys), stride_(stride), bytes_(key_bytes), n_lines_(keys ? n * static_cast<int>((key_bytes + 63) / 64) : 0), n_times_(n_times) {
  }
  void ask() {
    for (due_ += n_lines_; due_ >= n_times_; due_ -= n_times_) {
      V::ask(at_ + line_);
      line_ += 64;
      if (line_ >= bytes_) at_ += stride_, line_ = 0;
    }
  }

 private:
  const std::byte* at_;
  const uint64_t stride_, bytes_;
  const int n_lines_, n_times_;
  int due_ = 0;
  uint64_t line_ = 0;
};

// keys (head_dim, kTile): the tile's keys, transposed; slots from `n` on are zeros. Prefetches the `next` tile, if any, while this
// one is multiplied. Otherwise half of the time would be waiting for memory.
template <KvType kType>
void convert_keys(const KvHead& kv, const std::byte* tile, const std::byte* next, int n, float* keys) {
  const int whole = kv.head_dim / V::kLanes, left = kv.head_dim % V::kLanes;
  const uint64_t stride = token_bytes(kv);
  for (int t = 0; t < kTile; t += V::kLanes) {
    KeysAhead ahead(next ? next + static_cast<uint64_t>(t) * stride : nullptr, stride, kv.key_bytes, V::kLanes, kv.head_dim);
    for (int i = 0; i < whole + (left > 0); ++i) {
      V::F rows[V::kLanes];
      const std::byte* key = tile + static_cast<uint64_t>(t) * stride;
      if (t + V::kLanes <= n && i < whole) {
        ORRERY_UNROLL for (int j = 0; j < V::kLanes; ++j) rows[j] = load_chunk<kType>(key + static_cast<uint64_t>(j) * stride, i);
      } else {
        for (int j = 0; j < V::kLanes; ++j, key += stride)
          rows[j] = t + j >= n ? V::zero() : i < whole ? load_chunk<kType>(key, i) : load_last<kType>(key, i, left);
      }
      V::transpose(rows);
      for (int j = 0; j < (i < whole ? V::kLanes : left); ++j) {
        V::store(keys + (static_cast<int64_t>(i) * V::kLanes + j) * kTile + t, rows[j]);
        ahead.ask();
      }
    }
  }
}

// Turns a tile's scores y of one query into weights (KeyWeightsTask). The query sees the first `n` keys, or none if n < 0. kLogs:
// also sums weight * log2(weight), with log2(weight) = y - unit.
template <bool kLogs>
void weigh_vectors(V::F* y, int n, float* out, float* unit, float* sum, float* log) {
  constexpr int kVectors = kTile / V::kLanes;
  V::F largest = V::set(-kInfinity), total = V::zero(), logs = V::zero();
  for (int i = 0; n < kTile && i < kVectors; ++i) {
    const int left = n - i * V::kLanes;
    if (left < V::kLanes) y[i] = V::keep(y[i], 0, left < 0 ? 0 : left);
  }
  for (int i = 0; i < kVectors; ++i) largest = V::max(y[i], largest);  // this order ignores NaN
  const float most = V::largest(largest);
  const V::F base = V::nearest(V::set(most == -kInfinity ? 0.0f : most));
  for (int i = 0; i < kVectors; ++i) {
    const V::F x = V::max(weight_of(y[i], base), V::zero());  // a NaN gets the weight 0
    V::store(out + i * V::kLanes, x);
    total = V::add(total, x);
    if (kLogs) logs = V::fma(x, V::max(V::sub(y[i], base), V::set(-126.0f)), logs);  // 0 for a weight of 0, also for a NaN
  }
  if (kLogs) *log = V::sum(logs);
  alignas(64) float lanes[V::kLanes];
  V::store(lanes, base);
  *unit = lanes[0];
  *sum = V::sum(total);
}

template <bool kLogs>
void weigh_tile(const float* scores, int n, float* out, float* unit, float* sum, float* log) {
  V::F y[kTile / V::kLanes];
  for (int i = 0; i < kTile / V::kLanes; ++i) y[i] = V::load(scores + i * V::kLanes);
  weigh_vectors<kLogs>(y, n, out, unit, sum, log);
}

// Writes the products of one query with `n` keys of a tile.
void write_products(const float* products, int n, float* out) {
  for (int i = 0; i < n; i += V::kLanes) {
    const V::F x = V::max(V::load(products + i), V::set(-kInfinity));  // this order ignores NaN
    if (n - i < V::kLanes) V::store_part(out + i, x, n - i);
    else V::store(out + i, x);
  }
}

template <KvType kType>
void weights_of(const KeyWeightsTask& t) {
  const int32_t head_dim = t.kv.head_dim, dim = padded_dim(head_dim);
  const PrefillScratch s = prefill_scratch(t.scratch, dim);
  const float scale = t.products ? t.scale : t.scale * kLog2E;
  // For bounds, the positive parts of a query (in s.q) are multiplied with K, and the negative parts (in s.o) with V.
  for (int i = 0; i < t.n_queries; ++i)
    for (int32_t j = 0; j < dim; ++j) {
      const float x = j < head_dim ? t.q[i][j] * scale : 0.0f;
      s.q[static_cast<int64_t>(i) * dim + j] = t.bounds && x < 0 ? 0.0f : x;
      if (t.bounds) s.o[static_cast<int64_t>(i) * dim + j] = x < 0 ? x : 0.0f;
    }
  // Splits the rows into parts of nearly equal size, because few rows at a time do not fill the multipliers.
  const int n_parts = (t.n_queries + 5) / 6;
  for (int64_t start = t.first_key; start < t.last_key; start += kTile) {
    const int n = static_cast<int>(t.last_key - start < kTile ? t.last_key - start : kTile);
    const int64_t at = start - t.first_key;
    const std::byte *tile = kv_tile(t.kv, start / kTile), *next = start + kTile < t.last_key ? kv_tile(t.kv, start / kTile + 1) : nullptr;
    convert_keys<kType>(t.kv, tile, next, n, s.keys);
    if (t.bounds) convert_keys<kType>(t.kv, tile + t.kv.key_bytes, next ? next + t.kv.key_bytes : nullptr, n, s.values);
    for (int part = 0; part < n_parts; ++part) {
      const int first = t.n_queries * part / n_parts, last = t.n_queries * (part + 1) / n_parts;
      const Gemm<Start::zero> product{
          s.q + static_cast<int64_t>(first) * dim, dim, s.keys, kTile, s.scores + first * kTile, kTile, 0, head_dim, nullptr};
      product.run(last - first, kTile / V::kLanes);
      if (!t.bounds) continue;
      const Gemm<Start::keep> rest{
          s.o + static_cast<int64_t>(first) * dim, dim, s.values, kTile, s.scores + first * kTile, kTile, 0, head_dim, nullptr};
      rest.run(last - first, kTile / V::kLanes);
    }
    for (int i = 0; i < t.n_queries; ++i) {
      if (t.products) {
        write_products(s.scores + i * kTile, n, t.out[i] + at);
        continue;
      }
      const int64_t seen = t.ends[i] - start;
      const auto weigh = t.with_logs ? weigh_tile<true> : weigh_tile<false>;
      weigh(s.scores + i * kTile, seen < n ? static_cast<int>(seen) : n, t.out[i] + at, t.units[i] + at / kTile, t.sums[i] + at / kTile,
            t.with_logs ? t.logs[i] + at / kTile : nullptr);
    }
  }
}

// kOfByte: entries that fit in a byte together (most_entry()).
template <int kQueries, int kOfByte>
void code_weights_of(const CodeWeightsTask& t) {
  constexpr int kVectors = kTile / V::kLanes;
  alignas(64) uint16_t sums[kQueries][kTile];
  const uint8_t* tables[kQueries];
  for (int q = 0; q < kQueries; ++q) tables[q] = t.tables[q]->entries;
  for (int64_t start = t.first_key; start < t.last_key; start += kTile) {
    const auto* tile = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(t.tiles[start / kTile]));
    if (start + kTile < t.last_key) {  // the next tile's lines
      const auto* next = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(t.tiles[start / kTile + 1]));
      for (uint64_t line = 0; line < t.codes.tile_bytes(); line += 64) V::ask(next + line);
    }
    V::template add_entries<kQueries, kOfByte>(tables, tile, t.codes.n_groups(), sums);
    const auto* halves = reinterpret_cast<const std::byte*>(tile) + t.codes.factors_offset();
    V::F factors[kVectors];
    for (int i = 0; i < kVectors; ++i) factors[i] = V::load_half(halves + 2 * i * V::kLanes);
    const int n = static_cast<int>(t.last_key - start < kTile ? t.last_key - start : kTile);
    const int64_t at = start - t.first_key;
    for (int q = 0; q < kQueries; ++q) {
      V::F y[kVectors];
      for (int i = 0; i < kVectors; ++i)
        y[i] = V::mul(factors[i], V::fma(V::set(t.tables[q]->step), V::from_words(sums[q] + i * V::kLanes), V::set(t.tables[q]->base)));
      for (int32_t i = 0; i < t.turns.n; ++i) {
        const float *of_tile = t.turns.of_tiles[i] + start / kTile * t.turns.tile_stride, *within = t.turns.within[i];
        const float cosine = t.tables[q]->cosines[i], sine = t.tables[q]->sines[i];
        const V::F c = V::set(cosine * of_tile[0] + sine * of_tile[1]), d = V::set(sine * of_tile[0] - cosine * of_tile[1]);
        ORRERY_UNROLL for (int v = 0; v < kVectors; ++v) y[v] =
            V::fma(c, V::load(within + v * V::kLanes), V::fma(d, V::load(within + kTile + v * V::kLanes), y[v]));
      }
      if (start < t.first_seen) {
        alignas(64) float each[kTile];
        for (int i = 0; i < kVectors; ++i) V::store(each + i * V::kLanes, y[i]);
        for (int64_t i = start; i < t.first_seen && i < start + kTile; ++i) each[i - start] = -kInfinity;
        for (int i = 0; i < kVectors; ++i) y[i] = V::load(each + i * V::kLanes);
      }
      weigh_vectors<false>(y, n, t.out[q] + at, t.units[q] + at / kTile, t.sums[q] + at / kTile, nullptr);
    }
  }
}

template <int kQueries>
void code_weights_of(const CodeWeightsTask& t) {
  return most_entry(t.codes.bits) < 255 ? code_weights_of<kQueries, kEntriesOfByte>(t) : code_weights_of<kQueries, 1>(t);
}

void code_weights(const CodeWeightsTask& t) {
  switch (t.n_queries) {
    case 1: return code_weights_of<1>(t);
    case 2: return code_weights_of<2>(t);
    case 3: return code_weights_of<3>(t);
    default: return code_weights_of<kCodeQueries>(t);
  }
}

// The levels of each token of a group of codes of values, for each index of its table.
template <int kBits>
struct ValueLevels {
  static constexpr int kOfGroup = 4 / kBits;
  float of[kOfGroup][16] = {};
  constexpr ValueLevels() {
    for (int i = 0; i < kOfGroup; ++i)
      for (int index = 0; index < 16; ++index) of[i][index] = key_code_level(kBits, index >> (i * kBits) & ((1 << kBits) - 1));
  }
};
template <int kBits>
alignas(64) constexpr ValueLevels<kBits> kValueLevels;

// The tables of a tile's V for one query: kBits of a dimension. entries: 128 + the rounded products of each group's weights with levels.
// Returns the unit of an entry; 0: the tile has no weight.
template <int kBits>
float make_value_table(const float* weights, const std::byte* halves, uint8_t* entries) {
  constexpr int kOfGroup = 4 / kBits, kGroups = kTile / kOfGroup, kParts = 16 / V::kLanes, kChainsOfMost = 8;
  alignas(64) float weighed[kTile], products[kGroups * 16];
  for (int i = 0; i < kTile; i += V::kLanes) V::store(weighed + i, V::mul(V::load(weights + i), V::load_half(halves + 2 * i)));
  float most[kChainsOfMost] = {};  // one chain of comparisons would wait for each of them
  for (int group = 0; group < kGroups; group += kChainsOfMost) ORRERY_UNROLL for (int j = 0; j < kChainsOfMost; ++j) {
      const float* of_group = weighed + (group + j) * kOfGroup;
      float sum = of_group[0];
      for (int i = 1; i < kOfGroup; ++i) sum += of_group[i];
      most[j] = sum > most[j] ? sum : most[j];
    }
  float widest = 0;
  for (const float x : most) widest = x > widest ? x : widest;
  widest *= key_code_level(kBits, (1 << kBits) - 1);
  if (!(widest > 0)) return 0;
  V::F levels[kOfGroup][kParts];
  for (int i = 0; i < kOfGroup; ++i)
    for (int part = 0; part < kParts; ++part) levels[i][part] = V::load(kValueLevels<kBits>.of[i] + part * V::kLanes);
  for (int group = 0; group < kGroups; ++group) ORRERY_UNROLL for (int part = 0; part < kParts; ++part) {
      V::F sum = V::mul(V::set(weighed[group * kOfGroup]), levels[0][part]);
      ORRERY_UNROLL for (int i = 1; i < kOfGroup; ++i) sum = V::add(sum, V::mul(V::set(weighed[group * kOfGroup + i]), levels[i][part]));
      V::store(products + group * 16 + part * V::kLanes, sum);
    }
  const float inverse = 127.0f / widest;
  int16_t sums[2];
  for (int i = 0; i < kGroups * 16; i += 32) V::quantize32(V::load32(products + i), inverse, reinterpret_cast<int8_t*>(entries) + i, sums);
  for (int i = 0; i < kGroups * 16; ++i) entries[i] ^= 0x80;
  return widest / 127.0f;
}

template <int kQueries, int kBits>
void code_values_of(const CodeValuesTask& t) {
  constexpr int kGroups = kTile * kBits / 4;
  alignas(64) uint8_t entries[kQueries][kGroups * 16];
  alignas(64) uint16_t sums[kQueries][kTile];
  const uint8_t* tables[kQueries];
  for (int q = 0; q < kQueries; ++q) tables[q] = entries[q];
  for (int64_t start = t.first_key; start < t.last_key; start += kTile) {
    const auto* tile = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(t.tiles[start / kTile]));
    if (start + kTile < t.last_key) {  // the next tile's lines
      const auto* next = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(t.tiles[start / kTile + 1])) + t.codes.keys_bytes();
      for (uint64_t line = 0; line < t.codes.tile_bytes() - t.codes.keys_bytes(); line += 64) V::ask(next + line);
    }
    const auto* halves = reinterpret_cast<const std::byte*>(tile) + t.codes.value_factors_offset();
    float steps[kQueries];
    bool any = false;
    for (int q = 0; q < kQueries; ++q) {
      const int64_t of_tile = (start - t.first_key) / kTile;
      const float share = t.shares[q][of_tile];
      steps[q] = share * t.sums[q][of_tile] > t.least[q]
                     ? share * make_value_table<kBits>(t.weights[q] + (start - t.first_key), halves, entries[q])
                     : 0.0f;
      if (steps[q] > 0) any = true;
      else __builtin_memset(entries[q], 0, sizeof entries[q]);
    }
    if (!any) continue;
    for (int block = 0; block < t.codes.n_value_blocks(); ++block) {
      const uint8_t* rows = tile + t.codes.keys_bytes() + static_cast<uint64_t>(block * kGroups) * KeyCodeFormat::kGroupBytes;
      V::template add_entries<kQueries, 1>(tables, rows, kGroups, sums);
      for (int q = 0; q < kQueries; ++q) {
        if (!(steps[q] > 0)) continue;
        float* out = t.out[q] + block * kTile;
        for (int i = 0; i < kTile; i += V::kLanes)
          V::store(out + i, V::fma(V::set(steps[q]), V::sub(V::from_words(sums[q] + i), V::set(128.0f * kGroups)), V::load(out + i)));
      }
    }
  }
}

template <int kQueries>
void code_values_of(const CodeValuesTask& t) {
  return t.codes.value_bits == 1 ? code_values_of<kQueries, 1>(t) : code_values_of<kQueries, 2>(t);
}

void code_values(const CodeValuesTask& t) {
  switch (t.n_queries) {
    case 1: return code_values_of<1>(t);
    case 2: return code_values_of<2>(t);
    case 3: return code_values_of<3>(t);
    default: return code_values_of<kCodeQueries>(t);
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
  with_kv_type<false>(key_type(t.kv.type), [&](auto of) { weights_of<decltype(of)::value>(t); });
}

// The share of each tile's weights in the softmax of a row's first n keys, times `factor`.
void find_shares(const float* row, const float* units, const float* sums, int64_t n, float factor, float* shares) {
  const int64_t n_tiles = (n + kTile - 1) / kTile, whole = n_tiles / V::kLanes * V::kLanes;
  const int left = static_cast<int>(n_tiles - whole);
  // If n ends within a tile, the tile's stored sum includes other keys.
  __builtin_memcpy(shares, sums, static_cast<size_t>(n_tiles) * sizeof(float));
  if (n % kTile != 0) {
    shares[n_tiles - 1] = 0;
    for (int64_t i = (n_tiles - 1) * kTile; i < n; ++i) shares[n_tiles - 1] += row[i];
  }
  const auto sum = [&](int64_t i) { return i < whole ? V::load(shares + i) : V::load_part(shares + i, left); };
  // Tiles without weight, and lanes past the end, have the unit -infinity.
  const auto unit = [&](int64_t i) {
    return V::equal_select(sum(i), 0.0f, V::set(-kInfinity), i < whole ? V::load(units + i) : V::load_part(units + i, left));
  };
  V::F most = V::set(-kInfinity), total = V::zero();
  for (int64_t i = 0; i < n_tiles; i += V::kLanes) most = V::max(unit(i), most);
  const float base = V::largest(most);
  if (base == -kInfinity) return;  // all shares are 0
  for (int64_t i = 0; i < n_tiles; i += V::kLanes) {
    const V::F share = power_of_two(V::sub(unit(i), V::set(base)));
    total = V::fma(sum(i), share, total);
    if (i < whole) V::store(shares + i, share);
    else V::store_part(shares + i, share, left);
  }
  const float inverse = factor / V::sum(total);
  for (int64_t i = 0; i < n_tiles; ++i) shares[i] *= inverse;
}

void tile_shares(const float* units, const float* sums, int64_t n_tiles, float* shares) {
  find_shares(nullptr, units, sums, n_tiles * kTile, 1.0f, shares);
}

// A tile's sums stay in registers while each row is read once.
void add_means(const MeansTask& t) {
  constexpr int kVectors = kTile / V::kLanes;
  const float part = 1.0f / static_cast<float>(t.n_heads);
  for (int64_t first = 0; first < t.n; first += kTile) {
    const int64_t tile = first / kTile;
    const auto left = [&](int i) { return t.n - first - i * V::kLanes; };
    V::F sums[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const float* at = t.out + first + i * V::kLanes;
      sums[i] = left(i) >= V::kLanes ? V::load(at) : left(i) > 0 ? V::load_part(at, static_cast<int>(left(i))) : V::zero();
    }
    for (int32_t r = 0; r < t.n_positions * t.n_heads;) {
      V::F mean[kVectors];
      for (V::F& x : mean) x = V::zero();
      for (const int32_t end = r + t.n_heads; r < end; ++r) {
        const float* row = t.rows + r * t.stride + first;
        const V::F share = V::set(t.shares[r * t.tile_stride + tile] * part);
        ORRERY_UNROLL for (int i = 0; i < kVectors; ++i) mean[i] = V::fma(V::load(row + i * V::kLanes), share, mean[i]);
      }
      ORRERY_UNROLL for (int i = 0; i < kVectors; ++i) sums[i] = V::add(sums[i], mean[i]);
    }
    for (int i = 0; i < kVectors && left(i) > 0; ++i) {
      float* at = t.out + first + i * V::kLanes;
      if (left(i) >= V::kLanes) V::store(at, sums[i]);
      else V::store_part(at, sums[i], static_cast<int>(left(i)));
    }
  }
}

// One tile at a time: its weights, times their shares, stay in the first-level cache until the means are subtracted.
void key_moments(const MomentsTask& t) {
  constexpr int kVectors = kTile / V::kLanes;
  alignas(64) float room[kQueryTile * kTile];
  const V::F each = V::set(1.0f / static_cast<float>(t.n_rows)),
             of_variance = V::set(t.n_rows > 1 ? 1.0f / static_cast<float>(t.n_rows - 1) : 0.0f);
  for (int64_t first = 0; first < t.n; first += kTile) {
    const int64_t tile = first / kTile;
    V::F mean[kVectors], variance[kVectors], sum = V::zero();
    for (V::F& x : mean) x = V::zero();
    for (V::F& x : variance) x = V::zero();
    for (int32_t r = 0; r < t.n_rows; ++r) {
      const float* row = t.rows + r * t.stride + first;
      const V::F share = V::set(t.shares[r * t.tile_stride + tile]);
      ORRERY_UNROLL for (int i = 0; i < kVectors; ++i) {
        const V::F x = V::mul(V::load(row + i * V::kLanes), share);
        V::store(room + r * kTile + i * V::kLanes, x);
        mean[i] = V::add(mean[i], x);
      }
    }
    for (V::F& x : mean) x = V::mul(x, each);
    for (int32_t r = 0; r < t.n_rows; ++r) ORRERY_UNROLL for (int i = 0; i < kVectors; ++i) {
        const V::F x = V::sub(V::load(room + r * kTile + i * V::kLanes), mean[i]);
        variance[i] = V::fma(x, x, variance[i]);
      }
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = first + i * V::kLanes, left = t.n - at;
      if (left <= 0) break;
      variance[i] = V::mul(variance[i], of_variance);
      const V::F x = V::fma(V::set(t.gamma), variance[i], mean[i]);
      if (left < V::kLanes) {
        V::store_part(t.out + at, x, static_cast<int>(left));
        V::store(room, variance[i]);
        variance[i] = V::load_part(room, static_cast<int>(left));  // only the measured keys
      } else {
        V::store(t.out + at, x);
      }
      sum = V::add(sum, variance[i]);
    }
    t.variances[tile] = V::sum(sum);
  }
}

// How a row's scores combine with the scores in `out`.
enum class Meet { first, sum, max };

// Pools in[i - half .. i + half] and combines the result with out[i], for i < n. Reads `in` up to half a width beyond its ends.
template <Meet kMeet>
void pool_row(const float* in, float* out, int n, const KeyScoring& scoring) {
  const bool max = scoring.pooling == KeyScoring::Pooling::max;
  const int width = scoring.pooling == KeyScoring::Pooling::none ? 1 : scoring.pool_width;
  const V::F share = V::set(1.0f / static_cast<float>(width));
  in -= width / 2;
  for (int i = 0; i < n; i += V::kLanes) {
    V::F x = V::load(in + i);
    for (int j = 1; j < width; ++j) x = max ? V::max(V::load(in + i + j), x) : V::add(x, V::load(in + i + j));
    if (!max) x = V::mul(x, share);
    const int left = n - i;
    if (kMeet != Meet::first) {
      const V::F before = left < V::kLanes ? V::load_part(out + i, left) : V::load(out + i);
      x = kMeet == Meet::sum ? V::add(before, x) : V::max(x, before);
    }
    if (left < V::kLanes) V::store_part(out + i, x, left);
    else V::store(out + i, x);
  }
}

// out (keys [first, last), whole vectors) = the sum or the maximum of n_rows rows from `row` on, each tile times its share.
template <bool kMax>
void reduce_rows(const ScoresTask& t, int32_t row, int32_t n_rows, int64_t first, int64_t last, float* out) {
  const float *rows = t.rows + row * t.stride, *shares = t.shares + row * t.tile_stride;
  for (int64_t at = first; at < last;) {
    const int64_t tile = at / kTile, end = last < (tile + 1) * kTile ? last : (tile + 1) * kTile;
    for (; at < end; at += V::kLanes) {
      V::F x = V::mul(V::load(rows + at), V::set(shares[tile]));
      for (int32_t r = 1; r < n_rows; ++r) {
        const V::F w = V::load(rows + r * t.stride + at), share = V::set(shares[r * t.tile_stride + tile]);
        x = kMax ? V::max(V::mul(w, share), x) : V::fma(w, share, x);
      }
      V::store(out + (at - first), x);
    }
  }
}

// One stretch of keys at a time, with the neighbours that pooling reads. Both stay in the first-level cache.
void key_scores(const ScoresTask& t) {
  using Pooling = KeyScoring::Pooling;
  constexpr int kStretch = 16 * kTile;
  alignas(64) float room[kTile + kStretch + kTile];
  float* scores = room + kTile;
  const bool max_of_group = t.scoring.max_of_group, pools = t.scoring.pooling != Pooling::none;
  // The mean over heads and the average over keys commute, and so do the two maxima. Then one row is pooled instead of all.
  const bool together = !pools || max_of_group == (t.scoring.pooling == Pooling::max);
  const int64_t end = (t.n + kTile - 1) / kTile * kTile;
  for (int32_t r = 0; r < t.n_rows; ++r)
    find_shares(t.rows + r * t.stride, t.units + r * t.tile_stride, t.sums + r * t.tile_stride, t.n,
                max_of_group ? 1.0f : 1.0f / static_cast<float>(t.n_rows), t.shares + r * t.tile_stride);
  for (int64_t first = 0; first < t.n; first += kStretch) {
    const int n = static_cast<int>(t.n - first < kStretch ? t.n - first : kStretch);
    // Beyond the ends, scores are 0, the smallest possible weight.
    const int64_t from = !pools || first == 0 ? first : first - kTile;
    const int64_t to = end < first + kStretch + kTile ? end : first + kStretch + (pools ? kTile : 0);
    for (int i = -kTile; i < from - first; ++i) scores[i] = 0;
    for (int32_t r = 0; r < (together ? 1 : t.n_rows); ++r) {
      float *reduced = scores + (from - first), *out = t.out + first;
      if (max_of_group && together) reduce_rows<true>(t, 0, t.n_rows, from, to, reduced);
      else reduce_rows<false>(t, r, together ? t.n_rows : 1, from, to, reduced);
      for (int64_t i = (to < t.n ? to : t.n) - first; i < kStretch + kTile; ++i) scores[i] = 0;
      if (r == 0) pool_row<Meet::first>(scores, out, n, t.scoring);
      else if (max_of_group) pool_row<Meet::max>(scores, out, n, t.scoring);
      else pool_row<Meet::sum>(scores, out, n, t.scoring);
    }
  }
}

// A vector's indices are stored whole; where less than a vector is left, one by one: `out` has no room behind its n.
int64_t list_reaching(const float* scores, int64_t n, float low, float high, uint32_t* out, int64_t* n_high) {
  int64_t n_out = 0, above = 0, i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    const V::F x = V::load(scores + i);
    n_out += V::list_reaching(x, low, static_cast<uint32_t>(i), out + n_out);
    above += V::count_above(x, high);
  }
  for (; i < n; ++i) {
    if (scores[i] >= low) out[n_out++] = static_cast<uint32_t>(i);
    above += scores[i] > high;
  }
  *n_high = above;
  return n_out;
}

}  // namespace
}  // namespace orrery::cpu
