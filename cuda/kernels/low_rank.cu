// Keys as products of a row of coefficients and a basis (LowRankKeys). Settling: load_keys() reads each key once, over the link, 256 tokens
// at a time, as floats before RoPE; add_products() sums the products of dimensions; project_keys() makes the coefficients. Fetching:
// rebuild_keys() makes keys again, for all heads of a layer in one launch.
//
// - Products: a thread block has 64 x 64 of them, a thread 4 x 4, over strips of 16 tokens in shared memory. Blocks below the diagonal are
//   left out. Each sum is one chain over the tokens, wherever a batch ends. A thread has the sum of one dimension.
// - Coefficients, of keys and of queries: a warp has one product with a row of the basis.
// - Rebuilt keys: a thread block has every 65,535th token of a run, and a thread a dimension. Coefficients and basis come from the
//   second-level cache.
//
// Cost: README.md.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/kv.cuh"

namespace orrery::cuda {

namespace low_rank_cu {

constexpr int kThreads = 256, kTile = 64, kStrip = 16;
constexpr int kBatchPages = LowRankKeys::kBatch / kPageTokens + 1;

// Writes (n_rot / 2) cosines, then (n_rot / 2) sines, of the position's rotation, or if `back` of its inverse. Angles are doubles, as in
// prepare_rope().
__device__ __forceinline__ void fill_table(const LowRankWork& w, int position, bool back, float* table) {
  const int half = w.n_rot / 2;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kThreads) {
    double sine, cosine;
    sincos(static_cast<double>(position) * static_cast<double>(w.frequencies[i]), &sine, &cosine);
    const float c = static_cast<float>(cosine), s = static_cast<float>(sine);
    table[i] = back ? c / w.magnitude : c * w.magnitude;
    table[half + i] = back ? -s / w.magnitude : s * w.magnitude;
  }
}
__device__ __forceinline__ void rotate_pair(const LowRankWork& w, const float* table, int pair, float* vector) {
  const int half = w.n_rot / 2;
  float* a = vector + (w.interleaved ? 2 * pair : pair);
  float* b = w.interleaved ? a + 1 : a + half;
  const float first = *a, second = *b;
  *a = first * table[pair] - second * table[half + pair];
  *b = first * table[half + pair] + second * table[pair];
}

struct BatchPages {
  uint64_t at[kBatchPages];
  int32_t first;   // position
};

__global__ void __launch_bounds__(kThreads) load_keys_kernel(LowRankWork w, BatchPages pages) {
  float* table = dynamic_shared<float>();
  const int t = static_cast<int>(blockIdx.x), position = pages.first + t, thread = static_cast<int>(threadIdx.x);
  const int dim = w.kv.head_dim, width = w.n_heads * dim, vector_bytes = kv_bytes(w.kv.type, dim), half = w.n_rot / 2;
  const std::byte* layer = reinterpret_cast<const std::byte*>(pages.at[position / kPageTokens - pages.first / kPageTokens]) + w.offset;
  float* row = w.batch + static_cast<int64_t>(t) * width;
  for (int i = thread; i < width; i += kThreads) {
    const std::byte* key = layer + (i / dim * kPageTokens + position % kPageTokens) * 2 * vector_bytes;
    row[i] = load_value(w.kv.type, key, i % dim / 32, i % dim % 32);
  }
  fill_table(w, position, true, table);
  __syncthreads();
  for (int i = thread; i < w.n_heads * half; i += kThreads) rotate_pair(w, table, i % half, row + i / half * dim);
}

__global__ void __launch_bounds__(kThreads) add_products_kernel(LowRankWork w, int n, bool first_batch) {
  if (blockIdx.x < blockIdx.y) return;
  __shared__ float left[kStrip][kTile], right[kStrip][kTile];
  const int width = w.n_heads * w.kv.head_dim, thread = static_cast<int>(threadIdx.x);
  const int row0 = static_cast<int>(blockIdx.y) * kTile, column0 = static_cast<int>(blockIdx.x) * kTile;
  const int row = row0 + thread / 16 * 4, column = column0 + thread % 16 * 4;
  float sums[4][4];
  ORRERY_UNROLL for (int i = 0; i < 4; ++i) ORRERY_UNROLL for (int j = 0; j < 4; ++j) sums[i][j] =
      first_batch || row + i >= width || column + j >= width ? 0.0f : w.products[static_cast<int64_t>(row + i) * width + column + j];
  for (int first = 0; first < n; first += kStrip) {
    __syncthreads();
    for (int i = thread; i < kStrip * kTile; i += kThreads) {
      const int t = first + i / kTile, at = i % kTile;
      const float* keys = w.batch + static_cast<int64_t>(t) * width;
      left[i / kTile][at] = t < n && row0 + at < width ? keys[row0 + at] : 0.0f;
      right[i / kTile][at] = t < n && column0 + at < width ? keys[column0 + at] : 0.0f;
    }
    __syncthreads();
    for (int t = 0; t < kStrip && first + t < n; ++t)
      ORRERY_UNROLL for (int i = 0; i < 4; ++i)
        ORRERY_UNROLL for (int j = 0; j < 4; ++j)
          sums[i][j] = fmaf(left[t][thread / 16 * 4 + i], right[t][thread % 16 * 4 + j], sums[i][j]);
  }
  ORRERY_UNROLL for (int i = 0; i < 4; ++i)
    ORRERY_UNROLL for (int j = 0; j < 4; ++j)
      if (row + i < width && column + j < width) w.products[static_cast<int64_t>(row + i) * width + column + j] = sums[i][j];
}

__global__ void __launch_bounds__(kThreads) add_sums_kernel(LowRankWork w, int n, bool first_batch) {
  const int width = w.n_heads * w.kv.head_dim, i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= width) return;
  float sum = 0.0f;
  for (int t = 0; t < n; ++t) sum += w.batch[static_cast<int64_t>(t) * width + i];
  w.sums[i] = first_batch ? sum : w.sums[i] + sum;
}

