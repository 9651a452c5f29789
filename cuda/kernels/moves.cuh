// What kv.cu, fetch.cu, low_rank.cu and top_keys.cu share: moves of tokens between places and types, and the k-th largest number of a list.
//
// A move is cut into pieces of kPieceValues values, and a warp has one piece: a token, or a part of a run, in device memory or in shared
// host memory. The bytes of a piece are a multiple of 16 in every type. A lane has kInFlight loads under way before its first store.
// Between K8V4 and another type a piece is a K or a V: each has its own conversion, or none.
#pragma once

#include "cuda/kernels/kv.cuh"

namespace orrery::cuda {

inline constexpr int kPieceValues = 1024, kInFlight = 4;

// Copies n units.
template <class T>
__device__ __forceinline__ void copy_units(std::byte* to, const std::byte* from, int n, int lane) {
#pragma unroll 1
  for (int first = lane; first < n; first += 32 * kInFlight) {
    T x[kInFlight] = {};
    ORRERY_UNROLL for (int u = 0; u < kInFlight; ++u) if (first + 32 * u < n) x[u] = reinterpret_cast<const T*>(from)[first + 32 * u];
    ORRERY_UNROLL for (int u = 0; u < kInFlight; ++u) if (first + 32 * u < n) reinterpret_cast<T*>(to)[first + 32 * u] = x[u];
  }
}

// Copies n bytes in the widest units that fit both addresses and n.
__device__ __forceinline__ void copy_bytes(std::byte* to, const std::byte* from, int n, int lane) {
  const uint64_t all = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | static_cast<uint64_t>(n);
  if (all % 16 == 0) copy_units<uint4>(to, from, n / 16, lane);
  else if (all % 8 == 0) copy_units<uint2>(to, from, n / 8, lane);
  else if (all % 4 == 0) copy_units<uint32_t>(to, from, n / 4, lane);
  else copy_units<uint16_t>(to, from, n / 2, lane);
}

// Converts n values. Loads of kInFlight blocks are under way before the first store. Only F32 and F16 end within a block.
__device__ __forceinline__ void convert_values(KvType to_type, KvType from_type, std::byte* to, const std::byte* from, int n, int lane) {
#pragma unroll 1
  for (int block = 0; block * 32 + lane < n; block += kInFlight) {
    float x[kInFlight] = {};
    const auto load = [&](auto type) {
      ORRERY_UNROLL for (int u = 0; u < kInFlight; ++u) if ((block + u) * 32 + lane < n) x[u] =
          load_value(decltype(type)::value, from, block + u, lane);
    };
    switch (from_type) {
      case KvType::f32: load(KvTypeIs<KvType::f32>{}); break;
      case KvType::f16: load(KvTypeIs<KvType::f16>{}); break;
      case KvType::q8_0: load(KvTypeIs<KvType::q8_0>{}); break;
      default: load(KvTypeIs<KvType::q4_0>{});
    }
#pragma unroll 1  // four stores of blocks side by side spill on sm_120
    for (int u = 0; u < kInFlight && (block + u) * 32 + lane < n; ++u) {
      store_value(to_type, x[0], to, block + u, lane);
      ORRERY_UNROLL for (int v = 1; v < kInFlight; ++v) x[v - 1] = x[v];
    }
  }
}

// A warp's pieces of a move: those with indices blockIdx.y, blockIdx.y + gridDim.y and so on.
__device__ __forceinline__ void move_tokens(KvType to_type, KvType from_type, uint64_t to_address, uint64_t from_address, int64_t n_tokens,
                                            int token_values, int lane) {
  const bool apart = to_type != from_type && (to_type == KvType::k8v4 || from_type == KvType::k8v4);
  const int size = apart ? token_values / 2 : kPieceValues;
  const int64_t n_values = n_tokens * token_values;
  for (int64_t piece = blockIdx.y; piece * size < n_values; piece += gridDim.y) {
    const int n = static_cast<int>(n_values - piece * size < size ? n_values - piece * size : size), is_value = static_cast<int>(piece % 2);
    const auto place = [&](KvType type) {
      return apart ? piece / 2 * kv_bytes(type, token_values) + is_value * value_at(type, size) : piece * kv_bytes(type, kPieceValues);
    };
    const std::byte* from = in_global(reinterpret_cast<const std::byte*>(from_address)) + place(from_type);
    std::byte* to = in_global(reinterpret_cast<std::byte*>(to_address)) + place(to_type);
    const KvType to_part = apart ? part_type(to_type, is_value) : to_type, from_part = apart ? part_type(from_type, is_value) : from_type;
    if (to_part == from_part) copy_bytes(to, from, kv_bytes(to_part, n), lane);
    else convert_values(to_part, from_part, to, from, n, lane);
  }
}

// ---- by the threads of a block

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
__device__ __forceinline__ Threshold find_threshold(const uint32_t* bits, int n, unsigned k) {
  __shared__ unsigned counts[2048], found[2];
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t above = 0;                                                 // the digits that are known
  for (int shift = 21; shift >= 0; shift -= shift == 21 ? 11 : 10) {  // digits of 11, 11 and 10 bits
    const int width = shift == 0 ? 10 : 11;
    const uint32_t mask = (1u << width) - 1;
    for (int i = thread; i < 2048; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += kSelectThreads)
      if (shift == 21 || bits[i] >> (shift + width) == above) atomicAdd(&counts[bits[i] >> shift & mask], 1u);
    __syncthreads();
    if (thread < 32) {  // each lane has 64 digits
      unsigned mine = 0;
      for (int i = 0; i < 64; ++i) mine += counts[thread * 64 + i];
      unsigned higher = 0;  // the count of the lanes with higher digits
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
