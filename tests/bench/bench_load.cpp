// What it takes to convert a model's weights to the CUDA backend's layout: bench_load [MODEL.gguf] [THREADS].
//   types    GB of the file's bytes that one thread converts in a second of its processor time: rows of 4,096 columns, 64 MB of them
//   threads  GB of Q4_K and Q6_K in a second of the clock, on 1, 2, ... THREADS threads (as many as there are processors), in stretches of
//            8 MiB as a load has them; so it wants an idle machine
//   file     with a model: each tensor from the mapped file to a buffer, in the file's order, on as many threads; pages come as they are
//            read. By the clock, and in processor time
// The least time of five; of a file, one time. No GPU is needed: copies to it run in parallel with all this.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/device/formats.h"
#include "runtime/base/checked.h"
#include "runtime/gguf/gguf.h"
#include "runtime/gguf/read_ahead.h"
#include "runtime/os/os.h"
#include "runtime/os/thread_pool.h"
#include "tests/support/random_blocks.h"

namespace orrery::bench {
namespace {

constexpr int64_t kCols = 4096;
constexpr uint64_t kHalfBytes = uint64_t{8} << 20, kItemBytes = uint64_t{64} << 10;  // cuda/weights.h, weights.cpp

double seconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
template <class F>
double least_seconds(clockid_t clock, const F& run) {
  double least = 1e30;
  for (int i = 0; i < 5; ++i) {
    const double begin = seconds(clock);
    run();
    least = std::min(least, seconds(clock) - begin);
  }
  return least;
}

std::unique_ptr<ThreadPool> pool_of(int32_t n_threads) {
  auto pool = ThreadPool::make(n_threads, os::available_processors());
  if (!pool.ok()) {
    std::fprintf(stderr, "bench_load: %s\n", pool.status().message());
    std::exit(1);
  }
  return std::move(pool).value();
}

// Converts rows on all threads, through two buffers of kHalfBytes in turn.
void convert(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* from, std::byte* halves, ThreadPool* pool) {
  const uint64_t from_bytes = row_bytes(type, static_cast<uint64_t>(n_cols)), to_bytes = cuda::device_row_bytes(type, n_cols);
  const auto fitting = static_cast<int64_t>(kHalfBytes / to_bytes), of_item = static_cast<int64_t>(div_up(kItemBytes, from_bytes));
  pool->begin_burst();
  for (int64_t row = 0, turn = 0; row < n_rows; row += fitting, turn ^= 1) {
    const int64_t n = std::min(fitting, n_rows - row);
    pool->run(div_up(n, of_item), [&](int64_t item, int32_t) {
      for (int64_t i = item * of_item; i < std::min(n, (item + 1) * of_item); ++i)
        cuda::repack_row(type, n_cols, from + static_cast<uint64_t>(row + i) * from_bytes,
                         halves + static_cast<uint64_t>(turn) * kHalfBytes + static_cast<uint64_t>(i) * to_bytes);
    });
  }
  pool->end_burst();
}

int run(const char* path, int32_t most_threads) {
  std::vector<std::byte> halves(2 * kHalfBytes);
  const auto matrix = [](TensorType type, int64_t* n_rows) {
    *n_rows = static_cast<int64_t>((uint64_t{64} << 20) / row_bytes(type, kCols));
    return testing::random_blocks(type, static_cast<uint64_t>(*n_rows * kCols), 1, 1.0f);
  };
  std::printf("| type | GB/s of one thread |\n| --- | --- |\n");
  for (const TypeTraits& type : kTypeTraits) {
    int64_t n_rows = 0;
    const std::vector<std::byte> from = matrix(type.type, &n_rows);
    const std::unique_ptr<ThreadPool> one = pool_of(1);
    const double s =
        least_seconds(CLOCK_THREAD_CPUTIME_ID, [&] { convert(type.type, n_rows, kCols, from.data(), halves.data(), one.get()); });
    std::printf("| %s | %.2f |\n", type.name, static_cast<double>(from.size()) / s * 1e-9);
  }
  std::printf("\n| threads | Q4_K GB/s | Q6_K GB/s |\n| --- | --- | --- |\n");
  for (int32_t n = 1; n <= most_threads; ++n) {
    const std::unique_ptr<ThreadPool> pool = pool_of(n);
    std::printf("| %d |", n);
    for (const TensorType type : {TensorType::q4_k, TensorType::q6_k}) {
      int64_t n_rows = 0;
      const std::vector<std::byte> from = matrix(type, &n_rows);
      const double s = least_seconds(CLOCK_MONOTONIC, [&] { convert(type, n_rows, kCols, from.data(), halves.data(), pool.get()); });
      std::printf(" %.2f |", static_cast<double>(from.size()) / s * 1e-9);
    }
    std::printf("\n");
  }
  if (!path) return 0;
  auto opened = gguf::File::open(path);
  if (!opened.ok()) {
    std::fprintf(stderr, "bench_load: %s\n", opened.status().message());
    return 1;
  }
  const gguf::File& file = opened.value();
  std::vector<const gguf::Tensor*> tensors;
  uint64_t bytes = 0;
  for (const gguf::Tensor& t : file.tensors()) tensors.push_back(&t), bytes += t.bytes;
  const std::unique_ptr<ThreadPool> pool = pool_of(most_threads);
  const double begin = seconds(CLOCK_MONOTONIC), begin_used = seconds(CLOCK_PROCESS_CPUTIME_ID);
  {
    gguf::ReadAhead ahead(file, tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
      ahead.begin(i);
      const gguf::Tensor& t = *tensors[i];
      if (cuda::device_row_bytes(t.type, static_cast<int64_t>(t.dims[0])) <= kHalfBytes)
        convert(t.type, static_cast<int64_t>(t.n_elements / t.dims[0]), static_cast<int64_t>(t.dims[0]), t.data, halves.data(), pool.get());
    }
  }
  const double s = seconds(CLOCK_MONOTONIC) - begin, used = seconds(CLOCK_PROCESS_CPUTIME_ID) - begin_used;
  const double gb = static_cast<double>(bytes) * 1e-9;
  std::printf("\n%s: %.2f GB on %d threads in %.2f s, %.2f GB/s; processor time %.2f s, %.2f GB/s\n", path, gb, most_threads, s, gb / s,
              used, gb / used);
  return 0;
}

}  // namespace
}  // namespace orrery::bench

int main(int argc, char** argv) {
  const bool has_path = argc > 1 && std::strspn(argv[1], "0123456789") != std::strlen(argv[1]);
  const int at = has_path ? 2 : 1;
  const int n_threads = argc > at ? std::atoi(argv[at]) : orrery::os::available_processors();
  if (argc > at + 1 || n_threads < 1) {
    std::fprintf(stderr, "usage: bench_load [MODEL.gguf] [THREADS]; see its first lines\n");
    return 2;
  }
  return orrery::bench::run(has_path ? argv[1] : nullptr, n_threads);
}
