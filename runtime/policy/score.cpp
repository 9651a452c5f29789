#include "runtime/policy/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/best_scores.h"

namespace orrery::policy {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Status check_pool(Span<const float> in, uint32_t width, Span<float> out) {
  if (width % 2 == 0) {
    return error(Code::invalid_argument, "pooling needs an odd width, not %u: an even one shifts the scores",
                 width);
  }
  if (in.size() != out.size()) {
    return error(Code::invalid_argument, "pooling %zu scores into %zu", in.size(), out.size());
  }
  return ok_status();
}

// The window of output i, cut to the input: [from, to).
struct Window {
  size_t from, to;
  Window(size_t i, uint32_t width, size_t n)
      : from(i - std::min<size_t>(i, width / 2)), to(i + 1 + std::min<size_t>(n - 1 - i, width / 2)) {}
};

// out[i] = what the values of its window come to, in order. Away from the ends key by key of the windows, not window by window: loops of
// vectors, over a part that stays in the first-level cache.
template <class Meet>
void pool(Span<const float> in, uint32_t width, Span<float> out, const Meet& meet) {
  const size_t n = in.size(), half = width / 2, first = std::min(half, n), last = std::max(first, n - std::min(half, n));
  const auto one = [&](size_t i) {
    const Window window(i, width, n);
    float x = in[window.from];
    for (size_t j = window.from + 1; j < window.to; ++j) x = meet(x, in[j]);
    out[i] = x;
  };
  for (size_t i = 0; i < first; ++i) one(i);
  constexpr size_t kPart = 2048;
  for (size_t i = first; i < last; i += kPart) {
    const size_t count = std::min(kPart, last - i);
    const float* from = in.data() + (i - half);
    float* to = out.data() + i;
    std::copy(from, from + count, to);
    for (size_t j = 1; j < width; ++j)
      for (size_t k = 0; k < count; ++k) to[k] = meet(to[k], from[k + j]);
  }
  for (size_t i = last; i < n; ++i) one(i);
}

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

void keep_best(Span<const float> scores, size_t k, Tokens* candidates) {
  const Better better{scores};
  const size_t kept = std::min(k, candidates->size());
  const auto end_kept = candidates->begin() + static_cast<std::ptrdiff_t>(kept);
  if (kept < candidates->size()) std::nth_element(candidates->begin(), end_kept, candidates->end(), better);
  candidates->resize(kept);
  std::sort(candidates->begin(), candidates->end(), better);
}

}  // namespace

void softmax(Span<const float> logits, Span<float> out) {
  float largest = -kInfinity;
  for (const float x : logits) largest = x > largest ? x : largest;  // false for NaN
  double sum = 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    const float x = logits[j];
    float weight = 0;
    if (x == largest) {
      weight = largest == -kInfinity ? 0.0f : 1.0f;
    } else if (x > -kInfinity && largest < kInfinity) {
      weight = std::exp(x - largest);
    }
    out[j] = weight;
    sum += static_cast<double>(weight);
  }
  if (sum == 0) return;
  const auto scale = static_cast<float>(1 / sum);
  for (float& weight : out) weight *= scale;
}

double to_shares(Span<float> weights) {
  double sum = 0;
  for (const float w : weights) sum += static_cast<double>(w);
  if (!(sum > 0) || !std::isfinite(sum)) {
    std::fill(weights.begin(), weights.end(), 0.0f);
    return 0;
  }
  double entropy = 0;
  for (float& w : weights) {
    const double share = static_cast<double>(w) / sum;
    if (share > 0) entropy -= share * std::log(share);
    w = static_cast<float>(share);
  }
  return std::exp(entropy);
}

Status group_reduce(Span<const float> rows, uint32_t n_query_heads, GroupReduce reduce, Span<float> out) {
  const size_t n = out.size();
  if (n_query_heads == 0 || rows.size() / n_query_heads != n || rows.size() % n_query_heads != 0) {
    return error(Code::invalid_argument, "%zu weights are not %u query heads of %zu keys", rows.size(),
                 n_query_heads, n);
  }
  if (out.data() != rows.data()) std::copy(rows.begin(), rows.begin() + n, out.begin());
  for (uint32_t h = 1; h < n_query_heads; ++h) {   // row by row: vectors of keys
    const float* row = rows.data() + h * n;
    if (reduce == GroupReduce::mean) {
      for (size_t j = 0; j < n; ++j) out[j] += row[j];
    } else {
      for (size_t j = 0; j < n; ++j) out[j] = std::max(out[j], row[j]);
    }
  }
  for (size_t j = 0; j < n && reduce == GroupReduce::mean; ++j) out[j] /= static_cast<float>(n_query_heads);
  return ok_status();
}

