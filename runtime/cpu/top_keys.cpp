#include "runtime/cpu/top_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime/base/best_scores.h"
#include "runtime/base/checked.h"
#include "runtime/cpu/key_codes.h"

namespace orrery::cpu {

namespace {

constexpr int64_t kKeysPerItem = 16 * kPageTokens;

// Codes of an item, of n_parts times n codes: an item makes each query's table again, so items are few. The items of a part are alike.
int64_t codes_of_item(int64_t n, int64_t n_parts, int32_t n_threads) {
  constexpr int64_t kItemsOfThread = 2;
  const int64_t n_items = std::clamp<int64_t>(div_up(kItemsOfThread * n_threads, std::max<int64_t>(n_parts, 1)), 1,
                                              div_up(std::max<int64_t>(n, 1), kKeysPerItem));
  return std::max(kKeysPerItem, static_cast<int64_t>(align_up(static_cast<uint64_t>(div_up(n, n_items)), kPageTokens)));
}

// Floats that are not negative have the same order as their bits.
uint32_t bits_of(float score) {
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return score > 0 ? bits : 0;
}

// Finds the digit, from the highest down, at which the counts reach *n together. *n becomes the rank within that digit.
template <class Count>
uint32_t find_digit(uint32_t n_digits, int64_t* n, const Count& count) {
  for (uint32_t digit = n_digits - 1;; --digit) {
    const int64_t c = count(digit);
    if (c >= *n) return digit;
    *n -= c;
  }
}

// A job's queries within a batch.
template <class Job>
struct Part {
  const Job* job;
  int32_t first, count;  // among the job's positions
  int32_t entry;         // index of its first query in the batch
};

// The queries of the job's `i`-th position: (group, head_dim).
const float* query_of(const KeysJob& job, const KeysShape& shape, int32_t i) {
  const uint64_t group = static_cast<uint64_t>(shape.n_heads / shape.kv.n_kv_heads), dim = static_cast<uint64_t>(shape.kv.head_dim);
  const uint64_t width =
      shape.queries.stride > 0 ? static_cast<uint64_t>(shape.queries.stride) : static_cast<uint64_t>(shape.n_heads) * dim;
  const uint64_t row = static_cast<uint64_t>(job.layer) * static_cast<uint64_t>(shape.queries.n_rows) +
                       static_cast<uint64_t>((job.first_position + i - shape.queries.first) % shape.queries.n_rows);
  return reinterpret_cast<const float*>(shape.queries.data.address) + row * width + static_cast<uint64_t>(job.kv_head) * group * dim;
}

KeyWeightsTask task_of(const KeysJob& job, const KeysShape& shape, const KeysWork& work, int64_t first_key, int64_t last_key,
                       int32_t thread) {
  KeyWeightsTask task;
  task.kv = kv_head(shape.kv.type, shape.kv.head_dim, 0, job.tiles, job.offset);
  if (shape.keys_alone) task.kv.value_bytes = 0;
  task.first_key = first_key;
  task.last_key = last_key;
  task.scale = shape.scale;
  task.bounds = shape.bounds;
  task.products = shape.products;
  task.scratch = work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes;
  task.n_queries = 0;
  return task;
}

// The weights of a part's queries over the codes [first, last).
template <class Job>
void weigh_codes(const Part<Job>& part, const KeysShape& shape, const KeysWork& work, int64_t first, int64_t last, int32_t thread) {
  const KeysJob& job = *part.job;
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads;
  auto* scratch = reinterpret_cast<CodeQueryScratch*>(work.thread_scratch + static_cast<uint64_t>(thread) * work.thread_bytes);
  CodeWeightsTask task = {shape.codes, job.tiles, first, last, job.first_key, turns_of(job, shape), 0, {}, {}, {}, {}};
  for (int32_t i = 0; i < part.count; ++i)
    for (int32_t g = 0; g < group; ++g) {
      const int32_t n = task.n_queries++;
      const float* q = query_of(job, shape, part.first + i) + static_cast<int64_t>(g) * shape.kv.head_dim;
      make_code_table(q, shape, work.kernels, scratch, n);
      set_turns(q, job, shape, &scratch->tables[n]);
      const WeightRows rows = work.scratch.rows(work.base, part.entry + i);
      const int64_t tile = g * rows.tile_stride + first / kPageTokens;
      task.tables[n] = &scratch->tables[n], task.out[n] = rows.weights + g * rows.stride + first;
      task.units[n] = rows.units + tile, task.sums[n] = rows.sums + tile;
      if (task.n_queries == kCodeQueries) work.kernels.code_weights(task), task.n_queries = 0;
    }
  if (task.n_queries > 0) work.kernels.code_weights(task);
}

// For each batch: computes the weights of its queries, then calls use(parts, n_entries). A causal query sees no key after its own
// position.
template <class Job, class Use>
void for_each_batch(Span<const Job> jobs, const KeysShape& shape, bool causal, const KeysWork& work, const Use& use) {
  const TopKeysScratch& scratch = work.scratch;
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads, dim = shape.kv.head_dim;
  size_t next_job = 0;
  int32_t next_position = 0;
  while (next_job < jobs.size()) {
    // The next batch.
    Part<Job> parts[TopKeysScratch::kBatch];
    int32_t n_parts = 0, n_entries = 0;
    int64_t most_keys = 0;
    while (next_job < jobs.size() && n_entries < TopKeysScratch::kBatch) {
      const Job& job = jobs[next_job];
      // A job stays whole if it fits, so that its keys are read once for all of its queries.
      if (n_entries > 0 && next_position == 0 && job.n_positions > TopKeysScratch::kBatch - n_entries) break;
      const int32_t count = std::min(job.n_positions - next_position, TopKeysScratch::kBatch - n_entries);
      if (count > 0) {
        parts[n_parts++] = {&job, next_position, count, n_entries};
        n_entries += count;
        next_position += count;
        if (!job.exported.data) most_keys = std::max<int64_t>(most_keys, job.n_keys);
      }
      if (next_position >= job.n_positions) ++next_job, next_position = 0;
    }
    const int64_t of_item = shape.codes.bits > 0 ? codes_of_item(most_keys, n_parts, work.pool->n_threads()) : kKeysPerItem;
    const int64_t stretches = div_up(most_keys, of_item);  // 0: all weights are exported
    work.pool->run(n_parts * stretches, [&](int64_t item, int32_t thread) {
      const Part<Job>& part = parts[item / stretches];
      const int64_t first = item % stretches * of_item;
      const int64_t last = std::min<int64_t>(first + of_item, part.job->n_keys);
      if (first >= last || part.job->exported.data) return;
      if (shape.codes.bits > 0) return weigh_codes(part, shape, work, first, last, thread);
      KeyWeightsTask task = task_of(*part.job, shape, work, first, last, thread);
      for (int32_t i = 0; i < part.count; ++i)
        for (int32_t g = 0; g < group; ++g) {
          const WeightRows rows = scratch.rows(work.base, part.entry + i);
          const int64_t tile = g * rows.tile_stride + first / kPageTokens;
          task.q[task.n_queries] = query_of(*part.job, shape, part.first + i) + static_cast<int64_t>(g) * dim;
          task.out[task.n_queries] = rows.weights + g * rows.stride + first;
          task.units[task.n_queries] = rows.units + tile;
          task.sums[task.n_queries] = rows.sums + tile;
          if constexpr (std::is_same_v<Job, KeyWeightsJob>)  // products need no zeros at the end of a tile
            if (shape.products) task.out[task.n_queries] = part.job->out + (int64_t{part.first + i} * group + g) * part.job->n_keys + first;
          task.ends[task.n_queries] = causal ? int64_t{part.job->first_position} + part.first + i + 1 : last;
          if (++task.n_queries == kQueryTile) work.kernels.key_weights(task), task.n_queries = 0;
        }
      if (task.n_queries > 0) work.kernels.key_weights(task);
    });
    use(Span<const Part<Job>>(parts, static_cast<size_t>(n_parts)), n_entries);
  }
}

template <class Job>
const Part<Job>& part_of(Span<const Part<Job>> parts, int64_t entry) {
  const Part<Job>* part = parts.begin();
  while (entry >= part->entry + part->count) ++part;
  return *part;
}

}  // namespace

TopKeysScratch::TopKeysScratch(int32_t max_keys, int32_t group) : group_(group) {
  if (max_keys <= 0) return;
  stride_ = static_cast<int64_t>(align_up(static_cast<uint64_t>(max_keys), kPageTokens));
  tile_stride_ = static_cast<int64_t>(align_up(static_cast<uint64_t>(div_up(max_keys, kPageTokens)), 16));
  const int64_t floats = (group_ + 2) * stride_ + 3 * group_ * tile_stride_;
  entry_bytes_ = static_cast<uint64_t>(floats) * sizeof(float);
  moments_bytes_ = static_cast<uint64_t>(kQueryTile * (stride_ + 5 * tile_stride_)) * sizeof(float);
}

namespace {

// The k-th best score.
struct Least {
  uint32_t bits;
  int64_t n_equal;  // number of its equals among the k best, lower keys first
  int64_t n_left;   // keys with the same first digits, or larger ones
};

constexpr int kTurns = 4;

// The first eleven bits of the n_wanted-th largest score; *n_wanted becomes its rank among scores with the same bits. kTurns
// counters take turns, so that equal neighbours do not wait for each other. With a narrow Count, the counters leave most of the
// first-level cache to the scores.
template <class Count>
uint32_t find_first(const float* scores, int64_t n, int64_t* n_wanted) {
  Count counts[kTurns][2048] = {};
  int64_t i = 0;
  for (; i + kTurns <= n; i += kTurns)
    for (int j = 0; j < kTurns; ++j) ++counts[j][bits_of(scores[i + j]) >> 20];
  for (; i < n; ++i) ++counts[i % kTurns][bits_of(scores[i]) >> 20];
  return find_digit(2048, n_wanted, [&](uint32_t d) { return int64_t{counts[0][d]} + counts[1][d] + counts[2][d] + counts[3][d]; });
}

// k >= 1. left: room for n; it receives the keys that remain candidates, ascending.
Least find_least(const float* scores, int64_t n, int64_t k, uint32_t* left, const Kernels& kernels) {
  // First by sampling, which may fail (find_least_score()). Then by the first digits of the k-th largest; only scores with these or
  // larger digits, few more than k, are examined further.
  const auto list = [&](uint32_t low, uint32_t high, uint32_t* out, int64_t* n_high) {
    if (low == 0) return list_reaching(scores, n, low, high, bits_of, out, n_high);  // NaN counts as 0
    float least, most;
    std::memcpy(&least, &low, sizeof least), std::memcpy(&most, &high, sizeof most);
    return kernels.list_reaching(scores, n, least, most, out, n_high);
  };
  const LeastScore last_score = find_least_score(scores, n, k, left, bits_of, list);
  if (last_score.n_left > 0) return {last_score.order, last_score.n_equal, last_score.n_left};
  constexpr uint32_t kDigits = 1024;  // the sign is 0, which leaves 11 bits, then twice 10
  Least least{0, k, 0};
  uint32_t last =
      n <= kTurns * int64_t{UINT16_MAX} ? find_first<uint16_t>(scores, n, &least.n_equal) : find_first<uint32_t>(scores, n, &least.n_equal);
  for (int64_t i = 0; i < n; ++i) {  // without branches, because a processor could only guess them
    left[least.n_left] = static_cast<uint32_t>(i);
    least.n_left += bits_of(scores[i]) >> 20 >= last;
  }
  for (const int shift : {10, 0}) {
    uint32_t counts[kDigits] = {};
    for (int64_t i = 0; i < least.n_left; ++i) {
      const uint32_t x = bits_of(scores[left[i]]);
      counts[x >> shift & (kDigits - 1)] += x >> (shift + 10) == last;
    }
    last = last << 10 | find_digit(kDigits, &least.n_equal, [&](uint32_t d) { return int64_t{counts[d]}; });
  }
  least.bits = last;
  return least;
}

// Sorts ascending keys (k) by score, largest first, equal ones in their order. Three digits, lowest first. temporary: (k).
void sort_by_score(const float* scores, int64_t k, uint32_t* keys, uint32_t* temporary) {
  constexpr struct { int shift, width; } kDigits[] = {{0, 10}, {10, 10}, {20, 11}};  // the sign is 0
  uint32_t *from = keys, *to = temporary;
  for (const auto digit : kDigits) {
    const uint32_t last = (1u << digit.width) - 1;
    uint32_t ends[2048] = {};  // for each value, largest first: the place of the next key
    const auto place = [&](uint32_t key) -> uint32_t& { return ends[last - (bits_of(scores[key]) >> digit.shift & last)]; };
    for (int64_t i = 0; i < k; ++i) ++place(from[i]);
    uint32_t at = 0;
    for (uint32_t value = 0; value <= last; ++value) at += std::exchange(ends[value], at);
    for (int64_t i = 0; i < k; ++i) to[place(from[i])++] = from[i];
    std::swap(from, to);
  }
  std::copy(from, from + k, keys);
}

}  // namespace

void select_top(const float* scores, int64_t n, int64_t k, bool by_score, uint32_t* candidates, uint32_t* out, const Kernels& kernels) {
  if (k <= 0) return;
  if (k >= n && !by_score) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint32_t>(i);
    return;
  }
  const uint32_t* left = candidates;
  Least least = find_least(scores, n, k, candidates, kernels);
  int64_t at = 0;
  for (int64_t i = 0; at < k; ++i) {
    const uint32_t x = bits_of(scores[left[i]]);
    const bool equal = x == least.bits && least.n_equal > 0;
    out[at] = left[i];
    at += x > least.bits || equal;
    least.n_equal -= equal;
  }
  if (by_score) sort_by_score(scores, k, out, candidates);
}

