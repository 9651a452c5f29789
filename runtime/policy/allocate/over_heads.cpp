#include "runtime/policy/allocate/over_heads.h"

#include <algorithm>
#include <numeric>

#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

Result<std::vector<uint64_t>> count_best(Span<const float> scores, uint64_t n_heads, uint64_t total, uint64_t n_protected) {
  const uint64_t n = n_heads > 0 ? scores.size() / n_heads : 0;
  if (n_heads == 0 || n * n_heads != scores.size() || n_protected > n || n_heads * n_protected > total || total > scores.size())
    return error(Code::invalid_argument, "the best %llu of %zu scores of %llu heads, %llu of each for certain", ull(total), scores.size(),
                 ull(n_heads), ull(n_protected));
  std::vector<uint64_t> counts(n_heads, n_protected), ends(n_heads);  // ends: of each head's scores in `rest`
  std::vector<float> rest;                                            // scores that are not protected, head by head
  rest.reserve(scores.size() - n_heads * n_protected);
  Tokens best;
  for (uint64_t h = 0; h < n_heads; ++h) {
    const Span<const float> own = scores.subspan(h * n, n);
    top_k_ascending(own, n_protected, &best);
    auto next = own.begin();
    for (const uint32_t key : best) {
      rest.insert(rest.end(), next, own.begin() + key);
      next = own.begin() + key + 1;
    }
    rest.insert(rest.end(), next, own.end());
    ends[h] = rest.size();
  }
  top_k_ascending(rest, total - n_heads * n_protected, &best);
  uint64_t head = 0;
  for (const uint32_t i : best) {
    while (i >= ends[head]) ++head;
    ++counts[head];
  }
  return counts;
}

void add_best_counts(Span<const uint32_t> bins, uint64_t total, Span<double> counts) {
  const auto in_bin = [&](uint32_t bin) {
    uint64_t n = 0;
    for (size_t h = 0; h < counts.size(); ++h) n += bins[h * kScoreBins + bin];
    return n;
  };
  uint32_t last = kScoreBins - 1;
  uint64_t n = in_bin(last);
  while (last > 0 && n < total) total -= n, n = in_bin(--last);
  const double part = n > 0 ? std::min(static_cast<double>(total) / static_cast<double>(n), 1.0) : 0;
  for (size_t h = 0; h < counts.size(); ++h) {
    const Span<const uint32_t> own = bins.subspan(h * kScoreBins, kScoreBins);
    counts[h] += static_cast<double>(std::accumulate(own.begin() + last + 1, own.end(), uint64_t{0})) + part * own[last];
  }
}

std::vector<uint64_t> with_floor(Span<const uint64_t> counts, Ratio alpha) {
  // Counts in units of 1 / (n * den) token: nothing is rounded.
  const uint64_t n = counts.size(), one = n * alpha.den;
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  std::vector<uint64_t> whole(n), remainder(n);
  uint64_t dealt = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t parts = (alpha.den - alpha.num) * counts[i] * n + alpha.num * total;
    whole[i] = parts / one, remainder[i] = parts % one;
    dealt += whole[i];
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder[a] > remainder[b]; });
  for (size_t i = 0; dealt < total; ++dealt, ++i) ++whole[order[i]];
  return whole;
}

}  // namespace orrery::policy
