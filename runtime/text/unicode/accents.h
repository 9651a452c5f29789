// Stripping accents: a character becomes its canonical decomposition without the nonspacing marks (Mn) in it. Hangul syllables become their
// letters. make_accents.py makes the tables.
#pragma once

#include <cstdint>
#include <string>

namespace orrery::text::unicode {

// Appends what stays of a character: nothing of a mark.
void append_without_accents(uint32_t code, std::string* out);
// The same in lower case (each character by itself, without the final sigma).
void append_lower_without_accents(uint32_t code, std::string* out);

}  // namespace orrery::text::unicode
