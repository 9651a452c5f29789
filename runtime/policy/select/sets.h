// Select: how much two sets of tokens have in common, and medians of that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"

namespace orrery::policy {

// |A n B|. The sets may have any order.
size_t count_common(Span<const uint32_t> a, Span<const uint32_t> b);

// The overlap coefficient |A n B| / |A| (HeteroCache eq. 1 and 9, where A and B have one size). An empty A has lost nothing: 1.
double overlap(Span<const uint32_t> a, Span<const uint32_t> b);

// The median; of an even number the mean of the middle two, as NumPy has it. torch.median takes the lower one: both agree for the published
// 99 steps and windows of 5. No values: 0.
double median(Span<const double> values);

// value >= threshold, for means of fractions. .1 and .7 have the mean .4, which doubles miss by a rounding.
inline bool reaches(double value, double threshold) { return value >= threshold - 1e-9; }

}  // namespace orrery::policy
