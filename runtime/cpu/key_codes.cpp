#include "runtime/cpu/key_codes.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"
#include "runtime/base/half.h"
#include "runtime/cpu/kernels/moves.h"

namespace orrery::cpu {

namespace {

constexpr float kLog2E = 1.44269504088896f;

const std::byte* token_at(const uint64_t* pages, uint64_t offset, const KvFormat& kv, int32_t position) {
  return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(pages[position / kPageTokens] + offset)) +
         static_cast<uint64_t>(position % kPageTokens) * kv.token_bytes();
}

// Tokens that are prefetched while a token is read: a tile's keys lie apart, with V between them.
constexpr int32_t kAhead = 12;

}  // namespace

namespace {

const KeyTurn* turns_of(const KeyCodesJob& job, const KeyCodeFormat& codes) {
  return reinterpret_cast<const KeyTurn*>(static_cast<uintptr_t>(job.mean.address + codes.turns_offset()));
}

// The cosine and the sine of a pair at a position.
struct Angle {
  float cosine, sine;
};
Angle angle_at(const KeyTurnTables& tables, int32_t pair, int32_t position) {
  const float *tiles = reinterpret_cast<const float*>(static_cast<uintptr_t>(tables.tiles.address)),
              *within = reinterpret_cast<const float*>(static_cast<uintptr_t>(tables.within.address));
  const float* of_tile = tiles + 2 * (int64_t{position / kPageTokens} * tables.n_pairs + pair);
  const float* of_slot = within + int64_t{2} * kPageTokens * pair + position % kPageTokens;
  return {of_tile[0] * of_slot[0] - of_tile[1] * of_slot[kPageTokens], of_tile[1] * of_slot[0] + of_tile[0] * of_slot[kPageTokens]};
}

// key -= its turns at the position.
void subtract_turns(const KeyTurn* turns, const KeyCodesShape& shape, int32_t position, float* key) {
  for (int32_t i = 0; i < shape.codes.n_turns; ++i) {
    const KeyTurn& turn = turns[i];
    if (turn.x == 0 && turn.y == 0) continue;
    const Angle a = angle_at(shape.turns, turn.pair, position);
    key[turn.first] -= turn.x * a.cosine - turn.y * a.sine;
    key[turn.second] -= turn.x * a.sine + turn.y * a.cosine;
  }
}

}  // namespace

TurnsOfHead turns_of(const KeysJob& job, const KeysShape& shape) {
  TurnsOfHead turns;
  const auto* of_head = reinterpret_cast<const KeyTurn*>(static_cast<uintptr_t>(job.turns.address));
  const float *tiles = reinterpret_cast<const float*>(static_cast<uintptr_t>(shape.turns.tiles.address)),
              *within = reinterpret_cast<const float*>(static_cast<uintptr_t>(shape.turns.within.address));
  turns.n = of_head ? shape.codes.n_turns : 0;
  turns.tile_stride = 2 * int64_t{shape.turns.n_pairs};
  for (int32_t i = 0; i < turns.n; ++i) {
    turns.of_tiles[i] = tiles + int64_t{2} * of_head[i].pair;
    turns.within[i] = within + int64_t{2} * kPageTokens * of_head[i].pair;
  }
  return turns;
}

void set_turns(const float* q, const KeysJob& job, const KeysShape& shape, KeyCodeTable* table) {
  const auto* turns = reinterpret_cast<const KeyTurn*>(static_cast<uintptr_t>(job.turns.address));
  const float scale = shape.scale * kLog2E;
  for (int32_t i = 0; turns && i < shape.codes.n_turns; ++i) {
    const KeyTurn& turn = turns[i];
    table->cosines[i] = (q[turn.first] * turn.x + q[turn.second] * turn.y) * scale;
    table->sines[i] = (q[turn.second] * turn.x - q[turn.first] * turn.y) * scale;
  }
}

// Of mean_keys(): means and turns, which take most. Of encode_keys(): a key, and codes of a value.
int64_t key_code_thread_bytes(int32_t head_dim) {
  const int64_t dim = head_dim, tables = static_cast<int64_t>(align_up(sizeof(CodeQueryScratch), 64));
  return std::max(tables + 2 * dim * int64_t{sizeof(double)},
                  7 * dim * int64_t{sizeof(double)} + dim * static_cast<int64_t>(KeyCodeFormat::kGroupBytes));
}

