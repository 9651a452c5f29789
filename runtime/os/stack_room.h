// Deep recursion on stacks of any size. Programs call the library from threads with a 64 KiB stack, and the nesting
// of a template or a JSON text may need more. A recursive function asks low() at each level. If low() is true,
// on_new_stack() runs the level on a new thread with its own stack and waits for it; the recursion continues there.
// Ordinary inputs never start a thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/status.h"

namespace orrery {

class StackRoom {
 public:
  // A recursion uses this much of the caller's stack, measured from the construction of the StackRoom, plus one level
  // and its calls: together below 40 KiB in optimized builds.
  static constexpr size_t kOwnBytes = 20 << 10;

  __attribute__((noinline)) StackRoom();
  StackRoom(const StackRoom&) = delete;
  StackRoom& operator=(const StackRoom&) = delete;

  bool low() const {
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    return (base_ > here ? base_ - here : here - base_) > room_;
  }

  // Runs `body()`, which may ask low() and recurse further. Exceptions of `body` are rethrown here.
  // out_of_host_memory if the system starts no thread; `body` has not run in this case.
  template <class F>
  Status on_new_stack(const F& body) {
    return run([](const void* argument) { (*static_cast<const F*>(argument))(); }, &body);
  }

 private:
  struct Call;
  static void* enter(void* call);
  Status run(void (*function)(const void*), const void* argument);

  uintptr_t base_;           // the address of a frame near the start
  size_t room_ = kOwnBytes;  // bytes of stack available from base_ on
};

}  // namespace orrery
