// printable(): what of a model's words may reach a terminal. Every byte value and every kind of malformed
// character is tried; nothing that begins an escape sequence may come through.
#include <gtest/gtest.h>

#include <initializer_list>

#include "samples/orrery/terminal/characters.h"
#include "samples/orrery/terminal/word_wrap.h"

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

// Lines break between words, whatever pieces the text comes in, and no character is lost but a blank at the edge.
TEST(WordWrap, BreaksBetweenWords) {
  const auto wrapped = [](const std::string& text, size_t columns, size_t piece, size_t begins = 0) {
    WordWrap wrap(columns, begins);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      size_t n = 0;
      for (size_t i = 0; i < piece && at + n < text.size(); ++i) n += character_bytes(text.substr(at + n));
      out += wrap.feed(text.substr(at, n));
      at += n;
    }
    return out + wrap.end();
  };
  for (const size_t piece : std::initializer_list<size_t>{1, 2, 3, 7, 1000}) {
    SCOPED_TRACE(piece);
    EXPECT_EQ(wrapped("one two three four", 9, piece), "one two \nthree \nfour");
    EXPECT_EQ(wrapped("one two three four", 0, piece), "one two three four");
    EXPECT_EQ(wrapped("four five", 9, piece), "four five");
    EXPECT_EQ(wrapped("four five six", 9, piece), "four five\nsix");
    EXPECT_EQ(wrapped("four five", 9, piece, 4), "four \nfive");
    EXPECT_EQ(wrapped("four five", 9, piece, 7), "\nfour five");
    EXPECT_EQ(wrapped("a\n\nb\n  c d", 4, piece), "a\n\nb\n  c \nd");
    EXPECT_EQ(wrapped("abcdefghij kl", 4, piece), "abcd\nefgh\nij \nkl");  // a word longer than a line breaks as it must
    EXPECT_EQ(wrapped("\xE6\xBC\xA2\xE6\xBC\xA2\xE6\xBC\xA2", 5, piece), "\xE6\xBC\xA2\xE6\xBC\xA2\n\xE6\xBC\xA2");
    const std::string code = "x\n```\nint main(void) { return 0; }\n```\none two three";
    EXPECT_EQ(wrapped(code, 9, piece), "x\n```\nint main(void) { return 0; }\n```\none two \nthree");
  }
}

}  // namespace
}  // namespace orrery::tool
