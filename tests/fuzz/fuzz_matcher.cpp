// A long answer under a grammar of ours, in the turns that the input says: the first byte chooses the grammar.
#include "tests/fuzz/grammar_steps.h"

using namespace orrery::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::pair<grammar::Language, const char*> kForms[] = {
      {grammar::Language::gbnf,
       "root ::= \"{\" (pair (\",\" pair)*)? \"}\"\npair ::= string \":\" value\nstring ::= \"\\\"\" [a-c]{0,90} \"\\\"\"\n"
       "value ::= string | root | \"[\" (value (\",\" value)*)? \"]\" | [0-9]{1,70}"},
      {grammar::Language::gbnf, "root ::= e\ne ::= e \"a\" e | \"b\" | \"(\" e \")\" | e e \"c\""},
      {grammar::Language::gbnf, "root ::= ((\"a\"? \"b\"?){2,40} \"c\")* (\"aa\" | \"ab\"){3} root?"},
      {grammar::Language::expression, "(a|b)*a(a|b){9}(\\d{2,5}|[^a-z]{3})*"},
      {grammar::Language::json_schema,
       R"({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}, "ab": {"type": "string", "maxLength": 40}},
          "additionalProperties": {"type": "integer", "minimum": 7, "maximum": 12345}}, "minItems": 2, "maxItems": 300})"},
      {grammar::Language::json_schema,
       R"({"$defs": {"t": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}]}}, "$ref": "#/$defs/t"})"},
  };
  static constexpr const char* kAnyOrder =
      R"({"$defs": {"t": {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}, "ab": {"type": "integer"}, "abc": {}},
          "required": ["ab"], "maxProperties": 4}}, "$ref": "#/$defs/t"})";
  constexpr size_t kCount = sizeof kForms / sizeof *kForms + 1;
  static std::shared_ptr<grammar::Grammar> compiled[kCount];
  if (size == 0) return 0;
  const size_t which = data[0] % kCount;
  if (!compiled[which])
    compiled[which] = which + 1 == kCount ? compile_or_refuse(kAnyOrder, grammar::Language::json_schema, 2, true)
                                          : compile_or_refuse(kForms[which].second, kForms[which].first, 2);
  if (!compiled[which]) std::abort();
  walk(*compiled[which], data + 1, size - 1, std::min<size_t>(4 * size, 400));
  return 0;
}
