// Low-rank keys, between steps: keys as products of coefficients and a basis (LowRankKeys), in batches of tokens.
#include <algorithm>

#include "cuda/backend.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

namespace {

// Runs that fit where a batch of keys lies.
size_t runs_at_once(const LowRankKeys& keys) {
  return LowRankKeys::kBatch * static_cast<size_t>(keys.padded_width()) * sizeof(float) / sizeof(RebuiltRun);
}

}  // namespace

// The layout of `keys.work`: the batch's keys, then the products; at its end the sums and the frequencies.
LowRankWork CudaBackend::low_rank_work(const LowRankKeys& keys, bool has_turns) {
  LowRankWork w;
  const auto width = static_cast<uint64_t>(keys.padded_width());
  w.kv = keys.kv;
  w.offset = w.kv.head_offset(keys.layer, std::max(keys.kv_head, 0)), w.n_heads = keys.n_heads();
  w.rank = keys.rank, w.n_rot = keys.rope.n_rot;
  w.interleaved = keys.rope.interleaved, w.magnitude = keys.rope.magnitude;
  w.rows = device(keys.rows), w.basis = device(keys.basis);
  w.batch = reinterpret_cast<float*>(device(keys.work));
  w.products = w.batch + LowRankKeys::kBatch * width;
  const uint64_t frequencies = keys.work_bytes() - align_up(static_cast<uint64_t>(keys.kv.head_dim), 16) * sizeof(float);
  w.frequencies = reinterpret_cast<const float*>(device(keys.work) + frequencies);
  w.sums = reinterpret_cast<float*>(device(keys.work) + frequencies) - width;
  w.page_rotations = device(keys.page_rotations), w.rotations = device(keys.rotations);
  if (keys.rope.n_rot > 0 && !has_turns)
    upload(keys.work + frequencies, keys.rope.inverse_frequency, static_cast<uint64_t>(keys.rope.n_rot / 2) * sizeof(float));
  return w;
}

void CudaBackend::key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) {
  const OnDevice here(*gpu_, queue_);
  LowRankWork w = low_rank_work(keys);
  if (!sums) w.sums = nullptr;
  const int64_t n = keys.width();  // a multiple of 16, because every head_dim that the kernels support is one
  for (int32_t first = 0; first < n_tokens || first == 0; first += LowRankKeys::kBatch) {
    const int32_t count = std::min(LowRankKeys::kBatch, n_tokens - first);
    load_keys(queue_, w, keys.pages, first, count);
    add_products(queue_, w, count, first == 0);
  }
  download(out, {address(w.products)}, static_cast<uint64_t>(n * n) * sizeof(float));
  if (sums) download(sums, {address(w.sums)}, static_cast<uint64_t>(n) * sizeof(float));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) out[i * n + j] = out[j * n + i];
}

void CudaBackend::low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) {
  const OnDevice here(*gpu_, queue_);
  const LowRankWork w = low_rank_work(keys);
  for (; first < end; first += LowRankKeys::kBatch) {
    const int32_t count = std::min(LowRankKeys::kBatch, end - first);
    load_keys(queue_, w, keys.pages, first, count);
    project_keys(queue_, w, first, count);
  }
}

void CudaBackend::low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, Ptr<const float> q, Ptr<float> out) {
  const OnDevice here(*gpu_, queue_);
  project_queries(
      queue_, {device(keys.basis), next_basis, device(q), device(out), keys.rank, keys.kv.head_dim, n_heads, n_heads / keys.kv.n_kv_heads});
}

void CudaBackend::rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs) {
  const OnDevice here(*gpu_, queue_);
  const LowRankWork w = low_rank_work(keys, static_cast<bool>(keys.rotations));
  const size_t most = runs_at_once(keys);
  for (size_t first = 0; first < runs.size(); first += most) {
    const Span<const RebuiltRun> some = runs.subspan(first, std::min(most, runs.size() - first));
    upload(keys.work, some.data(), some.size() * sizeof(RebuiltRun));
    int32_t longest = 0;
    for (const RebuiltRun& run : some) longest = std::max(longest, run.count);
    cuda::rebuild_keys(queue_, w, slot_type, static_cast<int32_t>(some.size()), longest);
  }
}

// As many misses of each part at a time as fit where a batch of keys lies.
void CudaBackend::rebuild_fetched(const FetchPart* parts, const FetchShape& fetch, int32_t n_parts, int32_t most_held) {
  const LowRankKeys& keys = *fetch.rebuilt;
  const LowRankWork w = low_rank_work(keys, static_cast<bool>(keys.rotations));
  const auto most = static_cast<int32_t>(runs_at_once(keys));
  const int32_t n = std::clamp(most / n_parts, 1, most_held);
  for (int32_t first = 0; first < most_held; first += n) {
    list_runs(queue_, parts, context_.step.pages, fetch, n_parts, first, n, reinterpret_cast<RebuiltRun*>(w.batch));
    cuda::rebuild_keys(queue_, w, fetch.slot_type, n_parts * n, fetch.page_tokens);
  }
}

}  // namespace orrery::cuda
