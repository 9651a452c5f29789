// Sampling candidates of a row of logits (ShortlistOperations). Three kernels at the end of a step's graph make the shortlist. Their grids
// depend only on the vocabulary; the request lies in the step's state. Logits are compared as integers with the same order: NaN as
// -infinity, +infinity as the largest float, -0 as 0.
// 1. Groups: the largest of each 32 logits, and under a mask the largest allowed one. A banned logit's integer is 0.
// 2. Sums: of exp, with SumExp's bits (runtime/base/sum_exp.h), so that the host's sum has the same bits; and tempered sums, in double.
// 3. Selection: the k best logits, sorted; the wanted tokens' logits; the folded sums.
// The mask lies in the work space, at the same place in every step.
//
// Between steps, for top-p beyond the shortlist: one launch sums the tail's bands, another collects the entries of two bands; a thread has
// a logit. Atomic sums are of whole numbers, whose order does not matter. README.md explains the selection and the cost.
#include <algorithm>
#include <cfloat>

#include "cuda/device/launch.h"
#include "cuda/kernels/kv.cuh"
#include "runtime/base/sum_exp.h"

namespace orrery::cuda {

namespace shortlist_cu {

struct ShortlistGeometry {
  static constexpr int kGroup = 32, kGroupThreads = 256;                           // kernel 1; kGroup: logits
  static constexpr int kSumThreads = 128;                                          // kernel 2
  static constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32;  // kernel 3
  static constexpr int kGroupsOfThread = 16;
  static constexpr int64_t kMostLogits = int64_t{kGroup} * kGroupsOfThread * kSelectThreads;  // 524,288
  static constexpr uint64_t kListBytes = sizeof(ShortlistHead) + ShortlistRequest::kMostSums * sizeof(double) +
                                         ShortlistRequest::kMostBest * sizeof(ShortlistEntry) +
                                         ShortlistRequest::kMostTokens * sizeof(float);
  static constexpr uint64_t kResultBytes = (std::max(kListBytes, uint64_t{sizeof(ShortlistTailEntries)}) + 255) / 256 * 256;
  static constexpr int kTailThreads = 256;
};
using G = ShortlistGeometry;
static_assert(ShortlistRequest::kMostBest <= G::kSelectThreads && G::kGroup == 32, "a warp reads 32 candidate groups, one in each lane");
static_assert(ShortlistRequest::kSumLogits == SumExp::kBlock && G::kMostLogits == int64_t{SumExp::kBlock} * ShortlistRequest::kMostSums,
              "blocks are those of the other sum");
static_assert(sizeof(ShortlistHead) % 8 == 0 && sizeof(ShortlistEntry) == 8, "entries are written where they are read");

struct ShortlistWork {
  const float* logits;
  const DeviceShortlist* request;
  std::byte* out;
  uint32_t* groups;         // (n_groups) order_of() each group's largest allowed logit; 0: it has none
  uint32_t* groups_of_all;  // (n_groups) of the largest logit; only under a mask
  const uint32_t* mask;     // (n_groups) ShortlistRequest::mask; only under a mask
  double* sums;             // (2, n_blocks): plain, then tempered
  int n, n_groups, n_blocks;
};
__device__ __forceinline__ double* sums_of(const ShortlistWork& w) { return reinterpret_cast<double*>(w.out + sizeof(ShortlistHead)); }
__device__ __forceinline__ ShortlistEntry* entries_of(const ShortlistWork& w) {
  return reinterpret_cast<ShortlistEntry*>(sums_of(w) + w.request->n_sums);
}

__device__ __forceinline__ float as_number(float x) { return x == x ? fminf(x, FLT_MAX) : -INFINITY; }
__device__ __forceinline__ uint32_t order_of(float x) {
  const float y = as_number(x);
  const uint32_t bits = y == 0 ? 0 : __float_as_uint(y);
  return bits >> 31 ? ~bits : bits | 0x80000000u;  // more than 0; 0 stands for "no logit"
}
constexpr uint32_t kOrderOfNone = 0x007FFFFFu;  // order_of(-INFINITY)
__device__ __forceinline__ float number_of(uint32_t order) { return __uint_as_float(order >> 31 ? order & 0x7FFFFFFFu : ~order); }

__device__ __forceinline__ bool allows(const uint32_t* mask, int token) { return (mask[token / 32] >> (token % 32) & 1u) != 0; }
__device__ __forceinline__ bool allows(const ShortlistWork& w, int token) { return !w.request->masked || allows(w.mask, token); }

__global__ void __launch_bounds__(G::kGroupThreads) shortlist_groups_kernel(ShortlistWork w) {
  const int i = static_cast<int>(blockIdx.x) * G::kGroupThreads + static_cast<int>(threadIdx.x);
  const uint32_t order = i < w.n ? order_of(w.logits[i]) : 0;
  const uint32_t largest = warp_largest(i < w.n && allows(w, i) ? order : 0);
  if (threadIdx.x % 32 == 0 && i < w.n) w.groups[i / G::kGroup] = largest;
  if (!w.request->masked) return;
  const uint32_t of_all = warp_largest(order);
  if (threadIdx.x % 32 == 0 && i < w.n) w.groups_of_all[i / G::kGroup] = of_all;
}

// The largest logit of the row, and the largest allowed one, for each thread of a thread block.
struct Largest {
  float of_all, of_allowed;
};
template <int kThreads>
__device__ __forceinline__ Largest largest_of(const ShortlistWork& w) {
  __shared__ uint32_t of_warp[2][kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const uint32_t* const groups_of_all = w.request->masked ? w.groups_of_all : w.groups;
  uint32_t of_all = 0, of_allowed = kOrderOfNone;
  for (int i = thread; i < w.n_groups; i += kThreads) of_all = max(of_all, groups_of_all[i]), of_allowed = max(of_allowed, w.groups[i]);
  of_all = warp_largest(of_all), of_allowed = warp_largest(of_allowed);
  if (lane == 0) of_warp[0][thread / 32] = of_all, of_warp[1][thread / 32] = of_allowed;
  __syncthreads();
  const bool reads = lane < kThreads / 32;
  return {number_of(warp_largest(reads ? of_warp[0][lane] : 0)), number_of(warp_largest(reads ? of_warp[1][lane] : 0))};
}

// exp(x) for x <= 0, with each rounding of SumExp's exp.
__device__ __forceinline__ float exp_negative(float x) {
  x = fmaxf(x, SumExp::kLeast);
  const float n = static_cast<float>(static_cast<int>(__fadd_rn(__fmul_rn(x, SumExp::kLog2E), -0.5f)));
  const float r = __fadd_rn(__fadd_rn(x, -__fmul_rn(n, SumExp::kLn2High)), -__fmul_rn(n, SumExp::kLn2Low));
  float p = __fadd_rn(__fmul_rn(SumExp::kTerm6, r), SumExp::kTerm5);
  p = __fadd_rn(__fmul_rn(p, r), SumExp::kTerm4);
  p = __fadd_rn(__fmul_rn(p, r), SumExp::kTerm3);
  p = __fadd_rn(__fmul_rn(p, r), SumExp::kTerm2);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f);
  return __fmul_rn(p, __uint_as_float(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23));
}

__global__ void __launch_bounds__(G::kSumThreads) shortlist_sums_kernel(ShortlistWork w) {
  constexpr int kLanes = SumExp::kLanes, kBlocks = G::kSumThreads / kLanes;
  const Largest largest = largest_of<G::kSumThreads>(w);
  const float most = largest.of_all, most_allowed = largest.of_allowed;
  const double inverse = most_allowed > -INFINITY ? w.request->inverse_temperature : 0.0;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int block = static_cast<int>(blockIdx.x) * kBlocks + static_cast<int>(threadIdx.x) / kLanes;
  double sum = 0.0, tempered = 0.0;
  if (most > -INFINITY) {
    ORRERY_UNROLL_TWICE for (int i = 0; i < SumExp::kBlock; i += kLanes) {
      const int at = block * SumExp::kBlock + i + lane;
      if (at >= w.n) break;
      const float x = as_number(w.logits[at]);
      sum += static_cast<double>(exp_negative(__fadd_rn(x, -most)));
      if (inverse > 0 && allows(w, at)) tempered += exp((static_cast<double>(x) - static_cast<double>(most_allowed)) * inverse);
    }
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, half);
    tempered += __shfl_xor_sync(kAllLanes, tempered, half);
  }
  if (lane == 0 && block < w.n_blocks) w.sums[block] = sum, w.sums[w.n_blocks + block] = tempered;
}

// The k-th largest of all threads' keys, found bit by bit: by counting the keys that are no less. At least k keys are more than 0.
template <int kN>
__device__ __forceinline__ uint32_t kth_largest(const uint32_t (&keys)[kN], unsigned k) {
  __shared__ unsigned counts[2][G::kSelectWarps];  // used in turns, so that one barrier for each bit suffices
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t found = 0;
  if (k == 1) {
    ORRERY_UNROLL for (int i = 0; i < kN; ++i) found = max(found, keys[i]);
    found = warp_largest(found);
    if (lane == 0) counts[0][warp] = found;
    __syncthreads();
    return warp_largest(counts[0][lane]);
  }
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t tried = found | 1u << bit;
    unsigned n = 0;
    ORRERY_UNROLL for (int i = 0; i < kN; ++i) n += keys[i] >= tried;
    n = warp_total(n);
    if (lane == 0) counts[bit & 1][warp] = n;
    __syncthreads();
    if (warp_total(counts[bit & 1][lane]) >= k) found = tried;
  }
  return found;
}

