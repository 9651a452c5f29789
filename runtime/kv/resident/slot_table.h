// What the slots of all heads hold, as a table apart from its store: to save it, and to check a saved one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/kv/resident/replacement.h"

namespace orrery::kv {

struct SlotTable {
  std::vector<uint32_t> capacity, length;  // (n_heads)
  std::vector<size_t> first;               // (n_heads) index of a head's first slot in `positions`
  std::vector<uint32_t> positions;         // of the slots that hold tokens, head by head

  Span<const uint32_t> of(uint32_t head) const { return {positions.data() + first[head], length[head]}; }
  // Whether the head holds n tokens or more, and the slots [from, n) hold positions in [begin, end).
  bool holds(uint32_t head, uint64_t from, uint64_t n, uint64_t begin, uint64_t end) const {
    if (n > length[head]) return false;
    for (uint64_t i = from; i < n; ++i) {
      const uint32_t position = positions[first[head] + i];
      if (position < begin || position >= end) return false;
    }
    return true;
  }
};

// A scheduled refill, of a saved session.
struct SavedRefill {
  uint32_t head = 0;
  uint64_t visible_at = 0;  // step
  std::vector<Replacement> what;
};

}  // namespace orrery::kv
