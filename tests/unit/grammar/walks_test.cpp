// Walks of a vocabulary: the masks of texts that forbid what others allow, against reading every token by its bytes; how many nodes of the token
// tree a walk steps on, and how many states keys and patterns need. Counts guard what times cannot.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>

#include "runtime/text/grammar/grammar.h"

namespace orrery::text::grammar::walks_test {
namespace {

// Words, one of `odd` with an end that is not plain text: quotes, escapes, blanks, and characters of two to four bytes, whole and cut.
std::vector<std::string> make_vocabulary(size_t n_words, uint32_t odd, uint32_t seed) {
  static const char* const kPieces[] = {"a", "b", "c", "net",      "dir_",         "drv_",
                                        "7", "-", " ", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
  static const char* const kEnds[] = {"\"",          "\":",        "\":7",       "\":n",     "\":t", "\\",         "\\n",    "\\\"x",
                                      "\x7F",        "\n",         "\xE2\x82",   "\xF0\x9F", "\xC3", "\xE2\x82\n", "\xC3<(", "\x82z",
                                      "\xE2\x82<(e", "\xF0\x9F\"", "\xC3\xA9\n", "<(t",      "<a",   "\nab"};
  std::mt19937 twister(seed);
  const auto draw = [&] { return static_cast<uint32_t>(twister()); };
  std::vector<std::string> out;
  for (int byte = 0; byte < 256; ++byte) out.emplace_back(1, static_cast<char>(byte));
  for (size_t i = 0; i < n_words; ++i) {
    std::string word;
    for (uint32_t k = 1 + draw() % 6; k > 0; --k) word += kPieces[draw() % std::size(kPieces)];
    if (draw() % odd == 0) word += kEnds[draw() % std::size(kEnds)];
    if (draw() % (4 * odd) == 0) word = "\"" + word;
    out.push_back(std::move(word));
  }
  return out;
}

std::shared_ptr<const TokenTrie> trie_of(const std::vector<std::string>& tokens) {
  std::vector<std::string_view> views(tokens.begin(), tokens.end());
  views.emplace_back();  // the end
  return TokenTrie::make(views, {static_cast<int32_t>(tokens.size())}).value();
}

std::shared_ptr<Grammar> compile(const std::string& schema, std::shared_ptr<const TokenTrie> trie) {
  GrammarOptions options;
  options.language = schema[0] == '{' ? Language::json_schema : Language::gbnf;
  auto grammar = Grammar::compile(schema, options, std::move(trie));
  EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.status().message());
  return grammar.value();
}

// Text without a mark, then what begins with the mark: one rule, which calls another. And a text as a rule, which may end anywhere.
const char* const kFreeText = "root ::= ([^<] | \"<\" [^(])* (\"<(\" tree)?\ntree ::= \"(\" tree? \")\" | \"t\" tree";
const char* const kRawText = "root ::= raw \"\\n\" raw \"\\\"\" tree\nraw ::= [^\\n\"]{0,} | raw tree\ntree ::= \"(\" tree? \")\"";

// JSON schemas and GBNF.
const char* const kSchemas[] = {
    R"({"type":"string"})",
    R"({"type":"string","minLength":3,"maxLength":9})",
    R"({"type":"string","pattern":"net[a-c]"})",
    R"({"type":"string","pattern":"^[a-c]{2,40}$"})",
    R"({"type":"string","pattern":"[0-9a-c]+","minLength":5,"maxLength":5})",
    R"({"type":"string","oneOf":[{"pattern":"net"},{"pattern":"dir_"},{"pattern":"drv_a"},{"pattern":"7-7"}]})",
    R"({"type":"string","not":{"pattern":"net|dir_"}})",
    R"s({"type":"object","patternProperties":{"netdir_(a|b)":{"type":"integer"},"netdrv_([a-c]+)":{"type":"null"},
        "net[a-c]+7":{"type":"boolean"}}})s",
    R"({"type":"object","properties":{"net":{"type":"string"},"dir_a":{"enum":["a","b"]}},"additionalProperties":{"type":"string"}})",
    R"({"type":"object","patternProperties":{"^.{1,20}$":{"type":"string"}}})",
    kFreeText,
    kRawText,
    // Texts that lack some of the characters of several bytes, or end within them.
    "root ::= [^\xE2\x82\xAC"
    "n]* (\"n\" tree)?\ntree ::= \"(\" tree? \")\" | \"e\" tree",
    "root ::= text \"_\" text \"\\\"\"\ntext ::= [a-z\xC3\xA9"
    "\xF0\x9F\x98\x80"
    "]{0,400} [^_\"]*",
};

