// See read_ahead.h.
#include "runtime/gguf/read_ahead.h"

#include <algorithm>
#include <system_error>

#include "runtime/os/os.h"

namespace orrery::gguf {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;  // of one request: the destructor waits for one at most

}  // namespace

ReadAhead::ReadAhead(const File& file, Span<const Tensor* const> tensors) : file_(file), tensors_(tensors) {
  uint64_t all = 0;
  for (const Tensor* t : tensors_) ends_.push_back(all += t->bytes);
  if (all <= kPieceBytes || !file.is_mapped()) return;
  limit_ = kWindowBytes;
  const os::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // a hint alone is lost
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
    limit_ = ends_[i] + kWindowBytes, n_copied_ = i;
  }
  changed_.notify_one();
}

void ReadAhead::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto asks = [this] { return next_ < tensors_.size() && asked_ < limit_; };
    changed_.wait(lock, [&] { return stop_ || asks() || n_released_ < n_copied_; });
    if (stop_) return;
    const bool asks_now = asks(), releases = n_released_ < n_copied_;
    lock.unlock();
    if (asks_now) ask_for_piece();
    if (releases) file_.release_pages(*tensors_[n_released_++]);
    lock.lock();
  }
}

void ReadAhead::ask_for_piece() {
  const Tensor& t = *tensors_[next_];
  const uint64_t n = std::min(kPieceBytes, ends_[next_] - asked_);
  file_.prefetch(t, asked_ - (ends_[next_] - t.bytes), n);
  asked_ += n;
  if (asked_ == ends_[next_]) ++next_;
}

}  // namespace orrery::gguf
