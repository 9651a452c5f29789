#include "runtime/policy/score/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace orrery::policy {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

double normalize(Span<float> weights) {
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
    return error(Code::invalid_argument, "%zu weights are not %u query heads of %zu keys", rows.size(), n_query_heads, n);
  }
  if (out.data() != rows.data()) std::copy(rows.begin(), rows.begin() + n, out.begin());
  for (uint32_t h = 1; h < n_query_heads; ++h) {  // row by row, so that the loop over keys vectorizes
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

}  // namespace orrery::policy
