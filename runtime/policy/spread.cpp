#include "runtime/policy/spread.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orrery::policy {
namespace {

unsigned long long ull(uint64_t x) { return static_cast<unsigned long long>(x); }

Status check_total(uint64_t n, uint64_t total, uint64_t highest) {
  if (n > 0 && (total / n < highest || (total / n == highest && total % n == 0))) return ok_status();
  return error(Code::invalid_argument, "%llu tokens cannot be spread over %llu with at most %llu each", ull(total), ull(n),
               ull(highest));
}

// Indices in the order of their remainders, largest first.
template <class Remainder>
std::vector<size_t> by_remainder(size_t n, const Remainder& remainder) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder(a) > remainder(b); });
  return order;
}

}  // namespace

std::vector<uint64_t> round_to_total(Span<const double> shares, uint64_t total) {
  std::vector<uint64_t> whole(shares.size());
  std::vector<int64_t> remainder(shares.size());   // in billionths: a rounding of a share is none
  uint64_t dealt = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double near = std::nearbyint(shares[i] * 1e9);
    whole[i] = static_cast<uint64_t>(near / 1e9);
    remainder[i] = static_cast<int64_t>(near - static_cast<double>(whole[i]) * 1e9);
    dealt += whole[i];
  }
  const std::vector<size_t> order = by_remainder(shares.size(), [&](size_t i) { return remainder[i]; });
  for (size_t i = 0; dealt < total; ++dealt, ++i) ++whole[order[i % order.size()]];
  return whole;
}

Result<std::vector<uint64_t>> pyramid(uint64_t n_layers, uint64_t n_heads, uint64_t total, uint64_t highest, uint64_t n_tokens,
                                      uint32_t beta) {
  ORRERY_TRY(check_total(n_layers * n_heads, total, highest));
  const double b = static_cast<double>(total) / static_cast<double>(n_layers * n_heads);
  if (n_layers == 1 || static_cast<double>(n_tokens) < 2 * b)
    return apportion_evenly(n_layers, total, n_heads * highest);
  double least = std::floor(b / beta), most = 2 * b - least;
  if (most > static_cast<double>(highest)) most = static_cast<double>(highest), least = 2 * b - most;
  std::vector<double> shares;
  for (uint64_t l = 0; l < n_layers; ++l)
    shares.push_back(static_cast<double>(n_heads) *
                     (most - (most - least) * static_cast<double>(l) / static_cast<double>(n_layers - 1)));
  return round_to_total(shares, total);
}

Result<std::vector<uint64_t>> by_preference(Span<const double> preference, uint64_t total, uint64_t highest) {
  const size_t n = preference.size();
  ORRERY_TRY(check_total(n, total, highest));
  double sum = 0;
  for (const double p : preference) {
    if (!(p >= 0) || !std::isfinite(p)) return error(Code::invalid_argument, "a layer's preference is %g", p);
    sum += p;
  }
  if (!(sum > 0) || !std::isfinite(sum)) return apportion_evenly(n, total, highest);
  std::vector<double> shares;
  for (const double p : preference) shares.push_back(p / sum * static_cast<double>(total));
  const auto most = static_cast<double>(highest);
  // Each time round at least one more is full, or nothing is beyond.
  for (size_t round = 0; round <= n; ++round) {
    double beyond = 0;
    size_t n_free = 0;
    for (double& share : shares) {
      if (share >= most) beyond += share - most, share = most;
      n_free += share < most;
    }
    if (beyond <= 0 || n_free == 0) break;
    for (double& share : shares)
      if (share < most) share += beyond / static_cast<double>(n_free);
  }
  return round_to_total(shares, total);
}

