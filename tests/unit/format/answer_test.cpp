// Answers with tools: the grammar allows what the template prints and nothing that it does not, and the parser reads every allowed answer
// back, however its bytes are cut. Tokens here are bytes, so a mask is the set of bytes that may follow.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "runtime/text/format/answer_parser.h"
#include "runtime/text/grammar/grammar.h"
#include "runtime/text/grammar/json_schema/form.h"
#include "runtime/text/json/json.h"
#include "tests/support/shared.h"
#include "tests/unit/format/templates.h"

namespace orrery::text::format {
namespace {

using grammar::Grammar;
using grammar::GrammarOptions;
using grammar::TokenTrie;

constexpr int32_t kFirstByte = 3;  // of the vocabulary below

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 0, "maximum": 40}, "exact": {"type": "boolean"},
    "unit": {"enum": ["C", "F", null]}}, "required": ["city"]}}},
  {"type": "function", "function": {"name": "now"}},
  {"type": "function", "function": {"name": "weather_at", "parameters": {"type": "object", "properties": {
    "lat": {"type": "number", "minimum": -90, "maximum": 90}, "note": {"type": "string", "pattern": "^[a-z<>/ ]{0,8}$"}}, "required": ["lat", "note"]}}}
])";
constexpr const char* kNested = R"([{"name": "sum", "parameters": {"type": "object", "properties": {
    "values": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}, "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}}},
    "required": ["values"]}}])";

std::shared_ptr<TokenTrie> bytes_as_tokens() {
  static std::string all;
  if (all.empty())
    for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  std::vector<std::string_view> tokens;
  for (size_t b = 0; b < 256; ++b) tokens.push_back(std::string_view(all).substr(b, 1));
  tokens.emplace_back();
  auto trie = TokenTrie::make(tokens, {256});
  EXPECT_TRUE(trie.ok());
  return *trie;
}

struct Made {
  AnswerRules rules;  // of the grammar, for parsers
  std::shared_ptr<Grammar> grammar;
};

Made made(ChatFormat format, ToolChoice choice, const char* tools = kTools, bool many = true) {
  Made m;
  m.rules.format = std::move(format);
  m.rules.choice = choice;
  m.rules.many = many;
  m.rules.may_reason = !m.rules.format.reasoning.open.empty();  // without a mark it would be there always
  auto list = tools_of(parse_json(tools).value());
  EXPECT_TRUE(list.ok()) << list.status().message();
  if (!list.ok()) return m;
  m.rules.tools = *list;
  std::vector<std::string> notices;
  GrammarOptions options;
  auto tree = answer_tree(&m.rules, nullptr, nullptr, options.limits, &notices);
  EXPECT_TRUE(tree.ok()) << tree.status().message();
  if (!tree.ok()) return m;
  auto compiled = Grammar::of_tree(*tree, options, bytes_as_tokens(), notices);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  if (compiled.ok()) m.grammar = *compiled;
  return m;
}

// The pieces without their cuts.
std::vector<Piece> joined(const std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  for (const Piece& p : pieces) {
    if (!out.empty() && out.back().type == p.type && out.back().number == p.number && p.type != Piece::call && p.type != Piece::call_end) {
      out.back().raw += p.raw;
      out.back().json += p.json;
    } else {
      out.push_back(p);
    }
  }
  return out;
}
std::string shown(const std::vector<Piece>& pieces) {
  std::string out;
  for (const Piece& p : pieces) out += std::to_string(p.type) + "#" + std::to_string(p.number) + "(" + p.raw + "|" + p.json + ")\n";
  return out;
}

struct Read {
  std::vector<Piece> pieces;
  std::vector<AnswerParser::ReadCall> calls;
  std::string content, reasoning;
};
template <class Cut>
Read read(const AnswerRules& rules, std::string_view text, Cut cut) {
  AnswerParser parser(rules);
  Read r;
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min<size_t>(text.size() - at, std::max<size_t>(1, cut()));
    parser.feed(text.substr(at, n), &r.pieces);
    at += n;
  }
  parser.finish(&r.pieces);
  r.pieces = joined(r.pieces);
  r.calls = parser.calls();
  r.content = parser.content();
  r.reasoning = parser.reasoning();
  return r;
}

