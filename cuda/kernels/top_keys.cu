// Between steps, in batches of queries: the best keys of KV heads (KeyOperations::top_keys), the queries' weights (key_weights),
// or the weights' moments over a window (key_moments). README.md: each kernel, and the cost.
// 1. Weights of each tile, 2^(y - unit): y is the scaled product, unit the tile's largest y, rounded (runtime/cpu/kernels/kernels.h:
//    KeyWeightsTask). So K is read once for all queries of its head, and equal products give equal bits in any tile.
// 2. Shares: the factor that makes a tile's weights parts of the whole softmax.
// 3. top_keys: a score for each key, pooled. key_weights: weights, their mean or sum, end here. key_moments: sums and squares end here.
// 4. top_keys: selection, one thread block for each query; among many keys by many thread blocks (select_by_many).
// near_best() has kernel 1, counts and scores; select_near_best() is kernel 4 for as many keys as it has counted.
// add_scores() has kernel 1, and adds the products of all query heads; select_by_order() is kernel 4 on their mean, or on scores that heads
// share. key_weights() of products needs kernel 1 alone.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/moves.cuh"
#include "cuda/kernels/top_keys.cuh"

namespace orrery::cuda {

namespace top_keys_cu {

constexpr int kWeightThreads = 256, kScoreThreads = 256;
constexpr int kWeightDims = 256;  // dimensions of keys that lie in shared memory at once

// The upper bound of a product in one dimension. `pair` holds a digest's two bounds, as halves.
__device__ __forceinline__ float bound_of(float q, float pair) {
  const uint32_t bits = __float_as_uint(pair);
  return __fmul_rn(q, __half2float(__ushort_as_half(static_cast<unsigned short>(q < 0 ? bits >> 16 : bits & 0xFFFFu))));
}

__global__ void __launch_bounds__(kWeightThreads) key_weights_kernel(TopKeysWork w) {
  const TopKeysPart part = parts_of(w)[blockIdx.y];
  const int tile = static_cast<int>(blockIdx.x), n = min(part.n_keys - tile * kPageTokens, kPageTokens);
  if (n <= 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int pitch = min(w.head_dim, kWeightDims) + 4;  // + 16 bytes: eight rows meet different banks
  float* keys = dynamic_shared<float>();
  const std::byte* from = in_global(reinterpret_cast<const std::byte*>(tile_of(part, tile)));
  const int group = w.plan.group;
  for (int first_dim = 0; first_dim < w.head_dim; first_dim += kWeightDims) {
    const int end_dim = min(first_dim + kWeightDims, w.head_dim);
    if (first_dim > 0) __syncthreads();  // all warps have read the dimensions before
    // A digest's two bounds are two halves in the place of one float.
    for (int key = warp; key < n; key += kWeightThreads / 32)
      for (int i = first_dim + lane; i < end_dim; i += 32) {
        const std::byte* token = from + key * w.stride;
        keys[key * pitch + i - first_dim] = w.bounds ? __uint_as_float(load_16(token + 2 * i) | load_16(token + 2 * (w.head_dim + i)) << 16)
                                                     : load_value(w.type, token, i / 32, lane);
      }
    __syncthreads();

    for (int i = warp; i < part.n_positions * group; i += kWeightThreads / 32) {
      const int g = i % group, position = part.first_position + i / group;
      const int seen = w.causal ? min(n, position + 1 - tile * kPageTokens) : n;
      const float* q = in_global(part.queries) + (position - w.ring_first) % w.ring_rows * w.ring_stride + g * w.head_dim;
      float* entry = entry_of(w, part.first_entry + i / group);
      float* out = entry + g * w.plan.stride + tile * kPageTokens + lane;  // holds the sums between parts of the dimensions
      float y[2];
      ORRERY_UNROLL for (int j = 0; j < 2; ++j) y[j] = first_dim > 0 && lane + 32 * j < n ? out[32 * j] : 0.0f;
      for (int at = first_dim; at < end_dim; at += 4) {
        const float4 x = *reinterpret_cast<const float4*>(q + at);
        ORRERY_UNROLL for (int j = 0; j < 2; ++j) {
          if (lane + 32 * j >= n) continue;
          const float4 k = *reinterpret_cast<const float4*>(keys + (lane + 32 * j) * pitch + at - first_dim);
          if (w.bounds) y[j] = y[j] + bound_of(x.x, k.x) + bound_of(x.y, k.y) + bound_of(x.z, k.z) + bound_of(x.w, k.w);
          else y[j] = fmaf(x.x, k.x, y[j]), y[j] = fmaf(x.y, k.y, y[j]), y[j] = fmaf(x.z, k.z, y[j]), y[j] = fmaf(x.w, k.w, y[j]);
        }
      }
      if (end_dim < w.head_dim) {
        ORRERY_UNROLL for (int j = 0; j < 2; ++j) if (lane + 32 * j < n) out[32 * j] = y[j];
        continue;
      }
      if (w.products) {
        ORRERY_UNROLL for (int j = 0; j < 2; ++j) if (lane + 32 * j < n) out[32 * j] =
            fmaxf(__fmul_rn(y[j], w.scale), -INFINITY);  // NaN becomes -infinity
        continue;
      }
      float largest = -INFINITY;
      ORRERY_UNROLL for (int j = 0; j < 2; ++j) {
        y[j] = __fmul_rn(__fmul_rn(y[j], w.scale), kLog2E);
        if (lane + 32 * j < seen) largest = fmaxf(largest, y[j]);
      }
      largest = warp_max(largest);
      const float unit = largest == -INFINITY ? 0.0f : rintf(largest);
      float weights[2];
      ORRERY_UNROLL for (int j = 0; j < 2; ++j) {
        weights[j] = lane + 32 * j < seen ? weight_of(y[j], unit) : 0.0f;
        out[32 * j] = weights[j];
      }
      const float sum = warp_sum(weights[0] + weights[1]);
      if (lane == 0) units_of(w, entry)[g * w.plan.tile_stride + tile] = unit, sums_of(w, entry)[g * w.plan.tile_stride + tile] = sum;
    }
  }
}

__global__ void __launch_bounds__(256) tile_shares_kernel(TopKeysWork w) {
  const TopKeysPart& part = part_of(w, static_cast<int>(blockIdx.y));
  const int n_tiles = (part.n_keys + kPageTokens - 1) / kPageTokens, thread = static_cast<int>(threadIdx.x);
  float* entry = entry_of(w, static_cast<int>(blockIdx.y));
  float* units = units_of(w, entry) + blockIdx.x * w.plan.tile_stride;
  const float* sums = sums_of(w, entry) + blockIdx.x * w.plan.tile_stride;
  float most = -INFINITY;
  for (int i = thread; i < n_tiles; i += 256)
    if (sums[i] > 0) most = fmaxf(most, units[i]);
  most = over_block(most, [](float a, float b) { return fmaxf(a, b); });
  const auto power = [&](int i) { return sums[i] > 0 ? ldexpf(1.0f, static_cast<int>(fmaxf(units[i] - most, -1000.0f))) : 0.0f; };
  float total = 0.0f;
  for (int i = thread; i < n_tiles; i += 256) total += __fmul_rn(sums[i], power(i));
  total = over_block(total, [](float a, float b) { return a + b; });
  if (part.log_evicted && thread == 0) part.log_evicted[blockIdx.x] = most;
  const float inverse = total > 0 ? 1.0f / total : 0.0f;
  for (int i = thread; i < n_tiles; i += 256) units[i] = __fmul_rn(power(i), inverse);
}

__global__ void __launch_bounds__(kScoreThreads) key_scores_kernel(TopKeysWork w) {
  const int n = part_of(w, static_cast<int>(blockIdx.y)).n_keys;
  const int i = static_cast<int>(blockIdx.x) * kScoreThreads + static_cast<int>(threadIdx.x);
  if (w.by_many_blocks)
    for (int j = i; j < SelectionMemory::kCleared; j += static_cast<int>(gridDim.x) * kScoreThreads)
      selection_memory_of(w, static_cast<int>(blockIdx.y))[j] = 0;
  if (i >= n) return;
  float* entry = entry_of(w, static_cast<int>(blockIdx.y));
  const bool max_pooled = w.scoring.pooling == KeyScoring::Pooling::max;
  const int reach = w.scoring.pooling == KeyScoring::Pooling::none ? 0 : w.scoring.pool_width / 2;
  float score = 0.0f;
  for (int g = 0; g < w.plan.group; ++g) {
    const float* weights = entry + g * w.plan.stride;
    const float* shares = units_of(w, entry) + g * w.plan.tile_stride;
    float x = max_pooled ? -INFINITY : 0.0f;
    for (int j = max(0, i - reach); j <= min(n - 1, i + reach); ++j) {
      const float y = __fmul_rn(weights[j], shares[j / kPageTokens]);
      x = max_pooled ? fmaxf(x, y) : x + y;
    }
    if (w.scoring.pooling == KeyScoring::Pooling::avg) x /= static_cast<float>(w.scoring.pool_width);
    score = g == 0 ? x : w.scoring.max_of_group ? fmaxf(score, x) : score + x;
  }
  if (!w.scoring.max_of_group) score /= static_cast<float>(w.plan.group);
  bits_of(w, entry)[i] = score > 0 ? __float_as_uint(score) : 0;  // floats >= 0 have the order of their bits
}

__global__ void __launch_bounds__(kScoreThreads) write_weights_kernel(TopKeysWork w) {
  const TopKeysPart part = parts_of(w)[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kScoreThreads + static_cast<int>(threadIdx.x);
  if (i >= part.n_keys) return;
  float* mean = reinterpret_cast<float*>(w.scratch + w.plan.out) + part.slot * w.plan.stride + i;
  float sum = part.mean && (part.add || part.n_before > 0) ? *mean : 0.0f;
  for (int entry = part.first_entry; entry < part.first_entry + part.n_positions; ++entry) {
    float of_group = 0.0f;
    for (int g = 0; g < w.plan.group; ++g) {
      float* weight = entry_of(w, entry) + g * w.plan.stride + i;
      const float x = __fmul_rn(*weight, units_of(w, entry_of(w, entry))[g * w.plan.tile_stride + i / kPageTokens]);
      of_group += x;
      if (!part.mean) *weight = x;
    }
    sum += of_group / static_cast<float>(w.plan.group);
  }
  const bool last = part.n_before + part.n_positions == part.n_all;
  if (part.mean) *mean = last && !part.add ? sum / static_cast<float>(part.n_all) : sum;
}

// The moments of a query head's keys, in the scratch memory.
struct MomentsAt {
  double *sums, *squares, *entropies;  // sums of (a - first), of (a - first)^2 and of -a log(a), over the weights a
  float* first;                        // the window's first weight; after the last batch the score
};
__device__ __forceinline__ MomentsAt moments_of(const TopKeysWork& w, int64_t at) {
  double* sums = reinterpret_cast<double*>(w.scratch + w.plan.moments);
  const int64_t all = w.plan.group * w.plan.stride;
  return {sums + at, sums + all + at, sums + 2 * all + at, reinterpret_cast<float*>(w.scratch + w.plan.moments_scores) + at};
}

__global__ void __launch_bounds__(kScoreThreads) add_moments_kernel(TopKeysWork w, int n_measured, float gamma) {
  const TopKeysPart part = parts_of(w)[0];
  const int i = static_cast<int>(blockIdx.x) * kScoreThreads + static_cast<int>(threadIdx.x), g = static_cast<int>(blockIdx.y);
  if (i >= n_measured) return;
  const MomentsAt m = moments_of(w, g * w.plan.stride + i);
  const bool begins = part.n_before == 0;
  float first = begins ? 0.0f : *m.first, sum = 0.0f, squares = 0.0f, entropy = 0.0f;
  for (int entry = part.first_entry; entry < part.first_entry + part.n_positions; ++entry) {
    const float* of_entry = entry_of(w, entry);
    const float a = __fmul_rn(of_entry[g * w.plan.stride + i], units_of(w, entry_of(w, entry))[g * w.plan.tile_stride + i / kPageTokens]);
    if (begins && entry == part.first_entry) first = a;
    const float d = a - first;
    sum += d, squares = fmaf(d, d, squares);
    if (a > 0) entropy = fmaf(-a, logf(a), entropy);
  }
  const double sum_so_far = (begins ? 0.0 : *m.sums) + static_cast<double>(sum);
  const double squares_so_far = (begins ? 0.0 : *m.squares) + static_cast<double>(squares);
  *m.entropies = (begins ? 0.0 : *m.entropies) + static_cast<double>(entropy);
  if (part.n_before + part.n_positions < part.n_all) {
    *m.sums = sum_so_far, *m.squares = squares_so_far, *m.first = first;
    return;
  }
  const double n = part.n_all, mean = sum_so_far / n;
  const double variance = part.n_all > 1 ? fmax(squares_so_far - sum_so_far * mean, 0.0) / (n - 1.0) : 0.0;
  *m.squares = variance;
  *m.first = static_cast<float>(static_cast<double>(first) + mean + static_cast<double>(gamma) * variance);
}

// A thread block has a query head: sums its entropies and variances, in a fixed order.
__global__ void __launch_bounds__(kScoreThreads) total_moments_kernel(TopKeysWork w, int n_measured) {
  __shared__ double of_warp[2][kScoreThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), g = static_cast<int>(blockIdx.x);
  const MomentsAt m = moments_of(w, g * w.plan.stride);
  double entropy = 0.0, variance = 0.0;
  for (int i = thread; i < n_measured; i += kScoreThreads) entropy += m.entropies[i], variance += m.squares[i];
  for (int i = 16; i > 0; i /= 2) entropy += __shfl_xor_sync(kAllLanes, entropy, i), variance += __shfl_xor_sync(kAllLanes, variance, i);
  if (thread % 32 == 0) of_warp[0][thread / 32] = entropy, of_warp[1][thread / 32] = variance;
  __syncthreads();
  if (thread >= 2) return;
  double total = 0.0;
  for (int i = 0; i < kScoreThreads / 32; ++i) total += of_warp[thread][i];
  reinterpret_cast<double*>(w.scratch + w.plan.moments_totals)[thread * w.plan.group + g] = total;
}

// Excluded keys fall below all others, which keep their order.
__global__ void __launch_bounds__(kSelectThreads) exclude_keys_kernel(TopKeysWork w, const FetchPart* parts) {
  const FetchPart& part = parts[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t* bits = bits_of(w, entry_of(w, static_cast<int>(blockIdx.x)));
  for (int i = thread; i < part.n_keys; i += kSelectThreads) ++bits[i];
  __syncthreads();
  for (int i = thread; i < part.n_excluded; i += kSelectThreads) bits[part.excluded[i]] = 0;
}

// A thread has a key: adds its products with the batch's query heads, in order.
__global__ void __launch_bounds__(kScoreThreads)
    add_scores_kernel(TopKeysWork w, int n_entries, int n_keys, int n_before, int n_all, float* sums) {
  const int i = static_cast<int>(blockIdx.x) * kScoreThreads + static_cast<int>(threadIdx.x);
  if (i >= n_keys) return;
  float sum = n_before > 0 ? sums[i] : 0.0f;
  for (int entry = 0; entry < n_entries; ++entry)
    for (int g = 0; g < w.plan.group; ++g) sum += entry_of(w, entry)[g * w.plan.stride + i];
  if (n_before + n_entries == n_all) sum = __uint_as_float(order_of(sum / static_cast<float>(n_all * w.plan.group)));
  sums[i] = sum;
}

// Writes the k keys to `out`, ascending. If `pairs` is given, writes each key there, too, behind the number that it is sorted by.
__device__ void write_selected(const uint32_t* bits, int n, Threshold least, uint32_t* out, unsigned long long* pairs) {
  __shared__ unsigned equals[32], taken[32];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const unsigned below = (1u << thread % 32) - 1;
  unsigned n_equal = 0, n_taken = 0;
  for (int first = 0; first < n; first += kSelectThreads) {
    const int i = first + thread;
    const uint32_t x = i < n ? bits[i] : 0;
    const bool equal = i < n && x == least.bits;
    const unsigned equal_lanes = __ballot_sync(kAllLanes, equal);
    if (thread % 32 == 0) equals[warp] = static_cast<unsigned>(__popc(equal_lanes));
    __syncthreads();
    unsigned before = n_equal + static_cast<unsigned>(__popc(equal_lanes & below));
    ORRERY_UNROLL_TWICE for (int v = 0; v < 32; ++v) before += v < warp ? equals[v] : 0, n_equal += equals[v];
    const bool take = i < n && (x > least.bits || (equal && before < least.n_equal));
    const unsigned take_lanes = __ballot_sync(kAllLanes, take);
    if (thread % 32 == 0) taken[warp] = static_cast<unsigned>(__popc(take_lanes));
    __syncthreads();
    unsigned at = n_taken + static_cast<unsigned>(__popc(take_lanes & below));
    ORRERY_UNROLL_TWICE for (int v = 0; v < 32; ++v) at += v < warp ? taken[v] : 0, n_taken += taken[v];
    if (take) {
      out[at] = static_cast<uint32_t>(i);
      if (pairs) pairs[at] = static_cast<unsigned long long>(~x) << 32 | static_cast<uint32_t>(i);
    }
  }
}

// Counts the elements of `found` (n) that are in `among`, which ascends. Each thread gets the count.
__device__ unsigned count_common(const uint32_t* found, int n, const uint32_t* among, int n_among) {
  __shared__ unsigned n_common;
  if (threadIdx.x == 0) n_common = 0;
  __syncthreads();
  unsigned mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSelectThreads) {
    int first = 0, last = n_among;  // searches the first element that is not less
    while (first < last) {
      const int middle = (first + last) / 2;
      if (among[middle] < found[i]) first = middle + 1;
      else last = middle;
    }
    mine += first < n_among && among[first] == found[i];
  }
  atomicAdd(&n_common, mine);
  __syncthreads();
  return n_common;
}

// How many of the bits (n) are those of scores that reach `least`: at least 1, at most k. Each thread gets the number.
__device__ int count_reaching(const uint32_t* bits, int n, float least, int k) {
  __shared__ unsigned n_reaching;
  if (threadIdx.x == 0) n_reaching = 0;
  __syncthreads();
  unsigned mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSelectThreads) mine += __uint_as_float(bits[i]) >= least;
  atomicAdd(&n_reaching, mine);
  __syncthreads();
  return min(max(static_cast<int>(n_reaching), 1), k);
}

// Where an entry's best keys go.
__device__ __forceinline__ uint32_t* best_of(const TopKeysWork& w, const TopKeysPart& part, int entry) {
  return reinterpret_cast<uint32_t*>(w.scratch + w.plan.out) + part.first_out + static_cast<int64_t>(entry - part.first_entry) * part.k;
}

// w.by_many_blocks: the keys are selected, and their order or their number among a list is left to do.
__global__ void __launch_bounds__(kSelectThreads) select_keys_kernel(TopKeysWork w) {
  const int index = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const TopKeysPart part = part_of(w, index);
  if (part.k <= 0) return;
  float* entry = entry_of(w, index);
  uint32_t* out = best_of(w, part, index);
  unsigned long long* pairs = part.by_score ? pairs_of(w, entry) : nullptr;
  if (!w.by_many_blocks) {
    const uint32_t* bits = bits_of(w, entry) + part.first_key;
    const int n_keys = part.n_keys - part.first_key;
    const int k = part.finds_number ? count_reaching(bits, n_keys, part.least, part.k) : part.k;
    if (part.finds_number && thread == 0) *reinterpret_cast<uint32_t*>(pairs_of(w, entry)) = static_cast<uint32_t>(k);
    const Threshold least = find_threshold(bits, n_keys, static_cast<unsigned>(k));
    write_selected(bits, n_keys, least, out, pairs);
  }
  if (part.among) {
    __syncthreads();  // all keys are written
    const unsigned n_common = count_common(out, part.k, part.among, part.n_among);
    if (thread == 0) *out = n_common;
  }
  if (!pairs) return;
  int n = 1;
  while (n < part.k) n *= 2;
  for (int i = part.k + thread; i < n; i += kSelectThreads) pairs[i] = ~0ull;
  __syncthreads();
  for (int size = 2; size <= n; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = thread; i < n / 2; i += kSelectThreads) {
        const int a = 2 * i - (i & (stride - 1)), b = a + stride;
        const unsigned long long x = pairs[a], y = pairs[b];
        if (((a & size) == 0) == (x > y)) pairs[a] = y, pairs[b] = x;
      }
      __syncthreads();
    }
  for (int i = thread; i < part.k; i += kSelectThreads) out[i] = static_cast<uint32_t>(pairs[i] & 0xFFFFFFFFu);
}

// ---- selection by many thread blocks: a thread block has a slice of a query's keys
//
// count_digits counts the highest digit of all scores, then the next digit of the scores that agree with the k-th score so far. count_taken
// counts, for each slice, the scores above the k-th score and the scores equal to it. write_taken writes the keys in ascending order. Each
// kernel finds the digit that the kernel before it has counted, and the first slice keeps that digit. Counts are whole numbers, so the
// result is that of one thread block.

struct SelectWork {
  TopKeysWork w;
  const FetchPart* parts;  // of select_by_order() and select_near_best(); else null, or of a plan by many thread blocks
  uint32_t by_parts;
  const uint32_t *order, *counts;  // by_parts: scores that the parts share, or null; select_near_best()'s counts, or null
  int32_t n_heads, group;
};
struct Selection {
  const uint32_t* scores;  // (n)
  uint32_t* best;
  unsigned long long* pairs;
  uint32_t *memory, *number;  // number: gets the number of best keys, or null
  uint8_t* flags;
  int n, n_flags;  // n_flags: that are set whatever the scores are
  unsigned k;
  float least;
};

// How many keys each head gets that select_near_best() has counted.
__device__ __forceinline__ unsigned n_near_best(const uint32_t* counts, int n_heads, int group, int k) {
  unsigned n_near = 0;
  for (int i = 0; i < n_heads; ++i) n_near += counts[i];
  return min(n_near / static_cast<unsigned>(n_heads * group), static_cast<unsigned>(k));
}

__device__ __forceinline__ Selection selection_of(const SelectWork& s) {
  const int index = static_cast<int>(blockIdx.y);
  Selection out = {};
  if (s.by_parts) {
    const FetchPart& part = s.parts[index];
    out.scores = s.order ? s.order : part.scores(), out.n = part.n_keys;
    out.best = part.best, out.memory = part.selection;
    out.k = s.counts ? n_near_best(s.counts, s.n_heads, s.group, part.k) : static_cast<unsigned>(max(part.k, 0));
    return out;
  }
  const TopKeysPart& part = part_of(s.w, index);
  float* entry = entry_of(s.w, index);
  out.scores = bits_of(s.w, entry) + part.first_key, out.n = part.n_keys - part.first_key;
  out.best = best_of(s.w, part, index), out.memory = selection_memory_of(s.w, index);
  out.pairs = part.by_score ? pairs_of(s.w, entry) : nullptr;
  out.number = part.finds_number ? reinterpret_cast<uint32_t*>(pairs_of(s.w, entry)) : nullptr;
  out.k = static_cast<unsigned>(max(part.k, 0)), out.least = part.least;
  if (s.parts) out.flags = s.parts[index].flags, out.n_flags = s.parts[index].n_wanted - part.k;
  return out;
}

// Reads the thread's scores. Those behind the last key are 0, and their kind is 0.
__device__ __forceinline__ void load_scores(const Selection& s, uint32_t (&scores)[kOfThread], bool (&within)[kOfThread]) {
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) {
    const int i = static_cast<int>(blockIdx.x) * kSlice + j * kSliceThreads + static_cast<int>(threadIdx.x);
    within[j] = i < s.n;
    scores[j] = within[j] ? s.scores[i] : 0;
  }
}

// The digits of the k-th score before digit `pass`, and what remains of k. The digit before that is found in its counts.
__device__ __forceinline__ Threshold known_digits(const Selection& s, int pass) {
  using M = SelectionMemory;
  const uint32_t* counts = s.memory + (pass - 1) * M::kDigits;
  Threshold known = {0, s.k};
  if (pass == 1 && s.number) known.n_equal = min(max(s.memory[M::kReaching], 1u), s.k);
  if (pass == 1 && s.number && blockIdx.x == 0 && threadIdx.x == 0) *s.number = known.n_equal;
  const uint32_t* before = s.memory + M::kFound + 2 * (pass - 2);
  if (pass > 1) known = {before[0], before[1]};
  const Digit next = find_digit(counts, pass == 3 ? M::kLastDigits : M::kDigits, known.n_equal);
  known = {known.bits << (pass == 3 ? 10 : 11) | next.digit, next.k};
  if (blockIdx.x == 0 && threadIdx.x == 0)
    s.memory[M::kFound + 2 * (pass - 1)] = known.bits, s.memory[M::kFound + 2 * pass - 1] = known.n_equal;
  return known;
}

// Whether the thread block has nothing to do.
__device__ __forceinline__ bool is_idle(const Selection& s) { return s.k == 0 || static_cast<int>(blockIdx.x) * kSlice >= s.n; }

__global__ void __launch_bounds__(kSliceThreads) clear_selection_kernel(const FetchPart* parts) {
  const int i = static_cast<int>(blockIdx.x) * kSliceThreads + static_cast<int>(threadIdx.x);
  if (i < SelectionMemory::kCleared) parts[blockIdx.y].selection[i] = 0;
}

// pass: 0, 1 or 2.
__global__ void __launch_bounds__(kSliceThreads) count_digits_kernel(SelectWork w, int pass) {
  using M = SelectionMemory;
  __shared__ unsigned counts[M::kDigits];
  const Selection s = selection_of(w);
  const int thread = static_cast<int>(threadIdx.x);
  if (w.counts && pass == 0 && blockIdx.x == 0 && thread == 0) w.parts[blockIdx.y].held[w.parts[blockIdx.y].n_held] = s.k;
  if (is_idle(s)) return;
  uint32_t scores[kOfThread];
  bool within[kOfThread];
  load_scores(s, scores, within);
  const int n_digits = pass == 2 ? M::kLastDigits : M::kDigits, shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, width = pass == 2 ? 10 : 11;
  for (int i = thread; i < n_digits; i += kSliceThreads) counts[i] = 0;
  __syncthreads();
  const uint32_t above = pass > 0 ? known_digits(s, pass).bits : 0;
  unsigned n_reaching = 0;
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) {
    if (within[j] && (pass == 0 || scores[j] >> (shift + width) == above))
      atomicAdd(&counts[scores[j] >> shift & static_cast<uint32_t>(n_digits - 1)], 1u);
    n_reaching += within[j] && __uint_as_float(scores[j]) >= s.least;
  }
  if (pass == 0 && s.number) {
    n_reaching = sum_of_block(n_reaching);
    if (thread == 0) atomicAdd(s.memory + M::kReaching, n_reaching);
  }
  __syncthreads();
  uint32_t* all = s.memory + pass * M::kDigits;
  for (int i = thread; i < n_digits; i += kSliceThreads)
    if (const unsigned n = counts[i]; n > 0) atomicAdd(all + i, n);
}