Result<std::vector<uint64_t>> count_best(Span<const float> scores, uint64_t n_heads, uint64_t total, uint64_t n_protected) {
  const uint64_t n = n_heads > 0 ? scores.size() / n_heads : 0;
  if (n_heads == 0 || n * n_heads != scores.size() || n_protected > n || n_heads * n_protected > total || total > scores.size())
    return error(Code::invalid_argument, "the best %llu of %zu scores of %llu heads, %llu of each for certain", ull(total),
                 scores.size(), ull(n_heads), ull(n_protected));
  std::vector<uint64_t> counts(n_heads, n_protected);
  std::vector<uint32_t> rest;   // scores that are not protected, as indices
  Tokens best;
  for (uint64_t h = 0; h < n_heads; ++h) {
    const Span<const float> own = scores.subspan(h * n, n);
    std::vector<bool> taken(n);
    if (n_protected > 0) top_k(own, n_protected, &best);
    for (const uint32_t key : best) taken[key] = true;
    for (uint64_t key = 0; key < n; ++key)
      if (!taken[key]) rest.push_back(static_cast<uint32_t>(h * n + key));
  }
  const auto better = [&](uint32_t a, uint32_t b) { return scores[a] > scores[b] || (!(scores[a] < scores[b]) && a < b); };
  const auto end = rest.begin() + static_cast<ptrdiff_t>(total - n_heads * n_protected);
  if (end != rest.end()) std::nth_element(rest.begin(), end, rest.end(), better);
  for (auto i = rest.begin(); i != end; ++i) ++counts[*i / n];
  return counts;
}

std::vector<uint64_t> with_floor(Span<const uint64_t> counts, Ratio alpha) {
  // In parts of a token, n * den to one: nothing is rounded.
  const uint64_t n = counts.size(), one = n * alpha.den;
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  std::vector<uint64_t> whole(n), remainder(n);
  uint64_t dealt = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t parts = (alpha.den - alpha.num) * counts[i] * n + alpha.num * total;
    whole[i] = parts / one, remainder[i] = parts % one;
    dealt += whole[i];
  }
  const std::vector<size_t> order = by_remainder(n, [&](size_t i) { return remainder[i]; });
  for (size_t i = 0; dealt < total; ++dealt, ++i) ++whole[order[i]];
  return whole;
}

void Moments::measure(const WindowRows& x) {
  mean.assign(x.n_heads * x.n, 0);
  variance.assign(x.n_heads * x.n, 0);
  entropy = 0;
  // Row by row, as they lie.
  const auto each = [&](auto&& f) {
    for (uint64_t r = 0; r < x.n_rows; ++r)
      for (uint64_t h = 0; h < x.n_heads; ++h) f(x.rows + (r * x.n_heads + h) * x.stride, h * x.n);
  };
  each([&](const float* row, uint64_t at) {
    for (uint64_t key = 0; key < x.n; ++key) {
      mean[at + key] += static_cast<double>(row[key]);
      entropy -= static_cast<double>(row[key] * std::log(row[key] + 1e-10f));
    }
  });
  for (double& m : mean) m /= static_cast<double>(x.n_rows);
  if (x.n_rows < 2) return;
  each([&](const float* row, uint64_t at) {
    for (uint64_t key = 0; key < x.n; ++key) {
      const double d = static_cast<double>(row[key]) - mean[at + key];
      variance[at + key] += d * d;
    }
  });
  for (double& v : variance) v /= static_cast<double>(x.n_rows - 1);
}

void Dispersion::add(const Moments& m) {
  entropy += m.entropy;
  for (const double v : m.variance) variance += v;
}

double Dispersion::preference(double tau_1, double tau_2) const {
  return std::pow(std::max(entropy, 0.0), 1 / tau_1) * std::pow(variance, 1 / tau_2);
}

Status steady_scores(const Moments& m, uint64_t n_heads, double gamma, Pooling pooling, uint32_t width, Span<float> out) {
  const size_t n = out.size();
  if (m.mean.size() != n_heads * n)
    return error(Code::invalid_argument, "%zu moments are not %llu query heads of %zu keys", m.mean.size(), ull(n_heads), n);
  std::vector<float> scores(n_heads * n), pooled(n_heads * n);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(m.mean[i] + gamma * m.variance[i]);
  for (uint64_t h = 0; h < n_heads; ++h) {
    ORRERY_TRY(pool1d(Span<const float>(scores).subspan(h * n, n), pooling, width, Span<float>(pooled).subspan(h * n, n)));
  }
  return group_reduce(pooled, static_cast<uint32_t>(n_heads), GroupReduce::mean, out);
}

}  // namespace orrery::policy
