// The unit of a refill. Policies list replacements (policy/); kv/transfers/refills and head_store carry them out.
#pragma once

#include <cstdint>

namespace orrery::kv {

// `count` slots of a head, from `slot` on, get the tokens from `position` on: one token, or tokens of one page.
struct Replacement {
  uint32_t slot = 0, position = 0, count = 1;
  bool operator==(const Replacement& o) const { return slot == o.slot && position == o.position && count == o.count; }
};

}  // namespace orrery::kv