int64_t select_reaching(float* scores, int64_t n, int64_t k, float least, uint32_t* candidates, uint32_t* out, const Kernels& kernels) {
  int64_t n_left = n, n_high = 0;
  if (least > 0) n_left = kernels.list_reaching(scores, n, least, INFINITY, candidates, &n_high);
  if (n_left == 0) k = std::min<int64_t>(k, 1);
  if (n_left > k && 2 * n_left <= n) {  // of these alone; their scores move to the front
    for (int64_t i = 0; i < n_left; ++i) scores[i] = scores[candidates[i]];
    select_top(scores, n_left, k, false, candidates + n_left, out, kernels);
    for (int64_t i = 0; i < k; ++i) out[i] = candidates[out[i]];
    return k;
  }
  if (n_left == 0 || n_left > k || least <= 0) {
    select_top(scores, n, k, false, candidates, out, kernels);
    return k;
  }
  std::copy(candidates, candidates + n_left, out);
  return n_left;
}

uint32_t count_top(const float* scores, int64_t n, int64_t k, Span<const uint32_t> among, uint32_t* candidates, const Kernels& kernels) {
  if (k <= 0) return 0;
  const uint32_t* left = candidates;
  const Least least = find_least(scores, n, k, candidates, kernels);
  const auto bits = [&](uint32_t key) { return bits_of(scores[key]); };
  uint32_t n_larger = 0, n_equal = 0;
  for (const uint32_t key : among) {
    n_larger += bits(key) > least.bits;
    n_equal += bits(key) == least.bits;
  }
  if (n_equal == 0) return n_larger;
  // Counts the equals up to the last equal key that is among the best.
  int64_t i = 0;
  for (int64_t found = 0; found < least.n_equal; ++i) found += bits(left[i]) == least.bits;
  const uint32_t end = left[i - 1];
  n_equal = 0;
  for (const uint32_t key : among) n_equal += bits(key) == least.bits && key <= end;
  return n_larger + n_equal;
}

