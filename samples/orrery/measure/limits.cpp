// See limits.h. Reading sums all words of the buffer, in four ways: by vectors of 16 bytes or by the widest of the instruction set, and by
// stretches that threads take as they become free or by one range for each thread. No way is the fastest of every machine: narrow loads
// fill an out-of-order core before enough cache lines are under way, and a core's own range is partly in its own cache. The fastest is the
// limit.
#include "measure/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "measure/peak.h"

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
  return std::chrono::duration<double>(*std::max_element(ended.begin(), ended.end()) - *std::min_element(begun.begin(), begun.end()))
      .count();
}

using Sum = uint64_t (*)(const uint64_t* words, uint64_t n);

uint64_t sum_words(const uint64_t* words, uint64_t n) {
  uint64_t sums[16] = {};
  for (uint64_t at = 0; at < n; at += 16)
    for (uint64_t i = 0; i < 16; ++i) sums[i] += words[at + i];
  uint64_t all = 0;
  for (const uint64_t sum : sums) all += sum;
  return all;
}

// 256 bytes at a time in vectors V. Lines some steps ahead are asked for, also across a page's end.
#if defined(__x86_64__)
typedef uint64_t Words4 __attribute__((vector_size(32)));
typedef uint64_t Words8 __attribute__((vector_size(64)));

template <typename V>
[[gnu::always_inline]] inline uint64_t sum_vectors(const uint64_t* words, uint64_t n) {
  constexpr int kWords = sizeof(V) / 8, kVectors = 32 / kWords;
  constexpr uint64_t kAhead = 256;  // words
  V sums[kVectors] = {};
  for (uint64_t at = 0; at < n; at += 32) {
#pragma GCC unroll 4
    for (uint64_t line = 0; line < 32; line += 8) __builtin_prefetch(words + at + kAhead + line);
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) sums[i] += *reinterpret_cast<const V*>(words + at + static_cast<uint64_t>(i * kWords));
  }
#pragma GCC unroll 16
  for (int i = 1; i < kVectors; ++i) sums[0] += sums[i];
  // Not on the stack as a vector: GCC does not align it there for Windows.
  uint64_t words_of_sum[kWords], all = 0;
  std::memcpy(words_of_sum, &sums[0], sizeof words_of_sum);
  for (const uint64_t word : words_of_sum) all += word;
  return all;
}
[[gnu::target("avx2")]] uint64_t sum_avx2(const uint64_t* words, uint64_t n) { return sum_vectors<Words4>(words, n); }
[[gnu::target("avx512f")]] uint64_t sum_avx512(const uint64_t* words, uint64_t n) { return sum_vectors<Words8>(words, n); }
#endif

Sum widest(const std::string& path) {
#if defined(__x86_64__)
  if (path.rfind("avx512", 0) == 0 || path == "amx") return sum_avx512;
  if (path.rfind("avx2", 0) == 0) return sum_avx2;
#endif
  static_cast<void>(path);
  return sum_words;
}

// Bytes per second that n threads read of the buffer. Repeats until the time is long enough to measure.
double read_rate(int n_threads, const uint64_t* words, uint64_t n_stretches, Sum sum_stretch, bool ranges) {
  const auto n = static_cast<uint64_t>(n_threads);
  for (uint64_t passes = 2;; passes *= 2) {
    std::atomic<uint64_t> next{0}, sum{0};
    const double s = seconds(n_threads, [&](int thread) {
      uint64_t mine = 0;
      const auto read = [&](uint64_t stretch) { mine += sum_stretch(words + stretch * kStretchWords, kStretchWords); };
      if (ranges) {
        const auto at = static_cast<uint64_t>(thread);
        for (uint64_t pass = 0; pass < passes; ++pass)
          for (uint64_t i = n_stretches * at / n; i < n_stretches * (at + 1) / n; ++i) read(i);
      } else {
        for (uint64_t i; (i = next++) < passes * n_stretches;) read(i % n_stretches);
      }
      sum += mine;
    });
    if (s >= kLeastSeconds && sum > 0) return static_cast<double>(passes * n_stretches * kStretch) / s;
  }
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
    const uint64_t n_stretches = buffer_.get_deleter().bytes / kStretch;
    for (size_t way = 0; way < kReadWays; ++way)
      read_[way].push_back(read_rate(n_threads_, buffer_.get(), n_stretches, way & 1 ? widest(path_) : sum_words, way & 2));
  }
  if (!peak::known(path_, peak::Kind::floats)) return;
  float_.push_back(peak_rate(n_threads_, path_, peak::Kind::floats));
  half_.push_back(peak::known(path_, peak::Kind::bf16) ? peak_rate(n_threads_, path_, peak::Kind::bf16) : float_.back());
  quantized_.push_back(peak::known(path_, peak::Kind::bytes) ? peak_rate(n_threads_, path_, peak::Kind::bytes) : half_.back());
}

double Limits::read_bytes_per_second() const {
  double most = 0;
  for (const std::vector<double>& rates : read_) most = std::max(most, median(rates));
  return most;
}
double Limits::float_ops_per_second() const { return median(float_); }
double Limits::half_ops_per_second() const { return median(half_); }
double Limits::quantized_ops_per_second() const { return median(quantized_); }

}  // namespace orrery::tool
