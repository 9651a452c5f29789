// What top_keys.cu and key_codes.cu share: where a batch of queries has its weights, weights as powers of two, a reduction.
#pragma once

#include "cuda/kernels/kv.cuh"

namespace orrery::cuda {

// ---- slices
// Passes over long lists by many thread blocks: each has a slice of the list, and a thread has kOfThread of the slice's elements, thread,
// kSliceThreads + thread and so on. A pass that writes elements in order follows a pass that has counted them, slice by slice.

inline constexpr int kSliceThreads = 256, kSlice = 2048, kOfThread = kSlice / kSliceThreads, kSliceWarps = kSliceThreads / 32;
ORRERY_HOST_DEVICE constexpr int n_slices(int64_t n) { return static_cast<int>((n + kSlice - 1) / kSlice); }

// The working memory of a selection, in numbers of 32 bits: counts of three digits of a score, then what each pass has found, then counts
// of slices, two of each. The first pass finds kCleared numbers 0.
struct SelectionMemory {
  static constexpr int kDigits = 2048, kLastDigits = 1024;                // of 11, 11 and 10 bits
  static constexpr int kReaching = 2 * kDigits + kLastDigits;             // the number of scores that reach `least`
  static constexpr int kCleared = kReaching + 1, kFound = kReaching + 2;  // after each digit: the digits so far, and what remains of k
  static constexpr int kSlices = kFound + 6;
  static constexpr int64_t numbers(int64_t n_keys) { return kSlices + 2 * int64_t{n_slices(n_keys)}; }
};

// The sum of all threads' x. Each thread gets it.
__device__ __forceinline__ unsigned sum_of_block(unsigned x) {
  __shared__ unsigned of_warp[kSliceWarps];
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  ORRERY_UNROLL for (int i = 0; i < kSliceWarps; ++i) x += of_warp[i];
  __syncthreads();
  return x;
}

// The sum of the first n counts. Each thread gets it.
__device__ __forceinline__ unsigned sum_of_slices(const uint32_t* counts, int n) {
  unsigned sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSliceThreads) sum += counts[i];
  return sum_of_block(sum);
}

// Numbers of elements of two kinds, at most kSlice of each: in the lower and in the upper half.
__device__ __forceinline__ unsigned first_of(unsigned both) { return both & 0xFFFFu; }
__device__ __forceinline__ unsigned second_of(unsigned both) { return both >> 16; }
constexpr unsigned kFirst = 1, kSecond = 1u << 16;

// kinds: kFirst, kSecond, both or 0 for each of the thread's elements. before: how many elements of each kind stand before it in the slice.
// A kernel calls this once.
__device__ __forceinline__ void rank_in_slice(const unsigned (&kinds)[kOfThread], unsigned (&before)[kOfThread]) {
  __shared__ unsigned of_warp[kOfThread * kSliceWarps];  // of each 32 elements, in order
  static_assert(kOfThread * kSliceWarps == 64, "a lane of the first warp has two");
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned below = (1u << lane) - 1;
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) {
    const unsigned first = __ballot_sync(kAllLanes, (kinds[j] & kFirst) != 0), second = __ballot_sync(kAllLanes, (kinds[j] & kSecond) != 0);
    before[j] = static_cast<unsigned>(__popc(first & below)) + kSecond * static_cast<unsigned>(__popc(second & below));
    if (lane == 0) of_warp[j * kSliceWarps + warp] = static_cast<unsigned>(__popc(first)) + kSecond * static_cast<unsigned>(__popc(second));
  }
  __syncthreads();
  if (warp == 0) {
    const unsigned x = of_warp[2 * lane], y = of_warp[2 * lane + 1];
    unsigned sum = x + y;
    for (int i = 1; i < 32; i *= 2) {
      const unsigned lower = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(i));
      if (lane >= i) sum += lower;
    }
    of_warp[2 * lane] = sum - y - x, of_warp[2 * lane + 1] = sum - y;
  }
  __syncthreads();
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) before[j] += of_warp[j * kSliceWarps + warp];
}

// The digit of the k-th largest number, by the counts of digits (n_digits, a multiple of 4 * kSliceThreads, at most 8), and k without the
// numbers of higher digits. Each thread gets them.
struct Digit {
  unsigned digit, k;
};
__device__ __forceinline__ Digit find_digit(const uint32_t* counts, int n_digits, unsigned k) {
  __shared__ unsigned of_warp[kSliceWarps], found[2];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int n_mine = n_digits / kSliceThreads, end = n_digits - thread * n_mine;  // the first thread has the highest digits
  unsigned mine = 0;
  for (int i = 0; i < n_mine; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(counts + end - n_mine + i);
    mine += four.x + four.y + four.z + four.w;
  }
  unsigned sum = mine;
  for (int i = 1; i < 32; i *= 2) {
    const unsigned lower = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(i));
    if (lane >= i) sum += lower;
  }
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  unsigned higher = sum - mine;
  ORRERY_UNROLL for (int i = 0; i < kSliceWarps; ++i) higher += i < warp ? of_warp[i] : 0;
  if (higher < k && k <= higher + mine) {
    int digit = end - 1;
    for (; higher + counts[digit] < k; --digit) higher += counts[digit];
    found[0] = static_cast<unsigned>(digit), found[1] = k - higher;
  }
  __syncthreads();
  return {found[0], found[1]};
}