// A warp computes a vector's product with one row of a basis.
__device__ __forceinline__ float product_with(const float* x, const std::byte* row, int width) {
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < width; i += 32) sum = fmaf(x[i], half_at(row + 2 * i), sum);
  return warp_sum(sum);
}
// The row of the basis that this warp has: a thread block has kThreads / 32 rows.
__device__ __forceinline__ int basis_row() { return static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32); }

__global__ void __launch_bounds__(kThreads) project_keys_kernel(LowRankWork w, int first) {
  const int width = w.n_heads * w.kv.head_dim, j = basis_row(), t = static_cast<int>(blockIdx.y);
  if (j >= w.rank) return;
  const float sum = product_with(w.batch + static_cast<int64_t>(t) * width, w.basis + 2 * static_cast<int64_t>(j) * width, width);
  if (threadIdx.x % 32 == 0) store_half(w.rows + 2 * (static_cast<int64_t>(first + t) * w.rank + j), half_bits(sum));
}

__global__ void __launch_bounds__(kThreads) project_queries_kernel(QueryProjection w) {
  const int j = basis_row(), head = static_cast<int>(blockIdx.y);
  if (j >= w.rank) return;
  const std::byte* basis = w.basis + static_cast<uint64_t>(head / w.group) * w.next_basis;
  const float sum =
      product_with(w.q + static_cast<int64_t>(head) * w.head_dim, basis + 2 * static_cast<int64_t>(j) * w.head_dim, w.head_dim);
  if (threadIdx.x % 32 == 0) w.out[static_cast<int64_t>(head) * w.rank + j] = sum;
}