__global__ void __launch_bounds__(kSliceThreads) count_taken_kernel(SelectWork w) {
  const Selection s = selection_of(w);
  if (is_idle(s)) return;
  uint32_t scores[kOfThread];
  bool within[kOfThread];
  load_scores(s, scores, within);
  const uint32_t least = known_digits(s, 3).bits;
  unsigned n = 0;
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) n +=
      within[j] ? (scores[j] > least ? kFirst : 0) + (scores[j] == least ? kSecond : 0) : 0;
  n = sum_of_block(n);
  uint32_t* slices = s.memory + SelectionMemory::kSlices;
  if (threadIdx.x == 0) slices[blockIdx.x] = first_of(n), slices[n_slices(s.n) + static_cast<int>(blockIdx.x)] = second_of(n);
}

__global__ void __launch_bounds__(kSliceThreads) write_taken_kernel(SelectWork w) {
  const Selection s = selection_of(w);
  const int slice = static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); s.flags && slice == 0 && i < s.n_flags; i += kSliceThreads) s.flags[s.n + i] = 1;
  if (is_idle(s)) {
    for (int i = slice * kSlice + static_cast<int>(threadIdx.x); s.flags && i < min(s.n, (slice + 1) * kSlice); i += kSliceThreads)
      s.flags[i] = 0;
    return;
  }
  uint32_t scores[kOfThread];
  bool within[kOfThread];
  load_scores(s, scores, within);
  const uint32_t *found = s.memory + SelectionMemory::kFound + 4, *slices = s.memory + SelectionMemory::kSlices;
  const Threshold least = {found[0], found[1]};
  unsigned kinds[kOfThread], before[kOfThread];
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) kinds[j] =
      within[j] ? (scores[j] > least.bits ? kFirst : 0) + (scores[j] == least.bits ? kSecond : 0) : 0;
  const unsigned n_above = sum_of_slices(slices, slice), n_equal = sum_of_slices(slices + n_slices(s.n), slice);
  rank_in_slice(kinds, before);
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) {
    const int i = slice * kSlice + j * kSliceThreads + static_cast<int>(threadIdx.x);
    const unsigned equals = n_equal + second_of(before[j]);
    const bool takes = kinds[j] == kFirst || (kinds[j] == kSecond && equals < least.n_equal);
    if (s.flags && within[j]) s.flags[i] = takes;
    if (!takes) continue;
    const unsigned at = n_above + first_of(before[j]) + min(equals, least.n_equal);
    s.best[at] = static_cast<uint32_t>(i);
    if (s.pairs) s.pairs[at] = static_cast<unsigned long long>(~scores[j]) << 32 | static_cast<uint32_t>(i);
  }
}

