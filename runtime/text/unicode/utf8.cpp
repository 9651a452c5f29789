// The byte patterns of UTF-8 (Unicode standard, table 3-7). Everything here follows from utf8_lead().
#include "runtime/text/unicode/utf8.h"

#include <cstring>

namespace orrery::text {
namespace {

// The length (at least 1) of the longest part of [p, end) that begins a well-formed sequence. One U+FFFD replaces
// that part if the sequence does not continue. `complete`: the part is a whole character.
size_t well_formed_prefix(const char* p, const char* end, bool* complete) {
  const Utf8Lead lead = utf8_lead(static_cast<uint8_t>(*p));
  const size_t available = static_cast<size_t>(end - p);
  *complete = lead.length == 1;
  if (lead.length < 2 || available < 2) return 1;
  const auto second = static_cast<uint8_t>(p[1]);
  if (second < lead.second_min || second > lead.second_max) return 1;
  size_t n = 2;
  while (n < lead.length && n < available && (static_cast<uint8_t>(p[n]) & 0xC0) == 0x80) n++;
  *complete = n == lead.length;
  return n;
}

// Whether all eight bytes are ASCII.
bool ascii8(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return (word & 0x8080808080808080u) == 0;
}

}  // namespace

CodePoint utf8_decode_multibyte(const char* p, const char* end) {
  bool complete;
  const size_t n = well_formed_prefix(p, end, &complete);
  if (!complete) return {kInvalidCodePoint, 1};
  uint32_t value = static_cast<uint8_t>(p[0]) & (0xFFu >> (n + 1));
  for (size_t i = 1; i < n; i++) value = value << 6 | (static_cast<uint8_t>(p[i]) & 0x3F);
  return {value, static_cast<uint32_t>(n)};
}

void utf8_append(uint32_t code_point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

bool utf8_valid(std::string_view text) {
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    if (end - p >= 8 && ascii8(p)) {
      p += 8;
      continue;
    }
    bool complete;
    p += well_formed_prefix(p, end, &complete);
    if (!complete) return false;
  }
  return true;
}

size_t utf8_incomplete_tail(std::string_view text) {
  const char* end = text.data() + text.size();
  for (size_t n = 1; n <= 3 && n <= text.size(); n++) {
    const char* p = end - n;
    if ((static_cast<uint8_t>(*p) & 0xC0) == 0x80) continue;
    bool complete;
    const size_t prefix = well_formed_prefix(p, end, &complete);
    return !complete && prefix == n && utf8_lead(static_cast<uint8_t>(*p)).length > n ? n : 0;
  }
  return 0;
}

void utf8_append_valid(std::string_view text, std::string* out) {
  const char *p = text.data(), *end = p + text.size(), *from = p;  // [from, p) is well-formed, not yet copied
  while (p < end) {
    if (end - p >= 8 && ascii8(p)) {
      p += 8;
      continue;
    }
    bool complete;
    const size_t n = well_formed_prefix(p, end, &complete);
    if (!complete) {
      out->append(from, p);
      out->append("\xEF\xBF\xBD");
      from = p + n;
    }
    p += n;
  }
  out->append(from, end);
}

}  // namespace orrery::text