// The law of concatenation, and one result for every cut.
Read check_law(const AnswerRules& rules, const std::string& text, std::mt19937* random) {
  const Read whole = read(rules, text, [&] { return text.size(); });
  std::string raw;
  for (const Piece& p : whole.pieces) raw += p.raw;
  EXPECT_EQ(raw, text);
  for (size_t split = 0; split <= text.size() && text.size() <= 200; ++split) {  // in two, at every place
    bool first = true;
    const Read two = read(rules, text, [&] { return std::exchange(first, false) ? split : text.size(); });
    EXPECT_EQ(shown(two.pieces), shown(whole.pieces)) << "cut at " << split;
  }
  const Read bytes = read(rules, text, [] { return 1; });
  EXPECT_EQ(shown(bytes.pieces), shown(whole.pieces));
  const Read cuts = read(rules, text, [&] { return 1 + (*random)() % 7; });
  EXPECT_EQ(shown(cuts.pieces), shown(whole.pieces));
  return whole;
}

std::vector<Call> as_calls(const Read& r) {
  std::vector<Call> calls;
  for (const auto& c : r.calls) {
    EXPECT_TRUE(c.whole);
    auto arguments = parse_json(c.arguments);
    EXPECT_TRUE(arguments.ok()) << c.arguments;
    if (arguments.ok()) calls.push_back({c.name, c.id, *arguments});
  }
  return calls;
}

// An answer that the masks allow, drawn byte by byte; it is led to its end after a while.
std::string drawn(const Made& m, std::mt19937* random, size_t bytes) {
  auto matcher = m.grammar->matcher();
  std::string text;
  std::vector<uint32_t> words(matcher.n_words());
  for (size_t n = 0; n < 4 * bytes + 2000 && !matcher.must_end(); ++n) {
    auto mask = matcher.mask();
    if (!mask.ok()) break;
    std::copy_n(*mask, words.size(), words.begin());
    if (n >= bytes) {
      const uint32_t left = matcher.tokens_to_end();
      if (left == 0) break;
      auto any = matcher.closing_mask(left - 1, words.data());
      EXPECT_TRUE(any.ok() && *any);
      if (!any.ok() || !*any) break;
    }
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < 256; ++t)
      if (words[static_cast<size_t>(t) / 32] >> (t % 32) & 1) allowed.push_back(t);
    if (allowed.empty()) break;
    const int32_t token = allowed[(*random)() % allowed.size()];
    auto accepted = matcher.accept(token);
    EXPECT_TRUE(accepted.ok() && *accepted);
    text += static_cast<char>(token);
  }
  return text;
}

