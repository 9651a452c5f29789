// On a GPU: what all tests of the process share. The program holds the device's context and its kernels from the first test to the last
// one, and keeps the backends of finished tests, each with its arena, for the tests that follow. An arena is all ones (as floats: NaN)
// whenever a test takes it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/cuda_backend.h"

namespace orrery::testing {

class Pool {
 public:
  struct Pooled {
    std::unique_ptr<Backend> backend;
    orrery::cuda::Options::Products products = orrery::cuda::Options::Products::own;
    uint64_t arena_bytes = 0;
  };
  // A backend whose arena holds the scratch memory for `limits` and `bytes` more. Throws std::runtime_error where there is none.
  Pooled take(orrery::cuda::Options::Products products, const StepLimits& limits, uint64_t bytes);
  // A backend that has failed is not kept.
  void leave(Pooled used);
  void clear() { idle_.clear(); }

 private:
  std::vector<Pooled> idle_;
};
Pool& pool();

}  // namespace orrery::testing