void make_code_table(const float* q, const KeysShape& shape, const Kernels& kernels, CodeQueryScratch* scratch, int32_t n) {
  KeyCodeTable& table = scratch->tables[n];
  const KeyCodeFormat& codes = shape.codes;
  const int32_t dim = codes.head_dim, of_group = 4 / codes.bits, n_groups = codes.n_groups(), mask = (1 << codes.bits) - 1;
  auto* rotated = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(scratch) + align_up(sizeof(CodeQueryScratch), 64));
  std::copy_n(q, dim, rotated);
  kernels.transform_heads(rotated, nullptr, 1, dim, shape.code_block);
  float levels[4][16] = {};  // of a group's dimensions, for each index
  for (int32_t i = 0; i < of_group; ++i)
    for (int32_t index = 0; index < 16; ++index) levels[i][index] = key_code_level(codes.bits, index >> (i * codes.bits) & mask);
  // Levels are symmetric, so a group's least product is minus its largest.
  const float largest_level = levels[0][mask];
  const auto largest_of = [&](int32_t group) {
    float sum = 0;
    for (int32_t i = group * of_group; i < std::min(dim, (group + 1) * of_group); ++i) sum += std::fabs(rotated[i]);
    return sum * largest_level;
  };
  float widest = 0, base = 0;
  for (int32_t group = 0; group < n_groups; ++group) {
    const float largest = largest_of(group);
    widest = std::max(widest, largest), base -= largest;
  }
  const auto most = static_cast<float>(most_entry(codes.bits));
  const float step = 2 * widest / most, inverse = step > 0 ? 1 / step : 0.0f, scale = shape.scale * kLog2E;
  for (int32_t group = 0; group < n_groups; ++group) {
    float products[16] = {};
    for (int32_t i = 0; i < of_group; ++i) {
      const int32_t at = group * of_group + i;
      const float x = at < dim ? rotated[at] : 0.0f;
      for (int32_t index = 0; index < 16; ++index) products[index] += x * levels[i][index];
    }
    uint8_t* entries = table.entries + group * 16;
    const float largest = largest_of(group);
    for (int32_t index = 0; index < 16; ++index) {  // a NaN becomes 0
      const float entry = (products[index] + largest) * inverse + .5f, at_least = entry > 0 ? entry : 0.0f;
      entries[index] = static_cast<uint8_t>(static_cast<int32_t>(at_least < most ? at_least : most));
    }
  }
  table.base = base * scale, table.step = step * scale;
}

double code_factor_square(const KeysJob& job, const KeyCodeFormat& codes) {
  const int32_t n_tiles = div_up(job.n_keys, kPageTokens), n = std::min(n_tiles, kVarianceTiles);
  double squares = 0;
  int32_t n_keys = 0;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t tile = n > 1 ? i * (n_tiles - 1) / (n - 1) : 0;
    const auto* factors = reinterpret_cast<const uint16_t*>(static_cast<uintptr_t>(job.tiles[tile] + codes.factors_offset()));
    for (int32_t p = std::max(tile * kPageTokens, job.first_key); p < std::min((tile + 1) * kPageTokens, job.n_keys); ++p) {
      const auto factor = static_cast<double>(half_to_float(factors[p % kPageTokens]));
      if (std::isfinite(factor)) squares += factor * factor, ++n_keys;
    }
  }
  return squares / std::max(n_keys, 1);
}

float code_variance(const float* q, double factor_square, const KeysShape& shape) {
  double of_query = 0;
  for (int32_t i = 0; i < shape.codes.head_dim; ++i) of_query += static_cast<double>(q[i]) * static_cast<double>(q[i]);
  const auto scale = static_cast<double>(shape.scale), error = static_cast<double>(key_code_error(shape.codes.bits));
  return static_cast<float>(scale * scale * of_query * error * factor_square);
}

