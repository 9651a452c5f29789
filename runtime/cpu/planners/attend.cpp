#include "runtime/cpu/planners/attend.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

namespace {

// Number of KV heads in an item: as many as still leave four items for each thread.
int32_t heads_together(int32_t n_kv, int64_t n_splits, int32_t n_threads) {
  int32_t n = std::min(n_kv, kDecodeHeads);
  while (n > 1 && n_splits * div_up(n_kv, n) < 4 * n_threads) n /= 2;
  return n;
}

}  // namespace

Splits splits_of(const StepRows& rows, KvLayer layer, int32_t window, int64_t row, int32_t head) {
  const HeadView* view = rows.head_view(row, layer, head);
  const int64_t last_key = view ? view->n_keys : rows.row(row).position + int64_t{1};
  const int64_t first_key = window > 0 && !view ? std::max<int64_t>(0, last_key - window) : 0;
  const int64_t first = first_key / kSplitTokens;
  const bool has_mean = view && (view->compensation_weight > 0.0f || view->compensation_logs);
  return {first_key, last_key, first, div_up(last_key, kSplitTokens) - first + has_mean, has_mean};
}

DecodePlan::DecodePlan(const StepRows& rows, KvLayer layer, int32_t n_kv, int32_t window, bool one_run, const Wave& wave, int32_t n_threads)
    : rows_(rows), layer_(layer), n_kv_(n_kv), window_(window), one_run_(one_run), wave_(wave) {
  // Heads that lie side by side in pages are read in one stretch, if enough items remain.
  const bool on_pages =
      std::all_of(rows.steps.begin(), rows.steps.end(), [&](const Step& s) { return s.heads.empty() || layer.group != 0; });
  if (on_pages) together_ = heads_together(n_kv, wave.n_rows * splits(0, 0).count, n_threads);
  const bool several = rows.steps.size() > 1;
  for (int64_t r = 0; r < wave.n_rows; ++r) {
    int64_t n = 0;
    for (int32_t head = 0; head < n_kv; head += together_) {
      const int64_t count = splits(r, head).count;
      n += count, most_splits_ = std::max(most_splits_, count);
    }
    row_items_ = std::max(row_items_, n);
    if (several) first_item_[static_cast<size_t>(r) + 1] = first_item_[static_cast<size_t>(r)] + n;
  }
  n_items_ = several ? first_item_[static_cast<size_t>(wave.n_rows)] : wave.n_rows * row_items_;
}

// Rows of one sequence meet the same keys one after another, so memory is read once for all of them.
DecodeItem DecodePlan::item(int64_t i) const {
  int64_t row = one_run_ ? i % wave_.n_rows : i / row_items_, split = one_run_ ? i / wave_.n_rows : i % row_items_;
  if (rows_.steps.size() > 1) {
    const auto after = std::upper_bound(first_item_.begin(), first_item_.begin() + wave_.n_rows, i);
    row = after - first_item_.begin() - 1, split = i - *(after - 1);
  }
  DecodeItem item;
  item.row = wave_.first_row + row;
  Splits splits = this->splits(row, 0);
  while (split >= splits.count) {
    split -= splits.count;
    if ((item.head += together_) >= n_kv_) return item;
    splits = this->splits(row, item.head);
  }
  item.n_heads = std::min(together_, n_kv_ - item.head);
  item.split = split;
  if (splits.has_mean && split + 1 == splits.count) {
    item.last_key = 1, item.is_mean = true;
    return item;
  }
  const int64_t start = (splits.first + split) * kSplitTokens;
  item.first_key = std::max(start, splits.first_key);
  item.last_key = std::min(start + kSplitTokens, splits.last_key);
  return item;
}

// Items: KV head x block of rows (x part of a very large group). Blocks have the kernel's size, or a fraction of it if there would be too
// few for the threads.
PrefillPlan::PrefillPlan(Span<const RowRun> runs, int32_t n_kv, int32_t group, int32_t queries, int32_t n_threads)
    : runs_(runs), n_kv_(n_kv), group_(group) {
  for (cut(queries); queries > kQueryTile && n_items() < 4 * n_threads; cut(queries)) queries = std::max(queries / 2, kQueryTile);
}

void PrefillPlan::cut(int32_t queries) {
  part_heads_ = std::min(group_, queries), parts_ = div_up(group_, part_heads_);
  block_rows_ = queries / part_heads_;
  n_blocks_ = 0;
  for (const RowRun& run : runs_) n_blocks_ += div_up(run.n_rows, block_rows_);
}

// The longest blocks first: those of the last rows.
PrefillItem PrefillPlan::item(int64_t i) const {
  int64_t block = n_blocks_ - 1 - i / (n_kv_ * parts_);
  const auto kv_head = static_cast<int32_t>(i / parts_ % n_kv_);
  const int32_t first_head = kv_head * group_ + static_cast<int32_t>(i % parts_) * part_heads_;
  const RowRun* run = runs_.begin();
  for (; block >= div_up(run->n_rows, block_rows_); ++run) block -= div_up(run->n_rows, block_rows_);
  const int64_t row = run->first_row + block * block_rows_;
  return {row, static_cast<int32_t>(std::min<int64_t>(block_rows_, run->first_row + run->n_rows - row)), kv_head, first_head,
          std::min(part_heads_, (kv_head + 1) * group_ - first_head)};
}

}  // namespace orrery::cpu
