// Cuts a list of copies (Upload, Download) into stretches. All copies pass through one buffer, and a stretch is what fits the buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"

namespace orrery::cuda {

struct Cursor {
  size_t i = 0;     // index of a copy in the list
  uint64_t at = 0;  // bytes of that copy that are done
};

// Goes on with the list from the cursor, by at most `room` bytes. Calls each(copy, offset in the copy, offset in the buffer, bytes).
template <class Copy, class F>
void for_each_stretch(Span<const Copy> list, uint64_t room, Cursor* cursor, const F& each) {
  uint64_t used = 0;
  for (; cursor->i < list.size() && used < room; ++cursor->i, cursor->at = 0) {
    const Copy& copy = list[cursor->i];
    const uint64_t n = std::min(copy.bytes - cursor->at, room - used);
    if (n > 0) each(copy, cursor->at, used, n);
    used += n, cursor->at += n;
    if (cursor->at < copy.bytes) return;
  }
}

}  // namespace orrery::cuda
