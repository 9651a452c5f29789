// The grammar of an answer with tools.
#include "runtime/text/format/answer.h"

#include <algorithm>

#include "runtime/text/grammar/json_schema/form.h"
#include "runtime/text/grammar/json_schema/plain.h"
#include "runtime/text/grammar/languages/char_dfa.h"
#include "runtime/text/json/json.h"

namespace orrery::text::format {
namespace {

using grammar::CharDfa;
using grammar::CharSet;
using grammar::Tree;

constexpr size_t kMostTools = 1024;
constexpr uint32_t kMostBlanks = 4;  // between reasoning and what follows

std::string_view without_leading_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \n\r\t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

class AnswerTree {
 public:
  AnswerTree(AnswerRules* rules, const Tree* content, const Tokenizer* tokenizer, const grammar::CompileLimits& limits,
             std::vector<std::string>* notices, const std::vector<uint32_t>* compiled)
      : rules_(*rules), content_(content), tokenizer_(tokenizer), limits_(limits), notices_(*notices), compiled_(compiled) {}

  Result<Tree> run() {
    tree_.root = tree_.add_rule("answer");
    cut_end(&rules_.format.content_close);
    if (rules_.format.call) cut_end(&rules_.format.call->last);
    uint32_t calls = grammar::kNoNode;
    if (rules_.calls()) {
      if (!rules_.format.call) return error(Code::unsupported, "tools cannot be called: %s", rules_.format.why_none.c_str());
      ORRERY_ASSIGN(calls, all_calls());
    }
    const uint32_t blanks = tree_.repeat(tree_.chars(CharSet{{' ', ' '}, {'\n', '\n'}}), 0, kMostBlanks);
    uint32_t body = grammar::kNoNode;
    if (rules_.choice == ToolChoice::required) {
      body = tree_.sequence({blanks, calls});
    } else if (calls == grammar::kNoNode) {
      body = content();
    } else {
      const CallFormat& format = *rules_.format.call;
      if (content_ == nullptr && format.with_content && rules_.format.content_open.empty()) {
        body = tree_.sequence({content(), tree_.optional(calls)});
      } else {
        body = tree_.choice({content(), tree_.sequence({blanks, calls})});
      }
    }
    const ReasoningFormat& r = rules_.format.reasoning;
    if (!r.known() || !(rules_.may_reason || rules_.reasons_first)) {
      tree_.rules[tree_.root].body = body;
      return std::move(tree_);
    }
    std::vector<uint32_t> parts;
    const bool inside = rules_.reasons_first || r.open.empty();
    if (!inside) parts = {blanks, literal(r.open)};
    parts.push_back(free_text({r.close}));
    parts.push_back(literal(r.close));
    parts.push_back(r.after.empty() ? blanks : literal(r.after));
    const uint32_t thought = tree_.sequence(parts);
    tree_.rules[tree_.root].body = tree_.sequence({inside ? thought : tree_.optional(thought), body});
    return std::move(tree_);
  }

 private:
  // The answer ends where an end of generation stands.
  void cut_end(std::string* text) const {
    std::vector<TokenSpan> spans;
    if (tokenizer_ != nullptr) tokenizer_->find_control(*text, &spans);
    for (const TokenSpan& s : spans)
      if (tokenizer_->is_end_of_generation(s.id)) return text->resize(s.begin);
  }

  // A text of the format: control tokens as tokens, a call's number as digits.
  uint32_t literal(std::string_view text) {
    std::vector<uint32_t> parts;
    std::vector<TokenSpan> spans;
    if (tokenizer_ != nullptr) tokenizer_->find_control(text, &spans);
    size_t at = 0;
    const auto plain = [&](size_t end) {
      while (at < end) {
        const size_t counter = std::min(text.find(kCounter, at), end);
        if (counter > at) parts.push_back(tree_.literal(text.substr(at, counter - at)));
        if (counter < end) parts.push_back(tree_.repeat(tree_.chars(CharSet{{'0', '9'}}), 1, 3));
        at = std::min(end, counter + 1);
      }
    };
    while (at < text.size()) {
      const TokenSpan* next = nullptr;  // the span that begins first; of spans that begin at one place, the longest
      for (const TokenSpan& s : spans)
        if (s.begin >= at && (next == nullptr || s.begin < next->begin || (s.begin == next->begin && s.end > next->end))) next = &s;
      plain(next == nullptr ? text.size() : next->begin);
      if (next == nullptr) break;
      grammar::TokenSet set;
      set.ids = {next->id};
      parts.push_back(tree_.tokens(std::move(set)));
      at = next->end;
    }
    return parts.empty() ? tree_.empty() : tree_.sequence(parts);
  }
  bool is_control(std::string_view mark) const {
    std::vector<TokenSpan> spans;
    if (tokenizer_ != nullptr) tokenizer_->find_control(mark, &spans);
    return std::any_of(spans.begin(), spans.end(), [](const TokenSpan& s) { return s.begin == 0; });
  }

