// The thread pool beside busy processes: bench_pool [option=value ...]. Share of the fair share that operations get.
//   busy=0,1,2,6     busy processes beside the pool
//   threads=2
//   item_us=2,100    microseconds of one item; an operation has four items for each thread, a burst 50 operations
//   rounds=7
//
// The fair share is what as many threads get that compute the same items and never wait for each other. Both are measured by turns, half a
// second each, so other programs of the machine slow both alike.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/os/thread_pool.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSeconds = .5;
constexpr int kItems = 4, kOperations = 50;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Computes for as long as `n` rounds take. Registers alone, so threads do not share memory's bandwidth.
void compute(int64_t n) {
  uint64_t x = 1;
  for (int64_t i = 0; i < n; ++i) {
    x = x * 6364136223846793005u + 1;
    asm volatile("" : "+r"(x));
  }
}

// Rounds of compute() for each microsecond of processor time.
double rounds_per_us() {
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    const auto start = Clock::now();
    compute(200000);
    best = std::max(best, 200000 / (seconds_since(start) * 1e6));
  }
  return best;
}

double pool_rate(orrery::ThreadPool* pool, int64_t rounds) {
  const auto start = Clock::now();
  int64_t items = 0;
  while (seconds_since(start) < kSeconds) {
    pool->begin_burst();
    for (int i = 0; i < kOperations; ++i) pool->run(kItems * pool->n_threads(), [&](int64_t, int32_t) { compute(rounds); });
    pool->end_burst();
    items += int64_t{kOperations} * kItems * pool->n_threads();
  }
  return static_cast<double>(items) / seconds_since(start);
}

double fair_rate(int n_threads, int64_t rounds) {
  std::atomic<int64_t> items{0};
  std::atomic<bool> stop{false};
  const auto start = Clock::now();
  const auto work = [&] {
    int64_t mine = 0;
    for (; !stop; ++mine) compute(rounds);
    items += mine;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < n_threads; ++i) threads.emplace_back(work);
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  stop = true;
  for (std::thread& t : threads) t.join();
  return static_cast<double>(items.load()) / seconds_since(start);
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> all;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) all.push_back(std::atoi(part.c_str()));
  return all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  std::string busy = "0,1,2,6", threads = "2", item_us = "2,100", rounds = "7";
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const size_t equals = option.find('=');
    const std::string name = option.substr(0, equals), value = equals == std::string::npos ? "" : option.substr(equals + 1);
    (name == "busy" ? busy : name == "threads" ? threads : name == "item_us" ? item_us : rounds) = value;
  }
  const int n_threads = std::atoi(threads.c_str());
  auto made = orrery::ThreadPool::make(n_threads, static_cast<int32_t>(std::thread::hardware_concurrency()));
  if (!made.ok()) return 1;
  const double speed = rounds_per_us();
  std::printf("%5s %8s  %14s  %14s  %6s\n", "busy", "item us", "pool, items/s", "fair, items/s", "share");
  for (const int n_busy : numbers(busy)) {
    std::vector<pid_t> children;
    for (int i = 0; i < n_busy; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) compute(1000);
      }
      children.push_back(child);
    }
    for (const int us : numbers(item_us)) {
      const auto n = static_cast<int64_t>(speed * us);
      std::vector<double> pool, fair;
      for (int i = 0; i < std::atoi(rounds.c_str()); ++i) {
        pool.push_back(pool_rate(made.value().get(), n));
        fair.push_back(fair_rate(n_threads, n));
      }
      std::printf("%5d %8d  %14.0f  %14.0f  %5.0f%%\n", n_busy, us, median(pool), median(fair), 100 * median(pool) / median(fair));
      std::fflush(stdout);
    }
    for (const pid_t child : children) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  }
}
