// Weights and scores of keys, and low-rank keys, for the plain kernels: written as they are defined.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/half.h"
#include "runtime/cpu/formats/blocks.h"
#include "runtime/cpu/paths/kernels_plain.h"

namespace orrery::cpu {

namespace {

constexpr float kLog2E = 1.44269504088896f;

// 2^(y - unit). The whole part of y is combined with the unit, so that a unit changes only the exponent. 0 for NaN.
float weight(float y, float unit) {
  const float whole = std::nearbyint(y), exponent = std::fmax(whole - unit, -1000.0f);
  const float w = std::ldexp(std::exp2(y - whole), static_cast<int>(exponent));
  return w > 0 ? w : 0.0f;
}

// The share of each tile's weights in the softmax of a row's first n keys.
void find_shares(const float* row, const float* units, const float* sums, int64_t n, float* shares) {
  const int64_t n_tiles = (n + kPageTokens - 1) / kPageTokens;
  const auto sum_of = [&](int64_t i) {
    if (n >= (i + 1) * kPageTokens) return sums[i];
    return std::accumulate(row + i * kPageTokens, row + n, 0.0f);  // without the tile's other keys
  };
  float most = -INFINITY, total = 0;
  for (int64_t i = 0; i < n_tiles; ++i)
    if (sum_of(i) > 0) most = std::fmax(most, units[i]);
  const auto power = [&](int64_t i) {
    return sum_of(i) > 0 ? std::ldexp(1.0f, static_cast<int>(std::fmax(units[i] - most, -1000.0f))) : 0.0f;
  };
  for (int64_t i = 0; i < n_tiles; ++i) total += sum_of(i) * power(i);
  const float inverse = total > 0 ? 1.0f / total : 0.0f;
  for (int64_t i = 0; i < n_tiles; ++i) shares[i] = power(i) * inverse;
}

}  // namespace

void plain_widen(const float* x, float* low, float* high, int32_t n) {
  for (int32_t i = 0; i < n; ++i) low[i] = std::fmin(x[i], low[i]), high[i] = std::fmax(x[i], high[i]);
}

void plain_weigh_tile(const float* y, int64_t seen, float* weights, float* unit, float* sum) {
  float largest = -INFINITY;
  for (int64_t k = 0; k < seen; ++k) largest = std::fmax(largest, y[k]);
  *unit = largest == -INFINITY ? 0.0f : std::nearbyint(largest);
  *sum = 0;
  for (int64_t k = 0; k < seen; ++k) *sum += weights[k] = weight(y[k], *unit);
  for (int64_t k = seen; k < kPageTokens; ++k) weights[k] = 0;
}

void plain_encode_key(const EncodeTask& t) {
  const int32_t dim = t.codes.head_dim, n_edges = (1 << t.codes.bits) - 1, of_group = 4 / t.codes.bits;
  constexpr auto kHalf = static_cast<int32_t>(KeyCodeFormat::kGroupBytes);
  const auto level_at = [&](int32_t i) { return key_code_level(t.codes.bits, i); };
  // Sums run in 16 chains, as on every instruction set.
  struct Chains {
    float x[16] = {};
    float total() const {
      const auto four = [&](int i) { return (x[i] + x[i + 8]) + (x[i + 4] + x[i + 12]); };
      return (four(0) + four(2)) + (four(1) + four(3));
    }
  } squares, with_levels, of_levels;
  for (int32_t i = 0; i < dim; ++i) squares.x[i % 16] += t.key[i] * t.key[i];
  const float unit = std::sqrt(squares.total() / static_cast<float>(dim));
  const int shift = t.at < kHalf ? 0 : 4;
  for (int32_t first = 0; first < dim; first += of_group) {
    uint32_t group = 0;
    for (int32_t i = first; i < std::min(first + of_group, dim); ++i) {
      uint32_t code = 0;
      float level = level_at(0);
      for (int32_t edge = 0; edge < n_edges; ++edge)
        if (t.key[i] - unit * (.5f * (level_at(edge) + level_at(edge + 1))) > 0) ++code, level += level_at(edge + 1) - level_at(edge);
      with_levels.x[i % 16] += t.key[i] * level, of_levels.x[i % 16] += level * level;
      group |= code << ((i - first) * t.codes.bits);
    }
    uint8_t* both = t.tile + first / of_group * kHalf + t.at % kHalf;
    *both = static_cast<uint8_t>((*both & 0xF0u >> shift) | group << shift);
  }
  *t.factor = std::isfinite(unit) ? std::min(with_levels.total() / of_levels.total(), 65504.0f) : NAN;
}

void plain_code_weights(const CodeWeightsTask& t) {
  constexpr uint64_t kHalf = KeyCodeFormat::kGroupBytes;
  for (int32_t q = 0; q < t.n_queries; ++q)
    for (int64_t start = t.first_key; start < t.last_key; start += kPageTokens) {
      const auto* tile = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(t.tiles[start / kPageTokens]));
      const auto* factors = reinterpret_cast<const uint16_t*>(tile + t.codes.factors_offset());
      const KeyCodeTable& table = *t.tables[q];
      float y[kPageTokens];
      for (uint64_t key = 0; key < 2 * kHalf; ++key) {
        uint32_t sum = 0;
        for (int32_t group = 0; group < t.codes.n_groups(); ++group) {
          const uint8_t both = tile[static_cast<uint64_t>(group) * kHalf + key % kHalf];
          sum += table.entries[group * 16 + (key < kHalf ? both & 15 : both >> 4)];
        }
        const float product = table.step * static_cast<float>(sum) + table.base;
        y[key] = start + static_cast<int64_t>(key) < t.first_seen ? -INFINITY : half_to_float(factors[key]) * product;
      }
      for (int32_t i = 0; i < t.turns.n; ++i) {
        const float* of_tile = t.turns.of_tiles[i] + start / kPageTokens * t.turns.tile_stride;
        const float c = table.cosines[i] * of_tile[0] + table.sines[i] * of_tile[1];
        const float d = table.sines[i] * of_tile[0] - table.cosines[i] * of_tile[1];
        for (int32_t key = 0; key < kPageTokens; ++key) y[key] += c * t.turns.within[i][key] + d * t.turns.within[i][kPageTokens + key];
      }
      const int64_t at = start - t.first_key, tile_at = at / kPageTokens;
      plain_weigh_tile(y, std::min<int64_t>(kPageTokens, t.last_key - start), t.out[q] + at, &t.units[q][tile_at], &t.sums[q][tile_at]);
    }
}

