#include "runtime/cpu/low_rank.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"

namespace orrery::cpu {

namespace {

constexpr int32_t kTokensPerItem = 8;
// Rows of the basis that one product uses. At the usual ranks that is the whole basis, which stays in the second-level cache as floats.
constexpr int32_t kRankAtOnce = 160;
constexpr int64_t kRunsPerItem = 1024;  // upper bound; each item converts the basis to floats

// The rotation of position p by RoPE, or its inverse (`back`): cosines and sines, (n_rot / 2) each, at `table`. Angles are in
// double, as in prepare_rope().
void fill_table(const RopeSpec& spec, int32_t p, bool back, float* table) {
  const int32_t half = spec.n_rot / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(p) * static_cast<double>(spec.inverse_frequency[i]);
    const float cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
    table[i] = back ? cosine / spec.magnitude : cosine * spec.magnitude;
    table[half + i] = back ? -sine / spec.magnitude : sine * spec.magnitude;
  }
}

float* host(Ptr<std::byte> p) { return reinterpret_cast<float*>(static_cast<uintptr_t>(p.address)); }
float* batch_of(const LowRankKeys& keys) { return host(keys.work); }
float* products_of(const LowRankKeys& keys) { return batch_of(keys) + LowRankKeys::kBatch * keys.padded_width(); }
float* sums_of(const LowRankKeys& keys) {
  return products_of(keys) + std::max<int64_t>(keys.padded_width(), LowRankKeys::kBatch) * keys.padded_width();
}
std::byte* row_of(const LowRankKeys& keys, int64_t position) {
  return reinterpret_cast<std::byte*>(keys.rows.address) + 2 * position * keys.rank;
}

template <class F>
void deal_tokens(int32_t n, const LowRankWork& work, const F& fn) {
  work.pool->run(div_up(n, kTokensPerItem), [&](int64_t item, int32_t thread) {
    const int32_t first = static_cast<int32_t>(item) * kTokensPerItem;
    fn(first, std::min(n, first + kTokensPerItem),
       reinterpret_cast<float*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes));
  });
}