void mean_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, int32_t step,
               const KeyCodesWork& work) {
  const int32_t dim = shape.kv.head_dim, n = end > first ? div_up(end - first, step) : 0;
  work.pool->run(static_cast<int64_t>(jobs.size()), [&](int64_t item, int32_t thread) {
    const KeyCodesJob& job = jobs[static_cast<size_t>(item)];
    auto* sums = reinterpret_cast<double*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes);
    double *back = sums + dim, *angles = back + dim;  // of keys turned back, and of cosines and sines: (n_pairs, 2)
    auto *key = reinterpret_cast<float*>(angles + dim), *mean = reinterpret_cast<float*>(static_cast<uintptr_t>(job.mean.address));
    std::fill(sums, sums + 3 * dim, 0.0);
    const int32_t n_pairs = shape.codes.n_turns > 0 ? shape.turns.n_pairs : 0, stride = shape.interleaved ? 2 : 1,
                  apart = shape.interleaved ? 1 : n_pairs;
    for (int32_t p = first; p < end; p += step) {
      work.kernels.load_kv(key_type(shape.kv.type), token_at(job.pages, job.offset, shape.kv, p), dim, key);
      for (int32_t i = 0; i < dim; ++i) sums[i] += static_cast<double>(key[i]);
      for (int32_t i = 0; i < n_pairs; ++i) {
        const Angle a = angle_at(shape.turns, i, p);
        const double x = static_cast<double>(key[i * stride]), y = static_cast<double>(key[i * stride + apart]),
                     cosine = static_cast<double>(a.cosine), sine = static_cast<double>(a.sine);
        back[2 * i] += x * cosine + y * sine, back[2 * i + 1] += y * cosine - x * sine;
        angles[2 * i] += cosine, angles[2 * i + 1] += sine;
      }
    }
    const double of_token = 1.0 / std::max(n, 1);
    for (int32_t i = 0; i < n_pairs; ++i) back[2 * i] *= of_token, back[2 * i + 1] *= of_token;
    for (int32_t i = 0; i < dim; ++i) sums[i] *= of_token;
    auto* turns = reinterpret_cast<KeyTurn*>(static_cast<uintptr_t>(job.mean.address + shape.codes.turns_offset()));
    for (int32_t t = 0; t < shape.codes.n_turns; ++t) {  // one after the other: the pair that loses most, the lower one of equals
      int32_t best = -1;
      double most = 0;
      for (int32_t i = 0; i < n_pairs; ++i) {
        const double x = sums[i * stride], y = sums[i * stride + apart];
        const double lost = back[2 * i] * back[2 * i] + back[2 * i + 1] * back[2 * i + 1] - (x * x + y * y);
        if (lost > most) most = lost, best = i;
      }
      turns[t] = {};
      if (best < 0) continue;
      KeyTurn& turn = turns[t];
      turn.first = best * stride, turn.second = turn.first + apart, turn.pair = best;
      turn.x = static_cast<float>(back[2 * best]), turn.y = static_cast<float>(back[2 * best + 1]);
      const double x = static_cast<double>(turn.x), y = static_cast<double>(turn.y), cosine = angles[2 * best] * of_token,
                   sine = angles[2 * best + 1] * of_token;
      sums[turn.first] -= x * cosine - y * sine, sums[turn.second] -= x * sine + y * cosine;
      back[2 * best] = back[2 * best + 1] = 0;
    }
    for (int32_t i = 0; i < dim; ++i) mean[i] = static_cast<float>(sums[i]);
  });
}

void mean_values(Span<const MeanValueJob> jobs, const KvFormat& kv, const KeyCodesWork& work) {
  const int32_t dim = kv.head_dim;
  work.pool->run(static_cast<int64_t>(jobs.size()), [&](int64_t item, int32_t thread) {
    const MeanValueJob& job = jobs[static_cast<size_t>(item)];
    auto* sums = reinterpret_cast<double*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes);
    auto *value = reinterpret_cast<float*>(sums + dim), *of_page = value + dim;
    auto* const mean = reinterpret_cast<float*>(static_cast<uintptr_t>(job.value.address));
    std::fill(sums, sums + dim, 0.0);
    for (size_t first = 0; first < job.shares.size(); first += kPageTokens) {  // a page's tokens are summed in floats
      std::fill(of_page, of_page + dim, 0.0f);
      for (size_t p = first; p < std::min(first + kPageTokens, job.shares.size()); ++p) {
        const float share = job.shares[p];
        if (share == 0) continue;
        const auto value_at = [&](size_t token) {
          return token_at(job.pages, job.offset, kv, static_cast<int32_t>(token)) + kv.key_bytes();
        };
        if (p + kAhead < job.shares.size()) ask_for_bytes<0>(value_at(p + kAhead), kv.value_bytes());
        work.kernels.load_kv(value_type(kv.type), value_at(p), dim, value);
        for (int32_t i = 0; i < dim; ++i) of_page[i] += share * value[i];
      }
      for (int32_t i = 0; i < dim; ++i) sums[i] += static_cast<double>(of_page[i]);
    }
    for (int32_t i = 0; i < dim; ++i) mean[i] = static_cast<float>(sums[i]);
  });
}

