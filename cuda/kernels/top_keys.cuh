// What top_keys.cu and key_codes.cu share: where a batch of queries has its weights, weights as powers of two, a reduction.
#pragma once

#include "cuda/kernels/kv.cuh"

namespace orrery::cuda {

namespace top_keys_cu {

inline constexpr float kLog2E = 1.44269504088896f;

struct TopKeysWork {
  TopKeysPlan plan;
  std::byte* scratch;
  KvType type;            // of K
  int32_t stride;         // bytes from key to key
  int32_t head_dim, n_parts, ring_rows, ring_first;
  int64_t ring_stride;   // floats from position to position
  float scale;
  uint32_t causal;       // a query sees no keys behind its position
  uint32_t bounds, products;   // as in KeysShape
  KeyScoring scoring;
  uint32_t by_many_blocks;   // kernel 3 clears the working memory of the selection
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
  int first = 0, last = w.n_parts - 1;   // searches the first part that ends behind the entry
  while (first < last) {
    const int middle = (first + last) / 2;
    if (parts[middle].first_entry + parts[middle].n_positions > entry)
      last = middle;
    else
      first = middle + 1;
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

}  // namespace top_keys_cu

}  // namespace orrery::cuda
