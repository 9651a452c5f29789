// A list of copies (Upload, Download) cut into what fits a buffer that all of them go through, one buffer at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"

namespace orrery::cuda {

struct Cursor {
  size_t i = 0;      // of the list
  uint64_t at = 0;   // bytes of that copy
};

// What comes next of the list, `room` bytes of it at most: each(copy, its byte, that of the buffer, how many).
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