  // Any text without these marks. Control tokens are no text, so their names may appear.
  uint32_t free_text(const std::vector<std::string>& marks) {
    std::vector<std::string> banned;
    for (const std::string& mark : marks)
      if (!mark.empty() && !is_control(mark)) banned.push_back(mark);
    if (banned.empty()) return tree_.repeat(tree_.chars(CharSet::all()), 0, grammar::kUnbounded);
    return tree_.graph(CharDfa::without(banned).graph(&tree_));
  }

  uint32_t content() {
    const ChatFormat& f = rules_.format;
    uint32_t text;
    if (content_ != nullptr) {
      text = tree_.graft(*content_);
    } else {
      std::vector<std::string> marks = {f.reasoning.open, f.content_close};
      bool bare = false;
      if (f.call && rules_.choice != ToolChoice::ignored) marks.push_back(f.call->trigger()), bare = f.call->trigger().empty();
      text = free_text(marks);
      if (bare && f.content_open.empty() && rules_.calls()) {  // a call has no mark but its beginning
        const std::string_view first = without_leading_blanks(f.call->first);
        CharSet begin = CharSet::all();
        if (!first.empty())
          begin = begin.minus(CharSet{{static_cast<uint8_t>(first[0]), static_cast<uint8_t>(first[0])}, {' ', ' '}, {'\n', '\n'}});
        text = tree_.optional(tree_.sequence({tree_.chars(begin), text}));
      }
    }
    if (f.content_open.empty()) return text;
    return tree_.sequence({literal(f.content_open), text, literal(f.content_close)});
  }

  Result<uint32_t> all_calls() {
    const CallFormat& f = *rules_.format.call;
    std::vector<uint32_t> by_tool;
    for (Tool& tool : rules_.tools) {
      ORRERY_ASSIGN(const uint32_t arguments, arguments_of(&tool));
      std::vector<uint32_t> parts;
      for (size_t i = 0; i < f.fields.size(); ++i) {
        if (i > 0) parts.push_back(literal(f.between[i - 1]));
        switch (f.fields[i]) {
          case Field::name: parts.push_back(tree_.literal(tool.name)); break;
          case Field::arguments: parts.push_back(arguments); break;
          case Field::id: parts.push_back(id_of(f)); break;
        }
      }
      by_tool.push_back(tree_.sequence(parts));
    }
    const uint32_t rule = tree_.add_rule("call");
    tree_.rules[rule].body = tree_.choice(by_tool);
    const uint32_t call = tree_.rule(rule), first = literal(without_leading_blanks(f.first));
    std::vector<uint32_t> parts = {first, call};
    if (f.many && rules_.many) parts.push_back(tree_.repeat(tree_.sequence({literal(f.next), call}), 0, grammar::kUnbounded));
    parts.push_back(literal(f.last));
    return tree_.sequence(parts);
  }