namespace {

// left_over (kRows): the sum of the weights times the shares of their tiles. logs (kRows) = for each of the rows from row g on: log2 of the sum of its weights over its n keys, without the keys of `out` (k), which
// ascend and count from first_key. -infinity: no key is left. shares: of the tiles of each row in its softmax (find_shares()). A tile whose
// keys are all in `out` adds nothing, whatever the rounding of its sum. Several rows at once, because a sum waits for the one before.
template <int kRows>
void logs_of_others(const WeightRows& rows, int32_t g, const float* shares, int64_t n, int64_t first_key, const uint32_t* out, int64_t k,
                    float* logs, float* left_over) {
  const float *weights = rows.weights + g * rows.stride, *units = rows.units + g * rows.tile_stride,
              *sums = rows.sums + g * rows.tile_stride;
  shares += g * rows.tile_stride;
  const int64_t n_tiles = div_up<int64_t>(n, kPageTokens);
  double totals[kRows] = {};
  int64_t i = 0;  // of `out`
  for (int64_t tile = 0; tile < n_tiles; ++tile) {
    const int64_t end = (tile + 1) * kPageTokens - first_key, before = i;
    float taken[kRows] = {};
    for (; i < k && out[i] < end; ++i)
      for (int r = 0; r < kRows; ++r) taken[r] += weights[r * rows.stride + first_key + out[i]];
    if (i - before == std::min(n - first_key, end) - std::max<int64_t>(0, end - kPageTokens)) continue;
    for (int r = 0; r < kRows; ++r) {
      const float left = sums[r * rows.tile_stride + tile] - taken[r];
      totals[r] += static_cast<double>((left > 0 ? left : 0) * shares[r * rows.tile_stride + tile]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    // A tile's unit, less log2 of its share, is log2 of the sum of all weights.
    const float* share = std::max_element(shares + r * rows.tile_stride, shares + r * rows.tile_stride + n_tiles);
    const float unit = units[share - shares];
    logs[r] = totals[r] > 0 ? unit + static_cast<float>(std::log2(totals[r] / static_cast<double>(*share))) : -INFINITY;
    left_over[r] = static_cast<float>(totals[r]);
  }
}

// The same of all rows of a group.
void logs_of_others(const WeightRows& rows, int32_t group, const float* shares, int64_t n, int64_t first_key, const uint32_t* out,
                    int64_t k, float* logs, float* left_over) {
  int32_t g = 0;
  for (; g + 4 <= group; g += 4) logs_of_others<4>(rows, g, shares, n, first_key, out, k, logs + g, left_over + g);
  if (group - g == 3) return logs_of_others<3>(rows, g, shares, n, first_key, out, k, logs + g, left_over + g);
  for (; g < group; ++g) logs_of_others<1>(rows, g, shares, n, first_key, out, k, logs + g, left_over + g);
}

// The mean values of evicted tokens by their codes, for jobs of one position each (TopKeysJob::value_evicted). The weights of the keys
// that were found are 0 by now. left_over(entry): (group), the sum of the others; 0: no mean is wanted.
//
// A part's keys go in stretches of kKeysPerItem, whatever the number of threads; the last one takes the rest. A stretch's sums, if it is
// not the only one, take the place of its first weights. They are added in order.
template <class LeftOver>
void mean_evicted(Span<const Part<TopKeysJob>> parts, int32_t n_entries, const TopKeysShape& shape, const KeysWork& work,
                  const LeftOver& left_over) {
  constexpr int64_t kMostWidth = 512;  // head_dim, at most
  constexpr float kLeftOut =
      1.0f / (1 << 20);  // share of the weights that is left out, at most: tiles with less than their part of this share
  static_assert(kKeysPerItem >= kMostWidth, "a stretch's weights leave room for its sums");
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads, dim = shape.codes.head_dim, n_fours = div_up(group, kCodeQueries);
  const int64_t width = int64_t{shape.codes.n_value_blocks()} * KeyCodeFormat::kValueBlock;
  const auto n_stretches = [&](const TopKeysJob& job) { return std::max<int64_t>(1, job.n_keys / kKeysPerItem); };
  int64_t most = 0;
  for (const Part<TopKeysJob>& part : parts)
    if (part.job->value_evicted) most = std::max(most, n_stretches(*part.job));
  if (most == 0) return;
  const auto finish = [&](int64_t entry, int32_t g, float* sums) {  // (width)
    const TopKeysJob& job = *part_of(parts, entry).job;
    work.kernels.transform_heads(sums, nullptr, 1, dim, shape.code_block);
    const float inverse = 1.0f / left_over(entry)[g];
    float* out = reinterpret_cast<float*>(static_cast<uintptr_t>(job.value_evicted.address)) + int64_t{g} * dim;
    for (int32_t i = 0; i < dim; ++i) out[i] = sums[i] * inverse;
  };
  work.pool->run(n_entries * n_fours * most, [&](int64_t item, int32_t) {
    const int64_t entry = item / most / n_fours, stretch = item % most;
    const auto first_head = static_cast<int32_t>(item / most % n_fours * kCodeQueries);
    const TopKeysJob& job = *part_of(parts, entry).job;
    const int64_t of_job = n_stretches(job), first = stretch * kKeysPerItem;
    if (!job.value_evicted || stretch >= of_job) return;
    const int64_t last = stretch + 1 == of_job ? job.n_keys : first + kKeysPerItem;
    const WeightRows rows = work.scratch.rows(work.base, entry);
    alignas(64) float sums[kCodeQueries][kMostWidth];
    int32_t heads[kCodeQueries];
    CodeValuesTask task = {shape.codes, job.tiles, first, last, 0, {}, {}, {}, {}, {}};
    const float least_part = kLeftOut / static_cast<float>(div_up<int64_t>(job.n_keys, kPageTokens));
    for (int32_t g = first_head; g < std::min(group, first_head + kCodeQueries); ++g) {
      if (!(left_over(entry)[g] > 0)) continue;
      const int32_t n = task.n_queries++;
      heads[n] = g;
      task.weights[n] = rows.weights + g * rows.stride + first;
      task.shares[n] = work.scratch.shares(work.base, entry) + g * rows.tile_stride + first / kPageTokens;
      task.sums[n] = rows.sums + g * rows.tile_stride + first / kPageTokens;
      task.least[n] = least_part * left_over(entry)[g];
      task.out[n] = sums[n];
      std::fill_n(sums[n], width, 0.0f);
    }
    if (task.n_queries == 0) return;
    work.kernels.code_values(task);
    for (int32_t n = 0; n < task.n_queries; ++n) {
      if (of_job == 1) finish(entry, heads[n], sums[n]);
      else std::copy_n(sums[n], width, rows.weights + heads[n] * rows.stride + first);
    }
  });
  if (most == 1) return;
  work.pool->run(n_entries * group, [&](int64_t item, int32_t) {
    const int64_t entry = item / group, of_job = n_stretches(*part_of(parts, entry).job);
    const auto g = static_cast<int32_t>(item % group);
    if (of_job == 1 || !part_of(parts, entry).job->value_evicted || !(left_over(entry)[g] > 0)) return;
    const WeightRows rows = work.scratch.rows(work.base, entry);
    alignas(64) float sums[kMostWidth] = {};
    for (int64_t stretch = 0; stretch < of_job; ++stretch) {
      const float* of_stretch = rows.weights + g * rows.stride + stretch * kKeysPerItem;
      for (int64_t i = 0; i < width; ++i) sums[i] += of_stretch[i];
    }
    finish(entry, g, sums);
  });
}

}  // namespace

void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape, const KeysWork& work) {
  const TopKeysScratch& s = work.scratch;
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads;
  for_each_batch(jobs, shape, false, work, [&](Span<const Part<TopKeysJob>> parts, int32_t n_entries) {
    work.pool->run(n_entries, [&](int64_t entry, int32_t) {
      const Part<TopKeysJob>& part = part_of(parts, entry);
      const TopKeysJob& job = *part.job;
      const int64_t i = part.first + (entry - part.entry);
      WeightRows rows = s.rows(work.base, entry);
      if (job.exported.data) rows = weight_rows(job.exported, group);
      float* scores = s.scores(work.base, entry);
      work.kernels.key_scores({rows.weights, rows.stride, rows.units, rows.sums, rows.tile_stride, group, job.n_keys, shape.scoring,
                               s.shares(work.base, entry), scores});
      for (const uint32_t key : job.held) scores[key] *= job.stay;
      if (job.n_common) *job.n_common = count_top(scores, job.n_keys, job.k, job.among, s.candidates(work.base, entry), work.kernels);
      else if (job.n_found)
        *job.n_found = static_cast<uint32_t>(select_reaching(scores + job.first_key, job.n_keys - job.first_key, job.k, job.least,
                                                             s.candidates(work.base, entry), job.out, work.kernels));
      else
        select_top(scores + job.first_key, job.n_keys - job.first_key, job.k, job.by_score, s.candidates(work.base, entry),
                   job.out + i * job.k, work.kernels);
      auto* log_evicted = reinterpret_cast<float*>(static_cast<uintptr_t>(job.log_evicted.address));
      if (!log_evicted) return;
      // The scores have been used: their place takes what is left over.
      const int64_t n_best = job.n_found ? *job.n_found : job.k;
      logs_of_others(rows, group, s.shares(work.base, entry), job.n_keys, job.first_key, job.out, n_best, log_evicted, scores);
      const double factor = code_factor_square(job, shape.codes);
      for (int32_t g = 0; g < group; ++g)
        if (code_variance(query_of(job, shape, part.first) + int64_t{g} * shape.kv.head_dim, factor, shape) > kMostCodeVariance)
          log_evicted[g] = -INFINITY, scores[g] = 0;
      if (!job.value_evicted) return;
      for (int32_t g = 0; g < group; ++g)
        for (int64_t k = 0; k < n_best; ++k) rows.weights[g * rows.stride + job.first_key + job.out[k]] = 0;
    });
    if (shape.codes.value_bits > 0) mean_evicted(parts, n_entries, shape, work, [&](int64_t entry) { return s.scores(work.base, entry); });
  });
}

namespace {

// Weights of some rows of a job, by position and by head, in stretches of keys (TopKeysScratch::stretch), with the numbers of their
// tiles. At most kQueryTile rows.
class WindowOfRows {
 public:
  WindowOfRows(const KeysJob& job, const KeysShape& shape, const KeysWork& work) : job_(job), shape_(shape), work_(work) {}
  int64_t n_tiles() const { return div_up<int64_t>(job_.n_keys, kPageTokens); }
  float* tiles(TopKeysScratch::Tiles what, int64_t row) const { return work_.scratch.tiles(work_.base, what, row); }
  // Floats between rows, in the stretch of keys that begins with `first`.
  int64_t width(int64_t first) const { return std::min<int64_t>(kKeysPerItem, n_tiles() * kPageTokens - first); }
  float* row(int64_t row, int64_t first) const { return work_.scratch.stretch(work_.base, first) + row * width(first); }