// Calls put(place, i) for the k largest keys; `least` is the k-th largest. Places follow the order of warps, then of i, then of lanes. Of
// keys equal to `least`, the first ones are taken.
template <int kN, class F>
__device__ __forceinline__ void for_largest(const uint32_t (&keys)[kN], uint32_t least, unsigned k, const F& put) {
  __shared__ unsigned of_warp[G::kSelectWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned mine = 0;  // the number of larger keys; from bit 16 on, the number of equal keys (at most 32,768 over all threads)
  ORRERY_UNROLL for (int i = 0; i < kN; ++i) mine += keys[i] > least ? 1u : keys[i] == least ? 1u << 16 : 0u;
  mine = warp_total(mine);
  if (lane == 0) of_warp[warp] = mine;
  __syncthreads();
  const unsigned before = warp_total(lane < warp ? of_warp[lane] : 0);
  const unsigned n_equal = k - (warp_total(of_warp[lane]) & 0xFFFFu);  // equal keys that are among the k
  const unsigned lower_lanes = (1u << lane) - 1;
  unsigned n_above = before & 0xFFFFu, n_like = before >> 16;
  ORRERY_UNROLL for (int i = 0; i < kN; ++i) {
    const bool above = keys[i] > least, like = keys[i] == least;
    const unsigned lanes_above = __ballot_sync(kAllLanes, above), lanes_like = __ballot_sync(kAllLanes, like);
    const unsigned equal = n_like + static_cast<unsigned>(__popc(lanes_like & lower_lanes));
    if (above || (like && equal < n_equal))
      put(n_above + static_cast<unsigned>(__popc(lanes_above & lower_lanes)) + min(equal, n_equal), i);
    n_above += static_cast<unsigned>(__popc(lanes_above)), n_like += static_cast<unsigned>(__popc(lanes_like));
  }
}

// Sorts n pairs ascending; n is a power of two.
__device__ __forceinline__ void sort_pairs(unsigned long long* pairs, int n) {
  const int i = static_cast<int>(threadIdx.x);
  for (int size = 2; size <= n; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      if (i >= n / 2) continue;
      const int a = 2 * i - (i & (stride - 1)), b = a + stride;
      const unsigned long long x = pairs[a], y = pairs[b];
      if (((a & size) == 0) == (x > y)) pairs[a] = y, pairs[b] = x;
    }
  __syncthreads();
}

__device__ __forceinline__ void select_best(const ShortlistWork& w) {
  __shared__ unsigned long long pairs[ShortlistRequest::kMostBest];
  __shared__ int chosen[ShortlistRequest::kMostBest];
  const int thread = static_cast<int>(threadIdx.x), k = min(w.request->n_best, w.request->n_allowed), n_chosen = min(k, w.n_groups);
  if (k <= 0) return;
  const int warp = thread / 32, lane = thread % 32;
  {
    uint32_t keys[G::kGroupsOfThread];
    const auto group_of = [&](int i) { return (warp * G::kGroupsOfThread + i) * 32 + lane; };
    ORRERY_UNROLL for (int i = 0; i < G::kGroupsOfThread; ++i) keys[i] = group_of(i) < w.n_groups ? w.groups[group_of(i)] : 0;
    const uint32_t least = kth_largest(keys, static_cast<unsigned>(n_chosen));
    for_largest(keys, least, static_cast<unsigned>(n_chosen), [&](unsigned place, int i) { chosen[place] = group_of(i); });
  }
  if (thread < ShortlistRequest::kMostBest) pairs[thread] = ~0ull;
  __syncthreads();
  uint32_t keys[32];  // this lane's allowed logit of each of the warp's groups
  const auto token_of = [&](int i) { return warp * 32 + i < n_chosen ? chosen[warp * 32 + i] * G::kGroup + lane : w.n; };
  ORRERY_UNROLL for (int i = 0; i < 32; ++i) keys[i] = token_of(i) < w.n && allows(w, token_of(i)) ? order_of(w.logits[token_of(i)]) : 0;
  const uint32_t least = kth_largest(keys, static_cast<unsigned>(k));
  for_largest(keys, least, static_cast<unsigned>(k), [&](unsigned place, int i) {
    pairs[place] = static_cast<unsigned long long>(~keys[i]) << 32 | static_cast<uint32_t>(token_of(i));
  });
  int n_sorted = 1;
  while (n_sorted < k) n_sorted *= 2;
  __syncthreads();
  sort_pairs(pairs, n_sorted);
  if (thread >= k) return;
  const int token = static_cast<int>(pairs[thread] & 0xFFFFFFFFu);
  ShortlistEntry* entry = entries_of(w) + thread;
  entry->logit = w.logits[token];
  entry->token = token;
}

__device__ __forceinline__ void gather_and_fold(const ShortlistWork& w) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  float* of_tokens = reinterpret_cast<float*>(entries_of(w) + w.request->n_best);
  for (int i = thread; i < min(w.request->n_sums, w.n_blocks); i += G::kSelectThreads) sums_of(w)[i] = w.sums[w.n_blocks + i];
  for (int i = thread; i < w.request->n_tokens; i += G::kSelectThreads) of_tokens[i] = w.logits[w.request->tokens[i]];
  const Largest most = largest_of<G::kSelectThreads>(w);
  if (warp >= 2) return;
  static_assert(SumExp::kShares == 32, "a lane each");
  double sum = 0.0;
  for (int i = lane; i < w.n_blocks; i += 32) sum += w.sums[warp * w.n_blocks + i];
  for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(kAllLanes, sum, half);
  ShortlistHead* head = reinterpret_cast<ShortlistHead*>(w.out);
  if (thread == 0) {
    head->sum = sum, head->most = most.of_all, head->most_allowed = most.of_allowed;
    head->n_best = max(min(w.request->n_best, w.request->n_allowed), 0);
    head->reserved = 0;
  }
  if (thread == 32) head->tempered_sum = sum;
}