void check_answers(const std::string& name, const ChatFormat& format, std::mt19937* random, int n) {
  SCOPED_TRACE(name);
  ASSERT_TRUE(format.call);
  const Made m = made(format, ToolChoice::required);
  ASSERT_TRUE(m.grammar);
  for (int i = 0; i < n; ++i) {
    const std::string text = drawn(m, random, 20 + (*random)() % 300);
    SCOPED_TRACE(text);
    bool complete = false;
    ASSERT_EQ(m.grammar->match(text, &complete), text.size());
    if (!complete) continue;
    const Read r = check_law(m.rules, text, random);
    const std::vector<Call> calls = as_calls(r);
    ASSERT_GE(calls.size(), 1u);
    // Print it back: the template's text is the model's. The names of other words for numbers (1e0) aside, which JSON keeps and values do
    // not.
    std::string events;
    for (const Piece& p : r.pieces)
      if (p.type == Piece::arguments) events += p.json;
    std::string arguments;
    for (const auto& c : r.calls) arguments += c.arguments;
    EXPECT_EQ(events, arguments);
    for (const Call& c : calls) {
      const auto tool = std::find_if(m.rules.tools.begin(), m.rules.tools.end(), [&](const Tool& t) { return t.name == c.name; });
      ASSERT_NE(tool, m.rules.tools.end()) << c.name;
      grammar::CompileLimits limits;
      std::vector<std::string> notices;
      grammar::SchemaDocument document(parse_json(tool->schema).value(), limits, &notices);
      ASSERT_TRUE(document.index().ok());
      auto fits = document.satisfies(c.arguments, document.root());
      EXPECT_TRUE(fits.ok() && *fits);
    }
  }
  // What the template prints is allowed, and read back as it was.
  // A raw string cannot contain what ends it.
  const std::string quote = format.call->tagged && format.call->tagged->string_end.size() == 1 ? "a" : "a\\\"";
  const Value city = parse_json(R"({"city": ")" + quote + R"(<b>\n", "days": 7, "exact": false, "unit": "C"})").value(),
              none = parse_json("{}").value(), at = parse_json(R"({"lat": -2.5, "note": "</a>"})").value();
  const auto id = [](int i) { return "call0000" + std::to_string(i); };
  std::vector<std::vector<Call>> samples = {{{"now", id(1), none}}, {{"weather", id(1), city}}, {{"weather_at", id(1), at}}};
  if (m.rules.format.call->many) samples.push_back({{"weather_at", id(1), at}, {"now", id(2), none}, {"weather", id(3), city}});
  for (const bool with_content : {false, true}) {
    if (with_content && !m.rules.format.call->with_content) continue;
    const Made automatic = made(format, ToolChoice::automatic);
    for (const std::vector<Call>& sample : samples) {
      Result<std::string> text = print(*automatic.rules.format.call, sample, with_content ? "So" : "");
      ASSERT_TRUE(text.ok());
      SCOPED_TRACE(*text);
      bool complete = false;
      EXPECT_EQ(automatic.grammar->match(*text, &complete), text->size());
      EXPECT_TRUE(complete);
      const Read r = check_law(automatic.rules, *text, random);
      const std::vector<Call> calls = as_calls(r);
      ASSERT_EQ(calls.size(), sample.size());
      for (size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(calls[i].name, sample[i].name);
        const auto sorted = [](const Value& v) {
          JsonFormat f;
          f.sort_keys = true;
          return dump_json(v, f).value();
        };
        EXPECT_EQ(sorted(calls[i].arguments), sorted(sample[i].arguments));
      }
    }
  }
}

std::string file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(Answers, OfOurTemplates) {
  std::mt19937 random(5);
  check_answers("turns_with_thoughts", derived(file(testing::source_path("tests/golden/templates/turns_with_thoughts.jinja"))), &random,
                40);
  check_answers("bracketed", derived(file(testing::source_path("tests/golden/templates/bracketed.jinja"))), &random, 40);
  check_answers("tagged", derived(kTaggedTemplate), &random, 40);
  check_answers("counted", derived(kCountedTemplate), &random, 40);
  check_answers("bare", derived(kBareTemplate), &random, 40);
  check_answers("marks", derived(kBareMarksTemplate), &random, 40);
  check_answers("python", derived(kPythonTemplate), &random, 40);
  check_answers("channels", derived(kChannelsTemplate), &random, 40);
}