  // Computes the weights of n_rows rows. Row i belongs to place(i): a position of the job, counted from its first, and a query head
  // of the group.
  struct Place {
    int32_t position, head;
  };
  template <class F>
  void weigh(int32_t n_rows, bool with_logs, const F& place) const {
    using Tiles = TopKeysScratch::Tiles;
    work_.pool->run(div_up<int64_t>(job_.n_keys, kKeysPerItem), [&](int64_t stretch, int32_t thread) {
      const int64_t first = stretch * kKeysPerItem, tile = first / kPageTokens;
      KeyWeightsTask task = task_of(job_, shape_, work_, first, std::min<int64_t>(first + kKeysPerItem, job_.n_keys), thread);
      task.with_logs = with_logs;
      for (int32_t i = 0; i < n_rows; ++i) {
        const Place p = place(i);
        task.q[i] = query_of(job_, shape_, p.position) + int64_t{p.head} * shape_.kv.head_dim;
        task.out[i] = row(i, first);
        task.units[i] = tiles(Tiles::units, i) + tile;
        task.sums[i] = tiles(Tiles::sums, i) + tile;
        task.logs[i] = tiles(Tiles::logs, i) + tile;
        task.ends[i] = int64_t{job_.first_position} + p.position + 1;
      }
      task.n_queries = n_rows;
      work_.kernels.key_weights(task);
    });
  }
  // Computes the tile shares of a row that has its weights.
  void find_shares(int64_t row) const {
    using Tiles = TopKeysScratch::Tiles;
    work_.kernels.tile_shares(tiles(Tiles::units, row), tiles(Tiles::sums, row), n_tiles(), tiles(Tiles::shares, row));
  }

