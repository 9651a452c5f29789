// The pool: every item once, by threads that keep out of each other's way, in and out of bursts, with more
// threads than processors, and gone without a trace.
#include "runtime/os/thread_pool.h"

#include <gtest/gtest.h>
#ifndef _WIN32
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace orrery::thread_pool_test {
namespace {

TEST(ThreadPool, RunsEveryItemOnce) {
  for (int32_t n_threads : {1, 2, 3, 4, 8})
    for (int32_t n_processors : {1, 8}) {
      auto made = ThreadPool::make(n_threads, n_processors);
      ASSERT_TRUE(made.ok());
      ThreadPool& pool = *made.value();
      EXPECT_EQ(pool.n_threads(), n_threads);
      for (int burst = 0; burst < 2; ++burst) {
        if (burst) pool.begin_burst();
        for (int64_t n : {0, 1, 2, 3, 7, 100, 5000}) {
          std::vector<int> count(static_cast<size_t>(n));  // written by one thread each, read after
          std::atomic<bool> known{true};
          pool.run(n, [&](int64_t item, int32_t thread) {
            ++count[static_cast<size_t>(item)];
            if (thread < 0 || thread >= n_threads) known = false;
          });
          for (int c : count) ASSERT_EQ(c, 1);
          EXPECT_TRUE(known);
        }
        if (burst) pool.end_burst();
      }
    }
}

// No two threads carry the same number at once: their scratch is their own.
TEST(ThreadPool, ThreadNumbersAreExclusive) {
  auto made = ThreadPool::make(4, 4);
  ASSERT_TRUE(made.ok());
  std::atomic<int> users[4] = {};
  std::atomic<int> clashes{0};
  made.value()->begin_burst();
  for (int i = 0; i < 200; ++i)
    made.value()->run(16, [&](int64_t, int32_t thread) {
      if (users[thread].fetch_add(1) != 0) ++clashes;
      std::this_thread::yield();
      users[thread].fetch_sub(1);
    });
  made.value()->end_burst();
  EXPECT_EQ(clashes, 0);
}

// What one operation wrote, the next reads on another thread: thousands in a row, so that every way of
// meeting occurs (spinning, asleep, late).  The thread sanitizer reads along.
TEST(ThreadPool, OperationsAreOrdered) {
  for (int32_t n_threads : {2, 4}) {
    auto made = ThreadPool::make(n_threads, 4);
    ASSERT_TRUE(made.ok());
    ThreadPool& pool = *made.value();
    std::vector<int64_t> values(64, 0), next(64);
    for (int round = 0; round < 3000; ++round) {
      if (round % 100 == 0) pool.begin_burst();
      pool.run(64, [&](int64_t i, int32_t) { next[static_cast<size_t>(i)] = values[static_cast<size_t>(63 - i)] + 1; });
      std::swap(values, next);
      if (round % 100 == 50) std::this_thread::sleep_for(std::chrono::microseconds(400));
      if (round % 100 == 99) pool.end_burst();
    }
    for (int64_t v : values) ASSERT_EQ(v, 3000);
  }
}

// All threads take part: each item waits for the others.
TEST(ThreadPool, ItemsRunAtTheSameTime) {
  auto made = ThreadPool::make(4, 4);
  ASSERT_TRUE(made.ok());
  std::atomic<int> arrived{0};
  made.value()->run(4, [&](int64_t, int32_t) {
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 4);
}

double process_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Each thread runs its stretch of the items in ascending order, and those of others from the end: while one is held up by its first
// item, the others run all the rest.
TEST(ThreadPool, StretchesInOrderAndHelpFromTheEnd) {
  constexpr int64_t kThreads = 3, kItems = 30;
  auto made = ThreadPool::make(kThreads, kThreads);
  ASSERT_TRUE(made.ok());
  for (int round = 0; round < 20; ++round) {
    std::vector<int64_t> ran[kThreads];  // by the thread alone
    std::atomic<int64_t> n_ran{0};
    bool in_time = true;
    made.value()->run(kItems, [&](int64_t item, int32_t thread) {
      ran[thread].push_back(item);
      if (item == 0) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (n_ran < kItems - 1 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        in_time = n_ran == kItems - 1;
      }
      ++n_ran;
    });
    ASSERT_TRUE(in_time);
    for (int64_t thread = 0; thread < kThreads; ++thread) {
      int64_t last[kThreads] = {-1, -1, -1};
      for (const int64_t item : ran[thread]) {
        const int64_t owner = item * kThreads / kItems;
        if (last[owner] >= 0) {
          ASSERT_EQ(item > last[owner], owner == thread) << item << " by " << thread;
        }
        last[owner] = item;
      }
    }
  }
}

TEST(ThreadPool, IdleCostsNothing) {
  auto made = ThreadPool::make(4, 4);
  ASSERT_TRUE(made.ok());
  made.value()->begin_burst();
  made.value()->run(100, [](int64_t, int32_t) {});
  const double in_burst = process_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a burst that pauses is slept through as well
  EXPECT_LT(process_seconds() - in_burst, 0.02);
  made.value()->end_burst();
  const double before = process_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LT(process_seconds() - before, 0.01);
}

// Four threads on as many processors as there are, declared to be one: no spinning, so no collapse.
TEST(ThreadPool, MoreThreadsThanProcessors) {
  auto made = ThreadPool::make(16, 1);
  ASSERT_TRUE(made.ok());
  std::atomic<int64_t> sum{0};
  const double before = process_seconds();
  made.value()->begin_burst();
  for (int i = 0; i < 500; ++i) made.value()->run(16, [&](int64_t item, int32_t) { sum += item; });
  made.value()->end_burst();
  EXPECT_EQ(sum, 500 * 120);
  EXPECT_LT(process_seconds() - before, 5.0);
}

#ifndef _WIN32
TEST(ThreadPool, WorkersBlockSignals) {
  auto made = ThreadPool::make(3, 3);
  ASSERT_TRUE(made.ok());
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  EXPECT_FALSE(sigismember(&before, SIGTERM));
  std::atomic<int> arrived{0}, blocked{0};
  made.value()->run(3, [&](int64_t, int32_t thread) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (thread != 0 && sigismember(&mask, SIGTERM) && sigismember(&mask, SIGINT)) ++blocked;
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(blocked, 2);
}
#endif

TEST(ThreadPool, RefusesNoThreads) {
  auto made = ThreadPool::make(0, 1);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::invalid_argument);
}

#ifndef _WIN32
// Workers of low priority work, and the caller keeps its own priority.
TEST(ThreadPool, LowPriorityIsTheWorkersAlone) {
  const pid_t caller = static_cast<pid_t>(::syscall(SYS_gettid));
  const int own = ::getpriority(PRIO_PROCESS, static_cast<id_t>(caller));
  auto made = ThreadPool::make(3, 3, Priority::low);
  ASSERT_TRUE(made.ok());
  const std::unique_ptr<ThreadPool> pool = std::move(made).value();
  std::atomic<int> lowered{0}, n_workers{0};
  std::atomic<int64_t> sum{0};
  // Until both workers have run an item: a caller may be through before one wakes.
  for (int round = 0; round < 10000 && n_workers < 20; ++round)
    pool->run(64, [&](int64_t i, int32_t thread) {
      sum += i;
      if (thread == 0) {
        std::this_thread::yield();
        return;
      }
      ++n_workers;
      lowered += ::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid))) == std::max(own, 10);
    });
  EXPECT_GE(n_workers, 1);
  EXPECT_EQ(lowered, n_workers);
  EXPECT_EQ(sum % (64 * 63 / 2), 0);
  EXPECT_EQ(::getpriority(PRIO_PROCESS, static_cast<id_t>(caller)), own);
}
#endif

}  // namespace
}  // namespace orrery::thread_pool_test
