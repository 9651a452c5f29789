// A grid of CUDA threads on one thread of the processor, block by block.
//
// Each thread of a block is a coroutine with a stack of its own. It runs until it waits at a barrier of its warp or its block; then the
// next thread that can run does, of its warp as long as there is one. So a kernel with correct barriers gives the same results in any order
// of threads, and a kernel with a missing barrier does not: `reversed` runs the last thread first.
//
// A mistake of a kernel ends the program with a message that names block and thread: threads that wait for each other forever, a warp whose
// lanes are at different barriers, a block that is no multiple of a warp.
//
// Most of the emulation's time is the way from one thread to the next. So exchange() and switch_to() are inlined where a kernel waits: the
// compiler saves what the kernel still needs, and the processor foretells where each wait goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// The variables that every thread of the running block sees. __thread: constants initialize them, so whoever reads one calls no function.
extern __thread dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace orrery::emulated {

inline constexpr unsigned kWarp = 32;
inline thread_local uint64_t n_waited_for_earlier = 0;  // calls of wait_for_earlier_kernels() by kernels that this thread runs

std::byte* dynamic_shared();  // of the running block, 128-byte aligned

// Runs body(context) in every thread of every block of the grid.
void run_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, void (*body)(void*), void* context);

// A barrier. Threads that have ended count as arrived.
struct Barrier {
  unsigned arrived = 0, members = 0;
  uint64_t generation = 0;
  bool open_if_complete() {
    if (arrived < members || members == 0) return false;
    arrived = 0;
    ++generation;
    return true;
  }
};

// What the lanes of a warp show each other: values of one exchange, and of the next one, which may overlap. Lane l's begins kMostExchanged
// l bytes behind lane 0's.
inline constexpr size_t kMostExchanged = 64, kExchangeBytes = kWarp * kMostExchanged;

// A thread of a block. It can run unless `*waits_for` is still `generation`.
struct Coroutine {
  void* at[3];  // where it goes on: stack, frame, instruction
  const uint64_t* waits_for = nullptr;
  uint64_t generation = 0;
  Coroutine* next = nullptr;  // of its warp, in the order in which threads run
  Barrier* warp = nullptr;
  std::byte* slot = nullptr;  // where its next value goes; the one after goes kExchangeBytes further, or back
  dim3 index;                 // threadIdx
  unsigned lane = 0;
  bool begins = false;  // it has not run in this block
  bool can_run() const { return *waits_for != generation; }
};
extern __thread Coroutine* running;
Coroutine* another_that_can_run();  // if no thread can run now, none ever will: ends the program

#if defined(__x86_64__)
// Leaves `from`, and returns when it is switched to. What the compiler keeps in registers it saves before.
inline __attribute__((always_inline)) void switch_places(void** from, void** to) {
  asm volatile(
      "leaq 1f(%%rip), %%rax\n\t"
      "movq %%rsp, (%0)\n\t"
      "movq %%rbp, 8(%0)\n\t"
      "movq %%rax, 16(%0)\n\t"
      "movq (%1), %%rsp\n\t"
      "movq 8(%1), %%rbp\n\t"
      "jmpq *16(%1)\n"
      "1:"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
        "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}
#else
void switch_places(void** from, void** to);
#endif
inline __attribute__((always_inline)) void switch_to(Coroutine* me, Coroutine* next) {
  running = next;
  threadIdx = next->index;
  switch_places(me->at, next->at);
}
inline Coroutine* next_that_can_run(Coroutine* me) { return me->next->can_run() ? me->next : another_that_can_run(); }
inline __attribute__((always_inline)) void wait(Coroutine* me, Barrier* barrier) {
  me->waits_for = &barrier->generation;
  me->generation = barrier->generation;
  switch_to(me, next_that_can_run(me));
}

extern __thread Barrier* block_barrier;
inline __attribute__((always_inline)) void wait_for_block() {  // __syncthreads
  Barrier* barrier = block_barrier;
  ++barrier->arrived;
  if (!barrier->open_if_complete()) wait(running, barrier);
}
// Waits for the whole warp. `value` (up to kMostExchanged bytes) becomes visible to the other lanes. exchange() returns the address of lane
// 0's value; the other lanes' values follow, kMostExchanged bytes apart. They stay valid until the warp's next call but one. The lane that
// arrives last calls combine(values), which may put something else in their place.
template <size_t kBytes, class F>
inline __attribute__((always_inline)) std::byte* exchange(const void* value, F combine) {
  static_assert(kBytes <= kMostExchanged, "");
  Coroutine* me = running;
  std::byte* slot = me->slot;
  if (kBytes) std::memcpy(slot, value, kBytes);
  me->slot = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(slot) ^ kExchangeBytes);
  std::byte* values = slot - me->lane * kMostExchanged;
  Barrier* barrier = me->warp;
  if (++barrier->arrived < kWarp) {
    wait(me, barrier);
  } else {
    combine(values);
    barrier->arrived = 0;
    ++barrier->generation;
  }
  return values;
}
template <size_t kBytes>
inline __attribute__((always_inline)) const std::byte* exchange(const void* value) {
  return exchange<kBytes>(value, [](std::byte*) {});
}
inline unsigned lane() { return running->lane; }

// The number of graphs that have been made so far, in the whole process.
size_t graphs_made();

// The order in which the threads of a block run.
void set_reversed(bool reversed);

}  // namespace orrery::emulated