// A turn of channels: thought, then one call or the final message, and nothing in between.
TEST(Answers, OfChannels) {
  const ChatFormat format = derived(kChannelsTemplate);
  ASSERT_TRUE(format.call) << format.why_none;
  EXPECT_FALSE(format.call->many);
  EXPECT_EQ(format.content_open, "<|channel|>final<|message|>");
  const Made m = made(format, ToolChoice::automatic);
  ASSERT_TRUE(m.grammar);
  std::mt19937 random(8);
  const std::string thought = "<|channel|>analysis<|message|>It may <rain>.<|end|><|start|>assistant";
  const std::string call = " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Rome\"}<|call|>",
                    last = "<|channel|>final<|message|>Rain.<|return|>";
  for (const std::string& begin : {std::string(), thought}) {
    for (const std::string& end : {call, last}) {
      bool complete = false;
      EXPECT_EQ(m.grammar->match(begin + end, &complete), (begin + end).size());
      EXPECT_TRUE(complete) << begin << end;
      const Read r = check_law(m.rules, begin + end, &random);
      EXPECT_EQ(r.reasoning, begin.empty() ? "" : "It may <rain>.");
      EXPECT_EQ(r.content, end == call ? "" : "Rain.");
      ASSERT_EQ(r.calls.size(), end == call ? 1u : 0u);
      EXPECT_EQ(r.calls.empty() ? "" : r.calls[0].name + r.calls[0].arguments, end == call ? R"(weather{"city": "Rome"})" : "");
    }
  }
  for (const std::string& no : {call + call, last + call, thought + thought, std::string(" to=functions.unknown<"), std::string("Rain.")}) {
    bool complete = false;
    EXPECT_LT(m.grammar->match(no, &complete), no.size()) << no;
  }
}

TEST(Answers, OfPublishedTemplates) {
  const std::string folder = testing::shared_path("chat-templates");
  if (folder.empty()) GTEST_SKIP() << "no shared chat templates";
  std::mt19937 random(6);
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const auto f = derived(file(entry.path()));
    if (!f.call) continue;
    ++n;
    check_answers(entry.path().stem().string(), f, &random, 4);
  }
  printf("answers of %zu templates were printed, allowed and read back\n", n);
}

TEST(Answers, ListsAndObjectsInTaggedArguments) {
  const Made m = made(derived(kTaggedTemplate), ToolChoice::required, kNested);
  ASSERT_TRUE(m.grammar);
  std::mt19937 random(7);
  const std::string text =
      "<tool>\n<function=sum>\n<parameter=values>\n[1, 2]\n</parameter>\n<parameter=options>\n{\"deep\": "
      "true}\n</parameter>\n</function>\n</tool>";
  bool complete = false;
  EXPECT_EQ(m.grammar->match(text, &complete), text.size());
  EXPECT_TRUE(complete);
  const Read r = check_law(m.rules, text, &random);
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].arguments, R"({"values": [1, 2], "options": {"deep": true}})");
}

