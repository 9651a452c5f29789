// Tools whose arguments are compiled when an answer comes to them: step by step, the grammar has the masks, the refusals and the ends of
// the grammar that was compiled at once. And plain schemas, of which this may be done: none is refused, and none needs more bytes than was
// said.
#include <gtest/gtest.h>

#include <random>

#include "runtime/text/format/answer_parser.h"
#include "runtime/text/grammar/grammar.h"
#include "runtime/text/grammar/json_schema/plain.h"
#include "runtime/text/json/json.h"
#include "tests/unit/format/templates.h"

namespace orrery::text::format::deferred_test {
namespace {

using grammar::Grammar;
using grammar::GrammarOptions;
using grammar::Matcher;
using grammar::TokenTrie;

constexpr const char* kTools = R"([
  {"name": "say", "parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 9}, "n": {"type": "integer", "minimum": 12}}, "required": ["n"]}},
  {"name": "say_it", "parameters": {"type": "object", "properties": {"at": {"type": "string", "format": "date"}, "of": {"type": "array", "items": {"enum": ["a", "bc"]}, "minItems": 1}}, "required": ["of"]}},
  {"name": "now"},
  {"name": "odd", "parameters": {"type": "object", "properties": {"k": {"type": "string", "pattern": "^x+$"}}, "required": ["k"]}},
  {"name": "deep", "parameters": {"type": "object", "properties": {"o": {"type": "object", "properties": {"p": {"type": ["boolean", "null"]}}, "required": ["p"]}}}}
])";

// Bytes, and tokens that read from a name's end into the arguments.
std::shared_ptr<TokenTrie> tokens() {
  static std::vector<std::string> all;
  if (all.empty()) {
    for (int b = 0; b < 256; ++b) all.push_back(std::string(1, static_cast<char>(b)));
    for (const char* more : {"say", "\": {\"", " {\"", "{\"", "={\"", "={}", "z={\"", "z={}", "\", \"arguments\": {}",
                             "say_it\", \"arguments\": {\"of\"", "}}", "}\n", "\": \"", "[\"a", "12"})
      all.emplace_back(more);
    all.emplace_back();
  }
  return TokenTrie::make(std::vector<std::string_view>(all.begin(), all.end()), {static_cast<int32_t>(all.size()) - 1}).value();
}

AnswerRules rules_of(ChatFormat format, ToolChoice choice) {
  AnswerRules rules;
  rules.format = std::move(format);
  rules.choice = choice;
  rules.may_reason = !rules.format.reasoning.open.empty();
  rules.tools = tools_of(parse_json(kTools).value()).value();
  return rules;
}

std::shared_ptr<Grammar> compiled(const AnswerRules& rules, bool deferred, size_t* n_grown) {
  GrammarOptions options;
  AnswerRules copy = rules;
  std::vector<std::string> notices;
  const std::vector<uint32_t> none;
  auto tree = answer_tree(&copy, nullptr, nullptr, options.limits, &notices, deferred ? &none : nullptr);
  EXPECT_TRUE(tree.ok());
  const auto grow = [copy, n_grown](const std::vector<uint32_t>& numbers, const grammar::CompileLimits& limits) {
    ++*n_grown;
    AnswerRules again = copy;
    std::vector<std::string> noticed;
    return answer_tree(&again, nullptr, nullptr, limits, &noticed, &numbers);
  };
  auto made = Grammar::of_tree(*tree, options, tokens(), notices, grow);
  EXPECT_TRUE(made.ok());
  EXPECT_EQ((*made)->network().has_deferred, deferred);
  return *made;
}

std::vector<uint32_t> mask_of(Matcher* matcher) {
  auto mask = matcher->mask();
  EXPECT_TRUE(mask.ok());
  return std::vector<uint32_t>(*mask, *mask + matcher->n_words());
}

bool takes(Matcher* matcher, int32_t token) {
  auto accepted = matcher->accept(token);
  return accepted.ok() && *accepted;
}

struct Named {
  const char* name;
  ChatFormat format;
};
std::vector<Named> formats() {
  ChatFormat joined;  // nothing stands between a name and its arguments
  joined.call = CallFormat();
  joined.call->first = "<c>";
  joined.call->fields = {Field::name, Field::arguments};
  joined.call->between = {""};
  joined.call->last = "</c>", joined.call->next = ";", joined.call->after_content = "\n<c>";
  joined.call->many = joined.call->with_content = true;
  ChatFormat ids = joined;  // a token may end an id and begin the arguments
  ids.call->fields = {Field::name, Field::id, Field::arguments};
  ids.call->between = {"#", "="};
  return {{"ids", ids},
          {"counted", derived(kCountedTemplate)},
          {"bare", derived(kBareTemplate)},
          {"joined", joined},
          {"tagged", derived(kTaggedTemplate)},
          {"bare marks", derived(kBareMarksTemplate)},
          {"python", derived(kPythonTemplate)}};
}

TEST(DeferredTools, AreTheGrammarThatIsCompiledAtOnce) {
  std::mt19937 random(4);
  size_t n_grown = 0, n_calls = 0;
  for (const Named& one : formats()) {
    const size_t grown_before = n_grown;
    for (const ToolChoice choice : {ToolChoice::automatic, ToolChoice::required}) {
      const AnswerRules rules = rules_of(one.format, choice);
      const auto at_once = compiled(rules, false, &n_grown), deferred = compiled(rules, true, &n_grown);
      for (int answer = 0; answer < 40; ++answer) {
        Matcher a = at_once->matcher(), b = deferred->matcher();
        std::string text;
        std::vector<size_t> ends = {0};
        const auto most = static_cast<uint32_t>(30 + random() % 120);  // then the answer is closed
        for (uint32_t step = 0; step < most + 400; ++step) {
          ASSERT_EQ(a.may_end(), b.may_end());
          if (a.must_end() || a.ended()) break;
          std::vector<uint32_t> words = mask_of(&a);
          ASSERT_EQ(words, mask_of(&b)) << one.name << " behind " << text;
          std::vector<int32_t> allowed, refused;
          const auto n_tokens = static_cast<int32_t>(deferred->trie().n_vocab()) - 1;
          if (step >= most) {  // the way to the end is the same, and one leads on
            const uint32_t left = b.tokens_to_end();
            ASSERT_EQ(left, a.tokens_to_end()) << one.name << " behind " << text;
            if (left == 0) break;
            auto any = b.closing_mask(left - 1, words.data());
            ASSERT_TRUE(any.ok() && *any) << one.name << " behind " << text;
          }
          for (int32_t id = 0; id < n_tokens; ++id)
            (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1 ? allowed : refused).push_back(id);
          if (allowed.empty()) break;
          ASSERT_FALSE(step < most && !refused.empty() && takes(&b, refused[random() % refused.size()]));
          // Answers come to calls sooner where every third token is the one that leads to a call.
          int32_t token = allowed[random() % allowed.size()];
          for (const char* wish : {"\n", "=", "<c>", "<", "{", "a", "say_it\", \"arguments\": {\"of\"", "={\"", "z={\"", "\": {\""})
            if (random() % 3 == 0)
              if (const int32_t id = deferred->trie().longest_prefix(wish); std::find(allowed.begin(), allowed.end(), id) != allowed.end())
                token = id;
          ASSERT_TRUE(takes(&a, token) && takes(&b, token));
          text += deferred->trie().bytes(token);
          ends.push_back(text.size());
          if (random() % 40 == 0) {
            const size_t keep = random() % (b.n_tokens() + 1);
            a.rewind(keep), b.rewind(keep);
            ends.resize(keep + 1);
            text.resize(ends.back());
          }
        }
        bool complete_a = false, complete_b = false;
        ASSERT_EQ(at_once->match(text, &complete_a), deferred->match(text, &complete_b));
        ASSERT_EQ(complete_a, complete_b);
        AnswerParser parser(rules);
        std::vector<Piece> pieces;
        parser.feed(text, &pieces);
        parser.finish(&pieces);
        n_calls += parser.calls().size();
      }
    }
    EXPECT_GT(n_grown, grown_before) << one.name;
  }
  EXPECT_GT(n_calls, 100u);
  EXPECT_GT(n_grown, 6u);
}

TEST(DeferredTools, OnlyWhatAnAnswerReachesIsCompiled) {
  size_t n_grown = 0;
  const auto form = compiled(rules_of(derived(kCountedTemplate), ToolChoice::automatic), true, &n_grown);
  Matcher first = form->matcher();
  mask_of(&first);
  EXPECT_EQ(n_grown, 0u);
  const auto take = [&](Matcher* matcher, const std::string& text) {
    for (const char c : text) {
      mask_of(matcher);
      ASSERT_TRUE(takes(matcher, static_cast<uint8_t>(c))) << text;
    }
  };
  take(&first, "<calls>now:0={");
  EXPECT_EQ(n_grown, 1u);
  Matcher second = form->matcher();  // which finds what the first one compiled
  take(&second, "<calls>now:0={};");
  EXPECT_EQ(n_grown, 1u);
  take(&second, "say:1={\"n\": 12};now:2={}");  // both are kept
  EXPECT_EQ(n_grown, 2u);
  second.rewind(7);
  take(&second, "say:0={\"n\": 12}");
  EXPECT_EQ(n_grown, 2u);
  bool complete = false;
  EXPECT_EQ(form->match("<calls>deep:0={\"o\": {\"p\": null}}</calls>", &complete), 40u);
  EXPECT_TRUE(complete);
  EXPECT_EQ(n_grown, 3u);
  EXPECT_EQ(form->match("<calls>say:0={\"n\": 11}</calls>", &complete), 21u);
}

// A schema of a tool that cannot be compiled is refused before the answer begins, whether or not others are deferred.
TEST(DeferredTools, RefusalsComeFirst) {
  AnswerRules rules = rules_of(derived(kCountedTemplate), ToolChoice::automatic);
  rules.tools =
      tools_of(
          parse_json(R"x([{"name": "now"}, {"name": "bad", "parameters": {"type": "object", "properties": {"a": {"pattern": "(?=a)"}}}}])x")
              .value())
          .value();
  std::vector<std::string> notices;
  const std::vector<uint32_t> none;
  const auto tree = answer_tree(&rules, nullptr, nullptr, {}, &notices, &none);
  ASSERT_FALSE(tree.ok());
  EXPECT_EQ(tree.status().code(), Code::unsupported);
  EXPECT_NE(std::string(tree.status().message()).find("tool bad"), std::string::npos);
}

Value number(int64_t n) { return Value::integer(n); }

TEST(DeferredTools, TheParserKnowsWhichArgumentsAreStrings) {
  for (const char* source : {kTaggedTemplate, kBareMarksTemplate, kPythonTemplate}) {
    AnswerRules at_once = rules_of(derived(source), ToolChoice::automatic), deferred = at_once;
    std::vector<std::string> notices;
    const std::vector<uint32_t> none;
    ASSERT_TRUE(answer_tree(&at_once, nullptr, nullptr, {}, &notices).ok());
    auto tree = answer_tree(&deferred, nullptr, nullptr, {}, &notices, &none);
    ASSERT_TRUE(tree.ok());
    size_t n = 0;
    for (const grammar::Rule& rule : tree->rules) n += rule.deferred != grammar::kNoNode;
    EXPECT_EQ(n, source == kTaggedTemplate   ? 4u
                 : source == kPythonTemplate ? 3u
                                             : 2u)
        << "all but a pattern, and what is not written as JSON";
    for (size_t i = 0; i < at_once.tools.size(); ++i) EXPECT_EQ(at_once.tools[i].is_string, deferred.tools[i].is_string);
  }
}

// Schemas of all plain keywords, as they come.
Value random_schema(std::mt19937* random, int depth) {
  const auto up_to = [&](uint32_t n) { return static_cast<int64_t>((*random)() % (n + 1)); };
  constexpr const char* kTypes[] = {"string", "integer", "number", "boolean", "null", "array", "object"};
  Map schema;
  const size_t which = (*random)() % (depth > 2 ? 5 : 7);
  schema.set("type", Value::string(kTypes[which]));
  if (up_to(2) == 0) schema.set("description", Value::string("some"));
  if (which == 0) {
    constexpr const char* kFormats[] = {"date", "time", "date-time", "email", "ipv4", "uuid", "uri", "hostname"};
    const int64_t kind = up_to(3), least = up_to(5);
    if (kind == 0) schema.set("format", Value::string(kFormats[up_to(7)]));
    if (kind == 1)
      schema.set("enum", Value::list({Value::string("longer\"one"), Value::string("é"),
                                      Value::string(std::string(static_cast<size_t>(up_to(4)), 'x'))}));
    if (kind == 2) schema.set("minLength", number(least)), schema.set("maxLength", number(least + up_to(3)));
  } else if (which == 1 || which == 2) {
    const int64_t least = up_to(3000) - 1500;
    if (up_to(1) == 0) schema.set("minimum", number(least));
    if (up_to(1) == 0) schema.set("maximum", number(least + up_to(99)));
  } else if (which == 5) {
    const int64_t least = up_to(3);
    schema.set("items", random_schema(random, depth + 1));
    schema.set("minItems", number(least));
    if (up_to(1) == 0) schema.set("maxItems", number(least + up_to(2)));
  } else if (which == 6) {
    Map properties;
    std::vector<Value> required;
    for (int64_t i = up_to(3); i > 0; --i) {
      const std::string name = std::string("k\"é") + std::to_string(i);
      properties.set(name, random_schema(random, depth + 1));
      if (up_to(1) == 0) required.push_back(Value::string(name));
    }
    schema.set("properties", Value::map(std::move(properties)));
    schema.set("required", Value::list(std::move(required)));
    if (up_to(1) == 0) schema.set("additionalProperties", Value::boolean(up_to(1) == 0));
  }
  return Value::map(std::move(schema));
}

TEST(PlainSchemas, CompileAndHaveAValueOfSoManyBytes) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, static_cast<char>(b)));
  bytes.emplace_back();
  const auto trie =
      std::shared_ptr<const TokenTrie>(TokenTrie::make(std::vector<std::string_view>(bytes.begin(), bytes.end()), {256}).value());
  std::mt19937 random(9);
  for (int i = 0; i < 600; ++i) {
    const Value schema = random_schema(&random, 0);
    const std::string source = dump_json(schema).value();
    const auto said = grammar::plain_bytes(schema);
    ASSERT_TRUE(said) << source;
    GrammarOptions options;
    options.language = grammar::Language::json_schema;
    options.schema.whitespace = grammar::SchemaOptions::Whitespace::spaced;
    auto form = Grammar::compile(source, options, trie);
    ASSERT_TRUE(form.ok()) << source << ": " << form.status().message();
    EXPECT_TRUE((*form)->notices().empty()) << source;
    Matcher matcher = (*form)->matcher();
    const uint32_t least = matcher.tokens_to_end();
    EXPECT_LE(least, *said) << source;
    EXPECT_GE(2 * least + 8, *said) << source;
  }
}

