#include "runtime/os/stack_room.h"

#include <pthread.h>

#include <exception>

#include "runtime/os/os.h"

// A thread is the portable way to a second stack: not every C library has coroutines, and sanitizers and debuggers
// understand threads.
namespace orrery {

namespace {
constexpr size_t kStackBytes = 1 << 20;                   // reserved address space; only touched pages take memory
constexpr size_t kRoomBytes = kStackBytes - (192 << 10);  // the rest is for one level of recursion and for thread-local data
}  // namespace

StackRoom::StackRoom() : base_(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))) {}

struct StackRoom::Call {
  StackRoom* room;
  void (*function)(const void*);
  const void* argument;
  std::exception_ptr thrown;
};

void* StackRoom::enter(void* argument) {
  auto& call = *static_cast<Call*>(argument);
  call.room->base_ = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  call.room->room_ = kRoomBytes;
  try {
    call.function(call.argument);
  } catch (...) {
    call.thrown = std::current_exception();
  }
  return nullptr;
}

Status StackRoom::run(void (*function)(const void*), const void* argument) {
  Call call{this, function, argument, nullptr};
  const uintptr_t base = base_;
  const size_t room = room_;
  pthread_attr_t attributes;
  pthread_t thread;
  int failed = pthread_attr_init(&attributes);
  if (failed == 0) {
    failed = pthread_attr_setstacksize(&attributes, kStackBytes);
    if (failed == 0) {
      const os::SignalsBlocked blocked;
      failed = pthread_create(&thread, &attributes, &enter, &call);
    }
    pthread_attr_destroy(&attributes);
  }
  if (failed != 0) {
    Status status =
        error(Code::out_of_host_memory, "the nesting is too deep for this thread's stack, and the system starts no thread for it");
    status.detail().native_code = failed;
    return status;
  }
  pthread_join(thread, nullptr);
  base_ = base;
  room_ = room;
  if (call.thrown) std::rethrow_exception(call.thrown);
  return ok_status();
}

}  // namespace orrery
