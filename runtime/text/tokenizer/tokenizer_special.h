// Finds special tokens by name in a text ("<|im_end|>"): the leftmost, and of several at one place the longest. The
// names are sorted, and a match narrows a range of names byte by byte. A table of first bytes skips most of the text.
// Names longer than kMaxBytes are never matched, which keeps the time linear in the text.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::text {

struct ByteRange {
  size_t begin, end;
};

class SpecialMatcher {
 public:
  static constexpr size_t kMaxBytes = 256;
  struct Entry {
    std::string_view name;  // not empty; its owner outlives the matcher
    int32_t id;
    bool control;  // of the template's bytes alone
  };
  struct Match {
    size_t at, bytes;
    int32_t id;  // -1: nothing found
  };

  // Of several with one name the lowest id holds: a control token where control tokens are allowed, else another.
  void reset(std::vector<Entry> entries);
  // `cancel`, if not null, ends the search where another thread sets it: nothing is found then. A vocabulary from a stranger can
  // make each byte of a text cost hundreds of comparisons.
  // written: ascending, the stretches [begin, end) of the text in which control tokens may lie; each token lies in one.
  Match find(std::string_view text, size_t from, Span<const ByteRange> written, const std::atomic<bool>* cancel = nullptr) const;

 private:
  std::vector<Entry> entries_;  // sorted by name
  bool first_bytes_[256] = {};
};

}  // namespace orrery::text