void plain_code_values(const CodeValuesTask& t) {
  constexpr uint64_t kHalf = KeyCodeFormat::kGroupBytes;
  const int32_t n_groups = t.codes.n_value_groups(), of_group = 4 / t.codes.value_bits, mask = (1 << t.codes.value_bits) - 1;
  const float largest_level = key_code_level(t.codes.value_bits, mask);
  for (int32_t q = 0; q < t.n_queries; ++q)
    for (int64_t start = t.first_key; start < t.last_key; start += kPageTokens) {
      const auto* tile = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(t.tiles[start / kPageTokens]));
      const auto* factors = reinterpret_cast<const uint16_t*>(tile + t.codes.value_factors_offset());
      const float *weights = t.weights[q] + (start - t.first_key), share = t.shares[q][(start - t.first_key) / kPageTokens];
      if (!(share * t.sums[q][(start - t.first_key) / kPageTokens] > t.least[q])) continue;
      float weighed[kPageTokens], widest = 0;
      for (int32_t i = 0; i < kPageTokens; ++i) weighed[i] = weights[i] * half_to_float(factors[i]);
      for (int32_t group = 0; group < n_groups; ++group) {
        float sum = 0;
        for (int32_t i = 0; i < of_group; ++i) sum += weighed[group * of_group + i];
        widest = std::max(widest, sum);
      }
      widest *= largest_level;
      if (!(widest > 0)) continue;
      int32_t entries[kMostValueTable];
      for (int32_t group = 0; group < n_groups; ++group)
        for (int32_t index = 0; index < 16; ++index) {
          float product = 0;
          for (int32_t i = 0; i < of_group; ++i)
            product += weighed[group * of_group + i] * key_code_level(t.codes.value_bits, index >> (i * t.codes.value_bits) & mask);
          entries[group * 16 + index] = static_cast<int32_t>(std::nearbyint(product * (127.0f / widest)));
        }
      const float step = share * (widest / 127.0f);
      for (int32_t block = 0; block < t.codes.n_value_blocks(); ++block) {
        const uint8_t* rows = tile + t.codes.keys_bytes() + static_cast<uint64_t>(block * n_groups) * kHalf;
        for (uint64_t d = 0; d < 2 * kHalf; ++d) {
          int32_t sum = 0;
          for (int32_t group = 0; group < n_groups; ++group) {
            const uint8_t both = rows[static_cast<uint64_t>(group) * kHalf + d % kHalf];
            sum += entries[group * 16 + (d < kHalf ? both & 15 : both >> 4)];
          }
          t.out[q][static_cast<uint64_t>(block) * 2 * kHalf + d] += step * static_cast<float>(sum);
        }
      }
    }
}