// A thread block has a head.
__global__ void __launch_bounds__(kSelectThreads) select_by_order_kernel(const FetchPart* parts, const uint32_t* order) {
  const FetchPart part = parts[blockIdx.x];
  if (part.k <= 0) return;
  const uint32_t* scores = order ? order : part.scores();
  write_selected(scores, part.n_keys, find_threshold(scores, part.n_keys, static_cast<unsigned>(part.k)), part.best, nullptr);
}

// A thread block has a head. Products less than alpha below the best one of their query head are counted. A key's score is its smallest
// distance from a query head's best product, as a number of order (order_of()): it takes the place of the key's first product.
__global__ void __launch_bounds__(kSelectThreads) near_best_kernel(TopKeysWork w, float alpha, uint32_t* counts) {
  __shared__ float of_warp[kSelectThreads / 32];
  __shared__ unsigned n_near;
  const int thread = static_cast<int>(threadIdx.x), n = part_of(w, static_cast<int>(blockIdx.x)).n_keys;
  float* entry = entry_of(w, static_cast<int>(blockIdx.x));
  float* distances = reinterpret_cast<float*>(bits_of(w, entry));
  if (thread == 0) n_near = 0;
  unsigned mine = 0;
  for (int g = 0; g < w.plan.group; ++g) {
    const float* row = entry + g * w.plan.stride;
    float best = -INFINITY;
    for (int i = thread; i < n; i += kSelectThreads) best = fmaxf(best, row[i]);
    best = warp_max(best);
    if (thread % 32 == 0) of_warp[thread / 32] = best;
    __syncthreads();
    best = of_warp[0];
    for (int v = 1; v < kSelectThreads / 32; ++v) best = fmaxf(best, of_warp[v]);
    __syncthreads();  // the next row overwrites them
    for (int i = thread; i < n; i += kSelectThreads) {
      const float x = row[i] - best;
      mine += x > -alpha;
      if (g == 0 || distances[i] < x) distances[i] = x;
    }
  }
  atomicAdd(&n_near, mine);
  for (int i = thread; i < n; i += kSelectThreads) reinterpret_cast<uint32_t*>(entry)[i] = order_of(distances[i]);
  __syncthreads();
  if (thread == 0) counts[blockIdx.x] = n_near;
}

