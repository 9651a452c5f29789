// Attention between steps: the best keys of KV heads by some queries (KeyOperations::top_keys: softmax weights, scores, and a
// selection by the bits of the scores), and the weights themselves, or the products that they are of (KeyOperations::key_weights), or what
// they come to over a window of queries (KeyOperations::key_moments).
//
// Queries go through in batches, those of a job together if they fit.  Within a batch, tiles of keys are dealt to the
// threads and serve all queries of their head, so that K is read and converted once; a tile's weights are of its own
// unit (KeyWeightsTask); where attention has left them there is nothing to do.  Then the queries are dealt, each to one thread,
// which makes scores of its weights and selects, or counts, or writes them down. A mean over queries is summed key by key,
// queries in order, as many positions at once as a task has room for. Moments take as many of a job's query heads at once as their window leaves
// room for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/os/thread_pool.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

// Scratch for jobs of at most max_keys keys: a batch's weights with what goes with each tile, scores and candidates.
class TopKeysScratch {
 public:
  static constexpr int32_t kBatch = 10;  // queries: two jobs of five, which is what HeteroCache asks with
  TopKeysScratch() = default;
  TopKeysScratch(int32_t max_keys, int32_t group);
  uint64_t bytes() const { return std::max(kBatch * entry_bytes_, moments_bytes_); }

  // Of the batch's query `i`: (group) rows of weights, stride() apart; one of scores; candidates; (group) rows of units,
  // of sums and of shares, tile_stride() apart.
  WeightRows rows(std::byte* base, int64_t i) const {
    float* units = entry(base, i) + (group_ + 2) * stride_;
    return {entry(base, i), units, units + group_ * tile_stride_, stride_, tile_stride_};
  }
  float* shares(std::byte* base, int64_t i) const { return rows(base, i).sums + group_ * tile_stride_; }
  float* scores(std::byte* base, int64_t i) const { return entry(base, i) + group_ * stride_; }
  uint32_t* candidates(std::byte* base, int64_t i) const { return reinterpret_cast<uint32_t*>(scores(base, i) + stride_); }

  // Of moments, in place of all that: weights of kQueryTile queries, a stretch of keys of all of them after the other, so that it is
  // one piece of memory for who makes it and who reads it; of each query its tiles' units, sums, logs, shares and variances.
  enum class Tiles : int64_t { units, sums, logs, shares, variances };
  float* stretch(std::byte* base, int64_t first_key) const { return entry(base, 0) + kQueryTile * first_key; }
  int64_t tile_stride() const { return tile_stride_; }
  float* tiles(std::byte* base, Tiles what, int64_t query) const {
    return stretch(base, stride_) + (static_cast<int64_t>(what) * kQueryTile + query) * tile_stride_;
  }

 private:
  float* entry(std::byte* base, int64_t i) const {
    return reinterpret_cast<float*>(base + static_cast<uint64_t>(i) * entry_bytes_);
  }
  int64_t stride_ = 0, tile_stride_ = 0, group_ = 0;
  uint64_t entry_bytes_ = 0, moments_bytes_ = 0;
};

// The k best of scores (n), k <= n, scores not negative (NaN and less count as 0): by score descending, ties by
// index; written in that order, or in ascending order of index. candidates: room for n.
void select_top(const float* scores, int64_t n, int64_t k, bool by_score, uint32_t* candidates, uint32_t* out);
// How many of some keys, which ascend, select_top would find. candidates: room for n.
uint32_t count_top(const float* scores, int64_t n, int64_t k, Span<const uint32_t> among, uint32_t* candidates);

// What the work is done with.
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
