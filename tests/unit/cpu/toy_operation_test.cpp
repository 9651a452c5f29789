// The recipe of an operation (runtime/backend/add_an_operation.md), followed: a toy operation in these tests' own files. It has its
// interface, its task, a plain kernel, a kernel over V (toy_operation_avx2.cpp), a table for each instruction set, and a backend that cuts
// it into items. (The library's own tables and accessors are plain structs and virtual functions, so an operation of the library stands in
// its files.)
#include "tests/unit/cpu/toy_operation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu/items.h"
#include "runtime/cpu/paths/processor.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::cpu {
namespace {

using namespace orrery::testing;

// ---- 1. The interface, as a header of runtime/backend. ----

class ToyOperations {
 public:
  // x[i] = max(x[i], slope * x[i]), (n_rows, n) contiguous; slope in [0, 1]. A NaN stays one.
  virtual void leaky(Ptr<float> x, int64_t n_rows, int64_t n, float slope) = 0;

 protected:
  ~ToyOperations() = default;
};

// ---- 2. The plain kernel, as in runtime/cpu/paths/kernels_plain.cpp. ----

void leaky(const LeakyTask& t) {
  for (int64_t i = 0; i < t.n; ++i)
    if (t.x[i] < t.slope * t.x[i]) t.x[i] *= t.slope;
}

}  // namespace

const ToyKernels kToyPlain = {"plain", leaky};

namespace {

// ---- 3. The backend: it cuts the operation into items, and runs them by its table. ----

class ToyBackend final : public ToyOperations {
 public:
  ToyBackend(const ToyKernels& kernels, int32_t n_threads) : kernels_(kernels), pool_(ThreadPool::make(n_threads, n_threads).value()) {}
  void leaky(Ptr<float> x, int64_t n_rows, int64_t n, float slope) override {
    constexpr int64_t kStretch = 2048;
    const int64_t total = n_rows * n;
    const Work work = {pool_.get()};
    for_items(work, div_up(total, kStretch), kStretch, [&](int64_t item) {
      kernels_.leaky({host(x) + item * kStretch, std::min(kStretch, total - item * kStretch), slope});
    });
  }

 private:
  struct Work {
    ThreadPool* pool;
    StepTrace* trace = nullptr;
  };
  const ToyKernels& kernels_;
  std::unique_ptr<ThreadPool> pool_;
};

// ---- 4. The test, for every table that this machine runs. ----

std::vector<const ToyKernels*> tables() {
  std::vector<const ToyKernels*> all = {&kToyPlain};
#ifdef ORRERY_TOY_AVX2
  if (has_avx2()) all.push_back(&kToyAvx2);
#endif
  return all;
}

// Every table gives the bits of the definition, whatever the number of threads, and touches its values alone.
TEST(ToyOperation, IsItsDefinition) {
  for (const ToyKernels* kernels : tables())
    for (const int32_t n_threads : {1, 2, 5})
      for (const int64_t n : {1, 7, 8, 9, 2047, 2049, 8191}) {
        SCOPED_TRACE(std::string(kernels->name) + ", " + std::to_string(n_threads) + " threads, " + std::to_string(n));
        constexpr int64_t kRows = 3;
        const float slope = 0.1f * static_cast<float>(n % 11);
        const Guarded<float> x(static_cast<size_t>(kRows * n));
        fill_normal(x, static_cast<uint64_t>(n));
        x[x.size() - 1] = std::numeric_limits<float>::quiet_NaN();
        const std::vector<float> before(x.data(), x.data() + x.size());
        ToyBackend backend(*kernels, n_threads);
        backend.leaky(x.ptr(), kRows, n, slope);
        size_t n_wrong = 0;
        for (size_t i = 0; i < x.size(); ++i)
          n_wrong += std::isnan(before[i]) ? !std::isnan(x[i]) : bits_of(x[i]) != bits_of(std::fmax(before[i], slope * before[i]));
        EXPECT_EQ(n_wrong, 0u);
      }
}

#ifdef ORRERY_TOY_AVX2
TEST(ToyOperation, RunsByTheTableOfEachInstructionSet) { EXPECT_EQ(tables().size(), has_avx2() ? 2u : 1u); }
#endif

}  // namespace
}  // namespace orrery::cpu
