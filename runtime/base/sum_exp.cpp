#include "runtime/base/sum_exp.h"

#include <algorithm>

namespace orrery {

namespace {

inline float exp_negative(float x) {
  x = x < SumExp::kLeast ? SumExp::kLeast : x;
  const float n = static_cast<float>(static_cast<int32_t>(x * SumExp::kLog2E - 0.5f));
  const float r = (x - n * SumExp::kLn2High) - n * SumExp::kLn2Low;
  float p = SumExp::kTerm6;
  p = p * r + SumExp::kTerm5;
  p = p * r + SumExp::kTerm4;
  p = p * r + SumExp::kTerm3;
  p = p * r + SumExp::kTerm2;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  union {
    uint32_t bits;
    float value;
  } scale = {static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23};
  return p * scale.value;
}

template <size_t kN>
double fold(double (&sums)[kN]) {
  for (size_t half = kN / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

}  // namespace

double SumExp::sum(Span<const float> values, float most) {
  double shares[kShares] = {};
  const size_t n = values.size();
  for (size_t from = 0; from < n; from += kBlock) {
    const size_t end = std::min<size_t>(n, from + kBlock);
    double lanes[kLanes] = {};
    size_t i = from;
    for (; i + kLanes <= end; i += kLanes)
      for (size_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(exp_negative(values[i + j] - most));
    for (size_t j = 0; i < end; ++i, ++j) lanes[j] += static_cast<double>(exp_negative(values[i] - most));
    shares[from / kBlock % kShares] += fold(lanes);
  }
  return fold(shares);
}

}  // namespace orrery