// ---- a batch
namespace top_keys_cu {

inline constexpr float kLog2E = 1.44269504088896f;

// Of key codes: dimensions of a lane, head_dim / 32, at most (8 or 16, kLaneDims); keys in half of a tile.
inline constexpr int kMostLaneDims = 16, kHalfTile = kPageTokens / 2;

struct TopKeysWork {
  TopKeysPlan plan;
  std::byte* scratch;
  KvType type;     // of K
  int32_t stride;  // bytes from key to key
  int32_t head_dim, n_parts, ring_rows, ring_first;
  int64_t ring_stride;  // floats from position to position
  float scale;
  uint32_t causal;            // a query sees no keys behind its position
  uint32_t bounds, products;  // as in KeysShape
  KeyScoring scoring;
  uint32_t by_many_blocks;  // kernel 3 clears the working memory of the selection
};
__device__ __forceinline__ const TopKeysPart* parts_of(const TopKeysWork& w) { return reinterpret_cast<const TopKeysPart*>(w.scratch); }
__device__ __forceinline__ float* entry_of(const TopKeysWork& w, int entry) {
  return reinterpret_cast<float*>(w.scratch + w.plan.entries + static_cast<uint64_t>(entry) * w.plan.entry_bytes);
}
// The parts of an entry: weights (group, stride), units and sums (group, tile_stride) each, the scores' bits (stride), pairs to sort.
__device__ __forceinline__ float* units_of(const TopKeysWork& w, float* entry) { return entry + w.plan.group * w.plan.stride; }
__device__ __forceinline__ float* sums_of(const TopKeysWork& w, float* entry) {
  return units_of(w, entry) + w.plan.group * w.plan.tile_stride;
}
__device__ __forceinline__ uint32_t* bits_of(const TopKeysWork& w, float* entry) {
  return reinterpret_cast<uint32_t*>(sums_of(w, entry) + w.plan.group * w.plan.tile_stride);
}
__device__ __forceinline__ unsigned long long* pairs_of(const TopKeysWork& w, float* entry) {
  return reinterpret_cast<unsigned long long*>(reinterpret_cast<std::byte*>(entry) + w.plan.pairs);
}
__device__ __forceinline__ uint32_t* selection_memory_of(const TopKeysWork& w, int entry) {
  return reinterpret_cast<uint32_t*>(reinterpret_cast<std::byte*>(entry_of(w, entry)) + w.plan.selection);
}
__device__ __forceinline__ const TopKeysPart& part_of(const TopKeysWork& w, int entry) {
  const TopKeysPart* parts = parts_of(w);
  int first = 0, last = w.n_parts - 1;  // searches the first part that ends behind the entry
  while (first < last) {
    const int middle = (first + last) / 2;
    if (parts[middle].first_entry + parts[middle].n_positions > entry) last = middle;
    else first = middle + 1;
  }
  return parts[first];
}

// The address of a part's tile.
__device__ __forceinline__ uint64_t tile_of(const TopKeysPart& part, int tile) {
  const uint64_t at = part.tiles ? in_global(part.tiles)[tile] : part.first_tile + static_cast<uint64_t>(tile) * part.tile_bytes;
  return at + part.offset;
}

// 2^(y - unit), or 0 for NaN. y is split into a whole number and the rest, so that the unit changes the exponent only.
__device__ __forceinline__ float weight_of(float y, float unit) {
  const float whole = rintf(y), exponent = fmaxf(whole - unit, -1000.0f);
  const float weight = ldexpf(exp2f(y - whole), static_cast<int>(fminf(exponent, 1000.0f)));
  return weight > 0 ? weight : 0.0f;
}

// Reduces x over a thread block of 256 threads. Each thread gets the same bits.
template <class F>
__device__ __forceinline__ float over_block(float x, const F& both) {
  __shared__ float values[8];
  for (int i = 16; i > 0; i /= 2) x = both(x, __shfl_xor_sync(kAllLanes, x, i));
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = x;
  __syncthreads();
  x = values[0];
  for (int i = 1; i < 8; ++i) x = both(x, values[i]);
  __syncthreads();
  return x;
}

// ---- turns of key codes

// KeyTurnTables, and the number of turns of a head.
struct TurnsWork {
  const float *tiles, *within;
  int32_t n, n_pairs;
};
__device__ __forceinline__ float2 angle_of_tile(const TurnsWork& t, int pair, int tile) {  // cosine, sine
  return reinterpret_cast<const float2*>(t.tiles)[static_cast<int64_t>(tile) * t.n_pairs + pair];
}
__device__ __forceinline__ float2 angle_within(const TurnsWork& t, int pair, int slot) {
  const float* cosines = t.within + 2 * kPageTokens * pair;
  return make_float2(cosines[slot], cosines[kPageTokens + slot]);
}
// The second vector turned by the angle of the first one, with the roundings of the CPU backend.
__device__ __forceinline__ float2 turned(float2 by, float2 x) {
  return make_float2(__fadd_rn(__fmul_rn(by.x, x.x), -__fmul_rn(by.y, x.y)), __fadd_rn(__fmul_rn(by.y, x.x), __fmul_rn(by.x, x.y)));
}
__device__ __forceinline__ float2 angle_at(const TurnsWork& t, int pair, int position) {
  return turned(angle_of_tile(t, pair, position / kPageTokens), angle_within(t, pair, position % kPageTokens));
}

}  // namespace top_keys_cu

}  // namespace orrery::cuda
