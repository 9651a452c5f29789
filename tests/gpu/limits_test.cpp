// What a device refuses to launch, in emulation: so a kernel that no GPU of the list could run fails in every test.
#ifdef ORRERY_EMULATED
#include <gtest/gtest.h>

#include "tests/emulation/cuda/cuda_runtime.h"

namespace orrery::cuda {
namespace {

int n_threads_run = 0;
void count_threads(int by) { n_threads_run += by; }

cudaError_t start(dim3 grid, dim3 block, size_t shared_bytes) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared_bytes;
  return cudaLaunchKernelEx(&config, count_threads, 1);
}

TEST(GpuLimits, LaunchesBeyondThemAreRefused) {
  constexpr int kKiB = 1024;
  const int before = n_threads_run;
  EXPECT_EQ(start({1, 65536, 1}, {32, 1, 1}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start({1, 1, 65536}, {32, 1, 1}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start({0, 1, 1}, {32, 1, 1}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start({1, 1, 1}, {1056, 1, 1}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(start({1, 1, 1}, {32, 1, 1}, 48 * kKiB + 1), cudaErrorInvalidConfiguration) << "without the attribute";
  EXPECT_EQ(cudaFuncSetAttribute(count_threads, cudaFuncAttributeMaxDynamicSharedMemorySize, 99 * kKiB + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(count_threads, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 * kKiB), cudaSuccess);
  EXPECT_EQ(start({1, 1, 1}, {32, 1, 1}, 60 * kKiB + 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(n_threads_run, before);
  if (emulated::device) return;   // this function has no PTX
  EXPECT_EQ(start({1, 2, 1}, {64, 1, 1}, 60 * kKiB), cudaSuccess);
  EXPECT_EQ(n_threads_run, before + 128);
}

}  // namespace
}  // namespace orrery::cuda
#endif
