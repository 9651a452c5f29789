// Sets of Unicode scalar values: what one place of a text may hold. Surrogates are never members, so a complement is a set of characters
// too.
#pragma once

#include <cstdint>
#include <vector>

namespace orrery::text::grammar {

struct CharRange {
  uint32_t first, last;  // inclusive
  bool operator==(const CharRange& other) const { return first == other.first && last == other.last; }
};

class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CharRange> ranges);
  static CharSet all();

  void add(uint32_t first, uint32_t last);  // surrogates among them are left out
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet intersect(const CharSet& other) const;
  CharSet minus(const CharSet& other) const { return intersect(other.complement()); }
  bool contains(uint32_t c) const;
  bool empty() const { return ranges().empty(); }
  uint64_t size() const;
  const std::vector<CharRange>& ranges() const;  // ascending, neither overlapping nor touching
  bool operator==(const CharSet& other) const { return ranges() == other.ranges(); }

 private:
  void normalise() const;
  mutable std::vector<CharRange> ranges_;
  mutable bool normal_ = true;
};

// Bytes of one length that are UTF-8 of a range of characters: a character of `n` bytes whose byte i lies in [first[i], last[i]].
struct ByteSequence {
  uint32_t n = 0;
  uint8_t first[4] = {}, last[4] = {};
};
// Appends sequences that together are exactly the characters of `range`.
void append_utf8(CharRange range, std::vector<ByteSequence>* out);

}  // namespace orrery::text::grammar
