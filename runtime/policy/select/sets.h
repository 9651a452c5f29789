// Overlaps of two sets of tokens, and what is made of several.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"

namespace orrery::policy {

// |A n B| of two sets in any order.
size_t count_common(Span<const uint32_t> a, Span<const uint32_t> b);

// The overlap coefficient |A n B| / |A| (HeteroCache eq. 1 and 9; A and B of one size there). 1 for an empty
// A: it has lost nothing.
double overlap(Span<const uint32_t> a, Span<const uint32_t> b);

// The median; of an even number the mean of the middle two, as textbooks and NumPy have it (torch.median
// takes the lower one; with the published 99 steps and windows of 5 they agree). 0 for nothing.
double median(Span<const double> values);

// value >= threshold, for means of fractions: .1 and .7 have the mean .4, which doubles miss by a rounding.
inline bool reaches(double value, double threshold) { return value >= threshold - 1e-9; }

}  // namespace orrery::policy
