// Character sets for pre-tokenizers: letter (and its case), mark, number, punctuation, symbol, white space. The
// tables are generated (unicode/character_sets.inc, Unicode 18.0): two levels, four bits per code point, about 30 KB.
#pragma once

#include <cstdint>

#include "runtime/text/unicode/utf8.h"

namespace orrery::text {

#include "runtime/text/unicode/character_sets.inc"

// Sets of characters, to be or-ed: general categories (Lu and Lt, Ll, Lm and Lo, M, N, P, S) and White_Space. White
// space takes precedence over the category. A character in none of the sets (control, format, unassigned, private, a
// byte that is not UTF-8) is 0.
enum CharSet : uint32_t {
  kUpper = 1,     // Lu, Lt
  kLower = 2,     // Ll
  kCaseless = 4,  // Lm, Lo
  kMark = 8,
  kNumber = 16,
  kPunctuation = 32,
  kSymbol = 64,
  kSpace = 128,
  kLetter = kUpper | kLower | kCaseless,
};

constexpr uint32_t char_set(uint32_t code_point) {
  if (code_point > 0x10FFFF) return 0;
  constexpr uint32_t n_index = sizeof kClassIndex / sizeof *kClassIndex;
  const uint32_t high = code_point >> kClassShift;
  const uint32_t block = kClassIndex[high < n_index ? high : n_index - 1];
  const uint32_t low = code_point & ((1u << kClassShift) - 1);
  const uint32_t pair = kClassBlocks[(block << (kClassShift - 1)) + (low >> 1)];
  // Class 0 means no set: the last shift drops its bit.
  return (1u << (pair >> (low & 1 ? 4 : 0) & 15)) >> 1;
}

}  // namespace orrery::text
