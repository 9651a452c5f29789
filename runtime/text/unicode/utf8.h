// UTF-8: one decoder that never reads past the end, never fails and loses nothing. Bytes that are not UTF-8 (stray
// continuations, overlong forms, surrogates, values beyond U+10FFFF, cut characters) are returned one at a time as
// kInvalidCodePoint with length 1. A caller that copies [p, p + length) copies the text exactly. For display,
// utf8_append_valid() writes one U+FFFD for each maximal part of an ill-formed sequence, as the Unicode standard
// recommends (section 3.9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::text {

inline constexpr uint32_t kInvalidCodePoint = 0xFFFFFFFF;

struct CodePoint {
  uint32_t value;   // or kInvalidCodePoint
  uint32_t length;  // bytes, 1 to 4
};

// The bytes that follow a lead byte: the length of the sequence, and the range of its second byte. The range excludes
// overlong forms, surrogates and values beyond U+10FFFF. length 0: not a lead byte.
struct Utf8Lead {
  uint8_t length, second_min, second_max;
};
constexpr Utf8Lead utf8_lead(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) return {3, uint8_t(byte == 0xE0 ? 0xA0 : 0x80), uint8_t(byte == 0xED ? 0x9F : 0xBF)};
  if (byte < 0xF5) return {4, uint8_t(byte == 0xF0 ? 0x90 : 0x80), uint8_t(byte == 0xF4 ? 0x8F : 0xBF)};
  return {0, 0, 0};
}

CodePoint utf8_decode_multibyte(const char* p, const char* end);

// The character at p < end.
inline CodePoint utf8_decode(const char* p, const char* end) {
  const auto byte = static_cast<uint8_t>(*p);
  if (byte < 0x80) return {byte, 1};
  return utf8_decode_multibyte(p, end);
}

// `code_point` must be a scalar value (no surrogate, at most 0x10FFFF).
void utf8_append(uint32_t code_point, std::string* out);

bool utf8_valid(std::string_view text);

// The number of bytes (0 to 3) at the end of `text` that begin a character which later bytes may complete.
size_t utf8_incomplete_tail(std::string_view text);

// Appends `text`, with U+FFFD for bytes that are not UTF-8.
void utf8_append_valid(std::string_view text, std::string* out);

}  // namespace orrery::text