  uint32_t id_of(const CallFormat& f) {
    const CharSet letters{{'a', 'z'}, {'A', 'Z'}, {'0', '9'}};
    if (f.id_length > 0) return tree_.repeat(tree_.chars(letters), f.id_length, f.id_length);
    CharSet more = letters;
    for (const char c : {'_', '-', '.'}) more.add(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
    return tree_.repeat(tree_.chars(more), 1, 40);
  }

  Result<uint32_t> arguments_of(Tool* tool) {
    const CallFormat& f = *rules_.format.call;
    const auto number = static_cast<uint32_t>(tool - rules_.tools.data());
    if (compiled_ != nullptr && tool->plain_bytes && !std::binary_search(compiled_->begin(), compiled_->end(), number)) {
      const std::optional<uint32_t> bytes =
          f.tagged ? grammar::plain_tagged_bytes(tool->parameters, *f.tagged, &tool->is_string) : tool->plain_bytes;
      if (bytes) return tree_.rule(tree_.deferred_rule("arguments of " + tool->name, number, *bytes));
    }
    grammar::SchemaOptions options;
    options.formats = &formats_;
    options.whitespace = f.compact ? grammar::SchemaOptions::Whitespace::compact : grammar::SchemaOptions::Whitespace::spaced;
    grammar::TaggedOptions tagged;
    if (f.tagged) {
      tagged.format = &*f.tagged;
      tagged.is_string = &tool->is_string;
      tagged.literal = [this](Tree* tree, std::string_view text) {  // a node of the schema's own tree
        std::swap(*tree, tree_);
        const uint32_t node = literal(text);
        std::swap(*tree, tree_);
        return node;
      };
      options.tagged = &tagged;
    }
    Result<Tree> schema = grammar::schema_tree(tool->schema, options, limits_, &notices_);
    if (!schema.ok()) {
      Status status = schema.take_status();
      status.detail().message = "tool " + tool->name + ": " + status.detail().message;
      return status;
    }
    return tree_.graft(*schema);
  }

  AnswerRules& rules_;
  const Tree* content_;
  const Tokenizer* tokenizer_;
  const grammar::CompileLimits& limits_;
  std::vector<std::string>& notices_;
  grammar::FormatTexts formats_;  // that the tools' schemas share
  const std::vector<uint32_t>* compiled_;
  Tree tree_;
};

}  // namespace

Result<std::vector<Tool>> tools_of(const Value& list) {
  if (!list.is_list()) return error(Code::invalid_argument, "the tools are not a list");
  if (list.as_items().size() > kMostTools)
    return error(Code::unsupported, "%zu tools; at most %zu can be called", list.as_items().size(), kMostTools);
  std::vector<Tool> tools;
  for (const Value& item : list.as_items()) {
    const size_t index = tools.size();
    const Value* inner = item.find("function");
    const Value& function = inner != nullptr ? *inner : item;
    const Value* name = function.find("name");
    if (name == nullptr || !name->is_string()) return error(Code::invalid_argument, "tool %zu has no name", index);
    Tool tool;
    tool.name = name->as_string();
    if (tool.name.empty() || tool.name.size() > 128 || !std::all_of(tool.name.begin(), tool.name.end(), is_name_byte))
      return error(Code::invalid_argument, "tool %zu is named '%.128s': names have 1 to 128 letters, digits, '_', '-' and '.'", index,
                   tool.name.c_str());
    if (std::any_of(tools.begin(), tools.end(), [&](const Tool& t) { return t.name == tool.name; }))
      return error(Code::invalid_argument, "two tools are named '%s'", tool.name.c_str());
    const Value* parameters = function.find("parameters");
    if (parameters != nullptr && !parameters->is_map() && !parameters->is_none())
      return error(Code::invalid_argument, "the parameters of tool %s are no JSON schema: expected an object", tool.name.c_str());
    Map schema = parameters != nullptr && parameters->is_map() ? Map(parameters->as_map()) : Map();
    if (schema.find("type") == nullptr) schema.set("type", Value::string("object"));
    // Without a word about others, a tool takes the arguments that it declares.
    constexpr const char* kOthers[] = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "if", "$ref"};
    if (std::none_of(std::begin(kOthers), std::end(kOthers), [&](const char* key) { return schema.find(key) != nullptr; }))
      schema.set("additionalProperties", Value::boolean(false));
    const Value whole = Value::map(std::move(schema));
    tool.plain_bytes = grammar::plain_bytes(whole);
    ORRERY_ASSIGN(tool.schema, dump_json(whole));
    tool.parameters = whole;
    tools.push_back(std::move(tool));
  }
  return tools;
}

Result<Tree> answer_tree(AnswerRules* rules, const Tree* content, const Tokenizer* tokenizer, const grammar::CompileLimits& limits,
                         std::vector<std::string>* notices, const std::vector<uint32_t>* compiled) {
  return AnswerTree(rules, content, tokenizer, limits, notices, compiled).run();
}

}  // namespace orrery::text::format
