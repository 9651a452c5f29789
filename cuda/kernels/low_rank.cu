// Keys as products of a row of coefficients and a basis (LowRankKeys). Settling: load_keys() reads each key once, over the link, 256 tokens
// at a time, as floats before RoPE; add_products() sums the products of dimensions; project_keys() makes the coefficients. Fetching:
// rebuild_keys() makes keys again, for all heads of a layer in one launch.
//
// - Products: a thread block has 64 x 64 of them, a thread 4 x 4, over strips of 16 tokens in shared memory. Blocks below the diagonal are
//   left out. Each sum is one chain over the tokens, wherever a batch ends. A thread has the sum of one dimension.
// - Coefficients, of keys and of queries: a warp has one product with a row of the basis.
// - Rebuilt keys: a thread block has 8 tokens of a run, as the columns of tensor products whose rows are dimensions. 64 rows of the
//   basis at a time lie in shared memory. Turns come from the tables that LowRankKeys brings; double precision is for keys without them.
//
// Cost: README.md.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/moves.cuh"

namespace orrery::cuda {

namespace low_rank_cu {

constexpr int kThreads = 256, kTile = 64, kStrip = 16;
constexpr int kBatchPages = LowRankKeys::kBatch / kPageTokens + 1;

// The cosine and the sine of a pair's angle at a position. The angle is a double, as in prepare_rope().
__device__ __forceinline__ float2 turn_of(const LowRankWork& w, int position, int pair) {
  double sine, cosine;
  sincos(static_cast<double>(position) * static_cast<double>(w.frequencies[pair]), &sine, &cosine);
  return make_float2(static_cast<float>(cosine), static_cast<float>(sine));
}
// Writes (n_rot / 2) cosines, then (n_rot / 2) sines, of the inverse of the position's rotation.
__device__ __forceinline__ void fill_table(const LowRankWork& w, int position, float* table) {
  const int half = w.n_rot / 2;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kThreads) {
    const float2 turn = turn_of(w, position, i);
    table[i] = turn.x / w.magnitude;
    table[half + i] = -turn.y / w.magnitude;
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
  int32_t first;  // position
};

__global__ void __launch_bounds__(kThreads) load_keys_kernel(LowRankWork w, BatchPages pages) {
  float* table = dynamic_shared<float>();
  const int t = static_cast<int>(blockIdx.x), position = pages.first + t, thread = static_cast<int>(threadIdx.x);
  const int dim = w.kv.head_dim, width = w.n_heads * dim, half = w.n_rot / 2;
  const KvType type = part_type(w.kv.type, 0);
  const std::byte* layer = reinterpret_cast<const std::byte*>(pages.at[position / kPageTokens - pages.first / kPageTokens]) + w.offset;
  float* row = w.batch + static_cast<int64_t>(t) * width;
  for (int i = thread; i < width; i += kThreads) {
    const std::byte* key = layer + (i / dim * kPageTokens + position % kPageTokens) * kv_bytes(w.kv.type, 2 * dim);
    row[i] = load_value(type, key, i % dim / 32, i % dim % 32);
  }
  fill_table(w, position, table);
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
      ORRERY_UNROLL for (int i = 0; i < 4; ++i) ORRERY_UNROLL for (int j = 0; j < 4; ++j) sums[i][j] =
          fmaf(left[t][thread / 16 * 4 + i], right[t][thread % 16 * 4 + j], sums[i][j]);
  }
  ORRERY_UNROLL for (int i = 0; i < 4; ++i) ORRERY_UNROLL for (int j = 0; j < 4; ++j) if (row + i < width && column + j < width)
      w.products[static_cast<int64_t>(row + i) * width + column + j] = sums[i][j];
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

// ---- rebuilt keys

constexpr int kRebuildThreads = 128, kRebuilt = 8;  // tokens that a thread block makes at once: the columns of a tensor product
constexpr int kStripRank = 64;                      // rows of the basis that lie in shared memory
constexpr int kTiles = 4, kMostTiles = 8;           // of 16 dimensions, for each warp: heads of up to 256, and of up to 512
constexpr int kCoefficientPitch = kStripRank + 8;   // + 16 bytes: eight rows meet different banks
ORRERY_HOST_DEVICE constexpr int key_pitch(int dim) { return dim + 4; }
ORRERY_HOST_DEVICE constexpr int basis_pitch(int dim) { return dim + 8; }

// Shared memory of a thread block: keys (kRebuilt, key_pitch) and a table of turns (kRebuilt, n_rot), floats; a strip of the basis
// (kStripRank, basis_pitch) and of coefficients (kRebuilt, kCoefficientPitch), halves.
struct RebuildMemory {
  float *keys, *turns;
  std::byte *basis, *coefficients;
  __device__ __forceinline__ explicit RebuildMemory(const LowRankWork& w) {
    keys = dynamic_shared<float>();
    basis = reinterpret_cast<std::byte*>(keys + kRebuilt * key_pitch(w.kv.head_dim));
    coefficients = basis + 2 * kStripRank * basis_pitch(w.kv.head_dim);
    turns = reinterpret_cast<float*>(coefficients + 2 * kRebuilt * kCoefficientPitch);
  }
};
size_t rebuild_bytes(int dim, int n_rot) {
  return static_cast<size_t>(kRebuilt * (key_pitch(dim) + n_rot)) * sizeof(float) +
         static_cast<size_t>(kStripRank * basis_pitch(dim) + kRebuilt * kCoefficientPitch) * 2;
}

// keys (n, dim) = coefficients of positions [position, position + n) times the head's part of the basis: 16 dimensions and 8 tokens a
// tensor product, over strips of the rank.
template <int kWarpTiles>
__device__ __forceinline__ void multiply_keys(const LowRankWork& w, const RebuildMemory& m, int kv_head, int position, int n) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int dim = w.kv.head_dim, width = w.kv.n_kv_heads * dim, pitch = basis_pitch(dim);
  const std::byte* basis = w.basis + 2 * static_cast<int64_t>(kv_head) * dim;
  const std::byte* rows = w.rows + 2 * static_cast<int64_t>(position) * w.rank;
  const bool aligned = reinterpret_cast<uint64_t>(basis) % 16 == 0;  // the rows in front of a layer's basis may end anywhere
  float sums[kWarpTiles][4] = {};
  for (int first = 0; first < w.rank; first += kStripRank) {
    const int n_rank = min(kStripRank, w.rank - first), n_padded = (n_rank + 15) / 16 * 16;
    __syncthreads();  // the last strip has been read
    for (int i = thread; i < n_padded * (dim / 8); i += kRebuildThreads) {
      const int row = i / (dim / 8), at = i % (dim / 8) * 8;
      const int j = first + min(row, n_rank - 1);  // rows behind the rank are multiplied by zeros
      const std::byte* from = basis + 2 * (static_cast<int64_t>(j) * width + at);
      std::byte* to = m.basis + 2 * (row * pitch + at);
      if (aligned) copy_async_16(to, from);
      else
        for (int v = 0; v < 8; ++v) store_half(to + 2 * v, load_16(from + 2 * v));
    }
    copy_async_commit();
    for (int i = thread; i < kRebuilt * n_padded; i += kRebuildThreads) {
      const int t = i / n_padded, j = i % n_padded;
      const uint32_t bits = t < n && j < n_rank ? load_16(rows + 2 * (static_cast<int64_t>(t) * w.rank + first + j)) : 0;
      store_half(m.coefficients + 2 * (t * kCoefficientPitch + j), bits);
    }
    copy_async_wait<0>();
    __syncthreads();
    for (int step = 0; step < n_padded; step += 16) {
      const std::byte* at = m.coefficients + 2 * (lane / 4 * kCoefficientPitch + step + lane % 4 * 2);
      const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(at), *reinterpret_cast<const uint32_t*>(at + 16)};
      ORRERY_UNROLL for (int tile = 0; tile < kWarpTiles; ++tile) {
        const int dim0 = 16 * (warp + kRebuildThreads / 32 * tile);
        if (dim0 >= dim) continue;
        uint32_t a[4];
        load_matrices_4_transposed(a, m.basis + 2 * ((step + lane / 16 * 8 + lane % 8) * pitch + dim0 + lane / 8 % 2 * 8));
        mma_f16(sums[tile], a, b);
      }
    }
  }
  ORRERY_UNROLL for (int tile = 0; tile < kWarpTiles; ++tile) {
    const int i = 16 * (warp + kRebuildThreads / 32 * tile) + lane / 4;
    if (i >= dim) continue;
    float* key = m.keys + lane % 4 * 2 * key_pitch(dim) + i;
    key[0] = sums[tile][0], key[key_pitch(dim)] = sums[tile][1];
    key[8] = sums[tile][2], key[key_pitch(dim) + 8] = sums[tile][3];
  }
}