void plain_key_weights(const KeyWeightsTask& t) {
  float* key = reinterpret_cast<float*>(t.scratch);
  for (int64_t start = t.first_key; start < t.last_key; start += kPageTokens) {
    const int64_t n = std::min<int64_t>(kPageTokens, t.last_key - start), at = start - t.first_key;
    const int64_t tile = at / kPageTokens;
    for (int64_t k = 0; k < n; ++k) {
      const std::byte* at_key = kv_tile(t.kv, start / kPageTokens) + static_cast<uint64_t>(k) * token_bytes(t.kv);
      float* lowest = key + t.kv.head_dim;
      load_kv(key_tensor_type(t.kv.type), at_key, t.kv.head_dim, key);
      if (t.bounds) load_kv(key_tensor_type(t.kv.type), at_key + t.kv.key_bytes, t.kv.head_dim, lowest);
      for (int32_t i = 0; i < t.n_queries; ++i) {
        float dot = 0;
        for (int32_t j = 0; j < t.kv.head_dim; ++j) dot += t.bounds && t.q[i][j] < 0 ? t.q[i][j] * lowest[j] : t.q[i][j] * key[j];
        t.out[i][at + k] = t.products ? std::fmax(dot * t.scale, -INFINITY) : dot * t.scale * kLog2E;
      }
    }
    for (int32_t i = 0; i < t.n_queries && !t.products; ++i) {
      float* out = t.out[i] + at;
      plain_weigh_tile(out, std::clamp<int64_t>(t.ends[i] - start, 0, n), out, &t.units[i][tile], &t.sums[i][tile]);
      if (!t.with_logs) continue;
      t.logs[i][tile] = 0;
      for (int64_t k = 0; k < n; ++k) t.logs[i][tile] += out[k] > 0 ? out[k] * std::log2(out[k]) : 0.0f;
    }
  }
}

int64_t plain_list_reaching(const float* scores, int64_t n, float low, float high, uint32_t* out, int64_t* n_high) {
  int64_t n_out = 0;
  *n_high = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (scores[i] >= low) out[n_out++] = static_cast<uint32_t>(i);
    *n_high += scores[i] > high;
  }
  return n_out;
}

void plain_key_scores(const ScoresTask& t) {
  using Pooling = KeyScoring::Pooling;
  const int64_t half = t.scoring.pooling == Pooling::none ? 0 : t.scoring.pool_width / 2;
  const bool max_pooled = t.scoring.pooling == Pooling::max;
  for (int32_t r = 0; r < t.n_rows; ++r) {
    const float* row = t.rows + r * t.stride;
    float* shares = t.shares + r * t.tile_stride;
    find_shares(row, t.units + r * t.tile_stride, t.sums + r * t.tile_stride, t.n, shares);
    for (int64_t i = 0; i < t.n; ++i) {
      float x = 0;  // the smallest possible weight
      for (int64_t j = std::max<int64_t>(0, i - half); j <= std::min(t.n - 1, i + half); ++j) {
        const float w = row[j] * shares[j / kPageTokens];
        x = max_pooled ? std::fmax(x, w) : x + w;
      }
      if (t.scoring.pooling == Pooling::avg) x /= static_cast<float>(t.scoring.pool_width);
      t.out[i] = r == 0 ? x : t.scoring.max_of_group ? std::fmax(t.out[i], x) : t.out[i] + x;
    }
  }
  for (int64_t i = 0; i < t.n && !t.scoring.max_of_group; ++i) t.out[i] /= static_cast<float>(t.n_rows);
}

