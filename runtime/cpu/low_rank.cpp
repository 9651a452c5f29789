#include "runtime/cpu/low_rank.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"

namespace orrery::cpu {

namespace {

constexpr int32_t kTokensPerItem = 8;
constexpr int32_t kRebuilt = 48, kRankAtOnce = 64;   // tokens whose keys are rebuilt together, so many of the basis' rows at a time

// How RoPE turns position p, or turns it back: cosines and sines, (n_rot / 2) each, at `table`. Angles in double, as prepare_rope()'s.
void fill_table(const RopeSpec& spec, int32_t p, bool back, float* table) {
  const int32_t half = spec.n_rot / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(p) * static_cast<double>(spec.inverse_frequency[i]);
    const float cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
    table[i] = back ? cosine / spec.magnitude : cosine * spec.magnitude;
    table[half + i] = back ? -sine / spec.magnitude : sine * spec.magnitude;
  }
}

// How RoPE turns position p, made of how it turns the page's first one and the first page's, if these are there: each value is rounded
// once more, in its last place.
void find_turn(const LowRankKeys& keys, int32_t p, float* table) {
  if (!keys.turns) return fill_table(keys.rope, p, false, table);
  const int32_t n = keys.rope.n_rot, half = n / 2;
  const auto* page = reinterpret_cast<const float*>(keys.page_turns.address) + int64_t{p / kPageTokens} * n;
  const auto* in_page = reinterpret_cast<const float*>(keys.turns.address) + int64_t{p % kPageTokens} * n;
  for (int32_t i = 0; i < half; ++i) {
    table[i] = page[i] * in_page[i] - page[half + i] * in_page[half + i];
    table[half + i] = page[half + i] * in_page[i] + page[i] * in_page[half + i];
  }
}

float* host(Ptr<std::byte> p) { return reinterpret_cast<float*>(static_cast<uintptr_t>(p.address)); }
float* batch_of(const LowRankKeys& keys) { return host(keys.work); }
float* products_of(const LowRankKeys& keys) { return batch_of(keys) + LowRankKeys::kBatch * keys.padded_width(); }
float* sums_of(const LowRankKeys& keys) { return products_of(keys) + std::max<int64_t>(keys.padded_width(), LowRankKeys::kBatch) * keys.padded_width(); }
std::byte* row_of(const LowRankKeys& keys, int64_t position) {
  return reinterpret_cast<std::byte*>(keys.rows.address) + 2 * position * keys.rank;
}

template <class F>
void deal_tokens(int32_t n, const LowRankWork& work, const F& fn) {
  work.pool->run(div_up(n, kTokensPerItem), [&](int64_t item, int32_t thread) {
    const int32_t first = static_cast<int32_t>(item) * kTokensPerItem;
    fn(first, std::min(n, first + kTokensPerItem), reinterpret_cast<float*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes));
  });
}

// The batch becomes the keys of positions first .. first + n - 1 before RoPE, zeros behind each.
void load_batch(const LowRankKeys& keys, int32_t first, int32_t n, const LowRankWork& work) {
  const KvFormat& kv = keys.kv;
  const auto first_head = static_cast<uint64_t>(std::max(keys.kv_head, 0));
  deal_tokens(n, work, [&](int32_t begin, int32_t end, float* table) {
    for (int32_t t = begin; t < end; ++t) {
      const int32_t p = first + t;
      float* row = batch_of(keys) + t * keys.padded_width();
      const auto* token = reinterpret_cast<const std::byte*>(keys.pages[p / kPageTokens] + static_cast<uint64_t>(keys.layer) * kv.layer_bytes()) +
                          first_head * kv.head_bytes() + static_cast<uint64_t>(p % kPageTokens) * kv.token_bytes();
      for (int32_t h = 0; h < keys.n_heads(); ++h)
        work.kernels.load_kv(kv.type, token + static_cast<uint64_t>(h) * kv.head_bytes(), kv.head_dim, row + h * kv.head_dim);
      if (keys.rope.n_rot > 0) {
        fill_table(keys.rope, p, true, table);
        work.kernels.rope(row, table, table + keys.rope.n_rot / 2, keys.rope.n_rot, keys.rope.interleaved, keys.n_heads(), kv.head_dim);
      }
      std::fill(row + keys.width(), row + keys.padded_width(), 0.0f);
    }
  });
}

}  // namespace

int64_t low_rank_thread_bytes(int32_t head_dim) {
  const int64_t padded = (head_dim + 15) / 16 * 16;
  return ((kRankAtOnce + kRebuilt + 1) * padded + kRebuilt * kRankAtOnce) * int64_t{sizeof(float)};
}

void key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums, const LowRankWork& work) {
  const int64_t width = keys.padded_width(), n = keys.width();
  float* products = products_of(keys);
  std::fill(products, products + width * width, 0.0f);
  if (sums) std::fill(sums, sums + n, 0.0f);
  for (int32_t first = 0; first < n_tokens; first += LowRankKeys::kBatch) {
    const int32_t n_keys = std::min(LowRankKeys::kBatch, n_tokens - first);
    load_batch(keys, first, n_keys, work);
    work.pool->run(div_up<int64_t>(width, kGramRows), [&](int64_t item, int32_t) {
      const int64_t begin = item * kGramRows;
      work.kernels.add_gram({batch_of(keys), width, width, n_keys, begin, std::min(width, begin + kGramRows), products});
    });
    if (!sums) continue;
    float* of_batch = sums_of(keys);   // as exact as a batch's few terms are
    std::fill(of_batch, of_batch + n, 0.0f);
    for (int32_t t = 0; t < n_keys; ++t)
      for (int64_t i = 0; i < n; ++i) of_batch[i] += batch_of(keys)[t * width + i];
    for (int64_t i = 0; i < n; ++i) sums[i] += of_batch[i];
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) out[i * n + j] = i < j ? products[i * width + j] : products[j * width + i];
}