// The turns of n positions: a page's turn composed with a turn within the page, or without these tables by their angles.
template <bool kHasTables>
__device__ __forceinline__ void fill_turns(const LowRankWork& w, float* turns, int position, int n) {
  const int half = w.n_rot / 2;
  for (int i = static_cast<int>(threadIdx.x); i < n * half; i += kRebuildThreads) {
    const int t = i / half, pair = i % half, p = position + t;
    float* out = turns + t * w.n_rot + pair;
    if constexpr (kHasTables) {
      const float* page = w.page_rotations + static_cast<int64_t>(p / kPageTokens) * w.n_rot + pair;
      const float* within = w.rotations + p % kPageTokens * w.n_rot + pair;
      out[0] = __fadd_rn(__fmul_rn(page[0], within[0]), -__fmul_rn(page[half], within[half]));
      out[half] = __fadd_rn(__fmul_rn(page[half], within[0]), __fmul_rn(page[0], within[half]));
    } else {
      const float2 turn = turn_of(w, p, pair);
      out[0] = turn.x * w.magnitude, out[half] = turn.y * w.magnitude;
    }
  }
}

// Makes the keys of tokens [first, first + n) of a run, and copies their values. The block's warps take the tokens in turns to store them.
template <bool kHasTables, int kWarpTiles>
__device__ __forceinline__ void rebuild_tokens(const LowRankWork& w, KvType slot_type, const RebuiltRun& run, int first, int n) {
  const RebuildMemory m(w);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, dim = w.kv.head_dim, half = w.n_rot / 2;
  fill_turns<kHasTables>(w, m.turns, run.position + first, n);
  multiply_keys<kWarpTiles>(w, m, run.kv_head, run.position + first, n);
  __syncthreads();
  for (int i = thread; i < n * half; i += kRebuildThreads)
    rotate_pair(w, m.turns + i / half * w.n_rot, i % half, m.keys + i / half * key_pitch(dim));
  __syncthreads();
  const KvType key_to = part_type(slot_type, 0), value_to = part_type(slot_type, 1), value_from = part_type(w.kv.type, 1);
  const int value_bytes = kv_bytes(value_from, dim);
  for (int t = thread / 32; t < n; t += kRebuildThreads / 32) {
    std::byte* slot =
        in_global(reinterpret_cast<std::byte*>(run.to.address)) + static_cast<int64_t>(first + t) * kv_bytes(slot_type, 2 * dim);
    for (int i = lane; i < dim; i += 32)  // only with F32 and F16 may a warp be partly idle
      store_value(key_to, m.keys[t * key_pitch(dim) + i], slot, i / 32, lane);
    if (!run.values.address) continue;
    std::byte* to = slot + value_at(slot_type, dim);
    const std::byte* value = in_global(reinterpret_cast<const std::byte*>(run.values.address)) +
                             static_cast<int64_t>(first + t) * (value_bytes + run.values_gap);
    if (value_to == value_from) {
      copy_bytes(to, value, value_bytes, lane);
      continue;
    }
    for (int i = lane; i < dim; i += 32) store_value(value_to, load_value(value_from, value, i / 32, lane), to, i / 32, lane);
  }
}

