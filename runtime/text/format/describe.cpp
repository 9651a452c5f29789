// Writes a format as JSON, for people and programs: its marks, an example of a call, or the reason why the template has no format.
#include "runtime/text/format/format.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::text::format {
namespace {

// A text of a template, which may have any bytes. A call's number is {n}.
Value words(std::string_view text) {
  std::string counted, valid;
  for (const char c : text) c == kCounter ? (void)(counted += "{n}") : (void)(counted += c);
  utf8_append_valid(counted, &valid);
  return Value::string(std::move(valid));
}

Value map_of(std::initializer_list<std::pair<const char*, Value>> entries) {
  Map map;
  for (const auto& [key, value] : entries) map.set(key, value);
  return Value::map(std::move(map));
}

Value reasoning_of(const ChatFormat& format) {
  const ReasoningFormat& r = format.reasoning;
  if (!r.known()) return Value::none();
  constexpr const char* kPrompt[] = {"none", "open", "closed"};
  return map_of({{"open", words(r.open)},
                 {"close", words(r.close)},
                 {"after", words(r.after)},
                 {"prompt", Value::string(kPrompt[static_cast<size_t>(opening(r, format.prompt_end))])}});
}

Value arguments_of(const CallFormat& call) {
  if (!call.tagged) return map_of({{"notation", Value::string("json")}, {"spaces", Value::boolean(!call.compact)}});
  const TaggedFormat& t = *call.tagged;
  constexpr const char* kNotations[] = {"none", "json", "bare", "python"};
  const auto name = [&](Notation n) { return Value::string(kNotations[static_cast<size_t>(n)]); };
  return map_of({{"notation", Value::string("keys and values")},
                 {"open", words(t.open)},
                 {"to_string", words(t.to_value[0])},
                 {"to_value", words(t.to_value[1])},
                 {"string_close", words(t.close[0])},
                 {"value_close", words(t.close[1])},
                 {"next_key", words(t.next_key)},
                 {"end", words(t.end)},
                 {"none", words(t.none)},
                 {"string_end", words(t.string_end)},
                 {"sorted", Value::boolean(t.order != KeyOrder::given)},
                 {"true", words(t.words[0])},
                 {"false", words(t.words[1])},
                 {"null", words(t.words[2])},
                 {"lists", name(t.lists)},
                 {"objects", name(t.objects)}});
}

Value calls_of(const ChatFormat& format) {
  const CallFormat& call = *format.call;
  constexpr const char* kFields[] = {"name", "id", "arguments"};
  std::vector<Value> fields, between;
  for (const Field field : call.fields) fields.push_back(Value::string(kFields[static_cast<size_t>(field)]));
  for (const std::string& text : call.between) between.push_back(words(text));
  return map_of({{"first", words(call.first)},
                 {"after_content", words(call.after_content)},
                 {"fields", Value::list(std::move(fields))},
                 {"between", Value::list(std::move(between))},
                 {"next", words(call.next)},
                 {"last", words(call.last)},
                 {"arguments", arguments_of(call)},
                 {"several", Value::boolean(call.many)},
                 {"with_content", Value::boolean(call.with_content)},
                 {"id_length", Value::integer(call.id_length)},
                 {"text_arguments", Value::boolean(call.text_arguments)}});
}

// One call, or two where an answer may have several.
Result<Value> example_of(const CallFormat& call) {
  std::vector<Call> calls = {
      {"weather", "call00000", map_of({{"city", Value::string("Rome")}, {"days", Value::integer(2)}, {"snow", Value::boolean(false)}})}};
  if (call.many) calls.push_back({"now", "call00001", Value::map(Map())});
  ORRERY_ASSIGN(const std::string text, print(call, calls, {}));
  return words(text);
}

}  // namespace

Result<Value> describe(const ChatFormat& format) {
  Map map;
  map.set("reasoning", reasoning_of(format));
  const bool framed = !format.content_open.empty();
  map.set("content", framed ? map_of({{"open", words(format.content_open)}, {"close", words(format.content_close)}}) : Value::none());
  map.set("calls", format.call ? calls_of(format) : Value::none());
  map.set("source", format.call ? words(format.source) : Value::none());
  map.set("proved", Value::boolean(format.call && format.source == kFromProbes));
  map.set("why_none", format.call ? Value::none() : words(format.why_none));
  Value example = Value::none();
  if (format.call) {
    ORRERY_ASSIGN(example, example_of(*format.call));
  }
  map.set("example", std::move(example));
  return Value::map(std::move(map));
}

}  // namespace orrery::text::format