Status avg_pool1d(Span<const float> in, uint32_t width, Span<float> out) {
  ORRERY_TRY(check_pool(in, width, out));
  pool(in, width, out, [](float sum, float x) { return sum + x; });
  for (float& x : out) x /= static_cast<float>(width);
  return ok_status();
}

Status max_pool1d(Span<const float> in, uint32_t width, Span<float> out) {
  ORRERY_TRY(check_pool(in, width, out));
  pool(in, width, out, [](float largest, float x) { return std::max(largest, x); });
  return ok_status();
}

Status pool1d(Span<const float> in, Pooling pooling, uint32_t width, Span<float> out) {
  switch (pooling) {
    case Pooling::avg: return avg_pool1d(in, width, out);
    case Pooling::max: return max_pool1d(in, width, out);
    case Pooling::none: break;
  }
  ORRERY_TRY(check_pool(in, 1, out));
  std::copy(in.begin(), in.end(), out.begin());
  return ok_status();
}

Status head_scores(Span<const float> logits, uint32_t n_query_heads, const ScoreRule& rule,
                   ScoreScratch* scratch, Span<float> out) {
  const size_t n = out.size();
  if (n_query_heads == 0 || logits.size() / n_query_heads != n || logits.size() % n_query_heads != 0) {
    return error(Code::invalid_argument, "%zu logits are not %u query heads of %zu keys", logits.size(),
                 n_query_heads, n);
  }
  const auto pool = [&](Span<const float> in, Span<float> to) { return pool1d(in, rule.pooling, rule.pool_width, to); };
  std::vector<float>& weights = scratch->weights;
  weights.resize(logits.size());
  for (size_t h = 0; h < n_query_heads; ++h)
    softmax(logits.subspan(h * n, n), Span<float>(weights).subspan(h * n, n));
  if (rule.pooling == Pooling::none) return group_reduce(weights, n_query_heads, rule.reduce, out);
  std::vector<float>& pooled = scratch->pooled;
  if (rule.pool_first) {
    pooled.resize(logits.size());
    for (size_t h = 0; h < n_query_heads; ++h) {
      ORRERY_TRY(pool(Span<const float>(weights).subspan(h * n, n), Span<float>(pooled).subspan(h * n, n)));
    }
    return group_reduce(pooled, n_query_heads, rule.reduce, out);
  }
  pooled.resize(n);
  ORRERY_TRY(group_reduce(weights, n_query_heads, rule.reduce, pooled));
  return pool(pooled, out);
}

void top_k(Span<const float> scores, size_t k, Tokens* out) {
  out->resize(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) (*out)[i] = static_cast<uint32_t>(i);
  keep_best(scores, k, out);
}

void top_k_ascending(Span<const float> scores, size_t k, Tokens* out) {
  const size_t n = scores.size();
  out->resize(n);
  uint32_t* left = out->data();   // those that may be among the best, ascending
  if (k >= n) {
    for (size_t i = 0; i < n; ++i) left[i] = static_cast<uint32_t>(i);
    return;
  }
  if (k == 0) return out->clear();
  const auto keep = [&](size_t n_left, size_t n_equal, uint32_t least) {   // of those that are left the k best, of equal ones the first
    size_t kept = 0;
    for (size_t i = 0; i < n_left; ++i) {   // without branches: they would be guesses
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
  // Of the k-th best the first digits, then the next ones among those that have these: its number, whole.
  constexpr struct {
    int shift, width;
  } kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
  size_t n_left = n, n_wanted = k;      // of those with the digits so far
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

void top_k_excluding(Span<const float> scores, size_t k, Span<const uint32_t> excluded, Tokens* out) {
  Tokens skip(excluded.begin(), excluded.end());
  std::sort(skip.begin(), skip.end());
  out->clear();
  out->reserve(scores.size());
  auto next = skip.begin();
  for (uint32_t i = 0; i < scores.size(); ++i) {
    while (next != skip.end() && *next < i) ++next;
    if (next == skip.end() || *next != i) out->push_back(i);
  }
  keep_best(scores, k, out);
}

size_t count_common(Span<const uint32_t> a, Span<const uint32_t> b) {
  Tokens copies[2];   // of what is not ascending already
  Span<const uint32_t> sets[2] = {a, b};
  for (size_t i = 0; i < 2; ++i) {
    if (std::is_sorted(sets[i].begin(), sets[i].end())) continue;
    copies[i].assign(sets[i].begin(), sets[i].end());
    std::sort(copies[i].begin(), copies[i].end());
    sets[i] = copies[i];
  }
  size_t n = 0;
  for (const uint32_t *x = sets[0].begin(), *y = sets[1].begin(); x != sets[0].end() && y != sets[1].end();) {
    // Without branches: which of the two moves on is anybody's guess.
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
