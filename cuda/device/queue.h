// A queue of work for the device: a stream, and the first error that happened in it. Launches and copies return no errors. A caller who
// waits for the device asks for the error. After a failure nothing more is sent.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/base/status.h"

namespace orrery::cuda {

// The first error of a device, from any thread and any stream.
class ErrorLatch {
 public:
  // `what` says what failed, and must outlive the latch. status() has the CUDA error as native_code. A refused allocation is
  // OUT_OF_DEVICE_MEMORY; every other error means that the device is lost.
  void set(cudaError_t error, const char* what);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status status() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  cudaError_t error_ = cudaSuccess;
  const char* what_ = "";
};

class Queue {
 public:
  Queue(cudaStream_t stream, ErrorLatch* latch) : stream_(stream), latch_(latch) {}

  // Another stream, whose errors go to the same latch.
  Queue on(cudaStream_t stream) const { return Queue(stream, latch_); }
  cudaStream_t stream() const { return stream_; }
  bool failed() const { return latch_->failed(); }
  // Latches a failure. Returns whether the call succeeded.
  bool check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) latch_->set(error, what);
    return error == cudaSuccess;
  }
  Status status() const { return latch_->status(); }

 private:
  cudaStream_t stream_;
  ErrorLatch* latch_;
};

// What a thread block may have of shared memory, static and dynamic: 99 KiB on sm_86, sm_89 and sm_120; other GPUs have more.
inline constexpr int kMostSharedBytes = 99 << 10;

struct Geometry {   // grid.y and grid.z: at most 65,535
  dim3 grid, block;
  size_t shared_bytes = 0;   // dynamic
};

// Call this in .cu files only. CUDA demands an attribute of kernels with more than 48 KiB of dynamic shared memory; launch() sets it.
template <class... P, class... A>
void launch(Queue& queue, const Geometry& geometry, void (*kernel)(P...), A&&... args) {
  if (queue.failed() || geometry.grid.x == 0 || geometry.grid.y == 0 || geometry.grid.z == 0) return;
  if (geometry.shared_bytes > (size_t{48} << 10) &&
      !queue.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(geometry.shared_bytes)),
                   "asking for shared memory"))
    return;
  cudaLaunchConfig_t config = {};
  config.gridDim = geometry.grid;
  config.blockDim = geometry.block;
  config.dynamicSmemBytes = geometry.shared_bytes;
  config.stream = queue.stream();
  queue.check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(args))...), "launching a kernel");
}

}  // namespace orrery::cuda
