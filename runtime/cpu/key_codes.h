// Key codes (KeyCodeOperations), and the tables by which queries score them. A tile of codes belongs to one thread, so that no two threads
// write one byte. Codes have the same bits on every instruction set: the transform has, and the rest is in double precision.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/os/thread_pool.h"

namespace orrery::cpu {

// Of one thread: the tables of a task's queries, and a rotated query behind them, (head_dim) floats.
struct CodeQueryScratch {
  KeyCodeTable tables[kCodeQueries];
};
int64_t key_code_thread_bytes(int32_t head_dim);

// scratch->tables[n] = the table of the query q (head_dim), for scores in units of log2(e) and shape.scale. Its entries are rounded to
// bytes: a product is off by at most half a step for each group.
void make_code_table(const float* q, const KeysShape& shape, const Kernels& kernels, CodeQueryScratch* scratch, int32_t n);

// Of codes with turns: where the job's cosines and sines lie; and the table's coefficients for the query q as it is stored.
TurnsOfHead turns_of(const KeysJob& job, const KeysShape& shape);
void set_turns(const float* q, const KeysJob& job, const KeysShape& shape, KeyCodeTable* table);

// The mean square of the factors of some of the job's candidates: kVarianceTiles. And the variance, with that, of the products of q
// (head_dim) with the candidates, given their codes: kMostCodeVariance.
double code_factor_square(const KeysJob& job, const KeyCodeFormat& codes);
float code_variance(const float* q, double factor_square, const KeysShape& shape);

// The kernels, threads and scratch memory of the work. Each thread's scratch memory holds at least key_code_thread_bytes().
struct KeyCodesWork {
  const Kernels& kernels;
  ThreadPool* pool;
  std::byte* thread_scratch;
  uint64_t thread_bytes;
};
void mean_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, int32_t step,
               const KeyCodesWork& work);
void mean_values(Span<const MeanValueJob> jobs, const KvFormat& kv, const KeyCodesWork& work);
void encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, const KeyCodesWork& work);

}  // namespace orrery::cpu
