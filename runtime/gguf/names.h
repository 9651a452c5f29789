// Names that come out of files: whether they may be names. How they look in a message, which travels through a C ABI into
// logs and terminals, is printable() (gguf.h): what a hostile file calls its keys is escaped there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::gguf {

// The bytes of the well-formed UTF-8 sequence that `text` starts with (1 to 4), or 0 where there is none: no
// overlong forms, no surrogates, nothing above U+10FFFF.
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

// Why `name` cannot be a name, or null where it can.
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
