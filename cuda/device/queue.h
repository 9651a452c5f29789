// A queue of work for the device: a stream, whose errors its GPU latches. Launches and copies return no errors. A caller who waits for the
// device asks for the error. After a failure nothing more is sent.
//
// The queue numbers its calls, and knows up to which call the device has certainly come: a wait for work that is done asks the driver
// nothing. A wait asks for kSpin, because the end of a short kernel is seen sooner so, and then sleeps until the device interrupts: a token
// takes milliseconds, and the processor has other threads. That holds whichever flags the process's context has.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "cuda/device/gpu.h"

namespace orrery::cuda {

class Queue {
 public:
  static constexpr std::chrono::microseconds kSpin{50};

  // end: an event for wait(), of the queue's own (kEventBlockingSync). Without one wait() waits as the context does.
  Queue(Gpu* gpu, Stream stream, Event end = nullptr) : gpu_(gpu), stream_(stream), end_(end) {}

  // Another stream of the same GPU.
  Queue on(Stream stream, Event end = nullptr) const { return Queue(gpu_, stream, end); }
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
    if (n_sent_ > n_done_ && latch(waited([&] { return finish(); }), what)) n_done_ = n_sent_;
  }
  // Waits for what has been sent, whatever has failed: then nothing of it is under way. An error that loses the device is latched.
  void drain() {
    const DriverError e = stream_ ? driver().wait_for_stream(stream_) : DriverError::none;
    if (loses_device(e)) latch(e, "waiting for the device behind an error");
    n_done_ = n_sent_;
  }
  // The number of calls so far. wait_for(): waits until the first n of them are done, by an event that was recorded behind them.
  uint64_t n_sent() const { return n_sent_; }
  void wait_for(Event event, uint64_t n, const char* what) {
    if (n > n_done_ && latch(waited([&] { return wait_for_event(event); }), what)) n_done_ = n;
  }
  // How often wait() and wait_for() have asked the driver, and the nanoseconds that this took.
  uint64_t n_waits() const { return n_waits_; }
  uint64_t waited_ns() const { return waited_ns_; }

 private:
  DriverError finish() const {
    if (!end_) return driver().wait_for_stream(stream_);
    const DriverError e = driver().record_event(end_, stream_);
    return e == DriverError::none ? wait_for_event(end_) : e;
  }
  DriverError wait_for_event(Event event) const {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
      const DriverError e = driver().query_event(event);
      if (e != DriverError::not_ready) return e;
    } while (std::chrono::steady_clock::now() < until);
    return driver().wait_for_event(event);
  }
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
  Event end_;
  uint64_t n_sent_ = 0, n_done_ = 0;
  uint64_t n_waits_ = 0, waited_ns_ = 0;
};

}  // namespace orrery::cuda
