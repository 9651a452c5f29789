// The k-th largest number of a list, by the 1024 threads of a block: for top_keys.cu and fetch.cu.
#pragma once

#include "cuda/kernels/kv.cuh"

namespace orrery::cuda {

inline constexpr int kSelectThreads = 1024;

// The number that orders as the score does (policy::order_of()).
__device__ __forceinline__ uint32_t order_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return score != score ? 0 : bits ^ (bits >> 31 ? 0xFFFFFFFFu : 1u << 31);
}

// The k-th largest of bits (n), and the number of elements among the k that equal it.
struct Threshold {
  uint32_t bits;
  unsigned n_equal;
};
inline __device__ Threshold find_threshold(const uint32_t* bits, int n, unsigned k) {
  __shared__ unsigned counts[2048], found[2];
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t above = 0;   // the digits that are known
  for (int shift = 21; shift >= 0; shift -= shift == 21 ? 11 : 10) {   // digits of 11, 11 and 10 bits
    const int width = shift == 0 ? 10 : 11;
    const uint32_t mask = (1u << width) - 1;
    for (int i = thread; i < 2048; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += kSelectThreads)
      if (shift == 21 || bits[i] >> (shift + width) == above) atomicAdd(&counts[bits[i] >> shift & mask], 1u);
    __syncthreads();
    if (thread < 32) {   // each lane has 64 digits
      unsigned mine = 0;
      for (int i = 0; i < 64; ++i) mine += counts[thread * 64 + i];
      unsigned higher = 0;   // the count of the lanes with higher digits
      for (int from = 31; from > 0; --from) {
        const unsigned count = __shfl_sync(kAllLanes, mine, from);
        if (from > thread) higher += count;
      }
      if (higher < k && k <= higher + mine) {
        int digit = thread * 64 + 63;
        for (; higher + counts[digit] < k; --digit) higher += counts[digit];
        found[0] = static_cast<unsigned>(digit), found[1] = k - higher;
      }
    }
    __syncthreads();
    above = shift == 21 ? found[0] : above << width | found[0];
    k = found[1];
    __syncthreads();
  }
  return {above, k};
}

}  // namespace orrery::cuda