// Lists and objects in notations of their own: what the grammar allows is read back, fits the schema, and is printed as it was.
TEST(Answers, NotationsOfTheirOwn) {
  constexpr const char* kDeep = R"([{"name": "put", "parameters": {"type": "object", "properties": {
    "rows": {"type": "array", "maxItems": 3, "items": {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "boolean"}, {"type": "null"},
      {"type": "object", "properties": {"Name": {"type": "string", "pattern": "^['\"a-c\\n ]{0,5}$"}, "at": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
       "required": ["Name"], "additionalProperties": false}]}},
    "where": {"type": "object", "properties": {"Z": {"enum": ["it's", "x", null, [1, "two", {"k": true}]]}, "a": {"$ref": "#/$defs/b"}}, "additionalProperties": false},
    "tags": {"type": "object", "patternProperties": {"^[a-z]{1,4}$": {"type": "string", "pattern": "^[a-z]{0,3}$"}}, "additionalProperties": false, "maxProperties": 1}},
    "required": ["rows"], "$defs": {"b": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 2}}}}])";
  std::mt19937 random(12);
  for (const char* source : {kBareMarksTemplate, kPythonTemplate, kTaggedTemplate}) {
    const Made m = made(derived(source), ToolChoice::required, kDeep);
    ASSERT_TRUE(m.grammar) << source;
    size_t n_whole = 0;
    for (int i = 0; i < 60; ++i) {
      const std::string text = drawn(m, &random, 20 + random() % 400);
      SCOPED_TRACE(text);
      bool complete = false;
      ASSERT_EQ(m.grammar->match(text, &complete), text.size());
      const Read r = check_law(m.rules, text, &random);
      if (!complete) continue;
      ++n_whole;
      const std::vector<Call> calls = as_calls(r);
      ASSERT_GE(calls.size(), 1u);
      for (const Call& c : calls) {
        grammar::CompileLimits limits;
        std::vector<std::string> notices;
        grammar::SchemaDocument document(parse_json(m.rules.tools[0].schema).value(), limits, &notices);
        ASSERT_TRUE(document.index().ok());
        auto fits = document.satisfies(c.arguments, document.root());
        EXPECT_TRUE(fits.ok() && *fits);
      }
      Result<std::string> again = print(*m.rules.format.call, calls, "");
      ASSERT_TRUE(again.ok());
      if (m.rules.format.call->tagged->lists == Notation::json) continue;  // whose strings have several escapes
      EXPECT_EQ(*again, text.substr(text.find_first_not_of(" \n")));
    }
    EXPECT_GT(n_whole, 30u);
  }
  // Where an answer is cut, its bytes are still all there.
  const Made m = made(derived(kPythonTemplate), ToolChoice::required, kDeep);
  const std::string whole =
      "<|calls_start|>[put(rows=['a\\n', {'Name': \"a'b\", 'at': [12, -3]}, None], where={\"Z\": \"x\"})]<|calls_end|>";
  bool complete = false;
  EXPECT_EQ(m.grammar->match(whole, &complete), whole.size());
  EXPECT_TRUE(complete);
  EXPECT_EQ(check_law(m.rules, whole, &random).calls.at(0).arguments,
            R"({"rows": ["a\n", {"Name": "a'b", "at": [12, -3]}, null], "where": {"Z": "x"}})");
  for (size_t n = 0; n < whole.size(); ++n) check_law(m.rules, whole.substr(0, n), &random);
  // Keys that the notation cannot say are refused by name.
  for (const char* source : {kBareMarksTemplate, kPythonTemplate}) {
    AnswerRules rules;
    rules.format = derived(source);
    rules.choice = ToolChoice::required;
    rules.tools = tools_of(parse_json(R"([{"name": "f", "parameters": {"properties": {"a:b=c": {"type": "string"}}}}])").value()).value();
    std::vector<std::string> notices;
    const auto tree = answer_tree(&rules, nullptr, nullptr, GrammarOptions().limits, &notices);
    ASSERT_FALSE(tree.ok());
    EXPECT_NE(std::string(tree.status().message()).find("a:b=c"), std::string::npos) << tree.status().message();
  }
}

TEST(Answers, ReasoningContentAndCalls) {
  const Made m = made(derived(file(testing::source_path("tests/golden/templates/turns_with_thoughts.jinja"))), ToolChoice::automatic);
  ASSERT_TRUE(m.grammar);
  std::mt19937 random(8);
  const std::string text =
      "<think>\nShould I write <call>? No </thin.\n</think>\n\nLet me see.\n<call>\n{\"name\": \"now\", \"arguments\": {}}\n</call>";
  bool complete = false;
  EXPECT_EQ(m.grammar->match(text, &complete), text.size());
  EXPECT_TRUE(complete);
  const Read r = check_law(m.rules, text, &random);
  EXPECT_EQ(r.reasoning, "\nShould I write <call>? No </thin.\n");
  EXPECT_EQ(r.content, "Let me see.\n");
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_EQ(r.calls[0].name, "now");
  EXPECT_EQ(r.calls[0].arguments, "{}");
  for (const char* no : {"<call>\nx", "<call>\n{\"name\": \"unknown\"", "text <think>"})
    EXPECT_LT(m.grammar->match(no, &complete), std::string(no).size()) << no;
}

