// The toy operation over the vector of AVX2, and its table: as runtime/cpu/paths/kernels_avx2.cpp, compiled for these instructions.
#include "tests/unit/cpu/toy_operation.h"

#include "runtime/cpu/vectors/bytes_avx2.h"
// V inherits from ByteProducts, so its header comes first.
#include "runtime/cpu/vectors/avx2.h"

namespace orrery::cpu {
namespace {

// Written over V, as the kernels in runtime/cpu/products are.
void leaky(const LeakyTask& t) {
  const V::F slope = V::set(t.slope);
  int64_t i = 0;
  for (; i + V::kLanes <= t.n; i += V::kLanes) {
    const V::F x = V::load(t.x + i);
    V::store(t.x + i, V::max(V::mul(slope, x), x));  // the second one where either is NaN
  }
  if (const int rest = static_cast<int>(t.n - i); rest > 0) {
    const V::F x = V::load_part(t.x + i, rest);
    V::store_part(t.x + i, V::max(V::mul(slope, x), x), rest);
  }
}

}  // namespace

const ToyKernels kToyAvx2 = {"avx2", leaky};

}  // namespace orrery::cpu
