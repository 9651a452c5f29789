#include "runtime/policy/score/moments.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/policy/score/pooling.h"

namespace orrery::policy {

namespace {

constexpr uint64_t kKeysOfPart = 2048;  // keys of one head: the parts of all rows stay in the second-level cache

// The natural logarithm of a positive normal number, to a relative or absolute error of 2e-7. A loop over it vectorizes.
float log_of(float x) {
  constexpr int32_t kRootHalf = 0x3F3504F3;
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int32_t exponent = (bits - kRootHalf) >> 23;
  bits -= exponent * (1 << 23);  // from sqrt(1/2) to sqrt(2)
  float m;
  std::memcpy(&m, &bits, sizeof m);
  // log((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + ...); s is at most .172
  const float s = (m - 1) / (m + 1), s2 = s * s;
  const float series = 2 * s * (1 + s2 * (1.0f / 3 + s2 * (1.0f / 5 + s2 * (1.0f / 7 + s2 * (1.0f / 9)))));
  return static_cast<float>(exponent) * 0.693147181f + series;
}

}  // namespace

size_t Moments::begin(const WindowWeights& x) {
  mean.assign(x.n_heads * x.n, 0);
  variance.assign(x.n_heads * x.n, 0);
  entropies_.assign(x.n_heads * ((x.n + kKeysOfPart - 1) / kKeysOfPart), 0);
  return entropies_.size();
}

void Moments::measure_part(const WindowWeights& x, size_t part) {
  const uint64_t of_head = (x.n + kKeysOfPart - 1) / kKeysOfPart, head = part / of_head, first = part % of_head * kKeysOfPart;
  const uint64_t n = std::min(kKeysOfPart, x.n - first);
  double *means = &mean[head * x.n + first], *variances = &variance[head * x.n + first];
  const auto row_of = [&](uint64_t r) { return x.rows + (r * x.n_heads + head) * x.stride + first; };
  constexpr uint64_t kLanes = 8;
  double sums[kLanes] = {};
  const auto term = [](float a) { return static_cast<double>(a * log_of(a + 1e-10f)); };
  for (uint64_t r = 0; r < x.n_rows; ++r) {
    const float* row = row_of(r);
    const uint64_t whole = n / kLanes * kLanes;
    for (uint64_t key = 0; key < whole; key += kLanes)
      for (uint64_t i = 0; i < kLanes; ++i) sums[i] += term(row[key + i]);
    for (uint64_t key = whole; key < n; ++key) sums[0] += term(row[key]);
    for (uint64_t key = 0; key < n; ++key) means[key] += static_cast<double>(row[key]);
  }
  for (const double sum : sums) entropies_[part] -= sum;
  for (uint64_t key = 0; key < n; ++key) means[key] /= static_cast<double>(x.n_rows);
  if (x.n_rows < 2) return;
  for (uint64_t r = 0; r < x.n_rows; ++r) {
    const float* row = row_of(r);
    for (uint64_t key = 0; key < n; ++key) {
      const double d = static_cast<double>(row[key]) - means[key];
      variances[key] += d * d;
    }
  }
  for (uint64_t key = 0; key < n; ++key) variances[key] /= static_cast<double>(x.n_rows - 1);
}

void Moments::finish() {
  entropy = 0;
  for (const double e : entropies_) entropy += e;
}

void Moments::scores(double gamma, Span<float> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(mean[i] + gamma * variance[i]);
}

void Dispersion::add(const Moments& m) {
  entropy += m.entropy;
  for (const double v : m.variance) variance += v;
}

double Dispersion::preference(double tau_1, double tau_2) const {
  return std::pow(std::max(entropy, 0.0), 1 / tau_1) * std::pow(variance, 1 / tau_2);
}

Status pool_then_mean(Span<const float> scores, uint64_t n_heads, Pooling pooling, uint32_t width, Span<float> out) {
  const size_t n = out.size();
  if (scores.size() != n_heads * n)
    return error(Code::invalid_argument, "%zu scores are not those of %llu query heads, %zu keys each", scores.size(),
                 static_cast<unsigned long long>(n_heads), n);
  std::vector<float> pooled(n_heads * n);
  for (uint64_t h = 0; h < n_heads; ++h)
    ORRERY_TRY(pool1d(scores.subspan(h * n, n), pooling, width, Span<float>(pooled).subspan(h * n, n)));
  return group_reduce(pooled, static_cast<uint32_t>(n_heads), GroupReduce::mean, out);
}

}  // namespace orrery::policy