 private:
  const KeysJob& job_;
  const KeysShape& shape_;
  const KeysWork& work_;
};

// A job's mean. It takes as many positions at once as there is room for rows, so keys are converted fewer times, and no mean of a
// single position is stored.
void mean_weights(const KeyWeightsJob& job, const KeysShape& shape, const KeysWork& work) {
  using Tiles = TopKeysScratch::Tiles;
  const WindowOfRows rows(job, shape, work);
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads, at_once = kQueryTile / group;
  if (!job.add) std::fill(job.out, job.out + job.n_keys, 0.0f);
  for (int32_t position = 0; position < job.n_positions; position += at_once) {
    const int32_t n = std::min(at_once, job.n_positions - position);
    rows.weigh(n * group, false, [&](int32_t i) { return WindowOfRows::Place{position + i / group, i % group}; });
    work.pool->run(n * group, [&](int64_t i, int32_t) { rows.find_shares(i); });
    const bool divides = !job.add && position + n == job.n_positions;
    work.pool->run(div_up<int64_t>(job.n_keys, kKeysPerItem), [&](int64_t stretch, int32_t) {
      const int64_t first = stretch * kKeysPerItem, n_keys = std::min<int64_t>(kKeysPerItem, job.n_keys - first);
      work.kernels.add_means({rows.row(0, first), rows.width(first), rows.tiles(Tiles::shares, 0) + first / kPageTokens,
                              work.scratch.tile_stride(), n, group, n_keys, job.out + first});
      for (int64_t key = first; divides && key < first + n_keys; ++key) job.out[key] /= static_cast<float>(job.n_positions);
    });
  }
}

}  // namespace

void key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape, const KeysWork& work) {
  const TopKeysScratch& s = work.scratch;
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads;
  // Means go by mean_weights(). Means of exported weights, or of more query heads than a task takes, are computed as rows, like products.
  const auto by_window = [&](const KeyWeightsJob& job) {
    return job.mean && !job.exported.data && !shape.products && shape.codes.bits == 0 && group <= kQueryTile;
  };
  size_t n_by_window = 0;
  for (const KeyWeightsJob& job : jobs) n_by_window += by_window(job);
  if (n_by_window > 0) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (by_window(jobs[i])) mean_weights(jobs[i], shape, work);
      else key_weights({&jobs[i], 1}, shape, work);
    }
    return;
  }
  for_each_batch(jobs, shape, true, work, [&](Span<const Part<KeyWeightsJob>> parts, int32_t n_entries) {
    if (shape.products) return;
    int64_t most_keys = 0;  // of jobs that want a mean
    for (const Part<KeyWeightsJob>& part : parts)
      if (part.job->mean) most_keys = std::max<int64_t>(most_keys, part.job->n_keys);
    work.pool->run(n_entries, [&](int64_t entry, int32_t) {
      const Part<KeyWeightsJob>& part = part_of(parts, entry);
      const KeyWeightsJob& job = *part.job;
      const int32_t n_rows = job.mean ? group : 1;  // rows that become one
      for (int32_t g = 0; g < group; g += n_rows) {
        const int64_t row = (part.first + (entry - part.entry)) * group + g;
        const WeightRows rows = job.exported.data ? weight_rows(job.exported, group) : s.rows(work.base, entry);
        const int64_t tiles = g * rows.tile_stride;
        work.kernels.key_scores({rows.weights + g * rows.stride,
                                 rows.stride,
                                 rows.units + tiles,
                                 rows.sums + tiles,
                                 rows.tile_stride,
                                 n_rows,
                                 job.n_keys,
                                 {},
                                 s.shares(work.base, entry),
                                 job.mean ? s.scores(work.base, entry) : job.out + row * job.n_keys});
      }
    });
    const int64_t stretches = div_up(most_keys, kKeysPerItem), n_parts = static_cast<int64_t>(parts.size());
    work.pool->run(n_parts * stretches, [&](int64_t item, int32_t) {
      const Part<KeyWeightsJob>& part = parts[static_cast<size_t>(item / stretches)];
      const KeyWeightsJob& job = *part.job;
      const int64_t first = item % stretches * kKeysPerItem, last = std::min<int64_t>(first + kKeysPerItem, job.n_keys);
      if (!job.mean || first >= last) return;
      float* out = job.out;
      if (part.first == 0 && !job.add) std::fill(out + first, out + last, 0.0f);
      for (int32_t i = 0; i < part.count; ++i) {
        const float* row = s.scores(work.base, part.entry + i);  // mean over the group
        for (int64_t j = first; j < last; ++j) out[j] += row[j];
      }
      if (job.add || part.first + part.count < job.n_positions) return;
      for (int64_t j = first; j < last; ++j) out[j] /= static_cast<float>(job.n_positions);
    });
  });
}

