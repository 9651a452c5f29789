// UTF-8 iteration, and the character properties of Python's str methods: classes (isalpha, isspace, isprintable, ...)
// and case mappings, including mappings to several code points. make_python_characters.py makes the tables.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/text/origin_text.h"

namespace orrery::text::unicode {

// Length of the valid UTF-8 sequence at `pos` (< s.size()), or 0 if none begins there. Surrogates are not valid.
size_t valid_sequence(std::string_view s, size_t pos);

// As valid_sequence(), but a byte that begins no valid sequence has length 1.
inline size_t sequence_length(std::string_view s, size_t pos) {
  if (static_cast<unsigned char>(s[pos]) < 0x80) return 1;
  const size_t n = valid_sequence(s, pos);
  return n == 0 ? 1 : n;
}

// Code point at `pos`; U+FFFD for a byte that begins no valid sequence.
uint32_t decode(std::string_view s, size_t pos);

void append(uint32_t code, std::string* out);

enum Class : uint32_t {
  kAlpha = 1,
  kDecimal = 2,
  kDigit = 4,
  kNumeric = 8,
  kUpperCase = 16,
  kLowerCase = 32,
  kTitleCase = 64,
  kSpace = 128,
  kUnprintable = 256,
  kCaseIgnorable = 512,
  kWord = 1024,
};

uint32_t classes(uint32_t code);  // set of Class
inline bool is(uint32_t code, uint32_t any_of) { return (classes(code) & any_of) != 0; }

// Appends the mapping of one code point (up to three code points).
void append_upper(uint32_t code, std::string* out);
void append_lower(uint32_t code, std::string* out);
void append_title(uint32_t code, std::string* out);

// Whole strings, as str.upper(), str.lower() (with the final sigma), str.title(), str.capitalize(),
// str.swapcase().  After `cancel` was set they may end early; whoever set it drops the result. `origins` follows them.
std::string upper(std::string_view s, const std::atomic<bool>* cancel = nullptr, OriginMap* origins = nullptr);
std::string lower(std::string_view s, const std::atomic<bool>* cancel = nullptr, OriginMap* origins = nullptr);
std::string title(std::string_view s, const std::atomic<bool>* cancel = nullptr, OriginMap* origins = nullptr);
std::string capitalize(std::string_view s, const std::atomic<bool>* cancel = nullptr, OriginMap* origins = nullptr);
std::string swapcase(std::string_view s, const std::atomic<bool>* cancel = nullptr, OriginMap* origins = nullptr);

}  // namespace orrery::text::unicode
