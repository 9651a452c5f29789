#include "runtime/text/grammar/tree/char_set.h"

#include <algorithm>

namespace orrery::text::grammar {
namespace {

constexpr uint32_t kLastChar = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

uint32_t encode(uint32_t c, uint8_t* out) {
  if (c < 0x80) return out[0] = static_cast<uint8_t>(c), 1;
  const uint32_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (uint32_t i = n - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>((0xF00u >> n & 0xFFu) | c);
  return n;
}

}  // namespace

CharSet::CharSet(std::initializer_list<CharRange> ranges) {
  for (const CharRange& r : ranges) add(r.first, r.last);
}

CharSet CharSet::all() { return CharSet{{0, kLastChar}}; }

void CharSet::add(uint32_t first, uint32_t last) {
  last = std::min(last, kLastChar);
  if (first > last) return;
  if (first < kFirstSurrogate && last >= kFirstSurrogate) {
    ranges_.push_back({first, kFirstSurrogate - 1});
    first = kLastSurrogate + 1;
  } else if (first >= kFirstSurrogate && first <= kLastSurrogate) {
    first = kLastSurrogate + 1;
  }
  if (first <= last) ranges_.push_back({first, last});
  normal_ = false;
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normal_ = false;
}

void CharSet::normalise() const {
  if (normal_) return;
  normal_ = true;
  std::sort(ranges_.begin(), ranges_.end(), [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  size_t n = 0;
  for (const CharRange& r : ranges_) {
    if (n > 0 && r.first <= ranges_[n - 1].last + 1) {
      ranges_[n - 1].last = std::max(ranges_[n - 1].last, r.last);
    } else {
      ranges_[n++] = r;
    }
  }
  ranges_.resize(n);
}

const std::vector<CharRange>& CharSet::ranges() const {
  normalise();
  return ranges_;
}

CharSet CharSet::complement() const {
  CharSet out;
  uint32_t next = 0;
  for (const CharRange& r : ranges()) {
    if (r.first > next) out.add(next, r.first - 1);
    next = r.last + 1;
  }
  if (next <= kLastChar) out.add(next, kLastChar);
  return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet out;
  const auto &a = ranges(), &b = other.ranges();
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint32_t first = std::max(a[i].first, b[j].first), last = std::min(a[i].last, b[j].last);
    if (first <= last) out.add(first, last);
    if (a[i].last < b[j].last) {
      ++i;
    } else {
      ++j;
    }
  }
  return out;
}

bool CharSet::contains(uint32_t c) const {
  const auto& all = ranges();
  const auto at = std::upper_bound(all.begin(), all.end(), c, [](uint32_t v, const CharRange& r) { return v < r.first; });
  return at != all.begin() && c <= std::prev(at)->last;
}

uint64_t CharSet::size() const {
  uint64_t n = 0;
  for (const CharRange& r : ranges()) n += r.last - r.first + 1;
  return n;
}

void append_utf8(CharRange range, std::vector<ByteSequence>* out) {
  // Cut where the length changes; then, from the last byte to the first, where a part of the range does not fill a byte's whole block.
  static constexpr uint32_t kLast[4] = {0x7F, 0x7FF, 0xFFFF, kLastChar};
  std::vector<CharRange> todo = {range};
  while (!todo.empty()) {
    CharRange r = todo.back();
    todo.pop_back();
    bool cut = false;
    for (const uint32_t last : kLast) {
      if (r.first <= last && last < r.last) {
        todo.push_back({last + 1, r.last});
        todo.push_back({r.first, last});
        cut = true;
        break;
      }
    }
    for (uint32_t bits = 6; !cut && r.last > 0x7F && bits <= 18; bits += 6) {
      const uint32_t low = (1u << bits) - 1;
      if ((r.first & ~low) == (r.last & ~low)) break;
      if ((r.first & low) != 0) {
        todo.push_back({(r.first | low) + 1, r.last});
        todo.push_back({r.first, r.first | low});
        cut = true;
      } else if ((r.last & low) != low) {
        todo.push_back({r.last & ~low, r.last});
        todo.push_back({r.first, (r.last & ~low) - 1});
        cut = true;
      }
    }
    if (cut) continue;
    ByteSequence s;
    s.n = encode(r.first, s.first);
    encode(r.last, s.last);
    out->push_back(s);
  }
}

}  // namespace orrery::text::grammar
