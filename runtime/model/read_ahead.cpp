// See read_ahead.h.
#include "runtime/model/read_ahead.h"

#include <algorithm>
#include <system_error>

#include "runtime/os/os.h"

namespace orrery::model {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;   // of one request: the destructor waits for one at most

}  // namespace

ReadAhead::ReadAhead(const gguf::File& file, Span<const gguf::Tensor* const> tensors) : file_(file), tensors_(tensors) {
  uint64_t all = 0;
  for (const gguf::Tensor* t : tensors_) ends_.push_back(all += t->bytes);
  if (all <= kPieceBytes || !file.is_mapped()) return;
  limit_ = kWindowBytes;
  const os::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {   // a hint alone is lost
  }
}

ReadAhead::~ReadAhead() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ReadAhead::begin(size_t i) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit_ = ends_[i] + kWindowBytes;
  }
  changed_.notify_one();
}

void ReadAhead::run() {
  uint64_t done = 0;   // bytes of the tensors, in their order
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const gguf::Tensor& t = *tensors_[i];
    for (const uint64_t first = done; done < ends_[i];) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || done < limit_; });
        if (stop_) return;
      }
      const uint64_t n = std::min(kPieceBytes, ends_[i] - done);
      file_.prefetch(t, done - first, n);
      done += n;
    }
  }
}

}  // namespace orrery::model
