// UTF-8 against the definition: a sequence is well-formed if it is the encoding of a scalar value, and an
// ill-formed part is maximal if it is the longest beginning of one.
#include "runtime/text/unicode/utf8.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/random_strings.h"

namespace orrery::text::utf8_test {
namespace {

// All encodings, and all their beginnings.
struct Definition {
  std::set<std::string> whole, begun;
  Definition() {
    for (uint32_t c = 0; c < 0x110000; c++) {
      if (c >= 0xD800 && c < 0xE000) continue;
      // Of the many that look alike only those whose last byte is among the test's (and every 61st).
      const uint32_t low = c % 64;
      const bool edge = low == 0 || low == 0xF || low == 0x10 || low == 0x1F || low == 0x20 || low == 0x3F;
      if (c > 0x1000 && c % 61 != 0 && !edge) continue;
      std::string s;
      if (c < 0x80) {
        s = {static_cast<char>(c)};
      } else if (c < 0x800) {
        s = {static_cast<char>(0xC0 + c / 64), static_cast<char>(0x80 + c % 64)};
      } else if (c < 0x10000) {
        s = {static_cast<char>(0xE0 + c / 4096), static_cast<char>(0x80 + c / 64 % 64), static_cast<char>(0x80 + c % 64)};
      } else {
        s = {static_cast<char>(0xF0 + c / 262144), static_cast<char>(0x80 + c / 4096 % 64), static_cast<char>(0x80 + c / 64 % 64),
             static_cast<char>(0x80 + c % 64)};
      }
      for (size_t n = 1; n < s.size(); n++) begun.insert(s.substr(0, n));
      whole.insert(s);

      std::string appended;
      utf8_append(c, &appended);
      EXPECT_EQ(appended, s);
      const CodePoint decoded = utf8_decode(s.data(), s.data() + s.size());
      EXPECT_EQ(decoded.value, c);
      EXPECT_EQ(decoded.length, s.size());
    }
  }
};

TEST(Utf8, KnowsWellFormedSequences) {
  const Definition definition;
  // Bytes at the ends of every range that the definition distinguishes.
  const unsigned char bytes[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  constexpr size_t n = sizeof bytes;
  for (size_t length = 1; length <= 4; length++) {
    size_t count = 1;
    for (size_t i = 0; i < length; i++) count *= n;
    for (size_t code = 0; code < count; code++) {
      std::string s;
      for (size_t i = 0, rest = code; i < length; i++, rest /= n) s.push_back(static_cast<char>(bytes[rest % n]));
      // What the definition says about the whole text, from left to right.
      bool valid = true;
      size_t tail = 0;
      std::string shown;
      for (size_t at = 0; at < length;) {
        size_t whole = 0, begun = 0;
        for (size_t k = 1; k <= length - at; k++) {
          if (definition.whole.count(s.substr(at, k))) whole = k;
          if (definition.begun.count(s.substr(at, k))) begun = k;
        }
        if (at == 0) {
          const CodePoint c = utf8_decode(s.data(), s.data() + length);
          EXPECT_EQ(c.value == kInvalidCodePoint, whole == 0);
          EXPECT_EQ(c.length, whole == 0 ? 1 : whole);
        }
        if (whole != 0) {
          shown += s.substr(at, whole);
          at += whole;
          continue;
        }
        valid = false;
        if (begun == length - at) tail = begun;
        shown += "\uFFFD";
        at += std::max<size_t>(begun, 1);
      }
      ASSERT_EQ(utf8_valid(s), valid);
      ASSERT_EQ(utf8_incomplete_tail(s), tail);
      std::string out;
      utf8_append_valid(s, &out);
      ASSERT_EQ(out, shown);
    }
  }
}

TEST(Utf8, LongTexts) {
  testing::RandomStrings strings(21, testing::RandomStrings::kPlainPools);
  for (int i = 0; i < 2000; i++) {
    std::string text = strings.string(), copy;
    EXPECT_TRUE(utf8_valid(text));
    EXPECT_EQ(utf8_incomplete_tail(text), 0u);
    utf8_append_valid(text, &copy);
    EXPECT_EQ(copy, text);
    const size_t at = strings.next(text.size() + 1);
    text.insert(at, "\xFF");
    EXPECT_FALSE(utf8_valid(text));
  }
}

}  // namespace
}  // namespace orrery::text::utf8_test
