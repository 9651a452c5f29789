// The scanners against their specification: the published expressions themselves, run by PCRE2 on random
// strings; and their time, on a megabyte of every kind of run.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <algorithm>
#include <memory>

#include "runtime/text/tokenizer/pretokenize.h"
#include "runtime/text/unicode/character_sets.h"
#include "tests/support/random_strings.h"
#include "tests/support/thread_time.h"
#include "tests/unit/text/pre_tokenizer_specs.h"

namespace orrery::text::posix_pretokenize_test {
namespace {

using testing::RandomStrings;

// The expressions of a pre-tokenizer, applied one after the other to the pieces.
class Oracle {
 public:
  explicit Oracle(const PreTokenizerSpec& spec) {
    for (const char* expression : spec.expressions) {
      if (!expression) break;
      int code;
      size_t offset;
      pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression), PCRE2_ZERO_TERMINATED,
                                           PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &offset, nullptr);
      EXPECT_NE(compiled, nullptr) << expression << ": error " << code << " at " << offset;
      if (!compiled) continue;
      pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
      stages_.emplace_back(compiled, pcre2_code_free);
      matches_.emplace_back(pcre2_match_data_create_from_pattern(compiled, nullptr), pcre2_match_data_free);
    }
  }
  std::vector<uint32_t> ends(const std::string& text) const {
    std::vector<uint32_t> out;
    stage(0, text, 0, &out);
    return out;
  }

 private:
  void stage(size_t i, const std::string& piece, size_t offset, std::vector<uint32_t>* out) const {
    if (piece.empty()) return;
    if (i == stages_.size()) {
      out->push_back(static_cast<uint32_t>(offset + piece.size()));
      return;
    }
    size_t at = 0;
    while (at < piece.size()) {
      const int n =
          pcre2_match(stages_[i].get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), at, 0, matches_[i].get(), nullptr);
      const size_t* range = pcre2_get_ovector_pointer(matches_[i].get());
      const size_t from = n < 0 ? piece.size() : range[0], to = n < 0 ? piece.size() : range[1];
      stage(i + 1, piece.substr(at, from - at), offset + at, out);
      stage(i + 1, piece.substr(from, to - from), offset + from, out);
      at = to;
    }
  }
  std::vector<std::unique_ptr<pcre2_code, void (*)(pcre2_code*)>> stages_;
  std::vector<std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)>> matches_;
};

class Scanner : public ::testing::TestWithParam<PreTokenizerSpec> {};

TEST_P(Scanner, CutsAsItsExpressionsDo) {
  const Oracle oracle(GetParam());
  RandomStrings strings(11, RandomStrings::kPlainPools);
  ASSERT_TRUE(strings.ok());
  for (int i = 0; i < 20000; i++) {
    const std::string text = strings.string();
    std::vector<uint32_t> ends;
    pre_tokenize(GetParam().kind, text, &ends);
    ASSERT_EQ(ends, oracle.ends(text)) << "string " << i << ": '" << text << "'";
  }
}

// Short strings over one character of each class: every combination that a rule may look at.
TEST_P(Scanner, CutsAllShortStringsAsItsExpressionsDo) {
  const Oracle oracle(GetParam());
  const char* const alphabet[] = {" ",      "\t", "\n",     "\u3000", "a", "S", "\u01C5", "\u02B0", "\u4E00", "\u00DC",
                                  "\u0301", "1",  "\u00B2", "'",      "/", "$", "`",      "\u3001", "\u200D", "\u017F"};
  constexpr size_t n = sizeof alphabet / sizeof *alphabet;
  for (size_t length = 1; length <= 4; length++) {
    size_t count = 1;
    for (size_t i = 0; i < length; i++) count *= n;
    for (size_t code = 0; code < count; code++) {
      std::string text;
      for (size_t i = 0, rest = code; i < length; i++, rest /= n) text += alphabet[rest % n];
      std::vector<uint32_t> ends;
      pre_tokenize(GetParam().kind, text, &ends);
      ASSERT_EQ(ends, oracle.ends(text)) << "'" << text << "'";
    }
  }
}

// On any bytes: pieces are not empty, follow each other and cover the text; and bytes that are not UTF-8
// count as characters of no class, which U+E000 is too.
TEST_P(Scanner, TakesBytesThatAreNotUtf8) {
  RandomStrings strings(12, RandomStrings::kPlainPools);
  for (int i = 0; i < 5000; i++) {
    std::string text = strings.string();
    for (size_t flips = strings.next(4); flips > 0 && !text.empty(); flips--)
      text[strings.next(text.size())] = static_cast<char>(strings.next(256));
    std::string substitute;
    std::vector<uint32_t> at;  // in `text`, of each byte of the substitute, and behind
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const CodePoint c = utf8_decode(p, end);
      const size_t before = substitute.size();
      if (c.value == kInvalidCodePoint) {
        substitute += "\uE000";
      } else {
        substitute.append(p, c.length);
      }
      at.resize(substitute.size(), 0);
      at[before] = static_cast<uint32_t>(p - text.data());
      p += c.length;
    }
    at.push_back(static_cast<uint32_t>(text.size()));
    std::vector<uint32_t> ends, expected;
    pre_tokenize(GetParam().kind, text, &ends);
    pre_tokenize(GetParam().kind, substitute, &expected);
    for (uint32_t& end : expected) end = at[end];
    ASSERT_EQ(ends, expected);
  }
}

