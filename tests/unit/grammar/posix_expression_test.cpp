// Regular expressions against PCRE2, which shares no code with ours, on every short text; and what is refused, by name.
#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <random>
#include <string>

#include "runtime/text/grammar/grammar.h"
#include "runtime/text/grammar/languages/char_dfa.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::text::grammar::expression_test {
namespace {

class Pcre {
 public:
  explicit Pcre(const std::string& expression) {
    int code;
    PCRE2_SIZE offset;
    // $ is the end alone; . excludes what ECMA's excludes, by an option of the newline convention below.
    pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code,
                          &offset, context);
    pcre2_compile_context_free(context);
    if (code_ != nullptr) data_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Pcre() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  bool ok() const { return code_ != nullptr; }
  bool search(const std::string& text) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data_, nullptr) >= 0;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* data_ = nullptr;
};

bool ours(const Expression& e, const std::string& text) {
  if (!e.simple) return e.dfa.matches(text);
  uint32_t n = 0;
  for (const char *p = text.data(), *end = p + text.size(); p < end; ++n) {
    const CodePoint c = utf8_decode(p, end);
    if (!e.set.contains(c.value)) return false;
    p += c.length;
  }
  return n >= e.least && n <= e.most;
}

std::vector<std::string> texts(const std::vector<std::string>& letters, size_t longest) {
  std::vector<std::string> out = {""};
  for (size_t begin = 0, n = 0; n < longest; ++n) {
    const size_t end = out.size();
    for (; begin < end; ++begin)
      for (const std::string& letter : letters) out.push_back(out[begin] + letter);
  }
  return out;
}

std::string random_expression(std::mt19937& random, int depth) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  std::string out;
  for (uint32_t choices = 1 + (below(4) == 0); choices > 0; --choices) {
    for (uint32_t items = below(4); items > 0; --items) {
      static const char* const kAtoms[] = {"a",   "b",      "1", ".",     "\\d", "\\w",   "[ab]", "[^a]",   "[a-b1]", "\\s",
                                           "\\D", "[\\d_]", "é", "[à-ü]", "\\.", "\\x61", "\\S",  "[^\\w]", "[-a]",   "\\/"};
      const uint32_t kind = below(depth > 2 ? 8 : 11);
      if (kind == 0 && below(2)) {
        out += below(2) ? "^" : "$";
        continue;
      }
      out += kind < 8 ? kAtoms[below(20)] : (below(2) ? "(" : "(?:") + random_expression(random, depth + 1) + ")";
      static const char* const kOften[] = {"*", "+", "?", "{2}", "{1,2}", "{0,1}", "{1,}", "*?", "+?", "{0}"};
      if (below(3) == 0) out += kOften[below(10)];
    }
    if (choices > 1) out += "|";
  }
  return out;
}

TEST(GrammarExpression, SearchesAsPcre2Does) {
  std::mt19937 random(11);
  const std::vector<std::string> all = texts({"a", "b", "1", "é", "_"}, 4);
  size_t expressions = 0, found = 0;
  for (int i = 0; i < 600; ++i) {
    const std::string source = random_expression(random, 0);
    const Pcre pcre(source);
    auto e = parse_expression(source, true, {});
    ASSERT_EQ(e.ok(), pcre.ok()) << source << ": " << (e.ok() ? "taken" : e.status().message());
    if (!e.ok()) continue;
    ++expressions;
    for (const std::string& text : all) {
      const bool want = pcre.search(text);
      ASSERT_EQ(ours(*e, text), want) << source << " on '" << text << "'";
      found += want;
    }
  }
  EXPECT_GT(expressions, 500u);
  EXPECT_GT(found, 10000u);
}

// The automaton over bytes takes the same texts, as answers.
TEST(GrammarExpression, AnswersMatchAsAWhole) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, char(b)));
  bytes.push_back("");
  const auto trie = TokenTrie::make(std::vector<std::string_view>(bytes.begin(), bytes.end()), {256}).value();
  std::mt19937 random(12);
  const std::vector<std::string> all = texts({"a", "b", "1", "é"}, 4);
  for (int i = 0; i < 150; ++i) {
    const std::string source = random_expression(random, 0);
    const Pcre pcre("^(?:" + source + ")$");
    GrammarOptions options;
    options.language = Language::expression;
    auto grammar = Grammar::compile(source, options, trie);
    size_t members = 0;
    for (const std::string& text : all) {
      const bool want = pcre.search(text);
      members += want;
      bool complete = false;
      if (grammar.ok() && (*grammar)->match(text, &complete) < text.size()) complete = false;
      ASSERT_EQ(complete, want) << source << " on '" << text << "' " << (grammar.ok() ? "" : grammar.status().message());
    }
    if (!grammar.ok()) {
      ASSERT_EQ(members, 0u) << source;
    }
  }
}

