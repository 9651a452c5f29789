// See threads.h.
#include "tests/emulation/cuda/threads.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

__thread dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace orrery::emulated {

__thread std::byte* next_exchange = nullptr;
__thread unsigned running_thread = 0;

namespace {

thread_local std::byte* block_shared = nullptr;

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kStackSkew = 17 * 64;   // stacks that begin at equal offsets would share a few sets of the processor's caches
constexpr unsigned kBlockThreads = 1024;
thread_local bool reversed_order = false;

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

// Where a thread goes on. The compiler's own jumps keep three words; the function that is left has saved its caller's registers. A jump may
// not stand in the function that it leads to, so functions that jump are not inlined.
using Place = void* [5];

// A coroutine is made once. Between two blocks it waits where it has ended the body of the one before.
struct Coroutine {
  Place at;
  bool made = false, ended = false;
  Barrier* waits_for = nullptr;
  uint64_t generation = 0;    // that it waits to be over
};

struct Warp {
  Barrier barrier;
  unsigned parity = 0;        // of the lane that arrives: two exchanges may overlap
  alignas(64) std::byte values[2][kWarp][kMostExchanged];
};

// The coroutines of one CPU thread. Their stacks are made once.
class Scheduler {
 public:
  Scheduler() : coroutines_(kBlockThreads), indices_(kBlockThreads), parities_(kBlockThreads), warps_(kBlockThreads / kWarp) {
    stacks_ = mmap(nullptr, kBlockThreads * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks_ == MAP_FAILED) fail("no memory for the threads' stacks");
    for (unsigned i = 0; i < kBlockThreads; ++i)   // a guard page: a stack that overflows ends here, not in the next stack
      mprotect(static_cast<char*>(stacks_) + i * kStackBytes, 4096, PROT_NONE);
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler() { munmap(stacks_, kBlockThreads * kStackBytes); }

  void run_block(void (*body)(void*), void* context);
  void wait_for_block() { wait(&block_barrier_); }
  const std::byte* exchange();

  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "emulated kernel, block (%u, %u, %u), thread (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y,
                 blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
    std::abort();
  }

 private:
  static void enter();
  void end_thread();
  void wait(Barrier* barrier);
  // Goes on with a thread that can run. If no thread can run now, none ever will.
  [[noreturn, gnu::noinline]] void resume_another();
  [[noreturn, gnu::noinline]] void resume(unsigned thread);
  [[noreturn]] void start(unsigned thread);
  Coroutine& switch_to(unsigned thread);
  [[noreturn, gnu::noinline]] void end_block() { __builtin_longjmp(caller_, 1); }

  void* stacks_ = nullptr;
  std::vector<Coroutine> coroutines_;
  std::vector<dim3> indices_;   // threadIdx of each thread
  std::vector<unsigned char> parities_;
  std::vector<Warp> warps_;
  Barrier block_barrier_;
  unsigned n_threads_ = 0, n_live_ = 0;
  Place caller_;
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
};

__thread Scheduler* current = nullptr;   // of the CPU thread that runs a grid

Scheduler& scheduler() { return *current; }

void Scheduler::enter() {
  Scheduler& s = scheduler();
  for (;;) {
    s.body_(s.context_);
    s.end_thread();
  }
}

// Returns when the thread of the same number of another block begins.
void Scheduler::end_thread() {
  Coroutine& c = coroutines_[running_thread];
  c.ended = true;
  --n_live_;
  --block_barrier_.members;
  block_barrier_.open_if_complete();
  Barrier& warp = warps_[running_thread / kWarp].barrier;
  --warp.members;
  if (warp.arrived > 0) fail("ends while other lanes of its warp wait for it");
  if (__builtin_setjmp(c.at) != 0) return;
  if (n_live_ == 0) end_block();
  resume_another();
}

inline Coroutine& Scheduler::switch_to(unsigned thread) {
  running_thread = thread;
  threadIdx = indices_[thread];
  next_exchange = warps_[thread / kWarp].values[parities_[thread] ^ 1][thread % kWarp];
  Coroutine& c = coroutines_[thread];
  c.waits_for = nullptr;
  return c;
}

void Scheduler::start(unsigned thread) {
  coroutines_[thread].made = true;
  // Used only to enter a new stack. Later switches are jumps, which cost no system call.
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = static_cast<char*>(stacks_) + thread * kStackBytes;
  context.uc_stack.ss_size = kStackBytes - thread % 64 * kStackSkew;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  setcontext(&context);
  fail("cannot start");
}

void Scheduler::resume(unsigned thread) {
  Coroutine& c = switch_to(thread);
  if (c.made) __builtin_longjmp(c.at, 1);
  start(thread);
}

void Scheduler::resume_another() {
  unsigned i = running_thread;
  for (unsigned k = 0; k < n_threads_; ++k) {
    if (reversed_order)
      i = i == 0 ? n_threads_ - 1 : i - 1;
    else
      i = i + 1 == n_threads_ ? 0 : i + 1;
    const Coroutine& c = coroutines_[i];
    if (c.ended || (c.waits_for != nullptr && c.waits_for->generation == c.generation)) continue;
    Coroutine& next = switch_to(i);
    if (next.made) __builtin_longjmp(next.at, 1);
    start(i);
  }
  fail("waits at a barrier that some threads never reach");
}

void Scheduler::wait(Barrier* barrier) {
  Coroutine& c = coroutines_[running_thread];
  ++barrier->arrived;
  if (barrier->open_if_complete()) return;
  c.waits_for = barrier;
  c.generation = barrier->generation;
  if (__builtin_setjmp(c.at) == 0) resume_another();
}

const std::byte* Scheduler::exchange() {
  Warp& warp = warps_[running_thread / kWarp];
  const unsigned parity = parities_[running_thread] ^= 1;
  if (warp.barrier.members != kWarp) fail("exchanges with lanes that have ended");
  wait(&warp.barrier);
  next_exchange = warp.values[parity ^ 1][running_thread % kWarp];
  return warp.values[parity][0];
}

void Scheduler::run_block(void (*body)(void*), void* context) {
  const dim3 block = blockDim;
  n_threads_ = n_live_ = block.x * block.y * block.z;
  if (n_threads_ == 0 || n_threads_ > kBlockThreads || n_threads_ % kWarp != 0) fail("the block is no multiple of a warp up to 1024");
  body_ = body;
  context_ = context;
  for (unsigned i = 0; i < n_threads_; ++i) {
    coroutines_[i].ended = false;
    coroutines_[i].waits_for = nullptr;
    parities_[i] = 0;
    indices_[i] = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
  }
  block_barrier_ = {};
  block_barrier_.members = n_threads_;
  for (unsigned w = 0; w < n_threads_ / kWarp; ++w) {
    warps_[w].barrier = {};
    warps_[w].barrier.members = kWarp;
  }
  if (__builtin_setjmp(caller_) == 0) resume(reversed_order ? n_threads_ - 1 : 0);
}

}  // namespace

void run_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, void (*body)(void*), void* context) {
  // Shared memory that a block has not written is NaN, as floats.
  auto shared = std::make_unique<std::byte[]>(dynamic_shared_bytes + 128);
  const uintptr_t at = (reinterpret_cast<uintptr_t>(shared.get()) + 127) / 128 * 128;
  gridDim = grid;
  blockDim = block;
  block_shared = reinterpret_cast<std::byte*>(at);
  thread_local Scheduler of_this_thread;
  current = &of_this_thread;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        std::memset(block_shared, 0xFF, dynamic_shared_bytes);
        scheduler().run_block(body, context);
      }
}

void wait_for_block() { scheduler().wait_for_block(); }
const std::byte* exchange_values() { return scheduler().exchange(); }
std::byte* dynamic_shared() { return block_shared; }
void set_reversed(bool reversed) { reversed_order = reversed; }

}  // namespace orrery::emulated
