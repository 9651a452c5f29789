// What a backend has while models are loaded (weights.cpp): threads that repack weights, and pinned memory from which the device copies
// them.
#pragma once

#include <memory>

#include "cuda/device/owners.h"
#include "runtime/base/priority.h"
#include "runtime/os/thread_pool.h"

namespace orrery::cuda {

class WeightUploads {
 public:
  // Bytes of each half. They are large against the time in which threads begin and end a half, and small against the time in which the last
  // half of a matrix reaches the device, because a turn waits for that.
  static constexpr uint64_t kHalfBytes = uint64_t{8} << 20;
  static constexpr int32_t kMostThreads = 8;  // unless the caller names another number: fewer threads already reach the link's rate

  // Null where the system refuses pinned memory. If it refuses threads, the caller's thread repacks alone.
  static std::shared_ptr<WeightUploads> make(const Gpu& gpu, int32_t n_threads, Priority priority);

  PinnedHalves& halves() { return halves_; }
  ThreadPool* pool() { return pool_.get(); }  // null: the caller's thread alone

 private:
  PinnedHalves halves_;
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace orrery::cuda