Value parameters_with(const std::string& value) {
  return parse_json(R"({"type": "object", "properties": {"k": )" + value + R"(}, "required": ["k"]})").value();
}

// The same of arguments with a key and a value of their own.
TEST(PlainSchemas, CompileAsTaggedArguments) {
  std::mt19937 random(10);
  size_t plain = 0;
  std::vector<Value> given;
  for (const char* name : {"date", "time", "date-time", "email", "ipv4", "uuid", "uri", "hostname"})
    given.push_back(parameters_with(std::string(R"({"type": "string", "format": ")") + name + "\"}"));
  for (const char* value : {R"({"type": "string", "minLength": 500})", R"({"type": "string", "maxLength": 500})",
                            R"({"type": "string", "minLength": 100, "maxLength": 500})"})
    given.push_back(parameters_with(value));
  while (given.size() < 150) {
    const Value schema = random_schema(&random, 0);
    if (schema.find("properties") != nullptr) given.push_back(schema);
  }
  for (const char* source : {kTaggedTemplate, kBareMarksTemplate, kPythonTemplate}) {
    for (const Value& parameters : given) {
      Map function;
      function.set("name", Value::string("f"));
      function.set("parameters", parameters);
      AnswerRules rules = rules_of(derived(source), ToolChoice::required);
      rules.tools = tools_of(Value::list({Value::map(std::move(function))})).value();
      std::map<std::string, bool, std::less<>> is_string;
      const auto said = grammar::plain_tagged_bytes(rules.tools[0].parameters, *rules.format.call->tagged, &is_string);
      ASSERT_TRUE(said || &parameters >= &given[11]) << rules.tools[0].schema;
      if (!said) continue;
      ++plain;
      std::vector<std::string> notices;
      const std::vector<uint32_t> none;
      AnswerRules later = rules;
      auto at_once = answer_tree(&rules, nullptr, nullptr, {}, &notices),
           deferred = answer_tree(&later, nullptr, nullptr, {}, &notices, &none);
      ASSERT_TRUE(at_once.ok() && deferred.ok()) << rules.tools[0].schema << ": " << at_once.status().message();
      EXPECT_EQ(is_string, rules.tools[0].is_string) << rules.tools[0].schema;
      auto form = Grammar::of_tree(*at_once, {}, tokens(), notices);
      ASSERT_TRUE(form.ok()) << rules.tools[0].schema << ": " << form.status().message();
      auto skeleton = Grammar::of_tree(*deferred, {}, tokens(), notices,
                                       [](const auto&, const auto&) { return Result<grammar::Tree>(grammar::Tree()); });
      ASSERT_TRUE(skeleton.ok());
      const auto least = [](const Grammar& g) {
        const grammar::Costs costs(g.network(), g.trie());
        grammar::Space space(g.network());
        return grammar::Closing(g.network(), g.trie()).bytes(costs, space, space.start());
      };
      EXPECT_LE(least(**form), least(**skeleton)) << rules.tools[0].schema;
      EXPECT_GE(2 * least(**form) + 40, least(**skeleton)) << rules.tools[0].schema;
    }
  }
  EXPECT_GT(plain, 150u);
}

