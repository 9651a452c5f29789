// See limits.h. Reading sums all words of the buffer. Threads take ranges of the buffer as they become free.
#include "commands/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "commands/peak.h"

namespace orrery::tool {
namespace {

constexpr uint64_t kStretch = 256 << 10, kStretchWords = kStretch / 8;
constexpr double kLeastSeconds = 0.05;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs f(thread) on n threads that start together. Returns the seconds from the start to the end of the last thread.
template <typename Function>
double seconds(int n, const Function& f) {
  using Clock = std::chrono::steady_clock;
  std::atomic<int> waiting{n};
  std::vector<Clock::time_point> begun(static_cast<size_t>(n)), ended(begun);
  const auto work = [&](int i) {
    --waiting;
    while (waiting > 0) std::this_thread::yield();
    begun[static_cast<size_t>(i)] = Clock::now();
    f(i);
    ended[static_cast<size_t>(i)] = Clock::now();
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < n; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(*std::max_element(ended.begin(), ended.end()) -
                                       *std::min_element(begun.begin(), begun.end()))
      .count();
}

uint64_t sum_words(const uint64_t* words, uint64_t n) {
  uint64_t sums[16] = {};
  for (uint64_t at = 0; at < n; at += 16)
    for (uint64_t i = 0; i < 16; ++i) sums[i] += words[at + i];
  uint64_t all = 0;
  for (const uint64_t sum : sums) all += sum;
  return all;
}

// Operations per second of all threads together.
double peak_rate(int n_threads, const std::string& path, peak::Kind kind) {
  for (int64_t times = 1 << 8;; times *= 2) {
    std::atomic<int64_t> ops{0};
    const double s = seconds(n_threads, [&](int) { ops += static_cast<int64_t>(peak::run(path, kind, times)); });
    if (s >= kLeastSeconds) return static_cast<double>(ops) / s;
  }
}

}  // namespace

Limits::Limits(int n_threads, const std::string& path, uint64_t bytes) : n_threads_(n_threads), path_(path) {
  bytes = std::min({bytes, uint64_t{4} << 30, physical_memory_bytes() / 4});
  bytes = std::max(bytes / kStretch, uint64_t{1}) * kStretch;
  buffer_ = system_memory(bytes);
  if (buffer_) std::memset(buffer_.get(), 1, bytes);
}

Limits::~Limits() = default;

void Limits::sample() {
  if (buffer_) {
    // Repeats until the time is long enough to measure.
    const uint64_t n_stretches = buffer_.get_deleter().bytes / kStretch;
    for (uint64_t passes = 2;; passes *= 2) {
      std::atomic<uint64_t> next{0}, sum{0};
      const double s = seconds(n_threads_, [&](int) {
        uint64_t mine = 0;
        for (uint64_t i; (i = next++) < passes * n_stretches;)
          mine += sum_words(buffer_.get() + i % n_stretches * kStretchWords, kStretchWords);
        sum += mine;
      });
      if (s < kLeastSeconds || sum == 0) continue;
      read_.push_back(static_cast<double>(passes * n_stretches * kStretch) / s);
      break;
    }
  }
  if (!peak::known(path_, peak::Kind::floats)) return;
  float_.push_back(peak_rate(n_threads_, path_, peak::Kind::floats));
  half_.push_back(peak::known(path_, peak::Kind::bf16) ? peak_rate(n_threads_, path_, peak::Kind::bf16) : float_.back());
  quantized_.push_back(peak::known(path_, peak::Kind::bytes) ? peak_rate(n_threads_, path_, peak::Kind::bytes) : half_.back());
}

double Limits::read_bytes_per_second() const { return median(read_); }
double Limits::float_ops_per_second() const { return median(float_); }
double Limits::half_ops_per_second() const { return median(half_); }
double Limits::quantized_ops_per_second() const { return median(quantized_); }

}  // namespace orrery::tool