__global__ void __launch_bounds__(G::kSelectThreads) shortlist_select_kernel(ShortlistWork w) {
  if (blockIdx.x == 0) select_best(w);
  else gather_and_fold(w);
}

// The logit's band; -1: the logit does not belong to the tail. mask: null, or its words.
__device__ __forceinline__ int band_of(const ShortlistTail& tail, const float* logits, const uint32_t* mask, int i, int n) {
  if (i >= n || (mask && !allows(mask, i))) return -1;
  const float x = as_number(logits[i]), last = tail.last.logit;
  if (x > last || (x == last && i <= tail.last.token)) return -1;
  const float at = __fmul_rn(__fadd_rn(last, -x), tail.bands_per_logit);
  return at < static_cast<float>(ShortlistTail::kBands - 1) ? static_cast<int>(at) : ShortlistTail::kBands - 1;
}

__global__ void __launch_bounds__(G::kTailThreads)
    tail_bands_kernel(const float* logits, const uint32_t* mask, int n, ShortlistTail tail, unsigned long long* sums) {
  const int i = static_cast<int>(blockIdx.x) * G::kTailThreads + static_cast<int>(threadIdx.x), band = band_of(tail, logits, mask, i, n);
  if (band < 0) return;
  const double weight = exp((static_cast<double>(as_number(logits[i])) - static_cast<double>(tail.last.logit)) * tail.inverse_temperature);
  atomicAdd(sums + band, static_cast<unsigned long long>(weight * ShortlistTail::kUnit + 0.5));
}

