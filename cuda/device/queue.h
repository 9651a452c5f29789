// Where work for the device goes: a stream, and the first error that happened in it. Launches and copies return nothing; who
// waits for the device asks what went wrong. Behind a failure nothing more is sent.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/base/status.h"

namespace orrery::cuda {

// The first error of a device, from whichever thread and stream.
class ErrorLatch {
 public:
  // What failed keeps its CUDA error as native_code. All errors but a refused allocation end the device.
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
  // Notes a failure; true where there was none.
  bool check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) latch_->set(error, what);
    return error == cudaSuccess;
  }
  Status status() const { return latch_->status(); }

 private:
  cudaStream_t stream_;
  ErrorLatch* latch_;
};

struct Geometry {
  dim3 grid, block;
  size_t shared_bytes = 0;   // dynamic
};

// Only in .cu files. A kernel that takes more than 48 KiB of dynamic shared memory has to be told so.
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
