#include "tests/bench/gpu_limits.h"

#include "cuda/device/launch.h"
#include "cuda/device/ptx.h"

namespace orrery::bench {

using cuda::Dim3;
using cuda::launch;

namespace gpu_limits_cu {

constexpr int kThreads = 512, kBlocksEach = 4, kAtOnce = 8;

__global__ void __launch_bounds__(kThreads) read_kernel(const std::byte* from, uint64_t n, uint32_t* sums) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads, first = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  uint32_t sum = 0;
  for (uint64_t i = first; i < n; i += kAtOnce * stride) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t at = i + static_cast<uint64_t>(k) * stride;
      v[k] = at < n ? cuda::load_once(from + 16 * at) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  sums[first] = sum;
}

// Where piece i lies: anywhere among n_places, the same places in every launch. (An integer hash: multiply, shift, multiply.)
__device__ __forceinline__ uint64_t place_of(uint32_t i, uint32_t n_places) {
  uint32_t x = (i + 1) * 0x9E3779B1u;
  x = (x ^ x >> 15) * 0x85EBCA77u;
  return (x ^ x >> 13) % n_places;
}

// Threads side by side load the words of a piece: 16 bytes each, or 8 where a piece is no multiple of 16.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const std::byte* from, uint32_t n_places, uint32_t n_pieces, uint32_t piece_words, uint32_t* sums) {
  constexpr uint32_t kWord = kWide ? 16 : 8, kInFlight = 4;
  const uint32_t stride = gridDim.x * kThreads, first = blockIdx.x * kThreads + threadIdx.x;
  const uint64_t n = static_cast<uint64_t>(n_pieces) * piece_words;
  uint32_t sum = 0;
  for (uint64_t i = first; i < n; i += kInFlight * stride) {
    uint4 v[kInFlight];
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint64_t at = i + static_cast<uint64_t>(k) * stride;
      v[k] = uint4{0, 0, 0, 0};
      if (at >= n) continue;
      const uint32_t piece = static_cast<uint32_t>(at / piece_words), word = static_cast<uint32_t>(at % piece_words);
      const std::byte* p = from + kWord * (place_of(piece, n_places) * piece_words + word);
      if constexpr (kWide) {
        v[k] = cuda::load_once(p);
      } else {
        const uint2 two = cuda::load_once_8(p);
        v[k] = uint4{two.x, two.y, 0, 0};
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  sums[first] = sum;
}

// Every writer of a place writes the same words.
__global__ void __launch_bounds__(kThreads) scatter_kernel(std::byte* to, uint32_t n_places, uint32_t n_pieces, uint32_t piece_words) {
  const uint32_t stride = gridDim.x * kThreads;
  const uint64_t n = static_cast<uint64_t>(n_pieces) * piece_words;
  for (uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < n; i += stride) {
    const uint32_t piece = static_cast<uint32_t>(i / piece_words), word = static_cast<uint32_t>(i % piece_words);
    *reinterpret_cast<uint4*>(to + 16 * (place_of(piece, n_places) * piece_words + word)) = uint4{word, word, word, word};
  }
}

__global__ void __launch_bounds__(32) nothing_kernel() {}

// A warp multiplies by mma.sync into eight sums that do not wait for one another.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads) multiply_kernel(int n, uint32_t* sums) {
  constexpr int kSums = 8;
  uint32_t a[4], b[2], sum = 0;
  for (uint32_t i = 0; i < 4; ++i) a[i] = threadIdx.x * (i + 1);
  for (uint32_t i = 0; i < 2; ++i) b[i] = threadIdx.x * (i + 5);
  int32_t whole[kSums][4] = {};
  float halves[kSums][4] = {};
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      if constexpr (kWhole) cuda::mma_s8(whole[k], a, b, whole[k]);
      else cuda::mma_f16(halves[k], a, b);
    }
  }
  for (int k = 0; k < kSums; ++k)
    for (int i = 0; i < 4; ++i) sum += kWhole ? static_cast<uint32_t>(whole[k][i]) : __float_as_uint(halves[k][i]);
  sums[blockIdx.x * kThreads + threadIdx.x] = sum;
}

}  // namespace gpu_limits_cu
using namespace gpu_limits_cu;

void read_memory(cuda::Queue& queue, int32_t n_processors, const std::byte* from, uint64_t bytes, uint32_t* sums) {
  launch<read_kernel>(queue, {Dim3(static_cast<unsigned>(n_processors * kBlocksEach)), Dim3(kThreads)}, from, bytes / 16, sums);
}

void gather(cuda::Queue& queue, int32_t n_processors, const std::byte* from, uint64_t bytes, uint32_t piece, uint32_t n_pieces,
            uint32_t* sums) {
  const cuda::Geometry geometry{Dim3(static_cast<unsigned>(n_processors * kBlocksEach)), Dim3(kThreads)};
  if (piece % 16 == 0) launch<gather_kernel<true>>(queue, geometry, from, static_cast<uint32_t>(bytes / piece), n_pieces, piece / 16, sums);
  else launch<gather_kernel<false>>(queue, geometry, from, static_cast<uint32_t>(bytes / piece), n_pieces, piece / 8, sums);
}

void scatter(cuda::Queue& queue, int32_t n_processors, std::byte* to, uint64_t bytes, uint32_t piece, uint32_t n_pieces) {
  launch<scatter_kernel>(queue, {Dim3(static_cast<unsigned>(n_processors * kBlocksEach)), Dim3(kThreads)}, to,
                         static_cast<uint32_t>(bytes / piece), n_pieces, piece / 16);
}

uint64_t multiply(cuda::Queue& queue, int32_t n_processors, bool whole, int32_t n, uint32_t* sums) {
  const cuda::Geometry geometry{Dim3(static_cast<unsigned>(n_processors)), Dim3(kThreads)};
  if (whole) launch<multiply_kernel<true>>(queue, geometry, n, sums);
  else launch<multiply_kernel<false>>(queue, geometry, n, sums);
  return static_cast<uint64_t>(n_processors) * (kThreads / 32) * static_cast<uint64_t>(n) * 8 * 16 * 8 * (whole ? 32 : 16);
}

void nothing(cuda::Queue& queue) { launch<nothing_kernel>(queue, {Dim3(1), Dim3(32)}); }

}  // namespace orrery::bench
