// See threads.h.
#include "tests/emulation/cuda/threads.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

__thread dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace orrery::emulated {

__thread Coroutine* running = nullptr;
__thread Barrier* block_barrier = nullptr;

namespace {

thread_local std::byte* block_shared = nullptr;

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kStackSkew = 17 * 64;  // stacks that begin at equal offsets would share a few sets of the processor's caches
constexpr unsigned kBlockThreads = 1024;
thread_local bool reversed_order = false;
constexpr uint64_t kNever = 0;  // an ended thread waits for its generation to be over

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated kernel, block (%u, %u, %u), thread (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
               threadIdx.y, threadIdx.z, what);
  std::abort();
}

// The coroutines of one CPU thread. Their stacks are made once: between two blocks each waits where it has ended the body of a thread.
class Scheduler {
 public:
  Scheduler() : coroutines_(kBlockThreads), warps_(kBlockThreads / kWarp), values_(kBlockThreads / kWarp) {
    stacks_ = mmap(nullptr, kBlockThreads * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks_ == MAP_FAILED) fail("no memory for the threads' stacks");
    for (unsigned i = 0; i < kBlockThreads; ++i) {
      char* stack = static_cast<char*>(stacks_) + i * kStackBytes;
      mprotect(stack, 4096, PROT_NONE);  // a stack that overflows ends here, not in the next stack
      begin_at(coroutines_[i].at, stack, kStackBytes - i % 64 * kStackSkew);
      coroutines_[i].warp = &warps_[i / kWarp];
      coroutines_[i].lane = i % kWarp;
    }
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler() { munmap(stacks_, kBlockThreads * kStackBytes); }

  void run_block(dim3 block, void (*body)(void*), void* context);
  Coroutine* another_that_can_run();

 private:
  static void enter();
  static void begin_at(void** at, char* stack, size_t bytes);
  void set_order(dim3 block);
  void end_thread();

  void* stacks_ = nullptr;
  std::vector<Coroutine> coroutines_;
  std::vector<Barrier> warps_;
  struct alignas(2 * kExchangeBytes) Values {
    std::byte of_exchange[2][kExchangeBytes];
  };
  std::vector<Values> values_;  // of each warp
  Barrier block_barrier_;
  dim3 block_ = {0, 0, 0};  // that indices and order are set for
  bool reversed_ = false;
  unsigned n_threads_ = 0, n_live_ = 0;
  void* caller_[3];
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
};

__thread Scheduler* current = nullptr;  // of the CPU thread that runs a grid

void Scheduler::enter() {
  Scheduler& s = *current;
  for (;;) {
    running->begins = false;
    s.body_(s.context_);
    s.end_thread();
  }
}

// A coroutine's first place: enter(), on an empty stack.
void Scheduler::begin_at(void** at, char* stack, size_t bytes) {
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) / 16 * 16) - 1;  // as a call leaves it
  *top = nullptr;
  at[0] = top, at[1] = nullptr, at[2] = reinterpret_cast<void*>(&Scheduler::enter);
#else
  auto* context = new ucontext_t;  // until it begins
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, enter, 0);
  at[0] = context, at[1] = at[2] = nullptr;
#endif
}

// Returns when a thread begins, of this block or of another one. A thread that begins next takes over this one's stack, and leaves its own:
// so threads that wait for nobody run in a loop on one stack.
void Scheduler::end_thread() {
  Coroutine* me = running;
  me->waits_for = &kNever, me->generation = kNever;
  --n_live_;
  --block_barrier_.members;
  block_barrier_.open_if_complete();
  --me->warp->members;
  if (me->warp->arrived > 0) fail("ends while other lanes of its warp wait for it");
  if (n_live_ == 0) return switch_places(me->at, caller_);
  Coroutine* next = next_that_can_run(me);
  if (!next->begins) return switch_to(me, next);
  std::memcpy(me->at, next->at, sizeof me->at);
  running = next;
  threadIdx = next->index;
}

Coroutine* Scheduler::another_that_can_run() {
  const auto i = static_cast<unsigned>(running - coroutines_.data());
  if (running->waits_for == &running->warp->generation && running->warp->members != kWarp) fail("exchanges with lanes that have ended");
  for (unsigned k = 1; k <= n_threads_; ++k) {
    Coroutine& c = coroutines_[(reversed_ ? i + n_threads_ - k : i + k) % n_threads_];
    if (c.can_run()) return &c;
  }
  fail("waits at a barrier that some threads never reach");
}

void Scheduler::set_order(dim3 block) {
  for (unsigned i = 0; i < n_threads_; ++i) {
    Coroutine& c = coroutines_[i];
    c.index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    c.next = &coroutines_[i / kWarp * kWarp + (c.lane + (reversed_order ? kWarp - 1 : 1)) % kWarp];
  }
  block_ = block;
  reversed_ = reversed_order;
}

void Scheduler::run_block(dim3 block, void (*body)(void*), void* context) {
  n_threads_ = n_live_ = block.x * block.y * block.z;
  if (n_threads_ == 0 || n_threads_ > kBlockThreads || n_threads_ % kWarp != 0) fail("the block is no multiple of a warp up to 1024");
  body_ = body;
  context_ = context;
  if (block.x != block_.x || block.y != block_.y || block.z != block_.z || reversed_ != reversed_order) set_order(block);
  for (unsigned i = 0; i < n_threads_; ++i) {
    Coroutine& c = coroutines_[i];
    c.waits_for = &kNever, c.generation = kNever + 1;
    c.slot = values_[i / kWarp].of_exchange[0] + c.lane * kMostExchanged;
    c.begins = true;
  }
  block_barrier_ = {};
  block_barrier_.members = n_threads_;
  block_barrier = &block_barrier_;
  for (unsigned w = 0; w < n_threads_ / kWarp; ++w) {
    warps_[w] = {};
    warps_[w].members = kWarp;
  }
  running = &coroutines_[reversed_ ? n_threads_ - 1 : 0];
  threadIdx = running->index;
  switch_places(caller_, running->at);
}

}  // namespace

#if !defined(__x86_64__)
// The compiler's own jumps: the function that is left has saved its caller's registers. A jump may not stand in the function that it leads
// to, so it is not inlined.
namespace {
[[noreturn, gnu::noinline]] void go_on(void** to) {
  if (to[2] != nullptr) __builtin_longjmp(static_cast<void**>(to[0]), 1);
  setcontext(static_cast<ucontext_t*>(to[0]));
  fail("cannot begin");
}
}  // namespace
[[gnu::noinline]] void switch_places(void** from, void** to) {
  void* place[5];  // on the stack that is left, which stays
  from[0] = place, from[2] = place;
  if (__builtin_setjmp(place) == 0) go_on(to);
}
#endif

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
        current->run_block(block, body, context);
      }
}

Coroutine* another_that_can_run() { return current->another_that_can_run(); }
std::byte* dynamic_shared() { return block_shared; }
void set_reversed(bool reversed) { reversed_order = reversed; }

}  // namespace orrery::emulated
