// Objects with keys in any order, against lists of all their texts. The lists are made by a few loops that share no code with the compiler.
// Masks are compared token by token, and the least text to an end byte by byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "runtime/text/grammar/grammar.h"

namespace orrery::text::grammar::any_order_test {
namespace {

using Texts = std::set<std::string>;

std::shared_ptr<TokenTrie> trie_of(const std::vector<std::string>& more) {
  std::vector<std::string> tokens;
  for (int c = 0; c < 256; ++c) tokens.push_back(std::string(1, static_cast<char>(c)));
  tokens.insert(tokens.end(), more.begin(), more.end());
  tokens.push_back("");
  return TokenTrie::make(std::vector<std::string_view>(tokens.begin(), tokens.end()), {static_cast<int32_t>(tokens.size()) - 1}).value();
}

Result<std::shared_ptr<Grammar>> compiled(const std::string& schema, std::shared_ptr<const TokenTrie> trie, size_t cache_bytes = 8u << 20,
                                          SchemaOptions::Whitespace whitespace = SchemaOptions::Whitespace::compact) {
  GrammarOptions options;
  options.language = Language::json_schema;
  options.schema.whitespace = whitespace;
  options.schema.any_order = true;
  options.cache_bytes = cache_bytes;
  return Grammar::compile(schema, options, std::move(trie));
}

bool takes(const Grammar& grammar, const std::string& text) {
  bool complete;
  return grammar.match(text, &complete) == text.size() && complete;
}

// An object: declared keys with their values, and keys that are not declared and may come again.
struct Form {
  struct Key {
    std::string name, schema;
    Texts values;
    bool required;
  };
  std::vector<Key> keys;
  std::vector<std::string> others;  // keys of a pattern, with the value 7
  size_t least = 0, most = 0;
  bool spaced = false;

