// Table look-ups by binary search. Hot paths handle ASCII before the tables.
#include "runtime/text/unicode/python_characters.h"

#include <algorithm>
#include <iterator>

#include "runtime/text/pace.h"

namespace orrery::text::unicode {

namespace {

struct ClassRange {
  uint32_t first, last, flags;
};
struct CaseRange {
  uint32_t first, last, stride;
  int32_t delta;
};
struct LongCase {
  uint32_t code;
  uint32_t mapped[3];  // zeros at the end are padding
};

#include "runtime/text/unicode/python_characters.inc"

template <size_t N>
bool map_one(const CaseRange (&table)[N], uint32_t code, uint32_t* out) {
  const auto* it = std::upper_bound(std::begin(table), std::end(table), code, [](uint32_t c, const CaseRange& r) { return c < r.first; });
  // Ranges of stride 2 may interleave, so the previous range may hold the code point too.
  for (int back = 0; back < 2 && it != std::begin(table); ++back) {
    --it;
    if (code <= it->last && (code - it->first) % it->stride == 0) {
      *out = static_cast<uint32_t>(static_cast<int32_t>(code) + it->delta);
      return true;
    }
  }
  return false;
}

template <size_t N>
bool map_long(const LongCase (&table)[N], uint32_t code, std::string* out) {
  const auto* it = std::lower_bound(std::begin(table), std::end(table), code, [](const LongCase& e, uint32_t c) { return e.code < c; });
  if (it == std::end(table) || it->code != code) return false;
  for (uint32_t c : it->mapped)
    if (c != 0) append(c, out);
  return true;
}

template <size_t N, size_t M>
bool map_any(const CaseRange (&table)[N], const LongCase (&longer)[M], uint32_t code, std::string* out) {
  uint32_t mapped;
  if (map_one(table, code, &mapped)) {
    append(mapped, out);
    return true;
  }
  return map_long(longer, code, out);
}

bool cased(uint32_t code) { return is(code, kUpperCase | kLowerCase | kTitleCase); }

// Whether the capital sigma at `pos` ends a word: a cased letter before it and none after it, ignoring marks.
bool final_sigma(std::string_view s, size_t pos, size_t next) {
  bool before = false;
  for (size_t i = pos; i > 0;) {
    size_t start = i - 1;
    while (start > 0 && i - start < 4 && (static_cast<unsigned char>(s[start]) & 0xC0) == 0x80) --start;
    const uint32_t c = decode(s, start);
    i = start;
    if (is(c, kCaseIgnorable)) continue;
    before = cased(c);
    break;
  }
  if (!before) return false;
  for (size_t i = next; i < s.size(); i += sequence_length(s, i)) {
    const uint32_t c = decode(s, i);
    if (!is(c, kCaseIgnorable)) return !cased(c);
  }
  return true;
}

// Appends the lower case of the character at `pos`, which may depend on its neighbours.
void append_lower_at(std::string_view s, size_t pos, size_t n, std::string* out) {
  const auto byte = static_cast<unsigned char>(s[pos]);
  if (n == 1) {
    *out += static_cast<char>(byte >= 'A' && byte <= 'Z' ? byte + 32 : byte);
    return;
  }
  const uint32_t c = decode(s, pos);
  if (c == 0x3A3) append(final_sigma(s, pos, pos + n) ? 0x3C2 : 0x3C3, out);
  else append_lower(c, out);
}

}  // namespace

size_t valid_sequence(std::string_view s, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[pos + i]); };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const size_t left = s.size() - pos;
  const unsigned char b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b < 0xE0) return left >= 2 && tail(1) ? 2 : 0;
  if (b >= 0xE0 && b < 0xF0) {
    if (left < 3 || !tail(1) || !tail(2)) return 0;
    if (b == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
    if (b == 0xED && byte(1) >= 0xA0) return 0;  // surrogate
    return 3;
  }
  if (b >= 0xF0 && b < 0xF5) {
    if (left < 4 || !tail(1) || !tail(2) || !tail(3)) return 0;
    if (b == 0xF0 && byte(1) < 0x90) return 0;
    if (b == 0xF4 && byte(1) >= 0x90) return 0;  // beyond U+10FFFF
    return 4;
  }
  return 0;
}

