// Recursion on stacks of any size.  Programs call the library from threads with 64 KiB of stack, and descending a
// template's or a JSON text's nesting may take more.  A recursive function asks low() at each level; where the answer
// is yes, on_new_stack() runs the level on a thread with a stack of its own and waits for it, and the descent goes on
// there.  Ordinary inputs never start a thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/status.h"

namespace orrery {

class StackRoom {
 public:
  // Of the caller's stack a descent takes this, measured from where the StackRoom was made, plus one level and
  // what that calls: together below 40 KiB in optimized builds.
  static constexpr size_t kOwnBytes = 20 << 10;

  __attribute__((noinline)) StackRoom();
  StackRoom(const StackRoom&) = delete;
  StackRoom& operator=(const StackRoom&) = delete;

  bool low() const {
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    return (base_ > here ? base_ - here : here - base_) > room_;
  }

  // Runs `body()`, which may ask low() and descend further.  Its exceptions arrive here.  out_of_host_memory where
  // the system starts no thread; then `body` has not run.
  template <class F>
  Status on_new_stack(const F& body) {
    return run([](const void* argument) { (*static_cast<const F*>(argument))(); }, &body);
  }

 private:
  struct Call;
  static void* enter(void* call);
  Status run(void (*function)(const void*), const void* argument);

  uintptr_t base_;          // a frame's address near the start
  size_t room_ = kOwnBytes;  // bytes from there on
};

}  // namespace orrery
