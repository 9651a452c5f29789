// What the backend takes of the CUDA runtime, given back when its owner goes: pinned memory, and a stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/queue.h"
#include "runtime/base/status.h"

namespace orrery::cuda {

// Host memory that the device copies from and to by itself, and when it is free again.
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
    if (const cudaError_t e = cudaEventCreateWithFlags(&used_, cudaEventDisableTiming); e != cudaSuccess)
      return error(Code::device_lost, "no CUDA event: %s", cudaGetErrorString(e));
    return ok_status();
  }
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { release(); }
  std::byte* data() const { return data_; }
  // What was copied from it is there.
  void wait(Queue& queue) const { queue.check(cudaEventSynchronize(used_), "waiting for a copy"); }
  void mark(Queue& queue) const { queue.check(cudaEventRecord(used_, queue.stream()), "marking a copy"); }

 private:
  void release() {
    if (used_) cudaEventDestroy(used_);
    if (data_) cudaFreeHost(data_);
    used_ = nullptr, data_ = nullptr;
  }

  std::byte* data_ = nullptr;
  cudaEvent_t used_ = nullptr;
};

// Two halves of it that take turns: one is filled or emptied while the other one's copies are under way.
class PinnedHalves {
 public:
  Status allocate(uint64_t bytes) {   // each
    ORRERY_TRY(halves_[0].allocate(bytes));
    return halves_[1].allocate(bytes);
  }
  // The half that is in turn, and the other one, which then is, when what was copied from it is there.
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
