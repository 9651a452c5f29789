// Low-rank keys (LowRankOperations). Keys are read, and their RoPE undone, a batch of tokens at a time. Outputs are divided among
// the threads. Each output is summed over the tokens, or the dimensions, in one fixed order. Rebuilding takes tokens of any runs,
// in batches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/os/thread_pool.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

// The kernels, threads and scratch memory of the work. Each thread's scratch memory holds at least low_rank_thread_bytes().
struct LowRankWork {
  const Kernels& kernels;
  ThreadPool* pool;
  std::byte* thread_scratch;
  uint64_t thread_bytes;
};
int64_t low_rank_thread_bytes(int32_t head_dim);

void key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums, const LowRankWork& work);
void low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end, const LowRankWork& work);
void low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, const float* q, float* out, const LowRankWork& work);
void rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs, const LowRankWork& work);

}  // namespace orrery::cpu
