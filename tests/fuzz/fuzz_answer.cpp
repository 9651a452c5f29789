// Chat templates from strangers, and answers in the formats that they show. A template has a format, or none and a reason; what its
// format's grammar allows is read back as calls; any bytes at all leave the reader once, in order, however they are cut.
//
// Input: a byte of flags, then template, tools and an answer, separated by 0x1E. Without tools, some of ours. The answer's bytes are read,
// and choose a walk through the grammar, or (a flag) through the grammar whose tools are compiled on the way, which has no other answers.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/format/answer_parser.h"
#include "runtime/text/json/json.h"
#include "tests/fuzz/grammar_steps.h"

using namespace orrery;
using namespace orrery::fuzz;
using namespace orrery::text::format;

namespace {

constexpr const char* kTools = R"([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3},
  "b": {"type": "integer"}, "c": {"enum": [true, null, "x"]}}, "required": ["a"]}}, {"name": "g"}])";

void kept(bool promise, int line) {
  if (promise) return;
  std::fprintf(stderr, "fuzz_answer.cpp:%d: broken promise\n", line);
  std::abort();
}
#define keep(promise) kept(promise, __LINE__)
// A fault that a stranger can cause, with a message.
bool is_refusal(const Status& status) {
  return (status.code() == Code::invalid_argument || status.code() == Code::unsupported || status.code() == Code::unsupported_template) &&
         status.message()[0] != '\0';
}

std::vector<std::string_view> fields_of(std::string_view input) {
  std::vector<std::string_view> fields(1, input);
  for (size_t at; fields.size() < 3 && (at = fields.back().find('\x1e')) != std::string_view::npos;) {
    const std::string_view rest = fields.back().substr(at + 1);
    fields.back() = fields.back().substr(0, at);
    fields.push_back(rest);
  }
  fields.resize(3);
  return fields;
}

struct Read {
  std::string raw, kinds;  // kinds: of each byte, its piece's type
  std::vector<AnswerParser::ReadCall> calls;
};
Read read(const AnswerRules& rules, std::string_view answer, size_t cut) {
  AnswerParser parser(rules);
  std::vector<Piece> pieces;
  for (size_t at = 0; at < answer.size(); at += cut) parser.feed(answer.substr(at, cut), &pieces);
  const std::string held = parser.unfinished();
  parser.finish(&pieces);
  Read r;
  for (const Piece& piece : pieces) {
    r.raw += piece.raw;
    r.kinds.append(piece.raw.size(), static_cast<char>(piece.type));
  }
  r.calls = parser.calls();
  keep(held.size() <= answer.size());
  return r;
}
Read check(const AnswerRules& rules, std::string_view answer) {
  Read whole = read(rules, answer, answer.size() + 1);
  keep(whole.raw == answer);
  for (const size_t cut : {size_t{1}, size_t{3}}) {
    const Read other = read(rules, answer, cut);
    keep(other.raw == answer && other.kinds == whole.kinds && other.calls.size() == whole.calls.size());
    for (size_t i = 0; i < other.calls.size(); ++i)
      keep(other.calls[i].arguments == whole.calls[i].arguments && other.calls[i].whole == whole.calls[i].whole);
  }
  return whole;
}

// An answer that the grammar allows: chosen by the turns, and then led to its end.
std::string drawn(const grammar::Grammar& form, std::string_view turns) {
  grammar::Matcher matcher = form.matcher();
  std::string text;
  std::vector<uint32_t> words(matcher.n_words());
  for (size_t step = 0; step < turns.size() + 400 && !matcher.must_end() && !matcher.ended(); ++step) {
    auto mask = matcher.mask();
    if (!mask.ok()) return {};
    words.assign(*mask, *mask + matcher.n_words());
    if (step >= turns.size()) {
      const uint32_t left = matcher.tokens_to_end();
      if (left == 0) break;
      auto any = matcher.closing_mask(left - 1, words.data());
      if (!any.ok() || !*any) return {};
    }
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id + 1 < static_cast<int32_t>(form.trie().n_vocab()); ++id)  // the last one is the end
      if (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) allowed.push_back(id);
    if (allowed.empty()) break;
    const auto turn = step < turns.size() ? static_cast<uint8_t>(turns[step]) : uint8_t{0};
    const int32_t token = allowed[turn * 7919u % allowed.size()];
    auto taken = matcher.accept(token);
    if (!taken.ok()) return {};
    keep(*taken);
    text += form.trie().bytes(token);
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t flags = data[0];
  const auto fields = fields_of({reinterpret_cast<const char*>(data) + 1, size - 1});
  const std::string source(fields[0]);
  auto compiled = text::ChatTemplate::compile(source);
  if (!compiled.ok()) return 0;  // fuzz_template's
  text::ChatOptions options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  auto format = derive(*compiled, source, options);
  if (!format.ok()) {
    keep(is_refusal(format.status()));
    return 0;
  }
  keep(format->call ? format->why_none.empty() : !format->why_none.empty());
  auto description = describe(*format);
  keep(description.ok());
  auto json = text::dump_json(*description);
  keep(json.ok() && text::parse_json(*json).ok());

  auto list = text::parse_json(fields[1].empty() ? std::string_view(kTools) : fields[1]);
  if (!list.ok()) return 0;
  auto tools = tools_of(*list);
  if (!tools.ok()) {
    keep(is_refusal(tools.status()));
    return 0;
  }
  AnswerRules rules;
  rules.format = std::move(*format);
  rules.tools = std::move(*tools);
  rules.choice = static_cast<ToolChoice>(flags & 3);
  rules.many = (flags & 4) == 0;
  rules.may_reason = (flags & 8) == 0;
  rules.reasons_first = (flags & 16) != 0 && rules.format.reasoning.known();
  grammar::GrammarOptions limits;
  limits.limits.states = 1u << 12;
  limits.limits.edges = 1u << 14;
  limits.limits.memory_bytes = 1u << 20;
  limits.cache_bytes = 1u << 18;
  std::vector<std::string> notices;
  auto tree = answer_tree(&rules, nullptr, nullptr, limits.limits, &notices);
  if (!tree.ok()) {
    keep(is_refusal(tree.status()));
    return 0;
  }
  auto form = grammar::Grammar::of_tree(*tree, limits, fuzz_trie(), notices);
  check(rules, fields[2]);
  if (!form.ok()) {
    keep(is_refusal(form.status()));
    return 0;
  }
  bool complete = false;
  if (flags & 32) {
    const std::vector<uint32_t> none;
    std::vector<std::string> noticed;
    auto skeleton = answer_tree(&rules, nullptr, nullptr, limits.limits, &noticed, &none);
    keep(skeleton.ok());
    auto deferred = grammar::Grammar::of_tree(*skeleton, limits, fuzz_trie(), noticed,
                                              [&](const std::vector<uint32_t>& numbers, const grammar::CompileLimits& now) {
                                                return answer_tree(&rules, nullptr, nullptr, now, &noticed, &numbers);
                                              });
    keep(deferred.ok());
    const std::string late = drawn(**deferred, fields[2]);
    keep((*form)->match(late, &complete) == late.size());
    return 0;
  }
  const std::string answer = drawn(**form, fields[2]);
  keep((*form)->match(answer, &complete) == answer.size());
  const Read whole = check(rules, answer);
  if (!complete) return 0;
  for (const auto& call : whole.calls) {
    if (!call.whole) continue;
    auto arguments = text::parse_json(call.arguments);
    keep(arguments.ok() && arguments->is_map());
  }
  return 0;
}
