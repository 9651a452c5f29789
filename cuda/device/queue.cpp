// See queue.h.
#include "cuda/device/queue.h"

namespace orrery::cuda {

void ErrorLatch::set(cudaError_t error, const char* what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  error_ = error;
  what_ = what;
  failed_.store(true, std::memory_order_release);
}

Status ErrorLatch::status() const {
  if (!failed()) return ok_status();
  const std::lock_guard<std::mutex> lock(mutex_);
  const Code code = error_ == cudaErrorMemoryAllocation ? Code::out_of_device_memory : Code::device_lost;
  Status s = error(code, "the CUDA device failed while %s: %s (%s)", what_, cudaGetErrorString(error_), cudaGetErrorName(error_));
  s.detail().native_code = static_cast<int64_t>(error_);
  return s;
}

}  // namespace orrery::cuda