void low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end, const LowRankWork& work) {
  for (; first < end; first += LowRankKeys::kBatch) {
    const int32_t n = std::min(LowRankKeys::kBatch, end - first);
    load_batch(keys, first, n, work);
    deal_tokens(n, work, [&](int32_t begin, int32_t stop, float*) {
      float* products = products_of(keys) + int64_t{begin} * keys.rank;
      work.kernels.project_keys({batch_of(keys) + begin * keys.padded_width(), keys.padded_width(), keys.width(), stop - begin, keys.rank,
                                 reinterpret_cast<const std::byte*>(keys.basis.address), products});
      work.kernels.store_kv(KvType::f16, products, (stop - begin) * keys.rank, row_of(keys, first + begin));
    });
  }
}

void low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, const float* q, float* out, const LowRankWork& work) {
  const int32_t dim = keys.kv.head_dim, group = n_heads / keys.kv.n_kv_heads;
  work.pool->run(n_heads, [&](int64_t head, int32_t thread) {
    float* padded = reinterpret_cast<float*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes);
    std::fill(std::copy_n(q + head * dim, dim, padded), padded + keys.padded_width(), 0.0f);
    const auto* basis = reinterpret_cast<const std::byte*>(keys.basis.address) + static_cast<uint64_t>(head / group) * next_basis;
    work.kernels.project_keys({padded, keys.padded_width(), dim, 1, keys.rank, basis, out + head * keys.rank});
  });
}

// Tokens of a few runs, kRebuilt at a time, so that products fill the multipliers and a part of the basis, as floats, serves many.
void rebuild_keys(const LowRankKeys& keys, int32_t kv_head, KvType slot_type, Span<const RebuiltRun> runs, const LowRankWork& work) {
  const int32_t dim = keys.kv.head_dim, padded = (dim + 15) / 16 * 16;
  const KvFormat slots{slot_type, 1, 1, dim};
  const auto* basis = reinterpret_cast<const std::byte*>(keys.basis.address) + 2 * int64_t{kv_head} * dim;
  const auto n_runs = static_cast<int64_t>(runs.size()), per_item = std::clamp<int64_t>(n_runs / (8 * work.pool->n_threads()), 1, kRebuilt);
  work.pool->run(div_up(n_runs, per_item), [&](int64_t item, int32_t thread) {
    float* table = reinterpret_cast<float*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes);
    float *part = table + padded, *rows = part + int64_t{kRankAtOnce} * padded, *rebuilt = rows + kRebuilt * kRankAtOnce;
    int32_t in_part = -1;   // the first of the basis' rows that lie there
    const auto load_part = [&](int32_t first, int32_t n) {
      for (int32_t j = 0; j < n && in_part != first; ++j) {
        float* row = part + int64_t{j} * padded;
        work.kernels.load_kv(KvType::f16, basis + 2 * (first + j) * keys.width(), dim, row);
        std::fill(row + dim, row + padded, 0.0f);
      }
      in_part = first;
    };
    struct {
      int32_t position;
      std::byte* slot;
      const std::byte* value;
    } tokens[kRebuilt];
    int32_t n_tokens = 0;
    const auto rebuild = [&] {
      for (int32_t first = 0; first < keys.rank; first += kRankAtOnce) {
        const int32_t n = std::min(kRankAtOnce, keys.rank - first);
        load_part(first, n);
        for (int32_t t = 0; t < n_tokens; ++t)
          work.kernels.load_kv(KvType::f16, row_of(keys, tokens[t].position) + 2 * first, n, rows + t * kRankAtOnce);
        work.kernels.rebuild_keys({rows, kRankAtOnce, n_tokens, n, part, padded, rebuilt, first > 0});
      }
      for (int32_t t = 0; t < n_tokens; ++t) {
        float* key = rebuilt + int64_t{t} * padded;
        find_turn(keys, tokens[t].position, table);
        work.kernels.rope(key, table, table + keys.rope.n_rot / 2, keys.rope.n_rot, keys.rope.interleaved, 1, dim);
        work.kernels.store_kv(slot_type, key, dim, tokens[t].slot);
        if (!tokens[t].value) continue;
        if (slot_type == keys.kv.type) {
          std::copy_n(tokens[t].value, keys.kv.vector_bytes(), tokens[t].slot + slots.vector_bytes());
        } else {
          work.kernels.load_kv(keys.kv.type, tokens[t].value, dim, key);
          work.kernels.store_kv(slot_type, key, dim, tokens[t].slot + slots.vector_bytes());
        }
      }
      n_tokens = 0;
    };
    for (int64_t r = item * per_item; r < std::min(n_runs, (item + 1) * per_item); ++r) {
      const RebuiltRun& run = runs[static_cast<size_t>(r)];
      auto* slot = reinterpret_cast<std::byte*>(run.to.address);
      const auto* value = reinterpret_cast<const std::byte*>(run.values.address);
      for (int32_t t = 0; t < run.count; ++t, slot += slots.token_bytes()) {
        // What it is made of lies anywhere: it comes while those before it are rebuilt.
        const std::byte* row = row_of(keys, run.position + t);
        for (int32_t b = 0; b < 2 * keys.rank; b += 64) __builtin_prefetch(row + b, 0, 2);
        if (value) __builtin_prefetch(value), __builtin_prefetch(value + keys.kv.vector_bytes() - 1);
        tokens[n_tokens++] = {run.position + t, slot, value};
        if (value) value += keys.kv.vector_bytes();
        if (n_tokens == kRebuilt) rebuild();
      }
    }
    if (n_tokens > 0) rebuild();
  });
}

}  // namespace orrery::cpu
