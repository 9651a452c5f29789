// Moves tokens of KV between places and types: for kv.cu and fetch.cu.
//
// A move is cut into pieces of kPieceValues values, and a warp has one piece: a token, or a part of a run, in device memory or in shared
// host memory. The bytes of a piece are a multiple of 16 in every type. A lane has kInFlight loads under way before its first store.
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
    ORRERY_UNROLL for (int u = 0; u < kInFlight; ++u)
      if (first + 32 * u < n) x[u] = reinterpret_cast<const T*>(from)[first + 32 * u];
    ORRERY_UNROLL for (int u = 0; u < kInFlight; ++u)
      if (first + 32 * u < n) reinterpret_cast<T*>(to)[first + 32 * u] = x[u];
  }
}

// Converts n values. Loads of kInFlight blocks are under way before the first store. Only F32 and F16 end within a block.
__device__ __forceinline__ void convert_values(KvType to_type, KvType from_type, std::byte* to, const std::byte* from, int n, int lane) {
#pragma unroll 1
  for (int block = 0; block * 32 + lane < n; block += kInFlight) {
    float x[kInFlight] = {};
    const auto load = [&](auto type) {
      ORRERY_UNROLL for (int u = 0; u < kInFlight; ++u)
        if ((block + u) * 32 + lane < n) x[u] = load_value(decltype(type)::value, from, block + u, lane);
    };
    switch (from_type) {
      case KvType::f32: load(KvTypeIs<KvType::f32>{}); break;
      case KvType::f16: load(KvTypeIs<KvType::f16>{}); break;
      case KvType::q8_0: load(KvTypeIs<KvType::q8_0>{}); break;
      default: load(KvTypeIs<KvType::q4_0>{});
    }
#pragma unroll 1   // four stores of blocks side by side spill on sm_120
    for (int u = 0; u < kInFlight && (block + u) * 32 + lane < n; ++u) {
      store_value(to_type, x[0], to, block + u, lane);
      ORRERY_UNROLL for (int v = 1; v < kInFlight; ++v) x[v - 1] = x[v];
    }
  }
}

// A warp's pieces of a move of n_values values: those with indices blockIdx.y, blockIdx.y + gridDim.y and so on.
__device__ __forceinline__ void move_values(KvType to_type, KvType from_type, uint64_t to_address, uint64_t from_address, int64_t n_values,
                                            int lane) {
  const int64_t step = static_cast<int64_t>(gridDim.y) * kPieceValues;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * kPieceValues; first < n_values; first += step) {
    const int64_t piece = first / kPieceValues;
    const int n = static_cast<int>(n_values - first < kPieceValues ? n_values - first : kPieceValues);
    const std::byte* from = in_global(reinterpret_cast<const std::byte*>(from_address)) + piece * kv_bytes(from_type, kPieceValues);
    std::byte* to = in_global(reinterpret_cast<std::byte*>(to_address)) + piece * kv_bytes(to_type, kPieceValues);
    if (to_type == from_type) {   // a token is whole 4-byte words in every type
      const int n_bytes = kv_bytes(to_type, n);
      const uint64_t all = to_address | from_address | static_cast<uint64_t>(n_bytes);   // what divides all three divides each place, too
      if (all % 16 == 0)
        copy_units<uint4>(to, from, n_bytes / 16, lane);
      else if (all % 8 == 0)
        copy_units<uint2>(to, from, n_bytes / 8, lane);
      else
        copy_units<uint32_t>(to, from, n_bytes / 4, lane);
      continue;
    }
    convert_values(to_type, from_type, to, from, n, lane);
  }
}

}  // namespace orrery::cuda
