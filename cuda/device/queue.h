// A queue of work for the device: a stream, whose errors its GPU latches. Launches and copies return no errors. A caller who waits for the
// device asks for the error. After a failure nothing more is sent.
#pragma once

#include <cstddef>

#include "cuda/device/gpu.h"

namespace orrery::cuda {

class Queue {
 public:
  Queue(Gpu* gpu, Stream stream) : gpu_(gpu), stream_(stream) {}

  // Another stream of the same GPU.
  Queue on(Stream stream) const { return Queue(gpu_, stream); }
  Gpu& gpu() const { return *gpu_; }
  const Driver& driver() const { return gpu_->driver(); }
  Stream stream() const { return stream_; }
  bool failed() const { return gpu_->latch().failed(); }
  // Latches a failure. Returns whether the call succeeded.
  bool check(DriverError error, const char* what) {
    if (error != DriverError::none) gpu_->latch().set(error, what);
    return error == DriverError::none;
  }
  // Copies between any two places that the device reaches, in the queue's order.
  void copy(void* to, const void* from, size_t bytes, const char* what) {
    check(driver().copy(device_address(to), device_address(from), bytes, stream_), what);
  }
  void clear(void* at, size_t bytes, const char* what) { check(driver().fill(device_address(at), 0, bytes, stream_), what); }
  // Waits for all work of the queue.
  void wait(const char* what) { check(driver().wait_for_stream(stream_), what); }

 private:
  Gpu* gpu_;
  Stream stream_;
};

}  // namespace orrery::cuda