// A thread block has a head. Each head gets the mean number of near products of all query heads, at most part.k.
__global__ void __launch_bounds__(kSelectThreads)
    select_near_best_kernel(const FetchPart* parts, const uint32_t* counts, int n_heads, int group) {
  const FetchPart part = parts[blockIdx.x];
  const unsigned n = n_near_best(counts, n_heads, group, part.k);
  if (threadIdx.x == 0) part.held[part.n_held] = n;
  if (n > 0) write_selected(part.scores(), part.n_keys, find_threshold(part.scores(), part.n_keys, n), part.best, nullptr);
}

// ---- keys that are held, and keys that are not found, by codes

// Scores of held keys count `stay` times. A thread has a held key of a part, of one query.
__global__ void __launch_bounds__(kWeightThreads) weigh_held_kernel(TopKeysWork w) {
  const TopKeysPart& part = parts_of(w)[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kWeightThreads + static_cast<int>(threadIdx.x);
  if (i >= part.n_held) return;
  uint32_t* score = bits_of(w, entry_of(w, part.first_entry)) + part.held[i];
  *score = __float_as_uint(__fmul_rn(__uint_as_float(*score), part.stay));
}

// A thread block has a query head: log2 of the weights of the keys that are not among its part's best ones. TopKeysPart::log_evicted holds
// the largest unit, whose tile has the largest share. Best keys are subtracted from the sum of their tile; a tile of best keys alone adds
// nothing. With value_evicted the weights of best keys become 0, a tile's sum is that of the others, and its share is its part of all others'
// weights: 0 where log_evicted is -infinity, or where nearly nothing is left.
__global__ void __launch_bounds__(kWeightThreads) evicted_logs_kernel(TopKeysWork w, int bits, float error) {
  const TopKeysPart& part = parts_of(w)[blockIdx.y];
  if (!part.log_evicted) return;
  const int thread = static_cast<int>(threadIdx.x), g = static_cast<int>(blockIdx.x),
            n_tiles = (part.n_keys + kPageTokens - 1) / kPageTokens;
  float* entry = entry_of(w, part.first_entry);
  float* weights = entry + g * w.plan.stride + part.first_key;
  float *shares = units_of(w, entry) + g * w.plan.tile_stride, *sums = sums_of(w, entry) + g * w.plan.tile_stride;
  const uint32_t* best = reinterpret_cast<const uint32_t*>(w.scratch + w.plan.out) + part.first_out;
  const int n_best = part.finds_number ? static_cast<int>(*reinterpret_cast<const uint32_t*>(pairs_of(w, entry))) : part.k;
  float left = 0.0f, largest = 0.0f;
  for (int tile = thread; tile < n_tiles; tile += kWeightThreads) {
    const int begin = max(tile * kPageTokens - part.first_key, 0), end = min((tile + 1) * kPageTokens, part.n_keys) - part.first_key;
    int first = 0, last = n_best;  // searches the first of the best keys in the tile
    while (first < last) {
      const int middle = (first + last) / 2;
      if (static_cast<int>(best[middle]) < begin) first = middle + 1;
      else last = middle;
    }
    largest = fmaxf(largest, shares[tile]);
    float taken = 0.0f;
    for (last = first; last < n_best && static_cast<int>(best[last]) < end; ++last) {
      taken += weights[best[last]];
      if (part.value_evicted) weights[best[last]] = 0.0f;
    }
    const float others = last - first < end - begin ? fmaxf(sums[tile] - taken, 0.0f) : 0.0f;
    left = fmaf(others, shares[tile], left);
    if (part.value_evicted) sums[tile] = others;
  }
  left = over_block(left, [](float a, float b) { return a + b; });
  largest = over_block(largest, [](float a, float b) { return fmaxf(a, b); });

  // The variance of the query's products, given the codes: a thread has a factor of some tiles, and a dimension, or two.
  static_assert(kVarianceTiles * kPageTokens == kWeightThreads && 32 * kMostLaneDims <= 2 * kWeightThreads,
                "a factor and up to two dimensions for each thread");
  const int n_read = min(n_tiles, kVarianceTiles), of = thread / kPageTokens, tile = n_read > 1 ? of * (n_tiles - 1) / (n_read - 1) : 0;
  const int key = tile * kPageTokens + thread % kPageTokens;
  float square = 0.0f, counts = 0.0f;
  if (of < n_read && key >= part.first_key && key < part.n_keys) {
    const auto* codes = reinterpret_cast<const std::byte*>(tile_of(part, tile));
    const float factor = half_at(codes + w.head_dim * bits / 4 * kHalfTile + 2 * (thread % kPageTokens));
    if (fabsf(factor) < INFINITY) square = factor * factor, counts = 1.0f;
  }
  const float* q = part.queries + (part.first_position - w.ring_first) % w.ring_rows * w.ring_stride + g * w.head_dim;
  const float x = thread < w.head_dim ? q[thread] : 0.0f,
              further = thread + kWeightThreads < w.head_dim ? q[thread + kWeightThreads] : 0.0f;
  const auto sum = [](float a, float b) { return a + b; };
  const float squares = over_block(square, sum), n = over_block(counts, sum), of_query = over_block(fmaf(further, further, x * x), sum);
  const float variance = w.scale * w.scale * of_query * error * (squares / fmaxf(n, 1.0f));
  const bool known = left > 0 && !(variance > kMostCodeVariance);
  constexpr float kLeast = 1e-30f;
  for (int i = thread; part.value_evicted && i < n_tiles; i += kWeightThreads) shares[i] = known && left > kLeast ? shares[i] / left : 0.0f;
  if (thread != 0) return;
  float* log = part.log_evicted + g;
  *log = known ? *log + log2f(left / largest) : -INFINITY;
}

}  // namespace top_keys_cu
using namespace top_keys_cu;

