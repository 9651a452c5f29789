// Threads that share out the items of one operation at a time, with the calling thread among them.
//
// Between bursts (a burst is one step of the model) the workers sleep and cost nothing.  Inside a burst they
// spin for a while after each operation, because the next one follows within microseconds and waking a
// sleeper takes ten times that; where there are more threads than processors nobody spins, since a spinning
// thread would keep the one it waits for off the processor.
//
// Each thread has a stretch of an operation's items, which it runs in ascending order; who is through with his own takes the last ones
// of others. Items that lie side by side in memory are thus read in order, as far as can be: on an Intel Xeon with AMX a core reads megabytes
// a tenth faster than 256 KB here and there. Still, which thread runs which item is a matter of luck: an item's result must not depend on it.
// A worker that wakes late finds nothing left and delays nobody.  The pool belongs to one caller at a time; run() is not reentrant.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/priority.h"
#include "runtime/base/status.h"

namespace orrery {

class ThreadPool {
 public:
  // Starts n_threads - 1 workers (the caller is the last one), all signals blocked, so that the application's
  // handlers run on its own threads.  `n_processors`: how many of them can run at once; more threads than
  // that never spin.  `priority`: of the workers, where the system has such; the caller keeps its own.
  static Result<std::unique_ptr<ThreadPool>> make(int32_t n_threads, int32_t n_processors,
                                                  Priority priority = Priority::normal);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t n_threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Around a series of run()s that follow each other closely.
  void begin_burst();
  void end_burst();

  // Calls fn(item, thread) for item = 0 .. n_items - 1 (at most 2^32 - 1), thread in [0, n_threads()) naming
  // the thread's own scratch; returns when all are done.  fn must not throw.
  template <class F>
  void run(int64_t n_items, const F& fn) {
    run_job(
        n_items,
        [](const void* f, int64_t item, int32_t thread) noexcept {
          (*static_cast<const F*>(f))(item, thread);
        },
        &fn);
  }

 private:
  using Call = void (*)(const void* fn, int64_t item, int32_t thread) noexcept;

  ThreadPool(bool may_spin, int32_t n_threads) : may_spin_(may_spin), stretches_(static_cast<size_t>(n_threads)) {}
  void run_job(int64_t n_items, Call call, const void* fn);
  void worker(int32_t thread);
  bool run_items(int32_t thread);
  void run_item(int64_t item, int32_t thread);
  void wait_for_items_done();

  const bool may_spin_;
  std::vector<std::thread> workers_;

  // The operation at hand: call_ and fn_ are written while no item is outstanding and read only by whoever
  // took one.
  Call call_ = nullptr;
  const void* fn_ = nullptr;
  struct alignas(64) Stretch {
    std::atomic<uint64_t> items{0};                 // next << 32 | end
    bool take_first(int64_t* item);
    bool take_last(int64_t* item);
  };
  std::vector<Stretch> stretches_;                  // (n_threads())
  alignas(64) std::atomic<uint32_t> n_operations_{0};   // that there were
  alignas(64) std::atomic<int64_t> unfinished_{0};  // items not finished yet
  int n_bursts_ = 0;                               // the caller's, one within another
  alignas(64) std::atomic<uint32_t> burst_{0};      // odd inside a burst
  std::atomic<int32_t> sleepers_{0};                // workers that need a notification
  std::atomic<bool> caller_sleeps_{false};

  std::mutex mutex_;
  std::condition_variable work_there_, all_done_;
  bool stop_ = false;  // under mutex_
};

}  // namespace orrery
