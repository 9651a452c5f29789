// printable(): what of a model's words may reach a terminal. Every byte value and every kind of malformed
// character is tried; nothing that begins an escape sequence may come through.
#include <gtest/gtest.h>

#include "samples/orrery/terminal/characters.h"

namespace orrery::tool {
namespace {

constexpr const char* kReplaced = "\xEF\xBF\xBD";

TEST(Printable, OrdinaryTextStays) {
  for (const char* text : {"", "plain", "tab\tand\nnewline", "\xC2\xA0\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", "\xEF\xBF\xBD",
                           "\xED\x9F\xBF\xEE\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EveryControlCharacterIsReplaced) {
  for (int c = 0; c < 256; ++c) {
    const std::string byte(1, static_cast<char>(c));
    const bool stays = c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7F);
    EXPECT_EQ(printable("a" + byte + "b"), "a" + (stays ? byte : kReplaced) + "b") << c;
  }
  for (int c = 0x80; c < 0xA0; ++c) {  // C1: some terminals obey them in UTF-8 too
    EXPECT_EQ(printable(std::string("\xC2") + static_cast<char>(c) + "x"), std::string(kReplaced) + "x") << c;
  }
}

TEST(Printable, MalformedCharactersAreReplacedByteByByte) {
  const auto times = [](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += kReplaced;
    return text;
  };
  EXPECT_EQ(printable("\xC0\x9B"), times(2));      // ESC, too long
  EXPECT_EQ(printable("\xE0\x80\x9B"), times(3));  // ESC, longer
  EXPECT_EQ(printable("\xF0\x80\x80\x9B"), times(4));
  EXPECT_EQ(printable("\xED\xA0\x80"), times(3));      // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), times(4));  // beyond Unicode
  EXPECT_EQ(printable("\xE2\x82"), times(2));          // cut off
  EXPECT_EQ(printable("\xE2\x82\x1B[0m"), times(3) + "[0m");
}

}  // namespace
}  // namespace orrery::tool