namespace top_keys_cu {
uint64_t aligned(int64_t n) { return static_cast<uint64_t>(n + 255) / 256 * 256; }
}  // namespace top_keys_cu
using namespace top_keys_cu;

void TopKeysPlan::lay_out(int64_t keys, int32_t n) {
  n_queries = n;
  tile_stride = (keys + kPageTokens - 1) / kPageTokens;
  stride = tile_stride * kPageTokens;
  int64_t n_pairs = 1;
  while (n_pairs < keys) n_pairs *= 2;
  tiles = aligned(n * static_cast<int64_t>(sizeof(TopKeysPart)));
  out = tiles + aligned(n * tile_stride * 8);
  entries = out + aligned(n * stride * 4);
  pairs = static_cast<uint64_t>(group * stride + 2 * group * tile_stride + stride) * 4;
  const uint64_t end = pairs + static_cast<uint64_t>(n_pairs) * 8;
  flags = pairs + static_cast<uint64_t>(n_pairs) * 4;
  selection = keys > kManyKeys ? aligned(static_cast<int64_t>(end)) : 0;
  entry_bytes = aligned(static_cast<int64_t>(selection > 0 ? selection : end) + (selection > 0 ? 4 * SelectionMemory::numbers(keys) : 0));
}

TopKeysPlan::TopKeysPlan(const StepLimits& limits) {
  const int64_t keys = limits.max_top_keys;
  if (keys <= 0) return;
  group = limits.group();
  lay_out(keys, kBatch);
  moments = entries + kBatch * entry_bytes;
  moments_scores = moments + aligned(3 * group * stride * static_cast<int64_t>(sizeof(double)));
  moments_totals = moments_scores + aligned(group * stride * static_cast<int64_t>(sizeof(float)));
  bytes = moments_totals + aligned(2 * group * static_cast<int64_t>(sizeof(double)));
}

