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

__global__ void __launch_bounds__(32) nothing_kernel() {}

}  // namespace gpu_limits_cu
using namespace gpu_limits_cu;

void read_memory(cuda::Queue& queue, int32_t n_processors, const std::byte* from, uint64_t bytes, uint32_t* sums) {
  launch<read_kernel>(queue, {Dim3(static_cast<unsigned>(n_processors * kBlocksEach)), Dim3(kThreads)}, from, bytes / 16, sums);
}

void nothing(cuda::Queue& queue) { launch<nothing_kernel>(queue, {Dim3(1), Dim3(32)}); }

}  // namespace orrery::bench
