// Key codes for tests: one head's codes in a machine's memory, what they decode to, and products, scores and angles in double precision. A
// product's bound is what the kernels' whole numbers leave out: level_error() of each level, and 2^-15 of the query's largest dimension.
#pragma once

#include <algorithm>
#include <cmath>

#include "runtime/base/half.h"
#include "tests/gpu/kv_pages.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/doubles.h"

namespace orrery::gpu_key_codes_test {
using namespace testing;
using Doubles = std::vector<double>;
using Pooling = KeyScoring::Pooling;

constexpr int32_t kTokens = 301, kKvHeads = 2, kLayers = 2, kGroup = 3, kRing = 12;

struct Case {
  int32_t bits, dim;
  KvType type;
  bool rotate;
  int32_t value_bits = 0, n_turns = 0, n_pairs = 0;
  bool interleaved = false;
  int32_t block() const { return rotate ? hadamard_block(dim) : 1; }
  KeyCodeFormat format() const { return {bits, dim, false, value_bits, n_turns}; }
};
inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.bits << " bits of " << c.dim << " in " << kv_type_name(c.type);
  if (c.value_bits > 0) *out << ", " << c.value_bits << " of values";
  if (c.n_turns > 0) *out << ", " << c.n_turns << " turns of " << c.n_pairs << " pairs" << (c.interleaved ? ", interleaved" : "");
}

inline StepLimits limits(int32_t dim, int32_t n_keys = kTokens, int32_t group = kGroup) {
  StepLimits l;
  l.max_rows = 1, l.max_context = n_keys;
  l.n_heads = kKvHeads * group, l.n_kv_heads = kKvHeads, l.head_dim = dim;
  l.max_in = 256;
  l.max_top_keys = n_keys;
  return l;
}

// A key's code of a dimension, and its factor, out of its tile.
inline int32_t code_of(const KeyCodeFormat& format, const std::byte* tile, int32_t key, int32_t dim) {
  const int32_t of_group = 4 / format.bits, at = key % kPageTokens, half = kPageTokens / 2;
  const auto both = static_cast<int32_t>(tile[dim / of_group * half + at % half]);
  return (both >> (at < half ? 0 : 4) >> dim % of_group * format.bits) & ((1 << format.bits) - 1);
}
inline uint16_t factor_of(const KeyCodeFormat& format, const std::byte* tile, int32_t key) {
  return reinterpret_cast<const uint16_t*>(tile + format.factors_offset())[key % kPageTokens];
}

// The same of a value.
inline int32_t value_code_of(const KeyCodeFormat& format, const std::byte* tile, int32_t key, int32_t dim) {
  const int32_t of_group = 4 / format.value_bits, at = key % kPageTokens, half = kPageTokens / 2, in_block = dim % kPageTokens;
  const int32_t row = dim / kPageTokens * format.n_value_groups() + at / of_group;
  const auto both = static_cast<int32_t>(tile[format.keys_bytes() + static_cast<uint64_t>(row * half + in_block % half)]);
  return both >> (at % of_group * format.value_bits + (in_block < half ? 0 : 4)) & ((1 << format.value_bits) - 1);
}
inline uint16_t value_factor_of(const KeyCodeFormat& format, const std::byte* tile, int32_t key) {
  return reinterpret_cast<const uint16_t*>(tile + format.value_factors_offset())[key % kPageTokens];
}