namespace {

// The sum of -a log(a) over a row's first n keys. a is a weight times its tile's share, so log2(a) = log2(weight) + the tile's unit
// + a number that is the same for the whole row. key(i): address of weight i.
template <class Key>
double entropy_of_row(const float* units, const float* sums, const float* logs, const float* shares, int64_t n_tiles, int64_t n,
                      const Key& key) {
  float unit = 0, share = 0;  // of the tile with the largest share
  for (int64_t tile = 0; tile < n_tiles; ++tile)
    if (sums[tile] > 0 && (share == 0 || units[tile] > unit)) unit = units[tile], share = shares[tile];
  if (share == 0) return 0;  // all weights are 0
  const double log_share = std::log2(static_cast<double>(share));
  double sum = 0;
  for (int64_t tile = 0; tile * kPageTokens < n; ++tile) {
    if (!(shares[tile] > 0)) continue;
    double own = static_cast<double>(sums[tile]), own_logs = static_cast<double>(logs[tile]);
    if (n < (tile + 1) * kPageTokens) {
      own = own_logs = 0;
      for (int64_t i = tile * kPageTokens; i < n; ++i) {
        const auto x = static_cast<double>(*key(i));
        own += x, own_logs += x > 0 ? x * std::log2(x) : 0;
      }
    }
    sum += static_cast<double>(shares[tile]) * (own_logs + own * (static_cast<double>(units[tile] - unit) + log_share));
  }
  return -std::log(2.0) * sum;
}

// Adds the moments of the query heads [first_head, first_head + n_heads) of the job's group: weights, shares of their tiles,
// moments.
void add_moments(const KeyMomentsJob& job, const KeysShape& shape, const KeysWork& work, int32_t first_head, int32_t n_heads) {
  using Tiles = TopKeysScratch::Tiles;
  const WindowOfRows rows(job, shape, work);
  const int32_t n_rows = job.n_positions, n_queries = n_heads * n_rows;  // the rows of a head are neighbours
  rows.weigh(n_queries, true, [&](int32_t i) { return WindowOfRows::Place{i % n_rows, first_head + i / n_rows}; });
  double entropies[kQueryTile];
  work.pool->run(n_queries, [&](int64_t i, int32_t) {
    rows.find_shares(i);
    const auto key = [&](int64_t k) { return rows.row(i, k / kKeysPerItem * kKeysPerItem) + k % kKeysPerItem; };
    entropies[i] = entropy_of_row(rows.tiles(Tiles::units, i), rows.tiles(Tiles::sums, i), rows.tiles(Tiles::logs, i),
                                  rows.tiles(Tiles::shares, i), rows.n_tiles(), job.n_measured, key);
  });
  for (int32_t i = 0; i < n_queries; ++i) *job.entropy += entropies[i];
  const int64_t measured = div_up<int64_t>(job.n_measured, kKeysPerItem);
  work.pool->run(measured * n_heads, [&](int64_t item, int32_t) {
    const int64_t head = item % n_heads, first = item / n_heads * kKeysPerItem, tile = first / kPageTokens;
    work.kernels.key_moments({rows.row(head * n_rows, first), rows.width(first), rows.tiles(Tiles::shares, head * n_rows) + tile,
                              work.scratch.tile_stride(), n_rows, std::min<int64_t>(kKeysPerItem, job.n_measured - first),
                              static_cast<float>(job.gamma), job.out + (first_head + head) * job.n_measured + first,
                              rows.tiles(Tiles::variances, head) + tile});
  });
  for (int32_t head = 0; head < n_heads; ++head)
    for (int64_t tile = 0; tile * kPageTokens < job.n_measured; ++tile)
      *job.variance += static_cast<double>(rows.tiles(Tiles::variances, head)[tile]);
}

}  // namespace

void key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape, const KeysWork& work) {
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads;
  for (const KeyMomentsJob& job : jobs) {
    *job.entropy = *job.variance = 0;
    const int32_t at_once = std::max(1, std::min(group, kQueryTile / job.n_positions));
    for (int32_t g = 0; g < group; g += at_once) add_moments(job, shape, work, g, std::min(at_once, group - g));
  }
}

}  // namespace orrery::cpu
