// Owners of resources of the CUDA runtime: events, pinned memory, streams, and the thread's device. Each releases its resource when it is
// destroyed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/device/queue.h"
#include "runtime/base/status.h"

namespace orrery::cuda {

// Makes a device the calling thread's current one, and puts back the thread's own. CUDA takes launches and allocations only so: each thread
// has a current device, which is device 0 until the thread chooses another.
class OnDevice {
 public:
  explicit OnDevice(int index) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != index) {
      error_ = cudaSetDevice(index);
      changed_ = error_ == cudaSuccess;
    }
  }
  // A failure is the queue's: nothing is sent to another device.
  OnDevice(int index, Queue& queue) : OnDevice(index) { queue.check(error_, "choosing the device"); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (changed_ && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
  }
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

// A point in a queue: the last one that mark() has set.
class EventOwner {
 public:
  Status create() {
    release();
    if (const cudaError_t e = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming); e != cudaSuccess)
      return error(Code::device_lost, "no CUDA event: %s", cudaGetErrorString(e));
    return ok_status();
  }
  EventOwner() = default;
  EventOwner(const EventOwner&) = delete;
  EventOwner& operator=(const EventOwner&) = delete;
  ~EventOwner() { release(); }
  void mark(Queue& queue) const {
    if (!queue.failed()) queue.check(cudaEventRecord(event_, queue.stream()), "marking a point in a queue");
  }
  // wait(): the host waits for the point. order(): later work of another queue waits for it.
  void wait(Queue& queue) const { queue.check(cudaEventSynchronize(event_), "waiting for a copy"); }
  void order(Queue& later) const {
    if (!later.failed()) later.check(cudaStreamWaitEvent(later.stream(), event_, 0), "ordering two queues");
  }

 private:
  void release() {
    if (event_) cudaEventDestroy(event_);
    event_ = nullptr;
  }

  cudaEvent_t event_ = nullptr;
};

// Pinned host memory, which the device copies from and to by itself, and the point in a queue from which on it is free again.
class Pinned {
 public:
  Status allocate(uint64_t bytes) {
    release();
    void* at = nullptr;
    if (const cudaError_t e = cudaHostAlloc(&at, bytes, cudaHostAllocDefault); e != cudaSuccess) {
      cudaGetLastError();
      return memory_error(Code::out_of_pinned_memory, bytes, 0, "no %llu bytes of pinned host memory: %s",
                          static_cast<unsigned long long>(bytes), cudaGetErrorString(e));
    }
    data_ = static_cast<std::byte*>(at);
    return used_.create();
  }
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { release(); }
  std::byte* data() const { return data_; }
  // mark() when the copies have been sent. wait() returns when they are done.
  void wait(Queue& queue) const { used_.wait(queue); }
  void mark(Queue& queue) const { used_.mark(queue); }

 private:
  void release() {
    if (data_) cudaFreeHost(data_);
    data_ = nullptr;
  }

  std::byte* data_ = nullptr;
  EventOwner used_;
};

// Two halves of pinned memory that take turns: the host fills or empties one half while the device copies the other.
class PinnedHalves {
 public:
  Status allocate(uint64_t bytes) {   // of each half
    ORRERY_TRY(halves_[0].allocate(bytes));
    return halves_[1].allocate(bytes);
  }
  // now(): the current half. next(): makes the other half the current one, and waits until its copies are done.
  const Pinned& now() const { return halves_[turn_]; }
  const Pinned& next(Queue& queue) {
    turn_ ^= 1;
    if (!queue.failed()) now().wait(queue);
    return now();
  }

 private:
  Pinned halves_[2];
  int turn_ = 0;
};

class StreamOwner {
 public:
  Status create() {
    if (const cudaError_t e = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); e != cudaSuccess)
      return error(Code::device_lost, "no CUDA stream: %s", cudaGetErrorString(e));
    return ok_status();
  }
  StreamOwner() = default;
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  ~StreamOwner() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace orrery::cuda
