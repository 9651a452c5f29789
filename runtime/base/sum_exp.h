// The sum of exp(x - most) over many floats, with the same bits on the CPU's vectors and on a GPU's threads
// (cuda/kernels/shortlist.cu).
//
// The order of summation is fixed here and suits both. Values are cut into blocks of kBlock. A block has kLanes sums, which are
// folded in halves. Block i adds to share i % kShares. At the end the shares are folded in halves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"

namespace orrery {

struct SumExp {
  static constexpr int32_t kBlock = 256, kLanes = 8, kShares = 32;

  // exp(x) for x <= 0, to about 2e-7 relative; an x below -87 counts as -87. Uses single roundings that compilers vectorise.
  // std::exp over a whole vocabulary would cost more than the last layer of a small model.
  static constexpr float kLeast = -87.0f, kLog2E = 1.44269504f, kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
  static constexpr float kTerm6 = 1.0f / 720.0f, kTerm5 = 1.0f / 120.0f, kTerm4 = 1.0f / 24.0f, kTerm3 = 1.0f / 6.0f, kTerm2 = 0.5f;

  // A NaN counts as -infinity, +infinity as the largest float. No value exceeds `most`, which is finite.
  static double sum(Span<const float> values, float most);
};

}  // namespace orrery