TopKeysPlan TopKeysPlan::fitted(int64_t keys, int64_t n) const {
  TopKeysPlan most = *this;
  if (bytes == 0 || keys <= 0 || n <= kBatch) return most;
  const auto ends = [&most] { return most.entries + static_cast<uint64_t>(most.n_queries) * most.entry_bytes; };
  most.lay_out(keys, 1);
  const auto of_one = static_cast<int64_t>(ends());  // with its padding: no less than one more query takes
  most.lay_out(keys, static_cast<int32_t>(std::min({n, int64_t{kMostQueries}, static_cast<int64_t>(moments) / of_one})));
  return most.n_queries > kBatch ? most : *this;
}

namespace top_keys_cu {

unsigned blocks(int32_t n_keys, int32_t per_block) { return static_cast<unsigned>((n_keys + per_block - 1) / per_block); }

// Launches kernels 1 and 2.
TopKeysWork begin(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, bool causal, int32_t n_parts,
                  int32_t n_entries, int32_t most_keys) {
  TopKeysWork w = {};
  w.plan = plan, w.scratch = scratch;
  w.type = key_type(shape.kv.type), w.head_dim = shape.kv.head_dim;
  w.stride = static_cast<int32_t>(shape.keys_alone ? shape.kv.key_bytes() : shape.kv.token_bytes());
  w.n_parts = n_parts, w.ring_rows = shape.queries.n_rows;
  w.ring_first = shape.queries.first;
  w.ring_stride = shape.queries.stride > 0 ? shape.queries.stride : int64_t{shape.n_heads} * shape.kv.head_dim;
  w.scale = shape.scale, w.causal = causal, w.bounds = shape.bounds, w.products = shape.products;
  const size_t shared = static_cast<size_t>(kPageTokens) * static_cast<size_t>(std::min(w.head_dim, kWeightDims) + 4) * sizeof(float);
  if (shape.codes.bits > 0) code_weights(queue, w, shape, n_parts, most_keys);
  else
    launch<key_weights_kernel>(queue, {Dim3(blocks(most_keys, kPageTokens), static_cast<unsigned>(n_parts)), Dim3(kWeightThreads), shared},
                               w);
  if (!shape.products)
    launch<tile_shares_kernel>(queue, {Dim3(static_cast<unsigned>(plan.group), static_cast<unsigned>(n_entries)), Dim3(256)}, w);
  return w;
}

// Kernel 4, behind kernel 3.
void select_by_many(Queue& queue, const SelectWork& w, int32_t n_entries, int32_t most_keys) {
  const Geometry grid = {Dim3(static_cast<unsigned>(n_slices(most_keys)), static_cast<unsigned>(n_entries)), Dim3(kSliceThreads)};
  for (int pass = 0; pass < 3; ++pass) launch<count_digits_kernel>(queue, grid, w, pass);
  launch<count_taken_kernel>(queue, grid, w);
  launch<write_taken_kernel>(queue, grid, w);
}

// By the parts' own scores, or by those that they share.
void select_by_parts(Queue& queue, SelectWork w, int32_t n_parts, int32_t most_keys) {
  const auto n = static_cast<unsigned>(n_parts);
  w.by_parts = 1;
  launch<clear_selection_kernel>(queue, {Dim3(blocks(SelectionMemory::kCleared, kSliceThreads), n), Dim3(kSliceThreads)}, w.parts);
  select_by_many(queue, w, n_parts, most_keys);
}

// Launches kernels 1 to 3.
TopKeysWork begin_scores(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const TopKeysShape& shape, int32_t n_parts,
                         int32_t n_entries, int32_t most_keys) {
  TopKeysWork w = begin(queue, plan, scratch, shape, false, n_parts, n_entries, most_keys);
  w.scoring = shape.scoring;
  w.by_many_blocks = plan.by_many_blocks(most_keys);
  const Dim3 grid(blocks(most_keys, kScoreThreads), static_cast<unsigned>(n_entries));
  launch<key_scores_kernel>(queue, {grid, Dim3(kScoreThreads)}, w);
  return w;
}

}  // namespace top_keys_cu
using namespace top_keys_cu;