uint32_t decode(std::string_view s, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(s[pos + i])); };
  switch (valid_sequence(s, pos)) {
    case 1: return byte(0);
    case 2: return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3: return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    case 4: return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    default: return 0xFFFD;
  }
}

void append(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t b) { *out += static_cast<char>(static_cast<unsigned char>(b)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

uint32_t classes(uint32_t code) {
  const auto* it =
      std::upper_bound(std::begin(kClasses), std::end(kClasses), code, [](uint32_t c, const ClassRange& r) { return c < r.first; });
  if (it == std::begin(kClasses)) return 0;
  --it;
  return code <= it->last ? it->flags : 0;
}

void append_upper(uint32_t code, std::string* out) {
  if (!map_any(kUpper, kUpperLong, code, out)) append(code, out);
}
void append_lower(uint32_t code, std::string* out) {
  if (!map_any(kLower, kLowerLong, code, out)) append(code, out);
}
void append_title(uint32_t code, std::string* out) {
  if (!map_any(kTitle, kTitleLong, code, out)) append_upper(code, out);
}

std::string upper(std::string_view s, const std::atomic<bool>* cancel, OriginMap* origins) {
  Pace pace(cancel);
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size() && !pace.stop();) {
    const size_t n = sequence_length(s, i);
    const auto b = static_cast<unsigned char>(s[i]);
    if (n == 1) out += static_cast<char>(b >= 'a' && b <= 'z' ? b - 32 : b);
    else append_upper(decode(s, i), &out);
    i += n;
    if (origins != nullptr) origins->pass(i, out.size());
  }
  return out;
}

std::string lower(std::string_view s, const std::atomic<bool>* cancel, OriginMap* origins) {
  Pace pace(cancel);
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size() && !pace.stop();) {
    const size_t n = sequence_length(s, i);
    append_lower_at(s, i, n, &out);
    i += n;
    if (origins != nullptr) origins->pass(i, out.size());
  }
  return out;
}

std::string title(std::string_view s, const std::atomic<bool>* cancel, OriginMap* origins) {
  Pace pace(cancel);
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < s.size() && !pace.stop();) {
    const size_t n = sequence_length(s, i);
    const bool stray = n == 1 && static_cast<unsigned char>(s[i]) >= 0x80;
    const uint32_t c = decode(s, i);
    if (stray) out += s[i];
    else if (inside) append_lower_at(s, i, n, &out);
    else append_title(c, &out);
    inside = !stray && cased(c);
    i += n;
    if (origins != nullptr) origins->pass(i, out.size());
  }
  return out;
}

std::string capitalize(std::string_view s, const std::atomic<bool>* cancel, OriginMap* origins) {
  Pace pace(cancel);
  std::string out;
  for (size_t i = 0; i < s.size() && !pace.stop();) {
    const size_t n = sequence_length(s, i);
    if (i == 0 && (n > 1 || static_cast<unsigned char>(s[0]) < 0x80)) append_title(decode(s, 0), &out);
    else append_lower_at(s, i, n, &out);
    i += n;
    if (origins != nullptr) origins->pass(i, out.size());
  }
  return out;
}

std::string swapcase(std::string_view s, const std::atomic<bool>* cancel, OriginMap* origins) {
  Pace pace(cancel);
  std::string out;
  for (size_t i = 0; i < s.size() && !pace.stop();) {
    const size_t n = sequence_length(s, i);
    const bool stray = n == 1 && static_cast<unsigned char>(s[i]) >= 0x80;
    const uint32_t c = decode(s, i);
    if (stray) out += s[i];
    else if (is(c, kUpperCase)) append_lower_at(s, i, n, &out);
    else if (is(c, kLowerCase)) append_upper(c, &out);
    else append(c, &out);
    i += n;
    if (origins != nullptr) origins->pass(i, out.size());
  }
  return out;
}

}  // namespace orrery::text::unicode