  std::string schema() const {
    std::string out = "{\"type\":\"object\",\"properties\":{", required;
    for (const Key& k : keys) {
      out += (&k == keys.data() ? "\"" : ",\"") + k.name + "\":" + k.schema;
      if (k.required) required += (required.empty() ? "\"" : ",\"") + k.name + "\"";
    }
    out += "},\"required\":[" + required + "],\"minProperties\":" + std::to_string(least) + ",\"maxProperties\":" + std::to_string(most);
    std::string pattern;
    for (const std::string& key : others) pattern += (pattern.empty() ? "" : "|") + key;
    if (!others.empty()) out += ",\"patternProperties\":{\"^(" + pattern + ")$\":{\"const\":7}}";
    return out + ",\"additionalProperties\":false}";
  }
  // Every sequence of at most `most` members, if it has what it must.
  void add_texts(const std::string& so_far, std::vector<size_t>* used, Texts* out) const {
    bool whole = used->size() >= least;
    for (size_t k = 0; k < keys.size(); ++k)
      whole = whole && (!keys[k].required || std::find(used->begin(), used->end(), k) != used->end());
    if (whole) out->insert(so_far + "}");
    if (used->size() == most) return;
    const std::string comma = used->empty() ? "" : spaced ? ", " : ",", colon = spaced ? ": " : ":";
    for (size_t k = 0; k < keys.size() + others.size(); ++k) {
      const bool declared = k < keys.size();
      if (declared && std::find(used->begin(), used->end(), k) != used->end()) continue;
      used->push_back(k);
      const std::string head = so_far + comma + "\"" + (declared ? keys[k].name : others[k - keys.size()]) + "\"" + colon;
      for (const std::string& value : declared ? keys[k].values : Texts{"7"}) add_texts(head + value, used, out);
      used->pop_back();
    }
  }
  Texts texts() const {
    Texts out;
    std::vector<size_t> used;
    add_texts("{", &used, &out);
    return out;
  }
};

Form random_form(std::mt19937* random, int depth, bool spaced = false) {
  const auto below = [&](size_t n) { return static_cast<size_t>((*random)() % n); };
  static const char* const kNames[] = {"a", "ab", "abc", "b", "ba"};
  Form form;
  form.spaced = spaced;
  const size_t n = below(depth == 0 ? 5 : 3);
  for (size_t i = 0; i < n; ++i) {
    Form::Key key{kNames[i], "{\"enum\":[1,12]}", {"1", "12"}, below(3) == 0};
    if (below(2) == 0) key.schema = "{\"const\":2}", key.values = {"2"};
    if (depth == 0 && below(4) == 0) {
      const Form inner = random_form(random, 1, spaced);
      key.schema = inner.schema(), key.values = inner.texts();
    }
    form.keys.push_back(key);
  }
  if (below(3) == 0) form.others = {"x", "xa"};
  form.most = 1 + below(depth == 0 ? 4 : 2);
  form.least = below(4) == 0 ? below(form.most + 1) : 0;
  return form;
}

bool begins(const Texts& texts, const std::string& text) {
  const auto at = texts.lower_bound(text);
  return at != texts.end() && at->compare(0, text.size(), text) == 0;
}

size_t least_to_end(const Texts& texts, const std::string& text) {
  size_t least = kNever;
  for (auto at = texts.lower_bound(text); at != texts.end() && at->compare(0, text.size(), text) == 0; ++at)
    least = std::min(least, at->size() - text.size());
  return least;
}

TEST(GrammarAnyOrder, TakesTheTextsOfAList) {
  std::mt19937 random(1);
  size_t taken = 0, refused = 0, empty = 0;
  for (int round = 0; round < 150; ++round) {
    const Form form = random_form(&random, 0);
    const Texts texts = form.texts();
    auto grammar = compiled(form.schema(), trie_of({}));
    if (texts.empty()) {
      EXPECT_FALSE(grammar.ok()) << form.schema();
      ++empty;
      continue;
    }
    ASSERT_TRUE(grammar.ok()) << grammar.status().message() << "\n" << form.schema();
    size_t i = 0;
    for (const std::string& text : texts) {
      if (texts.size() > 300 && random() % (texts.size() / 150) != 0) continue;
      ASSERT_TRUE(takes(**grammar, text)) << form.schema() << "\nmust take " << text;
      ++taken;
      // Neighbours: a letter changed, a part left out, a member twice.
      std::string other = text;
      if (++i % 3 == 0) other[random() % other.size()] = "ab,:{}12x"[random() % 9];
      if (i % 3 == 1) other.erase(random() % other.size(), 1 + random() % 6);
      if (i % 3 == 2) other.insert(1, text.substr(1, text.find_first_of(",}") - 1) + ",");
      ASSERT_EQ(takes(**grammar, other), texts.count(other) > 0) << form.schema() << "\n" << other;
      refused += texts.count(other) == 0;
    }
  }
  EXPECT_GT(taken, 3000u);
  EXPECT_GT(refused, 2000u);
  EXPECT_GT(empty, 5u);
}

TEST(GrammarAnyOrder, MasksAndClosingAreThoseOfAList) {
  std::mt19937 random(2);
  size_t masks = 0, allowed_tokens = 0, rewound = 0;
  for (int round = 0; round < 60; ++round) {
    const bool spaced = round % 2 == 0;
    Form form = random_form(&random, 0, spaced);
    Texts texts = form.texts();
    std::string schema = form.schema();
    if (round % 4 == 0) {  // two objects at once
      const Form other = random_form(&random, 0, spaced);
      const Texts more = other.texts();
      texts.insert(more.begin(), more.end());
      schema = "{\"anyOf\":[" + schema + "," + other.schema() + "]}";
    }
    if (texts.empty()) continue;
    std::vector<std::string> list(texts.begin(), texts.end()), words;
    for (int i = 0; i < 40; ++i) {
      const std::string& text = list[random() % list.size()];
      words.push_back(text.substr(random() % text.size(), 2 + random() % 9));
    }
    const auto trie = trie_of(words), bytes = trie_of({});
    const auto whitespace = spaced ? SchemaOptions::Whitespace::spaced : SchemaOptions::Whitespace::compact;
    auto grammar = compiled(schema, trie, round % 3 == 0 ? 1u << 12 : 8u << 20, whitespace),
         by_bytes = compiled(schema, bytes, 8u << 20, whitespace);
    ASSERT_TRUE(grammar.ok() && by_bytes.ok()) << schema;
    for (int answer = 0; answer < 3; ++answer) {
      Matcher matcher = (*grammar)->matcher(), closing = (*by_bytes)->matcher();
      std::string text;
      std::vector<std::string> taken;
      for (int step = 0; step < 24 && !matcher.ended(); ++step) {
        auto mask = matcher.mask();
        ASSERT_TRUE(mask.ok()) << mask.status().message() << "\n" << schema;
        const std::vector<uint32_t> bits(*mask, *mask + matcher.n_words());
        std::vector<int32_t> allowed;
        const auto n = static_cast<int32_t>(256 + words.size());
        for (int32_t id = 0; id < n; ++id) {
          const std::string with = text + std::string(trie->bytes(id));
          const bool bit = bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
          ASSERT_EQ(bit, begins(texts, with)) << schema << "\n" << text << " + " << trie->bytes(id);
          if (bit) allowed.push_back(id);
        }
        ASSERT_EQ(matcher.may_end(), texts.count(text) > 0) << schema << "\n" << text;
        ASSERT_EQ(closing.tokens_to_end(), least_to_end(texts, text)) << schema << "\n" << text;
        ++masks;
        allowed_tokens += allowed.size();
        if (allowed.empty()) break;
        if (random() % 6 == 0 && !taken.empty()) {
          const size_t keep = random() % taken.size();
          matcher.rewind(keep);
          taken.resize(keep);
          text.clear();
          closing.rewind(0);
          for (const std::string& t : taken) text += t;
          for (const char c : text) ASSERT_TRUE(closing.accept(static_cast<uint8_t>(c)).value());
          ++rewound;
          continue;
        }
        const int32_t token = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher.accept(token).value());
        taken.emplace_back(trie->bytes(token));
        text += taken.back();
        for (const char c : taken.back()) ASSERT_TRUE(closing.accept(static_cast<uint8_t>(c)).value());
      }
    }
  }
  EXPECT_GT(masks, 1000u);
  EXPECT_GT(allowed_tokens, 3000u);
  EXPECT_GT(rewound, 100u);
}

TEST(GrammarAnyOrder, Cases) {
  struct Case {
    const char* schema;
    std::vector<const char*> right, wrong;
  };
  const std::vector<Case> cases = {
      {R"({"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b", "c"]})",
       {R"({"b": 1, "c": 2, "a": 3})", R"({"x": 0, "c": {"y": 1, "b": 2}, "z": 0, "b": "a", "z": 1})", "7"},
       {R"({"a": 1, "b": 2})", R"({"b": 1, "c": 2, "b": 3})", R"({"c": 1, "b": 2, "a": "x"})", R"({"c": 1, "b": 2,})"}},
      {R"({"patternProperties": {"^a": {"type": "null"}}, "properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {R"({"x": 1, "ab": null, "y": 2, "aa": null})"},
       {R"({"x": 1, "aa": 1})", R"({"ab": null, "ab": null})"}},
      {R"({"const": {"a": 1, "b": {"c": 2, "d": [3]}}})",
       {R"({"b": {"d": [3], "c": 2}, "a": 1})", R"({"a": 1, "b": {"c": 2, "d": [3]}})"},
       {R"({"b": {"d": [3], "c": 2}})", R"({"a": 1, "b": {"c": 2, "d": [3]}, "a": 1})"}},
      {R"({"dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}})",
       {R"({"b": 1, "a": 1})", R"({"a": 1, "x": 2, "b": 1})", R"({"b": 1})"},
       {R"({"a": 1})", R"({"x": 1, "a": 1})"}},
      {R"({"type": "object", "minProperties": 3, "maxProperties": 100000})", {R"({"a": 1, "a": 1, "b": 2})"}, {R"({"a": 1, "b": 1})"}},
      {R"({"minProperties": 2, "properties": {"a": {}, "b": {"$ref": "#"}}, "additionalProperties": false})",
       {R"({"b": 1, "a": 1})", R"({"b": {"a": 3, "b": 4}, "a": 1})"},
       {R"({"a": 1})", R"({"b": {"a": 3}, "a": 1})"}},
      // An object that no text ends is no member.
      {R"({"$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}, "required": ["n"]}},
          "type": "object", "properties": {"a": {"$ref": "#/$defs/t"}, "b": {}, "c": {}}, "minProperties": 2, "additionalProperties": false})",
       {R"({"c": 1, "b": 1})"},
       {R"({"b": 1})", R"({"c": 1, "a": {}})"}},
  };
  for (const Case& c : cases) {
    auto grammar = compiled(c.schema, trie_of({}), 8u << 20, SchemaOptions::Whitespace::free);
    ASSERT_TRUE(grammar.ok()) << c.schema << ": " << grammar.status().message();
    for (const char* text : c.right) EXPECT_TRUE(takes(**grammar, text)) << c.schema << " must take " << text;
    for (const char* text : c.wrong) EXPECT_FALSE(takes(**grammar, text)) << c.schema << " must not take " << text;
  }
  auto nothing = compiled(R"({"type": "object", "properties": {"a": {}}, "minProperties": 2, "additionalProperties": false})", trie_of({}));
  EXPECT_FALSE(nothing.ok());
}

