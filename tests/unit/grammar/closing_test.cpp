// The shortest text that completes an answer, against a search through all configurations, and the tokens that suffice for it.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/text/grammar/grammar.h"

namespace orrery::text::grammar::closing_test {
namespace {

std::shared_ptr<TokenTrie> trie_of(const std::vector<std::string>& more) {
  std::vector<std::string> tokens;
  for (int c = 0; c < 256; ++c) tokens.push_back(std::string(1, static_cast<char>(c)));
  tokens.insert(tokens.end(), more.begin(), more.end());
  tokens.push_back("");
  auto trie = TokenTrie::make(std::vector<std::string_view>(tokens.begin(), tokens.end()), {static_cast<int32_t>(tokens.size()) - 1});
  EXPECT_TRUE(trie.ok());
  return *trie;
}

const std::vector<std::string> kGrammars = {
    "root ::= \"abc\" | \"ab\" [d-f]{2,5} \"x\"",
    "root ::= ([a-c]{3,7} \",\"){2,4} \"end\"",
    "root ::= item{2,} \".\"\nitem ::= \"(\" item* \")\" | \"ab\"",
    "root ::= \"{\" (pair (\",\" pair){1,3})? \"}\"\npair ::= string \":\" value\nstring ::= \"\\\"\" [a-c]{2,40} \"\\\"\"\n"
    "value ::= string | root | \"[\" (value (\",\" value)*)? \"]\" | [0-9]{1,7}",
    "root ::= a | b\na ::= \"x\" a \"y\" | \"longer text\"\nb ::= \"x\" b \"zz\" | \"xq\"",
    "root ::= (\"a\"? \"b\"?){3,6} \"c\"",
    "root ::= list\nlist ::= list \",\" item | item\nitem ::= [a-b]{4} | \"c\" list \"d\"",
};

// The least number of bytes to an end, by a search in both directions over the configurations that can be reached.
TEST(GrammarClosing, LeastBytesAreThoseOfASearch) {
  constexpr size_t kMost = 4000;
  size_t compared = 0, searched = 0;
  for (const std::string& source : kGrammars) {
    GrammarOptions options;
    const auto trie = trie_of({});
    auto grammar = Grammar::compile(source, options, trie);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    const Network& network = (*grammar)->network();
    const Costs costs(network, *trie);
    Space space(network);
    Closing closing(network, *trie);
    std::vector<uint32_t> all = {space.start()};
    std::map<uint32_t, size_t> known = {{all[0], 0}};
    std::vector<std::vector<size_t>> from(1);
    for (size_t i = 0; i < all.size() && all.size() < kMost; ++i)
      for (int c = 0; c < 256; ++c) {
        const uint32_t to = space.step(all[i], static_cast<uint8_t>(c));
        if (to == Space::kRefused) continue;
        const auto [at, is_new] = known.emplace(to, all.size());
        if (is_new) all.push_back(to), from.emplace_back();
        from[at->second].push_back(i);
      }
    std::vector<uint32_t> distance(all.size(), kNever);
    std::vector<size_t> todo;
    for (size_t i = 0; i < all.size(); ++i)
      if (space.may_end(all[i])) distance[i] = 0, todo.push_back(i);
    for (size_t k = 0; k < todo.size(); ++k)
      for (const size_t i : from[todo[k]])
        if (distance[i] == kNever) distance[i] = distance[todo[k]] + 1, todo.push_back(i);
    for (size_t i = 0; i < std::min<size_t>(all.size(), 800); ++i) {
      const uint32_t least = closing.bytes(costs, space, all[i]);
      if (all.size() < kMost) {
        ASSERT_EQ(least, distance[i]) << source << "\nconfiguration " << i;
      }
      // Where the search had to stop: a text of that length is there, and no byte leads nearer to an end than by one.
      ASSERT_LE(least, distance[i]) << source;
      for (int c = 0; c < 256; ++c) {
        const uint32_t to = space.step(all[i], static_cast<uint8_t>(c));
        if (least > 0 && to != Space::kRefused) {
          ASSERT_GE(closing.bytes(costs, space, to) + 1, least) << source;
        }
      }
      uint32_t at = all[i];
      std::string text;
      for (const int32_t id : closing.way(costs, &space, at)) text += trie->bytes(id);
      ASSERT_EQ(text.size(), least) << source;
      for (const char c : text) at = space.step(at, static_cast<uint8_t>(c));
      ASSERT_TRUE(space.may_end(at)) << source << " '" << text << "'";
      ++compared;
    }
    searched += all.size() < kMost;
  }
  EXPECT_GT(compared, 1500u);
  EXPECT_GE(searched, 3u);
}

TEST(GrammarClosing, LeastBytesOfSchemas) {
  const auto trie = trie_of({});
  const std::pair<const char*, uint32_t> kSchemas[] = {
      {R"({"type": "object", "properties": {"name": {"type": "string", "minLength": 3}, "n": {"type": "integer"}}, "required": ["name"],
          "additionalProperties": false})",
       14},  // {"name":"aaa"}
      {R"({"type": "array", "items": {"enum": ["yes", "no"]}, "minItems": 4})", 21},
      {R"({"type": "array", "items": {"type": "integer", "minimum": 100}, "minItems": 2, "maxItems": 1000})", 9},
      {R"({"const": "x"})", 3},
      {R"({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12}, "tags": {"type": "array",
          "items": {"enum": ["red", "blue"]}, "maxItems": 3, "minItems": 2}}, "required": ["name", "tags"], "additionalProperties": false})",
       33},
      {R"({"$defs": {"t": {"type": "object", "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
          "required": ["v", "next"], "additionalProperties": false}}, "$ref": "#/$defs/t"})",
       22},  // {"v":true,"next":null}
  };
  for (const auto& [source, least] : kSchemas) {
    GrammarOptions options;
    options.language = Language::json_schema;
    options.schema.whitespace = SchemaOptions::Whitespace::compact;
    auto grammar = Grammar::compile(source, options, trie);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    Matcher matcher = (*grammar)->matcher();
    EXPECT_EQ(matcher.tokens_to_end(), least) << source;
  }
}

