#include "runtime/cpu/top_keys.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/checked.h"

namespace orrery::cpu {

namespace {

constexpr int64_t kKeysPerItem = 16 * kPageTokens;

// Ascending for descending scores, then ascending indices. Floats that are not negative order like their bits.
uint64_t pack(float score, uint32_t index) {
  uint32_t bits = 0;
  if (score > 0) std::memcpy(&bits, &score, sizeof bits);
  return uint64_t{~bits} << 32 | index;
}

uint32_t bin_of(float score) {
  uint32_t bits = 0;
  if (score > 0) std::memcpy(&bits, &score, sizeof bits);
  return bits >> 20;
}

// Queries of one job within a batch.
struct Part {
  const TopKeysJob* job;
  int32_t first, count;  // of the job's positions
  int32_t entry;         // its first in the batch
};

}  // namespace

TopKeysScratch::TopKeysScratch(int32_t max_keys, int32_t group) : group_(group) {
  if (max_keys <= 0) return;
  stride_ = static_cast<int64_t>(align_up(static_cast<uint64_t>(max_keys), 16)) + 2 * kScorePad;
  const int64_t floats = (group_ + 1) * stride_ + 2 * stride_;
  entry_bytes_ = static_cast<uint64_t>(floats) * sizeof(float);
}

void select_top(const float* scores, int64_t n, int64_t k, bool by_score, uint64_t* candidates, uint32_t* out) {
  if (k <= 0) return;
  if (k >= n && !by_score) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint32_t>(i);
    return;
  }
  // The bin (exponent and three bits more) in which the k-th best lies: all above it are in, of its own the best.
  uint32_t histogram[2048] = {};
  for (int64_t i = 0; i < n; ++i) ++histogram[bin_of(scores[i])];
  int64_t above = 0;
  uint32_t bin = 2047;
  while (above + histogram[bin] < k) above += histogram[bin--];

  uint64_t* edge = candidates;  // of the bin
  int64_t n_edge = 0;
  for (int64_t i = 0; i < n; ++i)
    if (bin_of(scores[i]) == bin) edge[n_edge++] = pack(scores[i], static_cast<uint32_t>(i));
  const int64_t wanted = k - above;
  if (wanted < n_edge) std::nth_element(edge, edge + (wanted - 1), edge + n_edge);
  if (by_score) {
    int64_t at = wanted;
    for (int64_t i = 0; i < n; ++i)
      if (bin_of(scores[i]) > bin) edge[at++] = pack(scores[i], static_cast<uint32_t>(i));
    std::sort(edge, edge + k);
    for (int64_t i = 0; i < k; ++i) out[i] = static_cast<uint32_t>(edge[i]);
    return;
  }
  const uint64_t last = wanted < n_edge ? edge[wanted - 1] : UINT64_MAX;  // else all of the bin, which is in no order
  for (int64_t i = 0, at = 0; i < n && at < k; ++i) {
    const uint32_t b = bin_of(scores[i]);
    if (b > bin || (b == bin && pack(scores[i], static_cast<uint32_t>(i)) <= last)) out[at++] = static_cast<uint32_t>(i);
  }
}

void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape, const Kernels& kernels, ThreadPool* pool,
              const TopKeysScratch& scratch, std::byte* base, std::byte* thread_scratch, uint64_t thread_bytes) {
  const int32_t group = shape.n_heads / shape.kv.n_kv_heads, dim = shape.kv.head_dim;
  const uint64_t q_floats = static_cast<uint64_t>(shape.n_heads) * static_cast<uint64_t>(dim);
  const auto query = [&](const TopKeysJob& job, int32_t i) {
    const uint64_t row = static_cast<uint64_t>(job.layer) * static_cast<uint64_t>(shape.queries.n_rows) +
                         static_cast<uint64_t>((job.first_position + i) % shape.queries.n_rows);
    return reinterpret_cast<const float*>(shape.queries.data.address) + row * q_floats +
           static_cast<uint64_t>(job.kv_head) * static_cast<uint64_t>(group) * static_cast<uint64_t>(dim);
  };
  size_t next_job = 0;
  int32_t next_position = 0;
  while (next_job < jobs.size()) {
    // The next batch.
    Part parts[TopKeysScratch::kBatch];
    int32_t n_parts = 0, n_entries = 0;
    int64_t most_keys = 0;
    while (next_job < jobs.size() && n_entries < TopKeysScratch::kBatch) {
      const TopKeysJob& job = jobs[next_job];
      const int32_t count = std::min(job.n_positions - next_position, TopKeysScratch::kBatch - n_entries);
      if (count > 0) {
        parts[n_parts++] = {&job, next_position, count, n_entries};
        n_entries += count;
        next_position += count;
        most_keys = std::max<int64_t>(most_keys, job.n_keys);
      }
      if (next_position >= job.n_positions) ++next_job, next_position = 0;
    }
    const int64_t stretches = div_up(most_keys, kKeysPerItem);
    pool->run(n_parts * stretches, [&](int64_t item, int32_t thread) {
      const Part& part = parts[item / stretches];
      const int64_t first = item % stretches * kKeysPerItem;
      const int64_t last = std::min<int64_t>(first + kKeysPerItem, part.job->n_keys);
      if (first >= last) return;
      LogitsTask task;
      task.kv = {shape.kv.type, dim, part.job->tiles, part.job->offset, shape.kv.vector_bytes()};
      task.first_key = first;
      task.last_key = last;
      task.scale = shape.scale;
      task.scratch = thread_scratch + static_cast<uint64_t>(thread) * thread_bytes;
      task.n_queries = 0;
      for (int32_t i = 0; i < part.count; ++i)
        for (int32_t g = 0; g < group; ++g) {
          task.q[task.n_queries] = query(*part.job, part.first + i) + static_cast<int64_t>(g) * dim;
          task.out[task.n_queries] = scratch.rows(base, part.entry + i) + g * scratch.stride() + first;
          if (++task.n_queries == kQueryTile) kernels.key_logits(task), task.n_queries = 0;
        }
      if (task.n_queries > 0) kernels.key_logits(task);
    });
    pool->run(n_entries, [&](int64_t entry, int32_t) {
      const Part* part = parts;
      while (entry >= part->entry + part->count) ++part;
      const TopKeysJob& job = *part->job;
      const int64_t i = part->first + (entry - part->entry);
      const float* scores = kernels.key_scores({scratch.rows(base, entry), scratch.stride(), group, job.n_keys,
                                                shape.scoring, scratch.spare(base, entry)});
      select_top(scores, job.n_keys, job.k, job.by_score, scratch.candidates(base, entry), job.out + i * job.k);
    });
  }
}

}  // namespace orrery::cpu