void key_scores(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const TopKeysShape& shape, int32_t n_parts, int32_t n_entries,
                int32_t most_keys) {
  begin_scores(queue, plan, scratch, shape, n_parts, n_entries, most_keys);
}

void weigh_held(Queue& queue, const TopKeysWork& work, int32_t n_parts, int32_t most_held) {
  const Dim3 grid(static_cast<unsigned>((most_held + kWeightThreads - 1) / kWeightThreads), static_cast<unsigned>(n_parts));
  launch<weigh_held_kernel>(queue, {grid, Dim3(kWeightThreads)}, work);
}

void evicted_logs(Queue& queue, const TopKeysWork& work, const KeyCodeFormat& codes, int32_t n_parts) {
  const Dim3 grid(static_cast<unsigned>(work.plan.group), static_cast<unsigned>(n_parts));
  launch<evicted_logs_kernel>(queue, {grid, Dim3(kWeightThreads)}, work, codes.bits, key_code_error(codes.bits));
}

void top_keys(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const TopKeysShape& shape, int32_t n_parts, int32_t n_entries,
              int32_t most_keys, const TopKeysBatch& batch) {
  const TopKeysWork w = begin_scores(queue, plan, scratch, shape, n_parts, n_entries, most_keys);
  const unsigned entries = static_cast<unsigned>(n_entries);
  if (batch.excludes) launch<exclude_keys_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts)), Dim3(kSelectThreads)}, w, batch.fetch);
  if (batch.most_held > 0) weigh_held(queue, w, n_parts, batch.most_held);
  if (w.by_many_blocks) {
    SelectWork select = {};
    select.w = w, select.parts = batch.fetch;
    select_by_many(queue, select, n_entries, most_keys);
  }
  if (!w.by_many_blocks || batch.ends) launch<select_keys_kernel>(queue, {Dim3(entries), Dim3(kSelectThreads)}, w);
  if (shape.codes.bits > 0) evicted_logs(queue, w, shape.codes, n_parts);
  if (batch.values) evicted_values(queue, w, shape, n_parts, most_keys);
}