// The tables of turns of a RoPE: of tiles, and within a tile (KeyTurnTables).
struct TurnAngles {
  int32_t n_pairs;
  std::vector<float> tiles, within;
  // A query's product with a turn at a position; `size` grows by what bounds it.
  double product(const KeyTurn& turn, const float* q, int32_t position, double* size) const {
    const int32_t tile = position / kPageTokens * n_pairs + turn.pair, slot = 2 * kPageTokens * turn.pair + position % kPageTokens;
    const auto at = [](const std::vector<float>& table, int32_t i) { return static_cast<double>(table[static_cast<size_t>(i)]); };
    const double c0 = at(tiles, 2 * tile), s0 = at(tiles, 2 * tile + 1), c1 = at(within, slot), s1 = at(within, slot + kPageTokens);
    const double c = c0 * c1 - s0 * s1, s = s0 * c1 + c0 * s1, x = static_cast<double>(turn.x), y = static_cast<double>(turn.y),
                 a = static_cast<double>(q[turn.first]), b = static_cast<double>(q[turn.second]);
    *size += std::hypot(a, b) * std::hypot(x, y);
    return a * (x * c - y * s) + b * (x * s + y * c);
  }
};
// alike: all pairs have one frequency.
inline TurnAngles angles_of(int32_t n_pairs, int32_t n_tokens, bool alike = false) {
  TurnAngles angles{n_pairs, {}, {}};
  const auto frequency = [&](int32_t i) { return alike ? .37 : std::pow(1e4, -static_cast<double>(i) / n_pairs); };
  for (int32_t tile = 0; tile * kPageTokens < n_tokens; ++tile)
    for (int32_t i = 0; i < n_pairs; ++i)
      for (const bool sine : {false, true}) {
        const double angle = tile * kPageTokens * frequency(i);
        angles.tiles.push_back(static_cast<float>(sine ? std::sin(angle) : std::cos(angle)));
      }
  for (int32_t i = 0; i < n_pairs; ++i)
    for (const bool sine : {false, true})
      for (int32_t p = 0; p < kPageTokens; ++p)
        angles.within.push_back(static_cast<float>(sine ? std::sin(p * frequency(i)) : std::cos(p * frequency(i))));
  return angles;
}
// In a machine's memory.
struct TurnTables {
  TurnAngles angles;
  Buffer<float> tiles, within;
  TurnTables(Machine* m, int32_t n_pairs, int32_t n_tokens, bool alike = false)
      : angles(angles_of(n_pairs, n_tokens, alike)), tiles(m, std::max<size_t>(angles.tiles.size(), 1)),
        within(m, std::max<size_t>(angles.within.size(), 1)) {
    if (n_pairs > 0) tiles.set(angles.tiles), within.set(angles.within);
  }
  KeyTurnTables tables() const { return {tiles.ptr(), within.ptr(), angles.n_pairs}; }
};
inline KeyCodesShape codes_shape(const KvFormat& kv, const Case& c, const TurnTables& turns) {
  KeyCodesShape shape{kv, c.format(), c.block()};
  if (c.n_turns > 0) shape.turns = turns.tables(), shape.interleaved = c.interleaved;
  return shape;
}

// One head's codes and means in a machine's memory. Tiles are unwritten.
struct Codes {
  KeyCodeFormat format;
  int32_t n_tiles;
  Buffer<std::byte> tiles;
  Buffer<float> mean;  // and the turns behind it
  std::vector<uint64_t> addresses;
  std::vector<std::byte> read;  // by fetch()
  Codes(Machine* m, int32_t bits, int32_t dim, int32_t n_tokens) : Codes(m, KeyCodeFormat{bits, dim, false}, n_tokens) {}
  Codes(Machine* m, const KeyCodeFormat& of, int32_t n_tokens)
      : format(of), n_tiles((n_tokens + kPageTokens - 1) / kPageTokens), tiles(m, static_cast<size_t>(n_tiles) * format.tile_bytes()),
        mean(m, format.mean_bytes() / sizeof(float)) {
    for (int32_t t = 0; t < n_tiles; ++t) addresses.push_back(tiles.address() + static_cast<uint64_t>(t) * format.tile_bytes());
  }
  KeyCodesJob job(const uint64_t* pages, uint64_t offset) const { return {pages, offset, mean.ptr(), tiles.ptr()}; }
  void fetch() { read = tiles.get(); }
  const std::byte* tile(int32_t key) const { return &read[static_cast<size_t>(key / kPageTokens) * format.tile_bytes()]; }
  int32_t code(int32_t key, int32_t dim) const { return code_of(format, tile(key), key, dim); }
  uint16_t factor_bits(int32_t key) const { return factor_of(format, tile(key), key); }
  double factor(int32_t key) const { return static_cast<double>(half_to_float(factor_bits(key))); }
  // The codes and factors of keys [first, end), as numbers.
  std::vector<int32_t> numbers(int32_t first, int32_t end) const {
    std::vector<int32_t> out;
    for (int32_t key = first; key < end; ++key) {
      for (int32_t i = 0; i < format.head_dim; ++i) out.push_back(code(key, i));
      out.push_back(std::isnan(factor(key)) ? 0x7FFF : factor_bits(key));
      for (int32_t i = 0; format.value_bits > 0 && i < format.head_dim; ++i) out.push_back(value_code_of(format, tile(key), key, i));
      if (format.value_bits > 0) out.push_back(value_factor_of(format, tile(key), key));
    }
    return out;
  }
};