// Makes the key of token t of a run, and copies its value.
__device__ __forceinline__ void rebuild_key(const LowRankWork& w, KvType slot_type, const RebuiltRun& run, int t) {
  const int thread = static_cast<int>(threadIdx.x), dim = w.kv.head_dim, width = w.kv.n_kv_heads * dim, half = w.n_rot / 2;
  float *key = dynamic_shared<float>(), *table = key + dim;
  const std::byte* row = w.rows + 2 * static_cast<int64_t>(run.position + t) * w.rank;
  for (int i = thread; i < dim; i += kThreads) {
    float sum = 0.0f;
    for (int j = 0; j < w.rank; ++j)
      sum = fmaf(half_at(row + 2 * j), half_at(w.basis + 2 * (static_cast<int64_t>(j) * width + run.kv_head * dim + i)), sum);
    key[i] = sum;
  }
  fill_table(w, run.position + t, false, table);
  __syncthreads();
  for (int i = thread; i < half; i += kThreads) rotate_pair(w, table, i, key);
  __syncthreads();
  const int slot_bytes = kv_bytes(slot_type, dim), value_bytes = kv_bytes(w.kv.type, dim);
  std::byte* slot = reinterpret_cast<std::byte*>(run.to.address) + static_cast<int64_t>(t) * 2 * slot_bytes;
  const std::byte* value =
      reinterpret_cast<const std::byte*>(run.values.address) + static_cast<int64_t>(t) * (value_bytes + run.values_gap);
  for (int i = thread; i < dim; i += kThreads) {   // only with F32 and F16 may the last warp be partly idle
    store_value(slot_type, key[i], slot, i / 32, i % 32);
    if (!run.values.address) continue;
    if (slot_type == w.kv.type && in_blocks(slot_type)) continue;
    store_value(slot_type, load_value(w.kv.type, value, i / 32, i % 32), slot + slot_bytes, i / 32, i % 32);
  }
  if (run.values.address && slot_type == w.kv.type && in_blocks(slot_type))   // equal types are copied byte by byte
    for (int i = thread; i < slot_bytes; i += kThreads) slot[slot_bytes + i] = value[i];
}

__global__ void __launch_bounds__(kThreads) rebuild_keys_kernel(LowRankWork w, KvType slot_type) {
  const RebuiltRun run = reinterpret_cast<const RebuiltRun*>(w.batch)[blockIdx.x];
  for (int t = static_cast<int>(blockIdx.y); t < run.count; t += static_cast<int>(gridDim.y)) {
    rebuild_key(w, slot_type, run, t);
    __syncthreads();   // before the next key takes the place of this one
  }
}

unsigned tiles(int64_t n, int64_t of) { return static_cast<unsigned>((n + of - 1) / of); }

}  // namespace low_rank_cu
using namespace low_rank_cu;

void load_keys(Queue& queue, const LowRankWork& w, const uint64_t* pages, int32_t first, int32_t n) {
  BatchPages some = {};
  some.first = first;
  for (int32_t i = first / kPageTokens; n > 0 && i <= (first + n - 1) / kPageTokens; ++i) some.at[i - first / kPageTokens] = pages[i];
  launch<load_keys_kernel>(queue, {Dim3(static_cast<unsigned>(n)), Dim3(kThreads), static_cast<size_t>(w.n_rot) * sizeof(float)}, w, some);
}

void add_products(Queue& queue, const LowRankWork& w, int32_t n, bool first_batch) {
  const int64_t width = int64_t{w.n_heads} * w.kv.head_dim;
  launch<add_products_kernel>(queue, {Dim3(tiles(width, kTile), tiles(width, kTile)), Dim3(kThreads)}, w, n, first_batch);
  if (w.sums) launch<add_sums_kernel>(queue, {Dim3(tiles(width, kThreads)), Dim3(kThreads)}, w, n, first_batch);
}

void project_keys(Queue& queue, const LowRankWork& w, int32_t first, int32_t n) {
  launch<project_keys_kernel>(queue, {Dim3(tiles(w.rank, kThreads / 32), static_cast<unsigned>(n)), Dim3(kThreads)}, w, first);
}

void project_queries(Queue& queue, const QueryProjection& w) {
  launch<project_queries_kernel>(queue, {Dim3(tiles(w.rank, kThreads / 32), static_cast<unsigned>(w.n_heads)), Dim3(kThreads)}, w);
}

void rebuild_keys(Queue& queue, const LowRankWork& w, KvType slot_type, int32_t n_runs, int32_t longest) {
  launch<rebuild_keys_kernel>(queue, {Dim3(static_cast<unsigned>(n_runs), static_cast<unsigned>(std::min<int64_t>(longest, kMostGridYZ))), Dim3(kThreads),
                 static_cast<size_t>(w.kv.head_dim + w.n_rot) * sizeof(float)}, w, slot_type);
}

}  // namespace orrery::cuda
