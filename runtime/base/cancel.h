// Answers whether somebody wants a wait to end. A wait that may last asks a few times within each kCancelWithin.
#pragma once

#include <atomic>
#include <chrono>

namespace orrery {

// A wait notices a cancellation within this time, however long it would last.
inline constexpr std::chrono::milliseconds kCancelWithin(100);
inline constexpr std::chrono::milliseconds kAskEvery = kCancelWithin / 5;

class Cancel {
 public:
  Cancel() = default;  // nobody ever cancels
  // The flag says so when it is set. Null: nobody ever cancels.
  Cancel(const std::atomic<bool>* flag)  // NOLINT: a flag converts to a Cancel
      : asked_(flag ? [](const void* f) { return static_cast<const std::atomic<bool>*>(f)->load(std::memory_order_relaxed); } : Ask{}),
        context_(flag) {}
  // f() says so. The waiting thread calls it. f outlives the Cancel.
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
