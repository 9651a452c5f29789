#include "runtime/policy/policy.h"

#include <algorithm>
#include <cmath>

#include "runtime/policy/parts.h"

namespace orrery::policy {

uint64_t tokens_of_share(double share, uint32_t n) {
  return static_cast<uint64_t>(std::ceil(share * n * (1 - 1e-7)));
}

uint64_t slots_for_share(const Shape& shape, double share) {
  uint64_t slots = 0;
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const uint64_t window = static_cast<uint64_t>(shape.window[l]);
    const uint64_t wanted = window > 0 ? window
                                       : std::max<uint64_t>(tokens_of_share(share, shape.n_context), kLeastSlots);
    slots += std::min<uint64_t>(wanted, shape.n_context) * shape.n_kv_heads;
  }
  return slots;
}

}  // namespace orrery::policy
