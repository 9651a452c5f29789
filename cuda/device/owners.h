// Owners of the driver's resources: events, pinned memory, streams. Each releases its resource when it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/queue.h"
#include "runtime/base/status.h"

namespace orrery::cuda {

inline Status refused(const char* what, DriverError e, const Driver& driver) {
  const Code code = e == DriverError::out_of_memory ? Code::out_of_device_memory : Code::device_lost;
  Status s = error(code, "%s: %s", what, driver.text(e).c_str());
  s.detail().native_code = static_cast<int64_t>(e);
  return s;
}

// A point in a queue: the last one that mark() has set.
class EventOwner {
 public:
  Status create(const Gpu& gpu) {
    release();
    const OnDevice here(gpu);
    DriverError e = here.error();
    if (e == DriverError::none) e = gpu.driver().create_event(&event_, kEventDisableTiming | kEventBlockingSync);
    if (e != DriverError::none) return refused("no CUDA event", e, gpu.driver());
    gpu_ = &gpu;
    return ok_status();
  }
  EventOwner() = default;
  EventOwner(const EventOwner&) = delete;
  EventOwner& operator=(const EventOwner&) = delete;
  ~EventOwner() { release(); }
  void mark(Queue& queue) {
    if (!queue.failed() && queue.check(queue.driver().record_event(event_, queue.stream()), "marking a point in a queue"))
      n_sent_ = queue.n_sent();
  }
  Event get() const { return event_; }
  // wait(): the host waits for the point; `queue` is the queue of the mark. order(): later work of another queue waits for it.
  void wait(Queue& queue) const { queue.wait_for(event_, n_sent_, "waiting for a copy"); }
  void order(Queue& later) const {
    if (!later.failed()) later.check(later.driver().order_stream(later.stream(), event_, 0), "ordering two queues");
  }

 private:
  void release() {
    if (!gpu_) return;
    if (const OnDevice here(*gpu_); here.in_its_process()) gpu_->driver().destroy_event(event_);
    event_ = nullptr, gpu_ = nullptr, n_sent_ = 0;
  }

  const Gpu* gpu_ = nullptr;  // null: no event
  Event event_ = nullptr;
  uint64_t n_sent_ = 0;  // Queue::n_sent() at the mark
};

// Pinned host memory, which the device copies from and to by itself, and the point in a queue from which on it is free again.
class Pinned {
 public:
  Status allocate(const Gpu& gpu, uint64_t bytes) {
    release();
    const OnDevice here(gpu);
    void* at = nullptr;
    DriverError e = here.error();
    if (e == DriverError::none) e = gpu.driver().allocate_host(&at, bytes, 0);
    if (loses_device(e)) return refused("no pinned host memory", e, gpu.driver());
    if (e != DriverError::none)
      return memory_error(Code::out_of_pinned_memory, bytes, 0, "no %llu bytes of pinned host memory: %s",
                          static_cast<unsigned long long>(bytes), gpu.driver().text(e).c_str());
    gpu_ = &gpu, data_ = static_cast<std::byte*>(at);
    return used_.create(gpu);
  }
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { release(); }
  std::byte* data() const { return data_; }
  // mark() when the copies have been sent. wait() returns when they are done.
  void wait(Queue& queue) const { used_.wait(queue); }
  void mark(Queue& queue) { used_.mark(queue); }

 private:
  void release() {
    if (!gpu_) return;
    if (const OnDevice here(*gpu_); here.in_its_process()) gpu_->driver().free_host(data_);
    data_ = nullptr, gpu_ = nullptr;
  }

  const Gpu* gpu_ = nullptr;  // null: no memory
  std::byte* data_ = nullptr;
  EventOwner used_;
};

// Two halves of pinned memory that take turns: the host fills or empties one half while the device copies the other half. Small pieces
// share a half: the host waits when it comes back to a half, not for each piece.
class PinnedHalves {
 public:
  Status allocate(const Gpu& gpu, uint64_t bytes) {  // of each half
    bytes_ = used_ = bytes;
    ORRERY_TRY(halves_[0].allocate(gpu, bytes));
    return halves_[1].allocate(gpu, bytes);
  }
  // now(): the current half. next(): makes the other half the current one, all of it, and waits until its copies are done.
  Pinned& now() { return halves_[turn_]; }
  Pinned& next(Queue& queue) {
    turn_ ^= 1;
    used_ = bytes_;
    if (!queue.failed()) now().wait(queue);
    return now();
  }
  // Offset of `bytes` unused bytes in the half that now() is afterwards: the current half, if they fit. At most a half's bytes.
  uint64_t take(Queue& queue, uint64_t bytes) {
    const uint64_t taken = (bytes + 63) / 64 * 64;
    if (taken > bytes_ - used_) next(queue), used_ = 0;
    used_ += taken;
    return used_ - taken;
  }

 private:
  Pinned halves_[2];
  uint64_t bytes_ = 0, used_ = 0;  // of a half; of the current half
  int turn_ = 0;
};

class StreamOwner {
 public:
  Status create(const Gpu& gpu) {
    const OnDevice here(gpu);
    DriverError e = here.error();
    if (e == DriverError::none) e = gpu.driver().create_stream(&stream_, kStreamNonBlocking);
    if (e != DriverError::none) return refused("no CUDA stream", e, gpu.driver());
    gpu_ = &gpu;
    return end_.create(gpu);
  }
  StreamOwner() = default;
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  ~StreamOwner() {
    if (!gpu_) return;
    if (const OnDevice here(*gpu_); here.in_its_process()) gpu_->driver().destroy_stream(stream_);
  }
  // A queue of the stream. There is one at a time, because its waits use one event.
  Queue queue(Gpu* gpu) const { return Queue(gpu, stream_, end_.get()); }
  Stream get() const { return stream_; }

 private:
  const Gpu* gpu_ = nullptr;  // null: no stream
  Stream stream_ = nullptr;
  EventOwner end_;  // Queue::wait()
};

}  // namespace orrery::cuda
