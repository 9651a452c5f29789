#include "runtime/policy/select/top_k.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/best_scores.h"

namespace orrery::policy {

namespace {

// A strict weak order even with NaN among the scores.
struct Better {
  Span<const float> scores;
  bool operator()(uint32_t a, uint32_t b) const {
    const float x = scores[a], y = scores[b];
    if (std::isnan(x) || std::isnan(y)) {
      if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
      return a < b;
    }
    return x > y || (x == y && a < b);
  }
};

}  // namespace

void top_k(Span<const float> scores, size_t k, Tokens* out) {
  out->resize(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) (*out)[i] = static_cast<uint32_t>(i);
  const Better better{scores};
  const auto end = out->begin() + static_cast<std::ptrdiff_t>(std::min(k, out->size()));
  if (end != out->end()) std::nth_element(out->begin(), end, out->end(), better);
  out->erase(end, out->end());
  std::sort(out->begin(), out->end(), better);
}

void top_k_ascending(Span<const float> scores, size_t k, Tokens* out) {
  const size_t n = scores.size();
  out->resize(n);
  uint32_t* left = out->data();  // candidates that may be among the best, ascending
  if (k >= n) {
    for (size_t i = 0; i < n; ++i) left[i] = static_cast<uint32_t>(i);
    return;
  }
  if (k == 0) return out->clear();
  const auto keep = [&](size_t n_left, size_t n_equal, uint32_t least) {  // of the n_left candidates the k best; of equal scores the first
    size_t kept = 0;
    for (size_t i = 0; i < n_left; ++i) {  // without branches, which could not be predicted
      const uint32_t at = left[i], x = order_of(scores[at]);
      const bool equal = x == least && n_equal > 0;
      left[kept] = at;
      kept += x > least || equal;
      n_equal -= equal;
    }
    out->resize(k);
  };
  const LeastScore last = find_least_score(scores.data(), static_cast<int64_t>(n), static_cast<int64_t>(k), left, order_of);
  if (last.n_left > 0) return keep(static_cast<size_t>(last.n_left), static_cast<size_t>(last.n_equal), last.order);
  // Finds order_of() the k-th best score, digit by digit: each round counts the next digit among the scores with the digits so far.
  constexpr struct { int shift, width; } kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
  size_t n_left = n, n_wanted = k;  // of the scores with the digits so far
  uint32_t least = 0;
  for (const auto digit : kDigits) {
    uint32_t counts[2048] = {};
    const bool first = digit.shift == kDigits[0].shift;
    const auto next = [&](size_t i) { return order_of(scores[first ? i : left[i]]); };
    const auto above = [&](uint32_t x) { return static_cast<uint64_t>(x) >> (digit.shift + digit.width); };
    const uint32_t mask = (uint32_t{1} << digit.width) - 1;
    for (size_t i = 0; i < n_left; ++i) {
      const uint32_t x = next(i);
      counts[x >> digit.shift & mask] += above(x) == least;
    }
    uint32_t value = mask;
    while (counts[value] < n_wanted) n_wanted -= counts[value--];
    least = least << digit.width | value;
    size_t kept = 0;
    for (size_t i = 0; i < n_left; ++i) {
      const uint32_t at = first ? static_cast<uint32_t>(i) : left[i];
      left[kept] = at;
      kept += order_of(scores[at]) >> digit.shift >= least;
    }
    n_left = kept;
  }
  keep(n_left, n_wanted, least);
}

}  // namespace orrery::policy