// T x, by rows of Sylvester's matrix: entry (i, j) is -1 to the number of common bits.
inline Doubles rotated(const Doubles& x, int32_t block) {
  Doubles out(x.size());
  sylvester(x.data(), x.size(), static_cast<size_t>(block), out.data());
  return out;
}

inline double level_error(int32_t bits) { return bits == 1 ? 1e-7 : bits == 2 ? 3e-4 : 1.7e-4; }

// The natural logarithms of the weights of keys [first, n) by a rotated query; `error` gets the bound of each. tile(key): the bytes of its
// tile. turned(key, size): what turns add to a product; its size grows by what bounds that, of which 2^-19 are lost.
template <class Tile, class Turned>
Doubles products_of(const KeyCodeFormat& f, const Doubles& q, double scale, int32_t first, int32_t n, const Tile& tile,
                    const Turned& turned, double* error) {
  double all = 0, largest = 0;
  for (const double x : q) all += std::fabs(x), largest = std::max(largest, std::fabs(x));
  Doubles out;
  for (int32_t t = first; t < n; ++t) {
    double sum = 0, levels = 0;
    for (int32_t i = 0; i < f.head_dim; ++i) {
      const auto level = static_cast<double>(key_code_level(f.bits, code_of(f, tile(t), t, i)));
      sum += q[static_cast<size_t>(i)] * level, levels += std::fabs(level);
    }
    const double factor = scale * static_cast<double>(half_to_float(factor_of(f, tile(t), t)));
    double size = 0;
    out.push_back(factor * sum + scale * turned(t, &size));
    *error = std::max(*error, factor * (all * level_error(f.bits) + levels * largest / 65024) + 2e-6 * (1 + std::fabs(out.back())) +
                                  scale * size / (1 << 19));
  }
  return out;
}
// Each row's softmax, and its mean or largest value over the rows.
inline Doubles scores_of(const std::vector<Doubles>& rows, bool max_of_group) {
  Doubles all(rows[0].size());
  for (const Doubles& row : rows) {
    double total = 0;
    for (const double x : row) total += std::exp(x);
    for (size_t i = 0; i < row.size(); ++i) {
      const double share = std::exp(row[i]) / total;
      all[i] = max_of_group ? std::max(all[i], share) : all[i] + share / static_cast<double>(rows.size());
    }
  }
  return all;
}
inline double largest_of(Doubles x, size_t n) {  // the n-th largest
  std::sort(x.begin(), x.end(), std::greater<>());
  return x[n - 1];
}

