// The items of attention: of generated tokens in splits of keys, of prompts in blocks of rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/step.h"
#include "runtime/base/span.h"
#include "runtime/cpu/planners/rows.h"

namespace orrery::cpu {

// A decode step's attention is cut at multiples of this many positions. That gives enough items for the threads at long contexts,
// and few enough partial results.
inline constexpr int64_t kSplitTokens = 8 * kPageTokens;

// The keys to which a row's queries of one KV head attend, cut into splits.
struct Splits {
  int64_t first_key = 0, last_key = 0;
  int64_t first = 0, count = 0;  // number of the first split; count includes the compensation token's
  bool has_mean = false;         // the last split is the compensation token
};
Splits splits_of(const StepRows& rows, KvLayer layer, int32_t window, int64_t row, int32_t head);

// One row's queries of some KV heads, over one split of keys.
struct DecodeItem {
  int64_t row = 0;                      // of all rows
  int32_t head = 0, n_heads = 0;        // KV heads, side by side in pages
  int64_t split = 0;                    // of the row's and the head's splits, from 0 on
  int64_t first_key = 0, last_key = 0;  // of positions, or of slots; equal: no work
  bool is_mean = false;                 // the one key is the compensation token
};

// The rows that a plan is for: their partial results fit together.
struct Wave {
  int64_t first_row = 0, n_rows = 0;
};

class DecodePlan {
 public:
  // n_kv: KV heads of the layer. one_run: all rows are of one sequence, at consecutive positions.
  DecodePlan(const StepRows& rows, KvLayer layer, int32_t n_kv, int32_t window, bool one_run, const Wave& wave, int32_t n_threads);

  int64_t n_items() const { return n_items_; }
  DecodeItem item(int64_t i) const;
  int64_t most_splits() const { return most_splits_; }  // of a row and a head

 private:
  Splits splits(int64_t row_of_wave, int32_t head) const { return splits_of(rows_, layer_, window_, wave_.first_row + row_of_wave, head); }

  const StepRows rows_;
  const KvLayer layer_;
  const int32_t n_kv_, window_;
  const bool one_run_;
  const Wave wave_;
  int32_t together_ = 1;  // KV heads of an item
  int64_t n_items_ = 0, most_splits_ = 0;
  int64_t row_items_ = 0;  // of a row of one step, at most
  // Rows of several steps may have very different numbers of splits: each row has its own items.
  std::array<int64_t, static_cast<size_t>(kMostTogether) + 1> first_item_ = {};
};

// Some rows' queries of some heads of one KV head.
struct PrefillItem {
  int64_t row = 0;
  int32_t n_rows = 0;
  int32_t kv_head = 0;
  int32_t first_head = 0, n_heads = 0;  // query heads
};

class PrefillPlan {
 public:
  // group: query heads of a KV head. queries: of the kernel's fastest tasks (Kernels::prefill_queries).
  PrefillPlan(Span<const RowRun> runs, int32_t n_kv, int32_t group, int32_t queries, int32_t n_threads);

  int64_t n_items() const { return n_blocks_ * n_kv_ * parts_; }
  PrefillItem item(int64_t i) const;

 private:
  void cut(int32_t queries);

  const Span<const RowRun> runs_;
  const int32_t n_kv_, group_;
  int32_t part_heads_ = 0, parts_ = 0, block_rows_ = 0;
  int64_t n_blocks_ = 0;
};

}  // namespace orrery::cpu
