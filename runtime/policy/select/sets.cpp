#include "runtime/policy/select/sets.h"

#include <algorithm>
#include <vector>

#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

size_t count_common(Span<const uint32_t> a, Span<const uint32_t> b) {
  Tokens copies[2];  // of sets that are not ascending
  Span<const uint32_t> sets[2] = {a, b};
  for (size_t i = 0; i < 2; ++i) {
    if (std::is_sorted(sets[i].begin(), sets[i].end())) continue;
    copies[i].assign(sets[i].begin(), sets[i].end());
    std::sort(copies[i].begin(), copies[i].end());
    sets[i] = copies[i];
  }
  size_t n = 0;
  for (const uint32_t *x = sets[0].begin(), *y = sets[1].begin(); x != sets[0].end() && y != sets[1].end();) {
    // Without branches, which could not be predicted.
    const uint32_t p = *x, q = *y;
    n += p == q;
    x += p <= q;
    y += q <= p;
  }
  return n;
}

double overlap(Span<const uint32_t> a, Span<const uint32_t> b) {
  if (a.empty()) return 1;
  return static_cast<double>(count_common(a, b)) / static_cast<double>(a.size());
}

double median(Span<const double> values) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace orrery::policy
