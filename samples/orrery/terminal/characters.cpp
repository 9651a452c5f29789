// See characters.h.
#include "terminal/characters.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "terminal/character_widths.h"

namespace orrery::tool {

size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;
  if (lead == 0xED && byte(1) > 0x9F) return 0;
  if (lead == 0xF0 && byte(1) < 0x90) return 0;
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;
  return n;
}

bool character_may_follow(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4) return false;
  const size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  std::string whole(text);
  // The smallest and the largest continuation: one of them completes the text if any does.
  for (const char filler : {'\x80', '\xBF'}) {
    whole.resize(text.size());
    whole.resize(n, filler);
    if (text.size() < n && character_bytes(whole) == n) return true;
  }
  return false;
}

std::string well_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = character_bytes(text);
    if (n == 0) {
      out += "\xEF\xBF\xBD";
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

int character_cells(std::string_view character) {
  if (character.size() == 1) return 1;
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(character[i])); };
  uint32_t code = byte(0) & (character.size() == 2 ? 0x1Fu : character.size() == 3 ? 0x0Fu : 0x07u);
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3F);
  const auto within = [&](const auto& ranges) {
    const auto* range = std::lower_bound(std::begin(ranges), std::end(ranges), code,
                                         [](const CharacterRange& r, uint32_t wanted) { return r.last < wanted; });
    return range != std::end(ranges) && range->first <= code;
  };
  return within(kCombining) ? 0 : within(kWide) ? 2 : 1;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = character_bytes(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool control = (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7F ||
                         (n == 2 && lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    if (n == 0 || control) {
      out += "\xEF\xBF\xBD";
    } else {
      out.append(text.substr(0, n));
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

}  // namespace orrery::tool