namespace {

// Writes the codes of a token's V to its place in the tile. value (head_dim), codes (head_dim groups): scratch.
void encode_value(const std::byte* v, int32_t at, const KeyCodesShape& shape, const Kernels& kernels, float* value, uint8_t* codes,
                  uint8_t* tile) {
  const int32_t dim = shape.kv.head_dim, bits = shape.codes.value_bits, of_group = 4 / bits, mask = (1 << bits) - 1;
  constexpr auto kHalf = static_cast<int32_t>(KeyCodeFormat::kGroupBytes);
  kernels.load_kv(value_type(shape.kv.type), v, dim, value);
  kernels.transform_heads(value, nullptr, 1, dim, shape.block);
  float factor;
  kernels.encode_key({{bits, dim}, value, 0, codes, &factor});  // as the first key of a tile: the low half of its groups' first byte
  uint8_t* rows = tile + shape.codes.keys_bytes() + at / of_group * kHalf;
  const int32_t shift = at % of_group * bits;
  for (int32_t d = 0; d < dim; ++d) {
    const int32_t code = codes[d / of_group * kHalf] >> (d % of_group * bits) & mask, in_block = d % KeyCodeFormat::kValueBlock;
    uint8_t& byte = rows[d / KeyCodeFormat::kValueBlock * shape.codes.n_value_groups() * kHalf + in_block % kHalf];
    const int32_t place = shift + (in_block < kHalf ? 0 : 4);
    byte = static_cast<uint8_t>((byte & ~(mask << place)) | code << place);
  }
  reinterpret_cast<uint16_t*>(tile + shape.codes.value_factors_offset())[at] = factor == factor ? float_to_half(factor) : uint16_t{0};
}

}  // namespace

void encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, const KeyCodesWork& work) {
  if (first >= end) return;
  const int32_t dim = shape.kv.head_dim, first_tile = first / kPageTokens, n_tiles = div_up(end, kPageTokens) - first_tile;
  work.pool->run(static_cast<int64_t>(jobs.size()) * n_tiles, [&](int64_t item, int32_t thread) {
    const KeyCodesJob& job = jobs[static_cast<size_t>(item / n_tiles)];
    const int32_t tile = first_tile + static_cast<int32_t>(item % n_tiles);
    auto* key = reinterpret_cast<float*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes);
    auto* codes_of_value = reinterpret_cast<uint8_t*>(key + dim);
    const uint64_t at = job.tiles.address + static_cast<uint64_t>(tile) * shape.codes.tile_bytes();
    auto* codes = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(at));
    const auto* mean = reinterpret_cast<const float*>(static_cast<uintptr_t>(job.mean.address));
    for (int32_t p = std::max(first, tile * kPageTokens); p < std::min(end, (tile + 1) * kPageTokens); ++p) {
      if (p + kAhead < end) ask_for_bytes<0>(token_at(job.pages, job.offset, shape.kv, p + kAhead), shape.kv.key_bytes());
      const std::byte* token = token_at(job.pages, job.offset, shape.kv, p);
      work.kernels.load_kv(key_type(shape.kv.type), token, dim, key);
      subtract_turns(turns_of(job, shape.codes), shape, p, key);
      work.kernels.transform_heads(key, mean, 1, dim, shape.block);
      float factor;
      work.kernels.encode_key({shape.codes, key, p % kPageTokens, codes, &factor});
      reinterpret_cast<uint16_t*>(codes + shape.codes.factors_offset())[p % kPageTokens] = float_to_half(factor);
      if (shape.codes.value_bits > 0)
        encode_value(token + shape.kv.key_bytes(), p % kPageTokens, shape, work.kernels, key, codes_of_value, codes);
    }
  });
}

}  // namespace orrery::cpu