TEST(Answers, Choices) {
  const ChatFormat format = derived(kCountedTemplate);
  const std::string call = "<calls>now:0={}</calls>", two = "<calls>now:0={};now:1={}</calls>";
  const auto matches = [](const Made& m, const std::string& text) {
    bool complete = false;
    return m.grammar->match(text, &complete) == text.size() && complete;
  };
  const Made automatic = made(format, ToolChoice::automatic), none = made(format, ToolChoice::none),
             required = made(format, ToolChoice::required), one = made(format, ToolChoice::required, kTools, false);
  EXPECT_TRUE(matches(automatic, call) && matches(automatic, "text") && matches(automatic, two) && matches(automatic, ""));
  EXPECT_TRUE(matches(none, "text") && !matches(none, call));
  EXPECT_TRUE(matches(required, call) && matches(required, two) && !matches(required, "text") && !matches(required, ""));
  EXPECT_TRUE(matches(one, call) && !matches(one, two));
}

TEST(Answers, TheReasoningIsOpenInThePrompt) {
  Made m = made(derived(file(testing::source_path("tests/golden/templates/turns_with_thoughts.jinja"))), ToolChoice::automatic);
  m.rules.reasons_first = true;
  std::mt19937 random(9);
  const Read r = check_law(m.rules, "hm</think>\nyes", &random);
  EXPECT_EQ(r.reasoning, "hm");
  EXPECT_EQ(r.content, "yes");
  AnswerParser parser(m.rules);
  std::vector<Piece> pieces;
  parser.feed("hm</th", &pieces);
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_EQ(parser.rest_of_reasoning(), "ink>");
}

TEST(Answers, ACallThatIsCutIsNoCall) {
  const Made m = made(derived(kTaggedTemplate), ToolChoice::automatic);
  std::mt19937 random(10);
  const std::string whole = "<tool>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool>";
  for (size_t n = 0; n < whole.size(); ++n) {
    AnswerParser parser(m.rules);
    std::vector<Piece> pieces;
    parser.feed(whole.substr(0, n), &pieces);
    const std::string unfinished = parser.unfinished();
    parser.finish(&pieces);
    std::string raw;
    for (const Piece& p : pieces) raw += p.raw;
    EXPECT_EQ(raw, whole.substr(0, n));
    EXPECT_TRUE(parser.calls().empty() || !parser.calls()[0].whole || n > whole.find("</function>"));
    if (n > 30 && n < 50) {
      EXPECT_EQ(unfinished, whole.substr(0, n));
    }
  }
}

// Marks that are control tokens are read as tokens: the same name as text is text.
TEST(Answers, ControlTokensAreMarks) {
  VocabData data;
  data.model = "llama";
  std::vector<std::string> names = {"<unk>", "<s>", "</s>"};
  data.types = {2, 3, 3};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    names.emplace_back(name);
    data.types.push_back(6);
  }
  names.emplace_back("[CALLS]");
  data.types.push_back(3);
  for (const std::string& name : names) data.tokens.push_back(name);
  data.scores.assign(names.size(), 0.0f);
  data.special.unk = 0, data.special.bos = 1, data.special.eos = 2;
  auto tokenizer = Tokenizer::from_vocab(data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto calls = static_cast<int32_t>(names.size()) - 1;
  ASSERT_EQ(tokenizer->find("[CALLS]"), calls);
  AnswerRules rules;
  rules.format = derived(file(testing::source_path("tests/golden/templates/bracketed.jinja")));
  rules.tools = tools_of(parse_json(kTools).value()).value();
  std::vector<std::string> notices;
  for (const ToolChoice choice : {ToolChoice::required, ToolChoice::automatic}) {
    rules.choice = choice;
    GrammarOptions options;
    auto tree = answer_tree(&rules, nullptr, &*tokenizer, options.limits, &notices);
    ASSERT_TRUE(tree.ok());
    auto trie = TokenTrie::make(*tokenizer);
    ASSERT_TRUE(trie.ok());
    auto compiled = Grammar::of_tree(*tree, options, *trie, {});
    ASSERT_TRUE(compiled.ok());
    auto matcher = (*compiled)->matcher();
    AnswerParser parser(rules);
    std::vector<Piece> pieces;
    const auto take = [&](int32_t id) {
      const bool ok = matcher.accept(id).value();
      if (ok) parser.feed(tokenizer->token_bytes(id), &pieces);
      return ok;
    };
    ASSERT_TRUE(take(calls));
    EXPECT_FALSE(take(calls));
    EXPECT_NE(matcher.tokens_to_end(), grammar::kNever);
    for (const char c : std::string(R"([{"name": "now", "arguments": {}, "id": "abcdefghi"}])"))
      ASSERT_TRUE(take(kFirstByte + static_cast<uint8_t>(c))) << c;
    EXPECT_TRUE(matcher.must_end());
    ASSERT_EQ(parser.calls().size(), 1u);
    EXPECT_TRUE(parser.calls()[0].whole);
    EXPECT_EQ(parser.calls()[0].id, "abcdefghi");
    auto text = (*compiled)->matcher();
    EXPECT_EQ(text.accept(kFirstByte + '[').value(), choice == ToolChoice::automatic);
  }
}