template <bool kHasTables, int kWarpTiles>
__global__ void __launch_bounds__(kRebuildThreads, kWarpTiles > kTiles ? 2 : 4) rebuild_keys_kernel(LowRankWork w, KvType slot_type) {
  const RebuiltRun run = reinterpret_cast<const RebuiltRun*>(w.batch)[blockIdx.x];
  // The next tokens' products wait for all warps before they write what these tokens' stores read.
  for (int first = static_cast<int>(blockIdx.y) * kRebuilt; first < run.count; first += static_cast<int>(gridDim.y) * kRebuilt)
    rebuild_tokens<kHasTables, kWarpTiles>(w, slot_type, run, first, min(kRebuilt, run.count - first));
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
  const auto n_pieces = static_cast<unsigned>(std::min<int64_t>(tiles(longest, kRebuilt), kMostGridYZ));
  const Geometry geometry{Dim3(static_cast<unsigned>(n_runs), n_pieces), Dim3(kRebuildThreads), rebuild_bytes(w.kv.head_dim, w.n_rot)};
  const bool large = w.kv.head_dim > 16 * kTiles * (kRebuildThreads / 32);
  if (w.rotations)
    large ? launch<rebuild_keys_kernel<true, kMostTiles>>(queue, geometry, w, slot_type)
          : launch<rebuild_keys_kernel<true, kTiles>>(queue, geometry, w, slot_type);
  else
    large ? launch<rebuild_keys_kernel<false, kMostTiles>>(queue, geometry, w, slot_type)
          : launch<rebuild_keys_kernel<false, kTiles>>(queue, geometry, w, slot_type);
}

}  // namespace orrery::cuda