// Fills the batch with the keys of positions first .. first + n - 1 before RoPE, with zeros after each key.
void load_batch(const LowRankKeys& keys, int32_t first, int32_t n, const LowRankWork& work) {
  const KvFormat& kv = keys.kv;
  const uint64_t offset = kv.head_offset(keys.layer, std::max(keys.kv_head, 0));
  deal_tokens(n, work, [&](int32_t begin, int32_t end, float* table) {
    for (int32_t t = begin; t < end; ++t) {
      const int32_t p = first + t;
      float* row = batch_of(keys) + t * keys.padded_width();
      const auto* token = reinterpret_cast<const std::byte*>(keys.pages[p / kPageTokens] + offset) +
                          static_cast<uint64_t>(p % kPageTokens) * kv.token_bytes();
      for (int32_t h = 0; h < keys.n_heads(); ++h)
        work.kernels.load_kv(key_type(kv.type), token + static_cast<uint64_t>(h) * kv.head_bytes(), kv.head_dim, row + h * kv.head_dim);
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
    float* of_batch = sums_of(keys);  // summed for each batch first, because sums of few terms are more exact
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

namespace {

// Rebuilds keys on one thread. The inputs and the target of a token lie anywhere in memory. So tokens are processed in small
// groups, and while one group is multiplied, the data of later ones are prefetched.
class Rebuilder {
 public:
  Rebuilder(const LowRankKeys& keys, KvType slot_type, const LowRankWork& work, int32_t thread)
      : keys_(keys), work_(work), slots_{slot_type, 1, 1, keys.kv.head_dim}, padded_((keys.kv.head_dim + 15) / 16 * 16),
        n_parts_(div_up(keys.rank, kRankAtOnce)), of_part_(div_up(keys.rank, n_parts_)),
        of_group_(n_parts_ == 1 ? work.kernels.rebuild_tokens : kRebuilt),
        table_(reinterpret_cast<float*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes)), part_(table_ + padded_),
        rows_(part_ + int64_t{kRankAtOnce} * padded_), rebuilt_(rows_ + kRebuilt * kRankAtOnce) {}

  void add(const RebuiltRun& run) {
    if (run.kv_head != kv_head_) {
      flush();
      kv_head_ = run.kv_head, in_part_ = -1;
      basis_ = reinterpret_cast<const std::byte*>(keys_.basis.address) + 2 * int64_t{kv_head_} * keys_.kv.head_dim;
    }
    auto* slot = reinterpret_cast<std::byte*>(run.to.address);
    const auto* value = reinterpret_cast<const std::byte*>(run.values.address);
    for (int32_t p = run.position; p < run.position + run.count; ++p, slot += slots_.token_bytes()) {
      positions_[n_] = p, to_[n_] = slot, values_[n_] = value;
      if (value) value += keys_.kv.value_bytes() + static_cast<uint64_t>(run.values_gap);
      if (++n_ == kListed) rebuild(kListed - kAhead);
    }
  }
  void flush() { rebuild(n_); }

 private:
  static constexpr int32_t kAhead = kRebuilt, kListed = 480;  // tokens
  // Rebuilds the first n listed tokens, and the rest of their last group. The tokens that remain are already prefetched, so only a
  // head's first tokens wait for memory.
  void rebuild(int32_t n) {
    int32_t first = 0;
    for (; first < n; first += of_group_) {
      for (; n_asked_ < std::min(first + of_group_ + kAhead, n_); ++n_asked_) prefetch(n_asked_);
      const int32_t n_here = std::min(of_group_, n_ - first);
      for (int32_t part = 0; part < n_parts_; ++part)
        multiply(first, n_here, part * of_part_, std::min(of_part_, keys_.rank - part * of_part_));
      store(first, n_here);
    }
    first = std::min(first, n_);
    std::copy(positions_ + first, positions_ + n_, positions_);
    std::copy(to_ + first, to_ + n_, to_);
    std::copy(values_ + first, values_ + n_, values_);
    n_ -= first, n_asked_ -= first;
  }
  void prefetch(int32_t t) const {
    const auto lines = [](const std::byte* at, int64_t bytes) {
      for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(at + b, 0, 2);
      __builtin_prefetch(at + bytes - 1, 0, 2);
    };
    lines(row_of(keys_, positions_[t]), 2 * int64_t{keys_.rank});
    lines(to_[t], static_cast<int64_t>(values_[t] ? slots_.token_bytes() : slots_.key_bytes()));
    if (values_[t]) lines(values_[t], static_cast<int64_t>(keys_.kv.value_bytes()));
  }
  // Multiplies n tokens from first_token on with n_rows rows of the basis from first_row on.
  void multiply(int32_t first_token, int32_t n, int32_t first_row, int32_t n_rows) {
    const int32_t dim = keys_.kv.head_dim;
    if (in_part_ != first_row)
      work_.kernels.pack_basis({basis_ + 2 * first_row * keys_.width(), 2 * keys_.width(), n_rows, dim, slots_.type, padded_, part_});
    in_part_ = first_row;
    const std::byte* rows[kRebuilt];
    for (int32_t t = 0; t < n; ++t) rows[t] = row_of(keys_, positions_[first_token + t]) + 2 * first_row;
    work_.kernels.rebuild_keys({rows, n, n_rows, slots_.type, rows_, part_, padded_, rebuilt_, first_row > 0});
  }
  // Rotates the rebuilt keys and stores them, with V beside them.
  void store(int32_t first, int32_t n) {
    const RopeSpec& rope = keys_.rope;
    const int32_t dim = keys_.kv.head_dim;
    const bool as_it_is = slots_.type == keys_.kv.type;
    if (keys_.rotations) {
      const auto floats = [](Ptr<const float> p) { return reinterpret_cast<const float*>(static_cast<uintptr_t>(p.address)); };
      work_.kernels.rotate_keys({rebuilt_, padded_, n, dim, positions_ + first, floats(keys_.page_rotations), floats(keys_.rotations),
                                 rope.n_rot, rope.interleaved, table_, slots_.type, to_ + first, as_it_is ? values_ + first : nullptr});
      if (as_it_is) return;
    }
    for (int32_t t = 0; t < n; ++t) {
      std::byte* to = to_[first + t];
      if (!keys_.rotations) {
        float* key = rebuilt_ + int64_t{t} * padded_;
        fill_table(rope, positions_[first + t], false, table_);
        work_.kernels.rope(key, table_, table_ + rope.n_rot / 2, rope.n_rot, rope.interleaved, 1, dim);
        work_.kernels.store_kv(key_type(slots_.type), key, dim, to);
      }
      if (values_[first + t]) store_value(values_[first + t], to + slots_.key_bytes());
    }
  }
  void store_value(const std::byte* value, std::byte* to) {
    if (value_type(slots_.type) == value_type(keys_.kv.type)) {
      std::copy_n(value, keys_.kv.value_bytes(), to);
      return;
    }
    work_.kernels.load_kv(value_type(keys_.kv.type), value, keys_.kv.head_dim, table_);
    work_.kernels.store_kv(value_type(slots_.type), table_, keys_.kv.head_dim, to);
  }

  const LowRankKeys& keys_;
  const LowRankWork& work_;
  const KvFormat slots_;
  const int64_t padded_;
  const int32_t n_parts_, of_part_, of_group_;  // parts of the basis; rows of a part; tokens of a group (more with several parts)
  int32_t kv_head_ = -1;
  const std::byte* basis_ = nullptr;         // the head's basis
  float *table_, *part_, *rows_, *rebuilt_;  // (padded), (kRankAtOnce, padded), (kRebuilt, kRankAtOnce), (kRebuilt, padded)
  int32_t in_part_ = -1;                     // the first row of the basis that part_ holds
  int32_t n_ = 0, n_asked_ = 0;              // listed tokens; how many of them are prefetched
  int32_t positions_[kListed];
  std::byte* to_[kListed];
  const std::byte* values_[kListed];
};

}  // namespace

void rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs, const LowRankWork& work) {
  const auto n_runs = static_cast<int64_t>(runs.size()),
             per_item = std::clamp<int64_t>(n_runs / (8 * work.pool->n_threads()), 1, kRunsPerItem);
  work.pool->run(div_up(n_runs, per_item), [&](int64_t item, int32_t thread) {
    Rebuilder rebuilder(keys, slot_type, work, thread);
    for (int64_t r = item * per_item; r < std::min(n_runs, (item + 1) * per_item); ++r) rebuilder.add(runs[static_cast<size_t>(r)]);
    rebuilder.flush();
  });
}

}  // namespace orrery::cpu
