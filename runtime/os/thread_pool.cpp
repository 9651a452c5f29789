// Synchronisation of the pool's threads.
//
// One 64-bit word per thread holds the next item and the end of its range. A thread that moves either end owns the
// item. A successful exchange compares the whole word, so a worker that slept through operations can only take an
// item of the current operation. The operation's fields do not change until that item is done.
//
// Sleep and wake-up use the usual handshake: a sleeper announces itself, then looks for work once more; a poster
// publishes work, then looks for sleepers. Both sides are sequentially consistent, so at least one of them sees the
// other.
#include "runtime/os/thread_pool.h"

#include <chrono>
#include <system_error>

#include "runtime/os/os.h"

namespace orrery {

namespace {

// How long a worker spins for the next operation of a burst, and the caller for the last item. Long against the
// serial parts of a step (a few microseconds), short against the scheduler's time slice. Every few iterations the
// thread yields its processor. A yield costs nothing if no thread wants the processor, and may otherwise run the
// thread that is waited for.
constexpr std::chrono::microseconds kSpin{50};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

// Spins until `done()` or the time limit. Returns whether `done()` was true.
template <class F>
bool spin_until(const F& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

Result<std::unique_ptr<ThreadPool>> ThreadPool::make(int32_t n_threads, int32_t n_processors, Priority priority) {
  if (n_threads < 1) return error(Code::invalid_argument, "a thread pool of %d threads", n_threads);
  std::unique_ptr<ThreadPool> pool(new ThreadPool(n_threads <= n_processors, n_threads));
  pool->workers_.reserve(static_cast<size_t>(n_threads) - 1);
  const os::SignalsBlocked blocked;
  for (int32_t i = 1; i < n_threads; ++i) {
    try {
      pool->workers_.emplace_back([p = pool.get(), i, priority] {
        if (priority == Priority::low) os::lower_priority();  // a hint
        p->worker(i);
      });
    } catch (const std::system_error& e) {
      Status failed = error(Code::out_of_host_memory, "cannot start thread %d of %d: %s", i + 1, n_threads, e.what());
      failed.detail().native_code = e.code().value();
      return failed;
    }
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_there_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::begin_burst() {
  if (n_bursts_++ > 0) return;
  burst_.fetch_add(1);
  // Wakes the sleepers before the first operation.
  if (may_spin_ && sleepers_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    work_there_.notify_all();
  }
}

void ThreadPool::end_burst() {
  if (--n_bursts_ == 0) burst_.fetch_add(1);
}

bool ThreadPool::Stretch::take_first(int64_t* item) {
  uint64_t at = items.load();
  while ((at >> 32) < (at & 0xFFFFFFFFu)) {
    if (!items.compare_exchange_weak(at, at + (uint64_t{1} << 32))) continue;
    *item = static_cast<int64_t>(at >> 32);
    return true;
  }
  return false;
}

bool ThreadPool::Stretch::take_last(int64_t* item) {
  uint64_t at = items.load();
  while ((at >> 32) < (at & 0xFFFFFFFFu)) {
    if (!items.compare_exchange_weak(at, at - 1)) continue;
    *item = static_cast<int64_t>(at & 0xFFFFFFFFu) - 1;
    return true;
  }
  return false;
}

void ThreadPool::run_item(int64_t item, int32_t thread) {
  call_(fn_, item, thread);
  if (unfinished_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    all_done_.notify_one();
  }
}

// Runs items until none is left. Returns whether it ran any.
bool ThreadPool::run_items(int32_t thread) {
  bool ran = false;
  const size_t own = static_cast<size_t>(thread), n = stretches_.size();
  for (int64_t item; stretches_[own].take_first(&item); ran = true) run_item(item, thread);
  for (size_t i = 1; i < n; ++i)
    for (int64_t item; stretches_[(own + i) % n].take_last(&item); ran = true) run_item(item, thread);
  return ran;
}

void ThreadPool::worker(int32_t thread) {
  uint32_t burst = 0;  // the burst in which this worker has spun
  for (;;) {
    uint32_t seen = 0;  // operations seen so far
    const auto has_items = [&] { return n_operations_.load() != seen; };
    const auto spin = [&] {
      burst = burst_.load();
      if (may_spin_ && (burst & 1)) spin_until([&] { return has_items() || burst_.load() != burst; });
    };
    for (;;) {
      seen = n_operations_.load();
      if (!run_items(thread)) break;
      spin();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    // The start of a burst wakes a worker to spin, once. If a burst pauses for longer, the worker sleeps.
    work_there_.wait(lock, [&] { return stop_ || has_items() || (may_spin_ && (burst_.load() & 1) && burst_.load() != burst); });
    sleepers_.fetch_sub(1);
    if (stop_) return;
    lock.unlock();
    spin();
  }
}

void ThreadPool::wait_for_items_done() {
  const auto done = [&] { return unfinished_.load() == 0; };
  if (done()) return;
  if (may_spin_ && spin_until(done)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_.store(true);
  all_done_.wait(lock, done);
  caller_sleeps_.store(false);
}

void ThreadPool::run_job(int64_t n_items, Call call, const void* fn) {
  if (n_items <= 0) return;
  if (n_items == 1 || workers_.empty()) {
    for (int64_t i = 0; i < n_items; ++i) call(fn, i, 0);
    return;
  }
  call_ = call;
  fn_ = fn;
  unfinished_.store(n_items);
  const auto n = static_cast<int64_t>(stretches_.size());
  for (int64_t i = 0; i < n; ++i)
    stretches_[static_cast<size_t>(i)].items.store(static_cast<uint64_t>(n_items * i / n) << 32 |
                                                   static_cast<uint64_t>(n_items * (i + 1) / n));
  n_operations_.fetch_add(1);
  if (sleepers_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    work_there_.notify_all();
  }
  run_items(0);
  wait_for_items_done();
}

}  // namespace orrery
