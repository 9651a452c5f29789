// A queue of work for the device: a stream, whose errors its GPU latches. Launches and copies return no errors. A caller who waits for the
// device asks for the error. After a failure nothing more is sent.
//
// The queue numbers its calls, and knows up to which call the device has certainly come: a wait for work that is done asks the driver
// nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

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
  // Whether kernels that may start early do (launch.h).
  bool overlaps() const { return overlaps_; }
  void set_overlaps(bool on) { overlaps_ = on; }
  bool failed() const { return gpu_->latch().failed(); }
  // Latches the failure of a call that may have sent work. Returns whether the call succeeded.
  bool check(DriverError error, const char* what) {
    ++n_sent_;
    return latch(error, what);
  }
  // Copies between any two places that the device reaches, in the queue's order.
  void copy(void* to, const void* from, size_t bytes, const char* what) {
    check(driver().copy(device_address(to), device_address(from), bytes, stream_), what);
  }
  void clear(void* at, size_t bytes, const char* what) { check(driver().fill(device_address(at), 0, bytes, stream_), what); }
  // Waits for all work of the queue.
  void wait(const char* what) {
    if (n_sent_ > n_done_ && latch(waited([&] { return driver().wait_for_stream(stream_); }), what)) n_done_ = n_sent_;
  }
  // The number of calls so far. wait_for(): waits until the first n of them are done, by an event that was recorded behind them.
  uint64_t n_sent() const { return n_sent_; }
  void wait_for(Event event, uint64_t n, const char* what) {
    if (n > n_done_ && latch(waited([&] { return driver().wait_for_event(event); }), what)) n_done_ = n;
  }
  // How often wait() and wait_for() have asked the driver, and the nanoseconds that this took.
  uint64_t n_waits() const { return n_waits_; }
  uint64_t waited_ns() const { return waited_ns_; }

 private:
  bool latch(DriverError error, const char* what) {
    if (error != DriverError::none) gpu_->latch().set(error, what);
    return error == DriverError::none;
  }

  template <class F>
  DriverError waited(const F& wait) {
    const auto start = std::chrono::steady_clock::now();
    const DriverError error = wait();
    waited_ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    ++n_waits_;
    return error;
  }

  Gpu* gpu_;
  Stream stream_;
  bool overlaps_ = false;
  uint64_t n_sent_ = 0, n_done_ = 0;
  uint64_t n_waits_ = 0, waited_ns_ = 0;
};

}  // namespace orrery::cuda
