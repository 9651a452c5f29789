// Select: medians of how much sets of tokens have in common, and thresholds of means.
#pragma once

#include "runtime/base/span.h"

namespace orrery::policy {

// The median; of an even number the mean of the middle two, as NumPy has it. torch.median takes the lower one: both agree for the published
// 99 steps and windows of 5. No values: 0.
double median(Span<const double> values);

// value >= threshold, for means of fractions. .1 and .7 have the mean .4, which doubles miss by a rounding.
inline bool reaches(double value, double threshold) { return value >= threshold - 1e-9; }

}  // namespace orrery::policy
