// Checks on names that come out of files. printable() (gguf.h) escapes names for messages, because a message may
// travel through the C ABI into logs and terminals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::gguf {

// The length (1 to 4) of the well-formed UTF-8 sequence at the start of `text`, or 0 if `text` starts with none.
// Overlong forms, surrogates and values above U+10FFFF are not well-formed.
inline size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  if (text.empty()) return 0;
  const uint32_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
    return 4;
  }
  return 0;
}

// The reason why `name` is invalid, or null if it is valid.
inline const char* name_fault(std::string_view name) {
  if (name.empty()) return "is empty";
  for (size_t i = 0; i < name.size();) {
    if (name[i] == '\0') return "holds a zero byte";
    const size_t n = utf8_sequence(name.substr(i));
    if (n == 0) return "is not UTF-8";
    i += n;
  }
  return nullptr;
}

}  // namespace orrery::gguf