TEST(PlainSchemas, OthersAreCompiledAtOnce) {
  for (const char* source : {"false",
                             "{}",
                             "[]",
                             "1",
                             R"({"type": "any"})",
                             R"({"type": "string", "pattern": "a"})",
                             R"({"type": "string", "format": "color"})",
                             R"({"type": "string", "format": "date", "maxLength": 3})",
                             R"({"type": "string", "minLength": 3, "maxLength": 2})",
                             R"({"type": "integer", "minimum": 2, "maximum": 1})",
                             R"({"type": "number", "minimum": 0.5})",
                             R"({"type": "number", "exclusiveMinimum": 0})",
                             R"({"type": "array", "items": false})",
                             R"({"type": "array", "items": [{"type": "null"}]})",
                             R"({"type": "array", "minItems": 2, "maxItems": 1})",
                             R"({"type": "object", "required": ["a"]})",
                             R"({"type": "object", "properties": {"a": {"$ref": "#"}}})",
                             R"({"type": "object", "additionalProperties": {"type": "null"}})",
                             R"({"type": "string", "enum": []})",
                             R"({"enum": [1]})",
                             R"({"type": "string", "enum": ["a"], "maxLength": 0})",
                             R"({"type": ["string", 1]})",
                             R"({"type": "string", "x-unknown": 1})",
                             R"({"type": "string", "minLength": 1000000})",
                             R"({"type": []})",
                             R"({"type": "object", "properties": {"a": false}})"})
    EXPECT_FALSE(grammar::plain_bytes(parse_json(source).value())) << source;
  std::string deep = R"({"type": "null"})";
  for (int i = 0; i < 40; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  EXPECT_FALSE(grammar::plain_bytes(parse_json(deep).value()));
}

}  // namespace
}  // namespace orrery::text::format::deferred_test