// From everywhere on a random answer: where n tokens suffice, there is a token after which n - 1 suffice, so the answer ends in time.
TEST(GrammarClosing, WhatCanBeClosedIsClosed) {
  std::mt19937 random(7);
  size_t closed = 0, longest = 0;
  for (const std::string& source : kGrammars) {
    GrammarOptions options;
    auto grammar =
        Grammar::compile(source, options, trie_of({"abc", "ab", "\":", "\"}", "},", "end", "(a", "))", "xx", "a,", "]]", "yy", "dd"}));
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    for (int answer = 0; answer < 12; ++answer) {
      Matcher matcher = (*grammar)->matcher();
      const uint32_t limit = matcher.tokens_to_end() + static_cast<uint32_t>(random() % 14);
      uint32_t left = limit;
      ASSERT_TRUE(matcher.can_close(left));
      for (; left > 0 && !matcher.must_end(); --left) {
        std::vector<uint32_t> words(matcher.n_words());
        auto any = matcher.closing_mask(left - 1, words.data());
        ASSERT_TRUE(any.ok() && *any) << source << "\n" << left << " of " << limit << " tokens left";
        std::vector<int32_t> tokens;
        for (int32_t id = 0; id < static_cast<int32_t>(32 * words.size()); ++id)
          if (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) tokens.push_back(id);
        const int32_t token = tokens[random() % tokens.size()];
        EXPECT_TRUE(matcher.can_close_after(token, left - 1));
        ASSERT_TRUE(matcher.accept(token).value());
        if (matcher.ended()) break;
      }
      EXPECT_TRUE(matcher.ended() || matcher.may_end()) << source;
      ++closed;
      longest = std::max<size_t>(longest, matcher.n_tokens());
    }
  }
  EXPECT_EQ(closed, 12 * kGrammars.size());
  EXPECT_GT(longest, 10u);
}

// Tokens that the grammar names are steps of the way: here 256, which has no bytes, as control tokens have none.
TEST(GrammarClosing, NamedTokensAreCountedOn) {
  std::mt19937 random(8);
  for (const char* source :
       {"root ::= <[256]> [a-c]{2,9} <[256]> \"z\"{1,4} | \"x\" root <[256]>", "root ::= (\"ab\" <[256]>){2,5} \"c\""}) {
    auto grammar = Grammar::compile(source, {}, trie_of({"", "ab", "zz", "bc"}));
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    EXPECT_EQ((*grammar)->matcher().tokens_to_end(), 5u) << source;
    for (int answer = 0; answer < 40; ++answer) {
      Matcher matcher = (*grammar)->matcher();
      uint32_t left = matcher.tokens_to_end() + static_cast<uint32_t>(random() % 6);
      for (; left > 0 && !matcher.must_end(); --left) {
        std::vector<uint32_t> words(matcher.n_words());
        auto any = matcher.closing_mask(left - 1, words.data());
        ASSERT_TRUE(any.ok() && *any) << source << "\n" << left << " tokens left";
        std::vector<int32_t> tokens;
        for (int32_t id = 0; id < static_cast<int32_t>(32 * words.size()); ++id)
          if (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) tokens.push_back(id);
        ASSERT_TRUE(matcher.accept(tokens[random() % tokens.size()]).value());
        if (matcher.ended()) break;
      }
      EXPECT_TRUE(matcher.ended() || matcher.may_end()) << source;
    }
  }
  auto others = Grammar::compile("root ::= !<[256]> \"x\"", {}, trie_of({""}));
  ASSERT_TRUE(others.ok());
  EXPECT_EQ((*others)->matcher().tokens_to_end(), kNever);
}

// Texts are counted on where each of their bytes is a token.
TEST(GrammarClosing, VocabulariesWithoutAByte) {
  const std::vector<std::string_view> tokens = {"a", "ab", "c", "xyz", "cc", ""};
  auto trie = TokenTrie::make(tokens, {5});
  ASSERT_TRUE(trie.ok());
  auto grammar = Grammar::compile("root ::= \"a\" (\"xyz\" | \"c\"{3,9} | \"bc\")", {}, *trie);
  ASSERT_TRUE(grammar.ok());
  Matcher matcher = (*grammar)->matcher();
  EXPECT_EQ(matcher.tokens_to_end(), 3u) << "a cc c";
  EXPECT_FALSE(matcher.can_close(2));
  EXPECT_TRUE(matcher.can_close(3));
  EXPECT_TRUE(matcher.can_close_after(0, 2));
  EXPECT_FALSE(matcher.can_close_after(0, 1));
  EXPECT_TRUE(matcher.can_close_after(1, 1)) << "ab, then c";
  grammar = Grammar::compile("root ::= \"a\" (\"xyz\" | \"bc\")", {}, *trie);
  ASSERT_TRUE(grammar.ok());
  Matcher other = (*grammar)->matcher();
  EXPECT_EQ(other.tokens_to_end(), kNever);
  EXPECT_FALSE(other.can_close(100));
}

}  // namespace
}  // namespace orrery::text::grammar::closing_test
