// The sum of exp(x - most) over many floats, with the same bits wherever it is computed: in a processor's vectors, or by the
// threads of a GPU (cuda/kernels/shortlist.cu). Its order is fixed here and suits both: blocks of kBlock values, each in kLanes sums that
// are folded in halves; block i adds to share i % kShares; then the shares are folded in halves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"

namespace orrery {

struct SumExp {
  static constexpr int32_t kBlock = 256, kLanes = 8, kShares = 32;

  // exp(x) for x <= 0 to about 2e-7 relative (x below -87 counts as -87), in single roundings that compilers vectorise: a vocabulary's
  // worth of std::exp would cost more than a small model's last layer.
  static constexpr float kLeast = -87.0f, kLog2E = 1.44269504f, kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
  static constexpr float kTerm6 = 1.0f / 720.0f, kTerm5 = 1.0f / 120.0f, kTerm4 = 1.0f / 24.0f, kTerm3 = 1.0f / 6.0f, kTerm2 = 0.5f;

  // Of values that are no NaN, none of them above `most`, which is finite.
  static double sum(Span<const float> values, float most);
};

}  // namespace orrery