void plain_tile_shares(const float* units, const float* sums, int64_t n_tiles, float* shares) {
  find_shares(nullptr, units, sums, n_tiles * kPageTokens, shares);
}

void plain_add_means(const MeansTask& t) {
  for (int64_t key = 0; key < t.n; ++key)
    for (int32_t p = 0; p < t.n_positions; ++p) {
      float sum = 0;
      for (int32_t r = p * t.n_heads; r < (p + 1) * t.n_heads; ++r)
        sum += t.rows[r * t.stride + key] * t.shares[r * t.tile_stride + key / kPageTokens];
      t.out[key] += sum / static_cast<float>(t.n_heads);
    }
}

void plain_key_moments(const MomentsTask& t) {
  for (int64_t first = 0; first < t.n; first += kPageTokens) {
    const int64_t tile = first / kPageTokens;
    float& variances = t.variances[tile] = 0;
    for (int64_t key = first; key < std::min(t.n, first + kPageTokens); ++key) {
      const auto at = [&](int32_t r) { return t.rows[r * t.stride + key] * t.shares[r * t.tile_stride + tile]; };
      float mean = 0, variance = 0;
      for (int32_t r = 0; r < t.n_rows; ++r) mean += at(r);
      mean /= static_cast<float>(t.n_rows);
      for (int32_t r = 0; r < t.n_rows; ++r) variance += (at(r) - mean) * (at(r) - mean);
      variance /= static_cast<float>(std::max(t.n_rows - 1, 1));
      variances += variance;
      t.out[key] = mean + t.gamma * variance;
    }
  }
}

void plain_add_gram(const GramTask& t) {
  for (int64_t i = t.first; i < t.last; ++i)
    for (int64_t j = i; j < t.width; ++j) {
      float sum = t.out[i * t.stride + j];
      for (int64_t k = 0; k < t.n_keys; ++k) sum += t.keys[k * t.stride + i] * t.keys[k * t.stride + j];
      t.out[i * t.stride + j] = sum;
    }
}

void plain_project_keys(const ProjectTask& t) {
  for (int64_t k = 0; k < t.n_keys; ++k)
    for (int64_t j = 0; j < t.rank; ++j) {
      const auto* basis = reinterpret_cast<const uint16_t*>(t.basis) + j * t.width;
      float sum = 0;
      for (int64_t i = 0; i < t.width; ++i) sum += t.keys[k * t.stride + i] * half_to_float(basis[i]);
      t.out[k * t.rank + j] = sum;
    }
}

void plain_pack_basis(const BasisTask& t) {
  for (int64_t r = 0; r < t.rank; ++r)
    for (int64_t i = 0; i < t.width; ++i)
      t.out[r * t.width + i] = i < t.dim ? half_to_float(reinterpret_cast<const uint16_t*>(t.rows + r * t.row_bytes)[i]) : 0.0f;
}

void plain_rebuild_keys(const RebuildTask& t) {
  for (int64_t k = 0; k < t.n_keys; ++k)
    for (int64_t i = 0; i < t.width; ++i) {
      float sum = t.add ? t.out[k * t.width + i] : 0.0f;
      for (int64_t j = 0; j < t.rank; ++j) sum += half_to_float(reinterpret_cast<const uint16_t*>(t.rows[k])[j]) * t.basis[j * t.width + i];
      t.out[k * t.width + i] = sum;
    }
}

}  // namespace orrery::cpu