__global__ void __launch_bounds__(G::kTailThreads) tail_entries_kernel(const float* logits, const uint32_t* mask, int n, ShortlistTail tail,
                                                                       int band, int other_band, ShortlistTailEntries* out) {
  const int i = static_cast<int>(blockIdx.x) * G::kTailThreads + static_cast<int>(threadIdx.x), its = band_of(tail, logits, mask, i, n);
  if (its < 0 || (its != band && its != other_band)) return;
  const int at = atomicAdd(&out->n, 1);
  if (at < ShortlistTail::kMostEntries) out->entries[at].logit = logits[i], out->entries[at].token = i;
}

// Behind the result: the plain and the tempered sums; then, with a word for each group, the groups' two maxima, and the mask.
int64_t parts(int64_t n, int64_t of) { return (n + of - 1) / of; }
uint64_t aligned_bytes(int64_t bytes) { return static_cast<uint64_t>(parts(bytes, 256) * 256); }
uint64_t groups_at(int64_t n) {
  return G::kResultBytes + aligned_bytes(2 * parts(n, SumExp::kBlock) * static_cast<int64_t>(sizeof(double)));
}
uint64_t words_bytes(int64_t n) { return aligned_bytes(parts(n, G::kGroup) * static_cast<int64_t>(sizeof(uint32_t))); }
const uint32_t* mask_of(const ShortlistTail& tail, int64_t n, const std::byte* out) {
  return tail.mask.empty() ? nullptr : reinterpret_cast<const uint32_t*>(out + shortlist_mask_at(n));
}
Geometry grid(int64_t n_blocks, int n_threads) { return {Dim3(static_cast<unsigned>(n_blocks)), Dim3(static_cast<unsigned>(n_threads))}; }

}  // namespace shortlist_cu
using namespace shortlist_cu;

