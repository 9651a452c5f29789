// Score: pooling along the keys. torch's avg_pool1d and max_pool1d with stride 1 and padding width / 2.
#pragma once

#include <cstdint>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/score/score.h"

namespace orrery::policy {

// in and out: (n), distinct memory. The average counts padding zeros in its divisor; the maximum pads with -inf; Pooling::none copies.
// invalid_argument unless width is odd.
Status pool1d(Span<const float> in, Pooling pooling, uint32_t width, Span<float> out);

}  // namespace orrery::policy
