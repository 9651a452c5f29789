// Characters of UTF-8: where one begins and ends, which of them are safe to print, and how many columns they take.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace orrery::tool {

// Text that is safe to print. Text of a model or a file may hold escape sequences that control the terminal. Every
// control character except newline and tab becomes U+FFFD, and so does invalid UTF-8. Pass whole characters.
std::string printable(std::string_view text);

// Bytes of the UTF-8 character at the front of `text` (shortest form, no surrogates, <= U+10FFFF); 0 if no character stands there.
// `text` is not empty.
size_t character_bytes(std::string_view text);
// Whether `text` is the beginning of a character that more bytes could complete.
bool character_may_follow(std::string_view text);
// Valid UTF-8: every byte that belongs to no character becomes U+FFFD.
std::string well_formed(std::string_view text);
// Columns that the character takes on a terminal: 0 (it combines with the one before), 1 or 2. Not for control characters.
int character_cells(std::string_view character);

}  // namespace orrery::tool