std::string with_keys(size_t n, bool required) {
  std::string schema = "{\"type\":\"object\",\"properties\":{", names;
  for (size_t i = 0; i < n; ++i) {
    const std::string name = "\"key" + std::to_string(i) + "\"";
    schema += (i ? "," : "") + name + ":{\"type\":\"integer\"}";
    names += (i ? "," : "") + name;
  }
  return schema + "},\"additionalProperties\":false" + (required ? ",\"required\":[" + names + "]}" : "}");
}

// Compiling is linear in the keys, though they have 2^n sets, and so is the way to the end.
TEST(GrammarAnyOrder, SetsAreMadeAsAnswersReachThem) {
  const auto trie = trie_of({"\":1", ",\"key", "{\"key"});
  const auto small = compiled(with_keys(100, true), trie).value(), large = compiled(with_keys(400, true), trie).value();
  EXPECT_LT(large->network().n_states(), 5 * small->network().n_states());
  std::mt19937 random(3);
  EXPECT_GT(large->matcher().tokens_to_end(), 1000u);
  const auto some = compiled(with_keys(24, true), trie).value();
  Matcher matcher = some->matcher();
  const uint32_t least = matcher.tokens_to_end();
  for (uint32_t left = least; !matcher.may_end(); --left) {
    ASSERT_GT(left, 0u);
    std::vector<uint32_t> words(matcher.n_words());
    ASSERT_TRUE(matcher.closing_mask(left - 1, words.data()).value()) << left;
    std::vector<int32_t> tokens;
    for (int32_t id = 0; id < static_cast<int32_t>(32 * words.size()); ++id)
      if (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) tokens.push_back(id);
    ASSERT_TRUE(matcher.accept(tokens[random() % tokens.size()]).value());
  }
  auto refused = compiled(with_keys(Members::kMost + 1, false), trie);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::unsupported);
  EXPECT_NE(std::string(refused.status().message()).find("schema #: an object has more than 512 keys"), std::string::npos)
      << refused.status().message();
  EXPECT_TRUE(compiled(with_keys(Members::kMost, false), trie).ok());
}

}  // namespace
}  // namespace orrery::text::grammar::any_order_test