// Along drawn answers, each mask has exactly the tokens whose bytes can be read, wherever the matcher has moved meanwhile.
TEST(GrammarWalks, MasksHaveTheTokensThatCanBeRead) {
  const std::vector<std::string> tokens = make_vocabulary(1500, 2, 1);
  std::mt19937 draw(2);
  size_t compared = 0;
  for (const char* const schema : kSchemas) {
    for (int answer = 0; answer < 6; ++answer) {
      const auto trie = trie_of(tokens);  // a new one: no mask is shared between answers
      const auto grammar = compile(schema, trie);
      auto matcher = std::make_unique<Matcher>(grammar->matcher());
      Space space(grammar->network());
      uint32_t at = space.start();
      for (int step = 0; step < 12 && !matcher->must_end(); ++step) {
        matcher = std::make_unique<Matcher>(std::move(*matcher));
        const uint32_t* const mask = matcher->mask().value();
        std::vector<size_t> allowed;
        for (size_t id = 0; id < tokens.size(); ++id) {
          uint32_t to = at;
          for (size_t i = 0; i < tokens[id].size() && to != Space::kRefused; ++i) to = space.step(to, static_cast<uint8_t>(tokens[id][i]));
          const bool reads = to != Space::kRefused;
          ASSERT_EQ((mask[id >> 5] >> (id & 31) & 1) != 0, reads) << schema << ", step " << step << ", token '" << tokens[id] << "'";
          if (reads && (tokens[id][0] != '"' || draw() % 16 == 0)) allowed.push_back(id);
          ++compared;
        }
        const size_t next = allowed.empty() ? static_cast<size_t>('"') : allowed[draw() % allowed.size()];
        if ((mask[next >> 5] >> (next & 31) & 1) == 0) break;
        ASSERT_TRUE(matcher->accept(static_cast<int32_t>(next)).value());
        for (const char c : tokens[next]) at = space.step(at, static_cast<uint8_t>(c));
      }
    }
  }
  EXPECT_GT(compared, 300000u);
}

// The nodes that the walk of a state steps on, after `begin`.
uint64_t steps(const std::string& schema, const std::shared_ptr<const TokenTrie>& trie, const std::string& begin) {
  const auto grammar = compile(schema, trie);
  Space space(grammar->network());
  uint32_t at = space.start();
  for (const char c : begin) at = space.step(at, static_cast<uint8_t>(c));
  EXPECT_NE(at, Space::kRefused);
  MaskCache cache(64u << 20);
  MaskMaker maker(grammar->network(), *trie, cache);
  Pace pace(nullptr);
  std::vector<uint32_t> states;
  for (uint32_t i = 0; i < space.n_items(at); ++i) {
    const Item item = space.items(at)[i];
    if (!MaskMaker::has_leaf(grammar->network().rules[grammar->network().states[item.state].rule])) {
      EXPECT_NE(maker.local(item, &pace), nullptr);
      continue;
    }
    states.push_back(item.state);
  }
  if (states.empty()) return maker.n_steps();
  EXPECT_NE(states.size() == 1 ? maker.leaf(states[0], &pace) : maker.leaf_together(states, &pace), nullptr);
  return maker.n_steps();
}

TEST(GrammarWalks, PassByPlainText) {
  const auto trie = trie_of(make_vocabulary(40000, 50, 3));
  const size_t nodes = trie->nodes().size();
  ASSERT_GT(nodes, 60000u);
  // A text, with any number of characters and with few, one that must have a word, and keys that must not be declared ones.
  EXPECT_LT(steps(R"({"type":"string"})", trie, "\""), nodes / 2);
  EXPECT_LT(steps(R"({"type":"string","maxLength":5000})", trie, "\""), nodes / 2);
  EXPECT_LT(steps(R"({"type":"string","pattern":"net7net"})", trie, "\""), nodes);  // the start, then the state behind the word
  EXPECT_LT(steps(R"({"type":"string","minLength":300,"pattern":"a|[^a]"})", trie, "\"abc"), nodes / 2);
  // A text without a mark, in a rule that calls others.
  EXPECT_LT(steps("root ::= [^<]* (\"<\" tree)?\ntree ::= \"(\" tree? \")\"", trie, "abc"), nodes / 2);
  // Four keys' patterns: one walk.
  EXPECT_LT(steps(kSchemas[7], trie, "{\""), nodes);
}

// States from which the rest of a character leads to one state are made once for that state.
TEST(GrammarWalks, KeysNeedFewStates) {
  std::string schema = R"({"type":"object","properties":{)";
  for (int i = 0; i < 20; ++i)
    schema += (i ? ",\"" : "\"") + std::string(1, static_cast<char>('a' + i)) + R"(_declared_key":{"type":"null"})";
  const auto grammar = compile(schema + "}}", trie_of(make_vocabulary(10, 2, 4)));
  EXPECT_LT(grammar->network().n_states(), 1500u);  // 20 keys of 14 characters, twice: as themselves, and in what others must not be
}

}  // namespace
}  // namespace orrery::text::grammar::walks_test
