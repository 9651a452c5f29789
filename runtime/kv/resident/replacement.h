// What refills are made of: policies ask for them (policy/), refills and head stores carry them out.
#pragma once

#include <cstdint>

namespace orrery::kv {

// The tokens in `count` slots of a head, from `slot` on, give way to those from `position` on: one token, or a part of a page.
struct Replacement {
  uint32_t slot = 0, position = 0, count = 1;
  bool operator==(const Replacement& o) const { return slot == o.slot && position == o.position && count == o.count; }
};

}  // namespace orrery::kv
