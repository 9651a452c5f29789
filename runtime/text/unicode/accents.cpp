#include "runtime/text/unicode/accents.h"

#include <algorithm>
#include <iterator>

#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::unicode {

namespace {

struct Changed {
  uint32_t first, last;
  int32_t delta;
};
struct Longer {
  uint32_t code;
  uint32_t mapped[3];  // zeros at the end are padding
};
struct Dropped {
  uint32_t first, last;
};

#include "runtime/text/unicode/accents.inc"

// The range of `table` that holds the code, or null.
template <class Range, size_t N>
const Range* find(const Range (&table)[N], uint32_t code) {
  const auto* it = std::upper_bound(std::begin(table), std::end(table), code, [](uint32_t c, const Range& r) { return c < r.first; });
  return it != std::begin(table) && code <= (it - 1)->last ? it - 1 : nullptr;
}

// Calls use(code) for each code point that stays.
template <class F>
void strip(uint32_t code, const F& use) {
  constexpr uint32_t kSyllables = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7, kVowels = 21, kTails = 28;
  if (code < 0x80) return use(code);
  if (code >= kSyllables && code < kSyllables + 19 * kVowels * kTails) {  // Hangul, by the standard's arithmetic
    const uint32_t i = code - kSyllables;
    use(kLead + i / (kVowels * kTails)), use(kVowel + i % (kVowels * kTails) / kTails);
    if (i % kTails != 0) use(kTail + i % kTails);
    return;
  }
  if (find(kDropped, code)) return;
  if (const Changed* range = find(kChanged, code)) return use(static_cast<uint32_t>(static_cast<int32_t>(code) + range->delta));
  const auto* it = std::lower_bound(std::begin(kLonger), std::end(kLonger), code, [](const Longer& e, uint32_t c) { return e.code < c; });
  if (it == std::end(kLonger) || it->code != code) return use(code);
  for (const uint32_t c : it->mapped)
    if (c != 0) use(c);
}

}  // namespace

void append_without_accents(uint32_t code, std::string* out) {
  strip(code, [out](uint32_t c) { append(c, out); });
}

void append_lower_without_accents(uint32_t code, std::string* out) {
  strip(code, [out](uint32_t c) { append_lower(c, out); });
}

}  // namespace orrery::text::unicode