void add_scores(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_parts, int32_t n_entries,
                int32_t n_keys, int32_t n_before, int32_t n_all, float* sums) {
  const TopKeysWork w = begin(queue, plan, scratch, shape, false, n_parts, n_entries, n_keys);
  launch<add_scores_kernel>(queue, {Dim3(blocks(n_keys, kScoreThreads)), Dim3(kScoreThreads)}, w, n_entries, n_keys, n_before, n_all, sums);
}

void select_by_order(Queue& queue, const TopKeysPlan& plan, const FetchPart* parts, const uint32_t* order, int32_t n_parts,
                     int32_t most_keys) {
  if (!plan.by_many_blocks(most_keys))
    return launch<select_by_order_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts)), Dim3(kSelectThreads)}, parts, order);
  SelectWork w = {};
  w.parts = parts, w.order = order;
  select_by_parts(queue, w, n_parts, most_keys);
}

void near_best(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_parts, int32_t n_entries,
               int32_t most_keys, float alpha, uint32_t* counts) {
  const TopKeysWork w = begin(queue, plan, scratch, shape, false, n_parts, n_entries, most_keys);
  launch<near_best_kernel>(queue, {Dim3(static_cast<unsigned>(n_entries)), Dim3(kSelectThreads)}, w, alpha, counts);
}

void select_near_best(Queue& queue, const TopKeysPlan& plan, const FetchPart* parts, const uint32_t* counts, int32_t n_heads, int32_t group,
                      int32_t n_parts, int32_t most_keys) {
  if (!plan.by_many_blocks(most_keys))
    return launch<select_near_best_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts)), Dim3(kSelectThreads)}, parts, counts, n_heads,
                                           group);
  SelectWork w = {};
  w.parts = parts, w.counts = counts, w.n_heads = n_heads, w.group = group;
  select_by_parts(queue, w, n_parts, most_keys);
}

void key_moments(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_entries, int32_t n_keys,
                 int32_t n_measured, float gamma) {
  const TopKeysWork w = begin(queue, plan, scratch, shape, true, 1, n_entries, n_keys);
  const unsigned group = static_cast<unsigned>(plan.group);
  launch<add_moments_kernel>(queue, {Dim3(blocks(n_measured, kScoreThreads), group), Dim3(kScoreThreads)}, w, n_measured, gamma);
  launch<total_moments_kernel>(queue, {Dim3(group), Dim3(kScoreThreads)}, w, n_measured);
}

void key_weights(Queue& queue, const TopKeysPlan& plan, std::byte* scratch, const KeysShape& shape, int32_t n_parts, int32_t n_entries,
                 int32_t most_keys) {
  const TopKeysWork w = begin(queue, plan, scratch, shape, true, n_parts, n_entries, most_keys);
  if (shape.products) return;  // kernel 1 has written them
  launch<write_weights_kernel>(queue, {Dim3(blocks(most_keys, kScoreThreads), static_cast<unsigned>(n_parts)), Dim3(kScoreThreads)}, w);
}

}  // namespace orrery::cuda
