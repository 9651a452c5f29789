#include "runtime/base/sum_exp.h"

#include "runtime/base/lanes.h"

namespace orrery {

namespace {

template <class L>
ORRERY_LANES_INLINE void exp_negative(typename L::Floats* to) {
  using F = typename L::Floats;
  const F least = F{} + SumExp::kLeast;
  const F x = *to > least ? *to : least;  // a NaN, too
  const typename L::Ints whole = __builtin_convertvector(x * SumExp::kLog2E - 0.5f, typename L::Ints);
  const F n = __builtin_convertvector(whole, F);
  const F r = (x - n * SumExp::kLn2High) - n * SumExp::kLn2Low;
  F p = r * SumExp::kTerm6 + SumExp::kTerm5;
  p = p * r + SumExp::kTerm4;
  p = p * r + SumExp::kTerm3;
  p = p * r + SumExp::kTerm2;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  *to = p * reinterpret_cast<F>((whole + 127) << 23);
}

template <size_t kN>
ORRERY_LANES_INLINE double fold(double (&sums)[kN]) {
  for (size_t half = kN / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

constexpr size_t kLanes = SumExp::kLanes, kBlock = SumExp::kBlock;

// Adds the exponentials of kLanes values to a block's sums.
template <class L, size_t kParts>
ORRERY_LANES_INLINE void add_lanes(const float* values, float most, typename L::Doubles (&sums)[kParts][2]) {
  for (size_t part = 0; part < kParts; ++part) {
    typename L::Floats x;
    load_numbers<L>(values + part * L::kFloats, &x);
    x -= most;
    exp_negative<L>(&x);
    typename L::Doubles wide[2];
    widen<L>(x, wide);
    sums[part][0] += wide[0], sums[part][1] += wide[1];
  }
}

// The sum of a block of n values.
template <class L>
ORRERY_LANES_INLINE double sum_block(const float* values, size_t n, float most) {
  constexpr size_t kParts = kLanes / L::kFloats;
  typename L::Doubles sums[kParts][2] = {}, rest[kParts][2] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add_lanes<L>(values + i, most, sums);
  double lanes[kLanes], left[kLanes];
  static_assert(sizeof lanes == sizeof sums, "a lane each");
  std::memcpy(lanes, sums, sizeof lanes);
  if (i < n) {
    float last[kLanes] = {};
    for (size_t j = 0; i + j < n; ++j) last[j] = values[i + j];
    add_lanes<L>(last, most, rest);
    std::memcpy(left, rest, sizeof left);
    for (size_t j = 0; i + j < n; ++j) lanes[j] += left[j];
  }
  return fold(lanes);
}

template <class L>
ORRERY_LANES_INLINE double sum_of_in(const float* values, size_t n, float most) {
  double shares[SumExp::kShares] = {};
  for (size_t from = 0; from < n; from += kBlock) {
    const size_t here = n - from < kBlock ? n - from : kBlock;
    shares[from / kBlock % SumExp::kShares] += sum_block<L>(values + from, here, most);
  }
  return fold(shares);
}
ORRERY_LANES(double, sum_of, (const float* values, size_t n, float most), (values, n, most))

}  // namespace

double SumExp::sum(Span<const float> values, float most) { return sum_of(values.data(), values.size(), most); }

}  // namespace orrery
