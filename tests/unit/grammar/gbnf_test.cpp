// GBNF: what files say, what each construct means, where errors point, and sources that would bring a naive compiler down.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "runtime/text/grammar/grammar.h"
#include "tests/support/shared.h"

namespace orrery::text::grammar::gbnf_test {
namespace {

std::shared_ptr<const TokenTrie> byte_trie() {
  static const auto trie = [] {
    static std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, char(b)));
    bytes.push_back("");
    return TokenTrie::make(std::vector<std::string_view>(bytes.begin(), bytes.end()), {256}).value();
  }();
  return trie;
}

Result<std::shared_ptr<Grammar>> compiled(const std::string& source, GrammarOptions options = {}) {
  return Grammar::compile(source, options, byte_trie());
}

// What a grammar takes of a text: "" all of it, as an answer; "..." all of it, as the beginning of one; else what it does not take.
std::string rest(const std::string& source, const std::string& text) {
  auto grammar = compiled(source);
  if (!grammar.ok()) return grammar.status().message();
  bool complete;
  const size_t read = (*grammar)->match(text, &complete);
  return complete ? "" : read == text.size() ? "..." : text.substr(read);
}

TEST(GrammarGbnf, ConstructsMeanWhatTheyMean) {
  struct Case {
    const char *source, *text, *rest;
  };
  const Case cases[] = {
      {"root ::= \"abc\"", "abc", ""},
      {"root ::= \"abc\"", "ab", "..."},
      {"root ::= \"abc\"", "abd", "d"},
      {"root ::= \"abc\" # comment\n", "abc", ""},
      {"\n\n# first\nroot ::= x | y\nx ::= \"x\"\ny ::=\n  \"y\"\n", "y", ""},
      {"root ::= (\"a\"\n | \"b\" |\n\"c\")\n", "c", ""},
      {"root ::= \"a\" |\n\"b\"", "b", ""},
      {"root ::= \"\"", "", ""},
      {"root ::= |\"a\"", "", ""},
      {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\r\\\\\\\"\\[\\]\\-\"", "A\xC3\xA9\xF0\x9F\x98\x80\n\t\r\\\"[]-", ""},
      {"root ::= [a-c]+ [^a-c]", "abcaz", ""},
      {"root ::= [a-c]+ [^a-c]", "zz", "zz"},
      {"root ::= [^a]", "\xC3\xA9", ""},
      {"root ::= [^a]", "\xC3", "..."},
      {"root ::= [^a]", "\xED\xA0\x80", "\xA0\x80"},  // a surrogate
      {"root ::= [^a]", "\xC0\x80", "\xC0\x80"},      // an overlong form
      {"root ::= [^\\n]", "\xF4\x8F\xBF\xBF", ""},
      {"root ::= [^\\n]", "\xF4\x90\x80\x80", "\x90\x80\x80"},
      {"root ::= [a-]", "-", ""},
      {"root ::= [\\-a]", "-", ""},
      {"root ::= [à-ü]", "\xC3\xA9", ""},
      {"root ::= [ぁ-ゟ]{2}", "ひら", ""},
      {"root ::= .", "\n", ""},
      {"root ::= .{3}", "aé\xF0\x9F\x98\x80", ""},
      {"root ::= \"a\"{2}", "aaa", "a"},
      {"root ::= \"a\"{2,}", "a", "..."},
      {"root ::= \"a\"{2,}", "aaaaaaa", ""},
      {"root ::= \"a\"{ 1 , 2 }", "aaa", "a"},
      {"root ::= \"a\"{0}\"b\"", "b", ""},
      {"root ::= \"ab\"*+ \"c\"", "ababc", ""},
      {"root ::= [a-z]{3,1000} \"!\"", "ab!", "!"},
      {"root ::= [a-z]{3,1000} \"!\"", "abc!", ""},
      {"root ::= \"'\" [a-z']{2,100} \"'\"", "''a'", ""},
      {"root ::= \"'\" [a-z']{2,100} \"'\"", "''", "..."},
      {"root ::= (\"a\" | \"aa\"){40,70} \"b\"", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "b"},
      {"root ::= (\"a\" | \"aa\"){40,70} \"b\"", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", ""},
      {"root ::= line_char*\nline_char ::= [^\\n]", "a b", ""},
      {"root ::= a\na ::= \"x\"\na ::= \"x\"\n", "x", ""},
      {"root ::= root \"+\" root | [0-9]", "1+2+3", ""},
      {"root ::= b \"x\" | \"r\"\nb ::= root \"y\" | \"\" root", "rxyxx", ""},
      {"root ::= \"a\"* [b-d]* \"e\"", "e", ""},
      {"root ::= [0-9]* [a-z] [0-9]*", "1a2", ""},
      {"root ::= (\"\" | \"x\")*", "xxx", ""},
      {"root ::= ((((\"a\"*)*)*)*)*", "aaa", ""},
  };
  for (const Case& c : cases) EXPECT_EQ(rest(c.source, c.text), c.rest) << c.source << " on " << c.text;
}

TEST(GrammarGbnf, ErrorsNameTheirPlace) {
  struct Case {
    const char *source, *part;
    uint32_t line, column;
  };
  const Case cases[] = {
      {"", "no rule root", 1, 1},
      {"a ::= \"x\"", "no rule root", 1, 10},
      {"root ::= x\n", "rule x is not defined", 1, 10},
      {"root ::= \"a\"\nb ::= (\"c\"", "not closed", 2, 7},
      {"root ::= \"a", "not closed", 1, 10},
      {"root ::= [a", "not closed", 1, 10},
      {"root ::= []", "without characters", 1, 10},
      {"root ::= [z-a]", "ends before it begins", 1, 11},
      {"root ::= \"\\q\"", "unknown escape \\q", 1, 11},
      {"root ::= \"\\u12\"", "hexadecimal", 1, 11},
      {"root ::= \"\\uD800\"", "no character", 1, 11},
      {"root ::= \"a\"{,3}", "expected a number", 1, 14},
      {"root ::= \"a\"{3,2}", "below its lower bound", 1, 14},
      {"root ::= \"a\"{3", "expected }", 1, 15},
      {"root ::= \"a\"{99999999}", "too large", 1, 14},
      {"root ::= *", "nothing that it could repeat", 1, 10},
      {"root ::= \"a\")", "closes no group", 1, 13},
      {"root = \"a\"", "expected ::=", 1, 6},
      {"root ::= \"a\" %", "end of the line", 1, 14},
      {"::= \"a\"", "the name of a rule", 1, 1},
      {"root ::= a\na ::= \"x\"\na ::= \"y\"\n", "rule a is defined twice", 3, 1},
      {"root ::= \"\xFF\"", "not UTF-8", 1, 11},
      {"root ::= root \"a\"", "no text fits", 1, 1},
      {"root ::= <nothing>", "no token <nothing>", 1, 10},
      {"root ::= <[257]>", "no token <[257]>", 1, 10},
      {"root ::= (root \"b\"){1,200} | \"a\"", "counted", 1, 1},
  };
  for (const Case& c : cases) {
    auto grammar = compiled(c.source);
    ASSERT_FALSE(grammar.ok()) << c.source;
    EXPECT_NE(std::string(grammar.status().message()).find(c.part), std::string::npos) << c.source << ": " << grammar.status().message();
    EXPECT_EQ(grammar.status().detail().line, c.line) << c.source << ": " << grammar.status().message();
    EXPECT_EQ(grammar.status().detail().column, c.column) << c.source << ": " << grammar.status().message();
  }
}

TEST(GrammarGbnf, WholeTokens) {
  const std::vector<std::string_view> tokens = {"a", "b", "ab", "", "", "c"};  // 3 and 4 have no text; 4 ends answers
  const auto trie = TokenTrie::make(tokens, {4}).value();
  const auto allowed = [&](Matcher& m) {
    const uint32_t word = *m.mask().value();
    std::string out;
    for (int i = 0; i < 6; ++i)
      if (word >> i & 1) out += char('0' + i);
    return out;
  };
  auto grammar = Grammar::compile("root ::= <[3]> \"ab\" !<[0]>", {}, trie).value();
  Matcher m = grammar->matcher();
  EXPECT_EQ(allowed(m), "3");
  EXPECT_TRUE(m.accept(3).value());
  EXPECT_EQ(allowed(m), "02");
  EXPECT_FALSE(m.accept(1).value());
  EXPECT_TRUE(m.accept(0).value());
  EXPECT_EQ(allowed(m), "1");
  EXPECT_TRUE(m.accept(1).value());
  EXPECT_EQ(allowed(m), "1235");
  EXPECT_TRUE(m.accept(2).value());
  EXPECT_EQ(allowed(m), "4");
  EXPECT_TRUE(m.must_end());
  EXPECT_TRUE(m.accept(4).value());
  EXPECT_TRUE(m.ended());
  EXPECT_FALSE(m.accept(0).value());
  m.rewind(2);
  EXPECT_EQ(allowed(m), "1");
  // A token as a whole, and its text, are two ways to read it.
  auto both = Grammar::compile("root ::= <[2]> \"c\" | \"ab\" \"b\"", {}, trie).value();
  Matcher n = both->matcher();
  EXPECT_TRUE(n.accept(2).value());
  EXPECT_EQ(allowed(n), "15");
}

TEST(GrammarGbnf, ForcedText) {
  auto grammar = compiled("root ::= \"{\\\"name\\\": \" [0-9]+ \"}\" \"\\n\"{70}").value();
  Matcher m = grammar->matcher();
  EXPECT_EQ(m.forced(100), "{\"name\": ");
  EXPECT_EQ(m.forced(3), "{\"n");
  for (const char c : std::string("{\"name\": 1")) ASSERT_TRUE(m.accept(static_cast<uint8_t>(c)).value());
  EXPECT_EQ(m.forced(100), "");
  ASSERT_TRUE(m.accept('}').value());
  EXPECT_EQ(m.forced(100), std::string(70, '\n'));
}

// Each is compiled or refused within a second and 64 MiB, and a matcher reads a text of it.
TEST(GrammarGbnf, HostileSources) {
  const auto repeat = [](const std::string& s, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += s;
    return out;
  };
  std::string chain = "root ::= r0\n", doubling = "root ::= r0\n", wide = "root ::= ", mutual = "root ::= r0\n", left = "root ::= r0\n";
  for (int i = 0; i < 5000; ++i) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  chain += "r5000 ::= \"x\"\n";
  for (int i = 0; i < 60; ++i) doubling += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " r" + std::to_string(i + 1) + "\n";
  doubling += "r60 ::= \"x\"\n";
  for (int i = 0; i < 100000; ++i) wide += (i ? " | \"" : "\"") + std::to_string(i * 7919) + "\"";
  for (int i = 0; i < 300; ++i) {
    mutual += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string((i * 7 + 1) % 300) + " \"b\" | \"a\" r" +
              std::to_string((i * 3 + 2) % 300) + " | \"a\"\n";
    left += "r" + std::to_string(i) + " ::= r" + std::to_string((i * 7 + 1) % 300) + " \"b\" | r" + std::to_string((i * 3 + 2) % 300) +
            " | \"a\"\n";
  }
  const std::pair<const char*, std::string> sources[] = {
      {"parentheses", "root ::= " + repeat("(", 60000) + "\"a\"" + repeat(")", 60000)},
      {"open parentheses", "root ::= " + repeat("(", 4u << 20)},
      {"brackets", repeat("[", 4u << 20)},
      {"names", repeat("a", 4u << 20)},
      {"too long", repeat(" ", (4u << 20) + 1)},
      {"chain", chain},
      {"doubling", doubling},
      {"stars", "root ::= ((((\"a\"*)*)*)*)*"},
      {"nullable star", "root ::= (\"\" | \"x\")*"},
      {"bounds", "root ::= ((((\"a\"{0,1000000}){0,1000000}){0,1000000}){0,1000000})"},
      {"lower bounds", "root ::= ((((\"a\"{1000000}){1000000}){1000000}){1000000})"},
      {"exact depth", "root ::= " + repeat("(", 900) + "\"a\"" + repeat("){2,3}", 900)},
      {"100,000 literals", wide},
      {"blow-up", "root ::= [ab]* \"a\" [ab]{20}"},
      {"larger blow-up", "root ::= [ab]* \"a\" [ab]{1000}"},
      {"ambiguous", "root ::= root root | \"a\""},
      {"ambiguous thrice", "root ::= root root root | root root | \"a\" | \"\""},
      {"mutual", mutual},
      {"left recursive", left},
      {"many optional", "root ::= " + repeat("[a-z]? ", 5000)},
      {"question marks", "root ::= \"a\"" + repeat("?", 100000)},
      {"rule names", repeat("root ::= \"a\"\n", 200000)},
  };
  for (const auto& [name, source] : sources) {
    const auto start = std::chrono::steady_clock::now();
    auto grammar = compiled(source);
    const double compile_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::string outcome = "compiled";
    if (!grammar.ok()) {
      outcome = grammar.status().message();
      EXPECT_NE(grammar.status().code(), Code::internal) << name;
      EXPECT_LT(outcome.size(), 300u) << name;
    } else {
      EXPECT_LE((*grammar)->memory_bytes(), 64u << 20) << name;
      Matcher m = (*grammar)->matcher();
      for (int i = 0; i < 300; ++i) {
        auto mask = m.mask();
        if (!mask.ok()) {
          outcome += std::string("; ") + mask.status().message();
          break;
        }
        int next = -1;
        for (const int b : {'a', 'x', '0', '7', 'b'})
          if (next < 0 && ((*mask)[b / 32] >> (b % 32) & 1)) next = b;
        if (next < 0) break;
        auto taken = m.accept(next);
        if (!taken.ok()) {
          outcome += std::string("; ") + taken.status().message();
          break;
        }
        ASSERT_TRUE(*taken) << name;
      }
      EXPECT_LE(m.memory_bytes(), 64u << 20) << name;
    }
    const double all_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    RecordProperty(name, outcome + " (" + std::to_string(compile_s) + " s, " + std::to_string(all_s) + " s)");
    EXPECT_LT(all_s, 10.0) << name << ": " << outcome;  // a second on an idle machine
    if (std::getenv("ORRERY_VERBOSE") != nullptr)
      printf("%-20s %.3f s %.3f s %s\n", name, compile_s, all_s, outcome.substr(0, 120).c_str());
  }
}

TEST(GrammarGbnf, CompilingIsCancelled) {
  std::atomic<bool> cancel{true};
  GrammarOptions options;
  options.limits.cancel = &cancel;
  std::string source = "root ::= \"";
  for (int i = 0; i < 100000; ++i) source += "ab";
  auto grammar = compiled(source + "\"", options);
  ASSERT_FALSE(grammar.ok());
  EXPECT_EQ(grammar.status().code(), Code::cancelled);
}

}  // namespace
}  // namespace orrery::text::grammar::gbnf_test