uint64_t shortlist_bytes(int64_t n) {
  if (n <= 0 || n > G::kMostLogits) return 0;
  return shortlist_mask_at(n) + words_bytes(n);
}
uint64_t shortlist_mask_at(int64_t n) { return groups_at(n) + 2 * words_bytes(n); }

void shortlist(Queue& queue, const StepView& step, int32_t number, const float* logits, int64_t n, std::byte* out) {
  ShortlistWork w = {};
  w.request = reinterpret_cast<const DeviceShortlist*>(reinterpret_cast<const std::byte*>(step.shortlist) + number * step.sequence_bytes);
  w.logits = logits, w.out = out;
  w.n = static_cast<int>(n);
  w.n_groups = static_cast<int>(parts(n, G::kGroup)), w.n_blocks = static_cast<int>(parts(n, SumExp::kBlock));
  w.sums = reinterpret_cast<double*>(out + G::kResultBytes);
  w.groups = reinterpret_cast<uint32_t*>(out + groups_at(n));
  w.groups_of_all = reinterpret_cast<uint32_t*>(out + groups_at(n) + words_bytes(n));
  w.mask = reinterpret_cast<const uint32_t*>(out + shortlist_mask_at(n));
  launch<shortlist_groups_kernel>(queue, grid(parts(n, G::kGroupThreads), G::kGroupThreads), w);
  launch<shortlist_sums_kernel>(queue, grid(parts(n, int64_t{SumExp::kBlock} * G::kSumThreads / SumExp::kLanes), G::kSumThreads), w);
  launch<shortlist_select_kernel>(queue, grid(2, G::kSelectThreads), w);
}

void shortlist_bands(Queue& queue, const float* logits, int64_t n, const ShortlistTail& tail, std::byte* out) {
  if (queue.failed()) return;
  queue.clear(out, ShortlistTail::kBands * sizeof(uint64_t), "clearing sums");
  launch<tail_bands_kernel>(queue, grid(parts(n, G::kTailThreads), G::kTailThreads), logits, mask_of(tail, n, out), static_cast<int>(n),
                            tail, reinterpret_cast<unsigned long long*>(out));
}

void shortlist_entries(Queue& queue, const float* logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band,
                       std::byte* out) {
  if (queue.failed()) return;
  queue.clear(out, 8, "clearing a count");
  launch<tail_entries_kernel>(queue, grid(parts(n, G::kTailThreads), G::kTailThreads), logits, mask_of(tail, n, out), static_cast<int>(n),
                              tail, band, other_band, reinterpret_cast<ShortlistTailEntries*>(out));
}

}  // namespace orrery::cuda
