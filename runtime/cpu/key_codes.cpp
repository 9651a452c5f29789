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

int64_t key_code_thread_bytes(int32_t head_dim) {
  return static_cast<int64_t>(align_up(sizeof(CodeQueryScratch), 64)) + 2 * int64_t{head_dim} * int64_t{sizeof(double)};
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
    auto *key = reinterpret_cast<float*>(sums + dim), *mean = reinterpret_cast<float*>(static_cast<uintptr_t>(job.mean.address));
    std::fill(sums, sums + dim, 0.0);
    for (int32_t p = first; p < end; p += step) {
      work.kernels.load_kv(key_type(shape.kv.type), token_at(job.pages, job.offset, shape.kv, p), dim, key);
      for (int32_t i = 0; i < dim; ++i) sums[i] += static_cast<double>(key[i]);
    }
    for (int32_t i = 0; i < dim; ++i) mean[i] = static_cast<float>(sums[i] / std::max(n, 1));
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

void encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, const KeyCodesWork& work) {
  if (first >= end) return;
  const int32_t dim = shape.kv.head_dim, first_tile = first / kPageTokens, n_tiles = div_up(end, kPageTokens) - first_tile;
  work.pool->run(static_cast<int64_t>(jobs.size()) * n_tiles, [&](int64_t item, int32_t thread) {
    const KeyCodesJob& job = jobs[static_cast<size_t>(item / n_tiles)];
    const int32_t tile = first_tile + static_cast<int32_t>(item % n_tiles);
    auto* key = reinterpret_cast<float*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes);
    const uint64_t at = job.tiles.address + static_cast<uint64_t>(tile) * shape.codes.tile_bytes();
    auto* codes = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(at));
    const auto* mean = reinterpret_cast<const float*>(static_cast<uintptr_t>(job.mean.address));
    for (int32_t p = std::max(first, tile * kPageTokens); p < std::min(end, (tile + 1) * kPageTokens); ++p) {
      if (p + kAhead < end) ask_for_bytes<0>(token_at(job.pages, job.offset, shape.kv, p + kAhead), shape.kv.key_bytes());
      work.kernels.load_kv(key_type(shape.kv.type), token_at(job.pages, job.offset, shape.kv, p), dim, key);
      work.kernels.transform_heads(key, mean, 1, dim, shape.block);
      float factor;
      work.kernels.encode_key({shape.codes, key, p % kPageTokens, codes, &factor});
      reinterpret_cast<uint16_t*>(codes + shape.codes.factors_offset())[p % kPageTokens] = float_to_half(factor);
    }
  });
}

}  // namespace orrery::cpu
