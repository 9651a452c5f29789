// Adapters' second products on every instruction set, against their definition in double: odd sizes, several products, any number of rows
// and threads, which change no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/checked.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::adapters_cpu_test {
namespace {

using namespace orrery::testing;

struct Pair {
  Pair(int64_t outputs, int64_t of_rank, uint64_t seed)
      : n_out(outputs), rank(of_rank), b(static_cast<size_t>(div_up(outputs, kAdapterTile) * kAdapterTile * of_rank)) {
    fill_normal(b, seed, 0.5f);
  }
  double at(int64_t o, int64_t k) const {
    return static_cast<double>(b[static_cast<size_t>((o / kAdapterTile * rank + k) * kAdapterTile + o % kAdapterTile)]);
  }
  int64_t n_out, rank;
  Guarded<float> b;
};

// The outputs of all rows, n_at_once at a time.
std::vector<float> sums(const std::string& path, int32_t n_threads, const std::vector<const Pair*>& pairs, int32_t n_rows,
                        int32_t n_at_once) {
  StepLimits limits;
  limits.max_rows = n_rows, limits.max_context = 64, limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 32, limits.max_in = 64;
  Rig rig(path, n_threads, limits);
  int64_t width = 0, total = 0;
  for (const Pair* pair : pairs) width += pair->rank, total += pair->n_out;
  const Guarded<float> low(static_cast<size_t>(n_rows * width)), out(static_cast<size_t>(n_rows * total));
  fill_normal(low, 5), fill_normal(out, 6);
  for (int32_t first = 0; first < n_rows; first += n_at_once) {
    const int32_t n = std::min(n_at_once, n_rows - first);
    std::vector<AdapterProduct> products;
    Ptr<const float> its = low.cptr() + static_cast<uint64_t>(first * width);
    Ptr<float> to = out.ptr() + static_cast<uint64_t>(first * total);
    for (const Pair* pair : pairs) {
      products.push_back({pair->b.cptr(), pair->n_out, pair->rank, its, to, total});
      its = its + static_cast<uint64_t>(pair->rank), to = to + static_cast<uint64_t>(pair->n_out);
    }
    rig.begin(Phase::prefill, n, first);
    rig->adapters()->add_low_rank(products, width, 0.75f, n);
    rig.end();
  }
  return {out.data(), out.data() + out.size()};
}

TEST(CpuAdapters, TheDefinitionOnEveryInstructionSet) {
  const Pair first(100, 16, 1), second(7, 3, 2), third(513, 37, 3);
  const std::vector<const Pair*> pairs = {&first, &second, &third};
  constexpr int32_t kRows = 38;
  const int64_t width = 16 + 3 + 37, total = 100 + 7 + 513;
  const Guarded<float> low(static_cast<size_t>(kRows * width)), before(static_cast<size_t>(kRows * total));
  fill_normal(low, 5), fill_normal(before, 6);
  for (const std::string& path : paths()) {
    SCOPED_TRACE(path);
    const std::vector<float> found = sums(path, 2, pairs, kRows, kRows);
    for (int64_t r = 0; r < kRows; ++r) {
      int64_t k0 = 0, o0 = 0;
      for (const Pair* pair : pairs) {
        for (int64_t o = 0; o < pair->n_out; ++o) {
          double sum = 0, size = 0;
          for (int64_t k = 0; k < pair->rank; ++k) {
            const double x = static_cast<double>(low[static_cast<size_t>(r * width + k0 + k)]) * pair->at(o, k);
            sum += x, size += std::fabs(x);
          }
          const auto at = static_cast<size_t>(r * total + o0 + o);
          ASSERT_NEAR(static_cast<double>(found[at]), static_cast<double>(before[at]) + 0.75 * sum, 1e-5 * (1 + size)) << r << ", " << o;
        }
        k0 += pair->rank, o0 += pair->n_out;
      }
    }
    for (const int32_t n_threads : {1, 3, 5})
      for (const int32_t n_at_once : {1, 3, 37}) {
        const std::vector<float> others = sums(path, n_threads, pairs, kRows, n_at_once);
        ASSERT_EQ(std::memcmp(found.data(), others.data(), found.size() * sizeof(float)), 0) << n_threads << ", " << n_at_once;
      }
  }
}

}  // namespace
}  // namespace orrery::adapters_cpu_test
