// Whether somebody wants a wait to end. Waits that may last ask it again and again, a few times in kCancelWithin.
#pragma once

#include <atomic>
#include <chrono>

namespace orrery {

// A cancellation is noticed within this time, however long a wait would last.
inline constexpr std::chrono::milliseconds kCancelWithin(100);
inline constexpr std::chrono::milliseconds kAskEvery = kCancelWithin / 5;

class Cancel {
 public:
  Cancel() = default;   // nobody ever does
  // Where the flag is set. Null: nobody ever does.
  Cancel(const std::atomic<bool>* flag)   // NOLINT: a flag is one
      : asked_(flag ? [](const void* f) { return static_cast<const std::atomic<bool>*>(f)->load(std::memory_order_relaxed); } : Ask{}), context_(flag) {}
  // Where f() says so. It is called on the waiting thread, and outlives this.
  template <class F>
  static Cancel when(const F* f) {
    Cancel cancel;
    cancel.asked_ = [](const void* asked) -> bool { return (*static_cast<const F*>(asked))(); };
    cancel.context_ = f;
    return cancel;
  }

  bool possible() const { return asked_ != nullptr; }
  bool asked() const { return asked_ && asked_(context_); }

 private:
  using Ask = bool (*)(const void*);
  Ask asked_ = nullptr;
  const void* context_ = nullptr;
};

}  // namespace orrery