// Codes of one head of the second layer on CUDA, and the queries of some positions.
struct Encoded {
  Case c;
  int32_t n_tokens, group;
  KvFormat kv;
  Machine m;
  Pages pages;
  Codes codes;
  TurnTables tables;
  std::vector<KeyTurn> turns;  // large ones, whatever the keys' means are
  std::vector<float> queries;
  Buffer<float> ring;
  explicit Encoded(const Case& of, int32_t n = kTokens, int32_t in_group = kGroup, float query_scale = 1.7f, float turn_scale = 1)
      : c(of), n_tokens(n), group(in_group), kv(kv_format(of.type, kLayers, kKvHeads, of.dim)), m(true, limits(of.dim, n, in_group)),
        pages(&m, kv, n, 7), codes(&m, of.format(), n), tables(&m, of.n_pairs, n),
        queries(normal_values(static_cast<size_t>(kLayers * kRing * kKvHeads * in_group * of.dim), 13, query_scale)), ring(&m, queries) {
    const KeyCodesJob job = codes.job(pages.addresses(), kv.head_offset(1, 1));
    const KeyCodesShape shape = codes_shape(kv, c, tables);
    m->key_codes()->mean_keys({&job, 1}, shape, 0, n, 1);
    if (c.n_turns > 0) set_turns(turn_scale);
    m->key_codes()->encode_keys({&job, 1}, shape, 0, n);
    codes.fetch();
  }
  void set_turns(float times) {
    for (int32_t i = 0; i < c.n_turns; ++i) {
      KeyTurn turn;
      turn.pair = (5 * i + 1) % c.n_pairs;
      turn.first = c.interleaved ? 2 * turn.pair : turn.pair, turn.second = turn.first + (c.interleaved ? 1 : c.n_pairs);
      turn.x = i < c.n_pairs ? times * (1.5f + .25f * static_cast<float>(i)) : 0.0f;  // a pair of its own
      turn.y = i < c.n_pairs ? times * (.7f - .3f * static_cast<float>(i)) : 0.0f;
      turns.push_back(turn);
    }
    std::vector<float> means = codes.mean.get();
    std::memcpy(means.data() + c.dim, turns.data(), turns.size() * sizeof(KeyTurn));
    codes.mean.set(means);
  }
  template <class Job>
  Job job(int32_t n_keys, int32_t position, int32_t n_positions = 1) const {
    Job j;
    if (c.n_turns > 0) j.turns = {codes.mean.address() + codes.format.turns_offset()};
    j.layer = 1, j.kv_head = 1, j.tiles = codes.addresses.data(), j.n_keys = n_keys, j.first_position = position,
    j.n_positions = n_positions;
    return j;
  }
  TopKeysShape shape(bool max_of_group = false) const {
    TopKeysShape s;
    s.kv = kv, s.n_heads = kKvHeads * group, s.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
    s.queries = {ring.ptr(), kRing};
    s.codes = codes.format, s.code_block = c.block(), s.turns = tables.tables();
    s.scoring = {max_of_group, Pooling::none, 1};
    return s;
  }
  double scale() const { return static_cast<double>(shape().scale); }
  const float* stored_query(int32_t position, int32_t g) const {
    return &queries[static_cast<size_t>(((kRing + position % kRing) * kKvHeads * group + group + g) * c.dim)];
  }
  Doubles query(int32_t position, int32_t g) const {
    const float* q = stored_query(position, g);
    return rotated(Doubles(q, q + c.dim), c.block());
  }
  // The natural logarithms of the weights of keys [first, n) by one query head; `error` gets the bound of each.
  Doubles products(int32_t position, int32_t g, int32_t first, int32_t n, double* error) const {
    const auto turned = [&](int32_t key, double* size) {
      double sum = 0;
      for (const KeyTurn& turn : turns) sum += tables.angles.product(turn, stored_query(position, g), key, size);
      return sum;
    };
    return products_of(
        codes.format, query(position, g), scale(), first, n, [this](int32_t key) { return codes.tile(key); }, turned, error);
  }
  Doubles scores(int32_t position, int32_t first, int32_t n, bool max_of_group, double* error) const {
    std::vector<Doubles> rows;
    for (int32_t g = 0; g < group; ++g) rows.push_back(products(position, g, first, n, error));
    return scores_of(rows, max_of_group);
  }
};

}  // namespace orrery::gpu_key_codes_test