// Whatever bytes come: no byte is lost, and the cuts do not matter.
TEST(Answers, BytesOfNoGrammar) {
  std::mt19937 random(12);
  const char* kParts[] = {"<call>",
                          "<tool>",
                          "\n<function=",
                          "weather",
                          "now",
                          ">",
                          "\n<parameter=",
                          "city",
                          "</parameter>",
                          "\n</function>\n</tool>",
                          "{",
                          "}",
                          "\"",
                          "{\"name\": \"",
                          "\", \"arguments\": ",
                          "<think>",
                          "</think>",
                          "\n",
                          "[1, {",
                          "]",
                          ":0=",
                          ";",
                          "<calls>",
                          "</calls>",
                          "\xC3",
                          "\xFF",
                          "\\",
                          "text"};
  for (const std::string& source : {file(testing::source_path("tests/golden/templates/turns_with_thoughts.jinja")),
                                    std::string(kTaggedTemplate), std::string(kCountedTemplate), std::string(kBareTemplate)}) {
    for (const ToolChoice choice : {ToolChoice::automatic, ToolChoice::required, ToolChoice::none}) {
      const Made m = made(derived(source), choice);
      for (int i = 0; i < 60; ++i) {
        std::string text;
        for (size_t n = random() % 25; n > 0; --n) text += kParts[random() % (sizeof kParts / sizeof *kParts)];
        SCOPED_TRACE(text);
        (void)check_law(m.rules, text, &random);
      }
    }
  }
}

TEST(Answers, FaultsOfTools) {
  const auto message = [](const char* json) {
    auto tools = tools_of(parse_json(json).value());
    return tools.ok() ? std::string() : std::string(tools.status().message());
  };
  EXPECT_NE(message("{}").find("not a list"), std::string::npos);
  EXPECT_NE(message("[{}]").find("has no name"), std::string::npos);
  EXPECT_NE(message(R"([{"name": "a b"}])").find("'a b'"), std::string::npos);
  EXPECT_NE(message(R"([{"name": "a"}, {"function": {"name": "a"}}])").find("two tools"), std::string::npos);
  EXPECT_NE(message(R"([{"name": "a", "parameters": 1}])").find("no JSON schema"), std::string::npos);
  AnswerRules rules;
  rules.format = derived(kBareTemplate);
  rules.tools =
      tools_of(parse_json(R"([{"name": "a", "parameters": {"type": "object", "properties": {"x": {"uniqueItems": true}}}}])").value())
          .value();
  std::vector<std::string> notices;
  auto tree = answer_tree(&rules, nullptr, nullptr, {}, &notices);
  ASSERT_FALSE(tree.ok());
  EXPECT_NE(std::string(tree.status().message()).find("tool a: "), std::string::npos) << tree.status().message();
  rules.format.call.reset();
  rules.format.why_none = "because";
  EXPECT_NE(std::string(answer_tree(&rules, nullptr, nullptr, {}, &notices).status().message()).find("because"), std::string::npos);
}

}  // namespace
}  // namespace orrery::text::format
