// A pool of threads that share the items of one operation at a time. The calling thread takes part.
//
// A burst is one step of the model. Between bursts the workers sleep. In a burst they spin for a short time after
// each operation, because the next operation follows within microseconds. If there are more threads than processors,
// no thread spins.
//
// Each thread first runs its own range of items in ascending order, then takes the last items of other threads. An
// item's result must not depend on the thread that runs it. The pool belongs to one caller at a time; run() is not
// reentrant. runtime/os/README.md gives the reasons.
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
  // Starts n_threads - 1 workers; the caller is the last thread. Workers block all signals, so that the application's handlers run on its
  // own threads. n_processors: the number of threads that can run at once; more threads than that never spin. priority: of the workers, if
  // the system has priorities; the caller keeps its own.
  static Result<std::unique_ptr<ThreadPool>> make(int32_t n_threads, int32_t n_processors, Priority priority = Priority::normal);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t n_threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Encloses a series of run() calls that follow each other closely.
  void begin_burst();
  void end_burst();

  // Calls fn(item, thread) for item = 0 .. n_items - 1 (at most 2^32 - 1). `thread` in [0, n_threads()) is the index
  // of the thread's own scratch. Returns when all items are done. fn must not throw.
  template <class F>
  void run(int64_t n_items, const F& fn) {
    run_job(
        n_items, [](const void* f, int64_t item, int32_t thread) noexcept { (*static_cast<const F*>(f))(item, thread); }, &fn);
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

  // The current operation. The caller writes call_ and fn_ while no item is outstanding. Only a thread that has taken
  // an item reads them.
  Call call_ = nullptr;
  const void* fn_ = nullptr;
  struct alignas(64) Stretch {
    std::atomic<uint64_t> items{0};  // next << 32 | end
    bool take_first(int64_t* item);
    bool take_last(int64_t* item);
  };
  std::vector<Stretch> stretches_;                     // (n_threads())
  alignas(64) std::atomic<uint32_t> n_operations_{0};  // number of operations so far
  alignas(64) std::atomic<int64_t> unfinished_{0};     // items not yet finished
  int n_bursts_ = 0;                                   // depth of the caller's nested bursts
  alignas(64) std::atomic<uint32_t> burst_{0};         // odd during a burst
  std::atomic<int32_t> sleepers_{0};                   // workers that need a notification
  std::atomic<bool> caller_sleeps_{false};

  std::mutex mutex_;
  std::condition_variable work_there_, all_done_;
  bool stop_ = false;  // under mutex_
};

}  // namespace orrery