// Processor time of this thread: other work on the machine does not count. The least of three runs; fewer once a run is
// fast enough.
double seconds(PreTokenizer kind, const std::string& text, double enough) {
  double best = 1e9;
  for (int i = 0; i < 3 && best >= enough; i++) {
    std::vector<uint32_t> ends;
    const double start = testing::thread_seconds();
    pre_tokenize(kind, text, &ends);
    best = std::min(best, testing::thread_seconds() - start);
  }
  return best;
}

TEST_P(Scanner, IsLinear) {
  for (const char* unit : {"a",      "A",      " ",    "7",   "\n", "!",  "'",       "\t",      "\u4E00",  "\U0001F999", "\u0301",
                           "\u3000", "\uE000", "\xFF", " \t", "aA", "Aa", "\u4E00A", "A\u4E00", "A\u0301", "\u0301A",    "\u0301!",
                           "'s",     " '",     " \n",  "\n ", "1a", " 1", "$ ",      "\u00DCn", " \u3000", "!\n",        "/\n"}) {
    std::string small, large;
    while (small.size() < (1u << 14)) small += unit;
    while (large.size() < (1u << 18)) large += unit;
    // Sixteen times the text: linear is 16 times the time, quadratic 256.
    const double allowed = 100 * std::max(seconds(GetParam().kind, small, 0), 100e-6);
    EXPECT_LT(seconds(GetParam().kind, large, allowed), allowed) << "'" << unit << "'";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Scanner, ::testing::ValuesIn(pre_tokenizer_specs().begin(), pre_tokenizer_specs().end()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(PreTokenizerNames, AreFoundExactly) {
  EXPECT_EQ(find_pre_tokenizer("llama-bpe")->kind, PreTokenizer::llama3);
  EXPECT_TRUE(find_pre_tokenizer("llama-bpe")->ignore_merges);
  EXPECT_FALSE(find_pre_tokenizer("glm4")->ignore_merges);
  EXPECT_EQ(find_pre_tokenizer("deepseek-r1-qwen")->kind, PreTokenizer::qwen2);
  EXPECT_EQ(find_pre_tokenizer(""), nullptr);
  EXPECT_EQ(find_pre_tokenizer("llama-bp"), nullptr);
  EXPECT_EQ(find_pre_tokenizer("llama-bpe2"), nullptr);
}

// PCRE2's data are Unicode 14; what was assigned since has no category there, and here one.
TEST(CharSets, AgreeWithPcre2ExceptWhereItsDataAreOlder) {
  const struct {
    const char* expression;
    uint32_t set;
  } classes[] = {{R"([\p{Lu}\p{Lt}])", kUpper},
                 {R"(\p{Ll})", kLower},
                 {R"([\p{Lm}\p{Lo}])", kCaseless},
                 {R"(\p{M})", kMark},
                 {R"(\p{N})", kNumber},
                 {R"(\p{P})", kPunctuation},
                 {R"(\p{S})", kSymbol},
                 {"[\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}]", kSpace}};
  std::vector<uint32_t> pcre_sets(0x110000, 0);
  std::vector<bool> unassigned(0x110000, false);
  const auto each = [&](const char* expression, auto&& mark) {
    int code;
    size_t offset;
    pcre2_code* compiled =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr);
    ASSERT_NE(compiled, nullptr);
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    pcre2_match_data* match = pcre2_match_data_create_from_pattern(compiled, nullptr);
    std::string c;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
      if (cp >= 0xD800 && cp < 0xE000) continue;
      c.clear();
      utf8_append(cp, &c);
      if (pcre2_match(compiled, reinterpret_cast<PCRE2_SPTR>(c.data()), c.size(), 0, 0, match, nullptr) > 0) mark(cp);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(compiled);
  };
  for (const auto& c : classes)
    each(c.expression, [&](uint32_t cp) { pcre_sets[cp] = c.set; });  // white space last: it comes before the category
  each(R"(\p{Cn})", [&](uint32_t cp) { unassigned[cp] = true; });
  size_t newer = 0, changed = 0;
  for (uint32_t cp = 0; cp < 0x110000; cp++) {
    if (char_set(cp) == pcre_sets[cp]) continue;
    if (unassigned[cp]) {
      newer++;
    } else {
      changed++;
    }
  }
  EXPECT_GT(newer, 4000u);
  EXPECT_LT(changed, 40u);  // the few whose category was corrected
  EXPECT_EQ(char_set(kInvalidCodePoint), 0u);
}

}  // namespace
}  // namespace orrery::text::posix_pretokenize_test