TEST(GrammarExpression, CombinationsAreThoseOfSets) {
  std::mt19937 random(13);
  const std::vector<std::string> all = texts({"a", "b", "1", "é"}, 4);
  for (int i = 0; i < 150; ++i) {
    const Expression a = parse_expression("(?:" + random_expression(random, 1) + ")a?", true, {}).value();
    const Expression b = parse_expression("(?:" + random_expression(random, 1) + ")", true, {}).value();
    const CharDfa both = CharDfa::combine(a.dfa, b.dfa, CharDfa::Combine::both).value();
    const CharDfa either = CharDfa::combine(a.dfa, b.dfa, CharDfa::Combine::either).value();
    const CharDfa first = CharDfa::combine(a.dfa, b.dfa, CharDfa::Combine::first_only).value();
    const CharDfa not_a = a.dfa.complement().value();
    const CharDfa some = a.dfa.of_length(1, 3).value();
    bool any_both = false;
    for (const std::string& t : all) {
      const bool x = a.dfa.matches(t), y = b.dfa.matches(t);
      uint32_t n = 0;
      for (const char c : t) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
      ASSERT_EQ(both.matches(t), x && y);
      ASSERT_EQ(either.matches(t), x || y);
      ASSERT_EQ(first.matches(t), x && !y);
      ASSERT_EQ(not_a.matches(t), !x);
      ASSERT_EQ(some.matches(t), x && n >= 1 && n <= 3);
      any_both = any_both || (x && y);
    }
    if (any_both) {
      EXPECT_FALSE(both.empty());
    }
  }
  const CharDfa words = CharDfa::of_texts({"a", "é", "ab", ""});
  std::vector<std::string> listed;
  EXPECT_TRUE(words.texts(4, &listed));
  EXPECT_EQ(listed.size(), 4u);
  EXPECT_FALSE(words.texts(3, &listed));
}

TEST(GrammarExpression, RefusesByName) {
  struct Case {
    const char *source, *part;
    Code code;
    uint32_t column;
  };
  const Case cases[] = {
      {"a(?=b)", "look-ahead", Code::unsupported, 2},
      {"(?!b)", "look-ahead", Code::unsupported, 1},
      {"(?<=b)", "look-behind", Code::unsupported, 1},
      {"(a)\\1", "back references", Code::unsupported, 4},
      {"(?<n>a)\\k<n>", "back references", Code::unsupported, 8},
      {"a\\b", "\\b", Code::unsupported, 2},
      {"\\p{L}", "\\p", Code::unsupported, 1},
      {"(a", "not closed", Code::invalid_argument, 1},
      {"a)", "closes no group", Code::invalid_argument, 2},
      {"[a", "not closed", Code::invalid_argument, 1},
      {"*", "nothing", Code::invalid_argument, 1},
      {"a{3,2}", "below its lower", Code::invalid_argument, 2},
      {"[b-a]", "ends before it begins", Code::invalid_argument, 2},
      {"\\q", "unknown escape", Code::invalid_argument, 1},
      {"a{99999999}", "too large", Code::unsupported, 3},
      {"(a|b)*a(a|b){200}", "states", Code::unsupported, 0},
      {"(((a{1000}){1000}){1000})", "states", Code::unsupported, 0},
      {"(?i)a", "kind of group", Code::unsupported, 1},
  };
  for (const Case& c : cases) {
    auto e = parse_expression(c.source, true, {});
    ASSERT_FALSE(e.ok()) << c.source;
    EXPECT_EQ(e.status().code(), c.code) << c.source << ": " << e.status().message();
    EXPECT_NE(std::string(e.status().message()).find(c.part), std::string::npos) << c.source << ": " << e.status().message();
    if (c.column != 0) {
      EXPECT_EQ(e.status().detail().column, c.column) << c.source;
    }
  }
  EXPECT_TRUE(ours(parse_expression("^\\u{1F600}\\uD83D\\uDE00$", true, {}).value(), "\xF0\x9F\x98\x80\xF0\x9F\x98\x80"));
  EXPECT_TRUE(ours(parse_expression("^a{,2}{$", true, {}).value(), "a{,2}{"));
  EXPECT_TRUE(ours(parse_expression("a$|^b", true, {}).value(), "bc"));
  EXPECT_FALSE(ours(parse_expression("a^b|c$d", true, {}).value(), "a^b"));
}

}  // namespace
}  // namespace orrery::text::grammar::expression_test
