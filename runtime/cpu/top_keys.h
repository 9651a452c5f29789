// Attention between steps (KeyOperations). top_keys: the best keys of KV heads for some queries, by softmax weights, scores, and a
// selection by the bits of the scores. key_weights: the weights themselves, or the products before the softmax. key_moments: mean,
// variance and entropy over a window of queries.
//
// Queries go in batches; those of a job stay together if they fit. Within a batch, tiles of keys are divided among the threads. A
// tile serves all queries of its head, so K is read and converted once, and has its own unit (KeyWeightsTask). Exported weights
// skip this part. Then each query goes to one thread, which computes scores from the weights and selects, counts or writes. A mean
// over queries is summed for each key in the order of the queries. It takes as many positions at once, and moments as many query
// heads, as one task has room for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/os/thread_pool.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

// Scratch memory for jobs of at most max_keys keys: a batch's weights with each tile's numbers, scores, and candidates.
class TopKeysScratch {
 public:
  static constexpr int32_t kBatch = 10;  // queries: two jobs of five queries each, a block of a policy that checks drift
  TopKeysScratch() = default;
  TopKeysScratch(int32_t max_keys, int32_t group);
  uint64_t bytes() const { return std::max(kBatch * entry_bytes_, moments_bytes_); }

  // For query `i` of the batch: (group) rows of weights, stride() apart; a row of scores; candidates; (group) rows each of units,
  // sums and shares, tile_stride() apart.
  WeightRows rows(std::byte* base, int64_t i) const {
    float* units = entry(base, i) + (group_ + 2) * stride_;
    return {entry(base, i), units, units + group_ * tile_stride_, stride_, tile_stride_};
  }
  float* shares(std::byte* base, int64_t i) const { return rows(base, i).sums + group_ * tile_stride_; }
  float* scores(std::byte* base, int64_t i) const { return entry(base, i) + group_ * stride_; }
  uint32_t* candidates(std::byte* base, int64_t i) const { return reinterpret_cast<uint32_t*>(scores(base, i) + stride_); }

  // The layout for moments uses the same memory. Weights of kQueryTile queries are stored in stretches of keys, all queries of a
  // stretch together, so that writer and reader use one piece of memory. For each query: its tiles' units, sums, logs, shares and
  // variances.
  enum class Tiles : int64_t { units, sums, logs, shares, variances };
  float* stretch(std::byte* base, int64_t first_key) const { return entry(base, 0) + kQueryTile * first_key; }
  int64_t tile_stride() const { return tile_stride_; }
  float* tiles(std::byte* base, Tiles what, int64_t query) const {
    return stretch(base, stride_) + (static_cast<int64_t>(what) * kQueryTile + query) * tile_stride_;
  }

 private:
  float* entry(std::byte* base, int64_t i) const { return reinterpret_cast<float*>(base + static_cast<uint64_t>(i) * entry_bytes_); }
  int64_t stride_ = 0, tile_stride_ = 0, group_ = 0;
  uint64_t entry_bytes_ = 0, moments_bytes_ = 0;
};

// The k best of scores (n), k <= n. NaN and negative scores count as 0. Order: higher score first, ties by lower index. `out` is in
// that order (by_score), or in ascending order of index. candidates: room for n.
void select_top(const float* scores, int64_t n, int64_t k, bool by_score, uint32_t* candidates, uint32_t* out, const Kernels& kernels);
// The same of the scores that reach `least`, at least one of them, in ascending order of index. Returns how many there are. It may move
// scores.
int64_t select_reaching(float* scores, int64_t n, int64_t k, float least, uint32_t* candidates, uint32_t* out, const Kernels& kernels);
// How many of the keys in `among`, which ascend, select_top() would select. candidates: room for n.
uint32_t count_top(const float* scores, int64_t n, int64_t k, Span<const uint32_t> among, uint32_t* candidates, const Kernels& kernels);

// The kernels, threads and scratch memory of the work.
struct KeysWork {
  const Kernels& kernels;
  ThreadPool* pool;
  const TopKeysScratch& scratch;
  std::byte *base, *thread_scratch;
  uint64_t thread_bytes;
};
void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape, const KeysWork& work);
void key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape, const KeysWork& work);
void key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape, const KeysWork& work);

}  // namespace orrery::cpu
