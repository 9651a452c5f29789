#include "runtime/engine/shared/message_shapes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/json/json.h"

namespace orrery::engine {

using text::Map;
using text::Value;

namespace {

constexpr const char* kNeedle = "orreryneedle";

// What the template makes of the messages; nothing: it refuses them.
class Trial {
 public:
  Trial(const text::ChatTemplate& chat_template, const text::ChatOptions& options) : template_(chat_template), options_(options) {
    options_.add_generation_prompt = false;
    options_.limits.max_output_bytes = 1 << 20;
  }
  std::optional<std::string> operator()(const std::string& messages) const {
    Result<Value> list = text::parse_json(messages);
    if (!list.ok()) return std::nullopt;
    Result<text::Text> rendered = text::render_chat(template_, *list, options_);
    if (!rendered.ok()) return std::nullopt;
    return rendered->bytes();
  }

 private:
  const text::ChatTemplate& template_;
  text::ChatOptions options_;
};

bool has(const std::optional<std::string>& text, const std::string& part) { return text && text->find(part) != std::string::npos; }
size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// A question, a tool call, and its result. Ids have nine characters, which some templates demand.
std::string call_of(const char* content, const std::string& arguments) {
  return std::string(R"([{"role": "user", "content": "question"}, {"role": "assistant", "content": )") + content +
         R"(, "tool_calls": [{"type": "function", "id": "probe0001", "function": {"name": "look", "arguments": )" + arguments +
         R"(}}]}, {"role": "tool", "name": "look", "tool_call_id": "probe0001", "content": "found"}])";
}

const Value* arguments_of(const Value& call) {
  const Value* function = call.find("function");
  return (function != nullptr ? *function : call).find("arguments");
}

Value with(const Value& map, const char* key, Value value) {
  Map changed = map.as_map();
  changed.set(key, std::move(value));
  return Value::map(std::move(changed));
}

bool are_typed(const std::vector<Value>& parts) {
  return std::all_of(parts.begin(), parts.end(), [](const Value& part) {
    const Value* type = part.find("type");
    return type != nullptr && type->is_string();
  });
}

// The text of typed parts, a line for each.
Result<Value> joined(const std::vector<Value>& parts) {
  text::Text all;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Value* text = parts[i].find("text");
    if (text == nullptr || !text->is_string()) {
      const std::string name(parts[i].find("type")->as_string().substr(0, 40));
      return error(Code::invalid_argument, "a message's content has a part of type '%s': the model's chat template takes text alone",
                   name.c_str());
    }
    if (i > 0) all += '\n';
    all.append(text->as_text());
  }
  return Value::text(std::move(all));
}

}  // namespace

bool MessageShapes::is_wire_shape(const Value& message) {
  const Value *content = message.find("content"), *calls = message.find("tool_calls");
  if (content != nullptr && (content->is_list() || content->is_string())) return content->is_list() || calls != nullptr;
  return calls != nullptr;
}

MessageShapes MessageShapes::of(const text::ChatTemplate& chat_template, const text::ChatOptions& options) {
  const Trial trial(chat_template, options);
  const std::string needle = std::string("\"") + kNeedle + "\"";
  MessageShapes shapes;
  const auto user = [](const std::string& content) { return R"([{"role": "user", "content": )" + content + "}]"; };
  const auto as_string = trial(user(needle)), as_parts = trial(user(R"([{"type": "text", "text": )" + needle + "}]"));
  shapes.strings = has(as_string, kNeedle);
  shapes.parts = has(as_parts, kNeedle) && !has(as_parts, "'text'") && !has(as_parts, "\"text\"");
  if (!shapes.strings && !shapes.parts) shapes.strings = shapes.parts = true;  // it prints no content: nothing is known

  const std::string object = std::string("{\"") + kNeedle + R"(": "value"})",
                    in_text = std::string("\"{\\\"") + kNeedle + R"(\": \"value\"}")";
  const std::string content = shapes.strings ? "\"\"" : "[]";
  const auto of_object = trial(call_of(content.c_str(), object)), of_text = trial(call_of(content.c_str(), in_text));
  const auto clean = [](const std::optional<std::string>& text) {
    return has(text, kNeedle) && !has(text, std::string("'") + kNeedle) && !has(text, std::string("\\\"") + kNeedle);
  };
  if (clean(of_object) || clean(of_text)) shapes.object_arguments = clean(of_object), shapes.text_arguments = clean(of_text);

  const std::string& arguments = shapes.object_arguments ? object : in_text;
  const auto empty = shapes.object_arguments ? of_object : of_text, null = trial(call_of("null", arguments));
  if (empty) shapes.null_content = null && count(*null, "None") <= count(*empty, "None") && count(*null, "null") <= count(*empty, "null");
  return shapes;
}

Result<Value> MessageShapes::adapt(const Value& message) const {
  if (!is_wire_shape(message)) return message;
  Value adapted = message;
  const Value* content = message.find("content");
  const Value* calls = message.find("tool_calls");
  if (content != nullptr && content->is_list() && !parts && are_typed(content->as_items())) {
    ORRERY_ASSIGN(Value text, joined(content->as_items()));
    adapted = with(adapted, "content", std::move(text));
  } else if (content != nullptr && content->is_none() && calls != nullptr && !null_content) {
    adapted = with(adapted, "content", strings ? Value::string("") : Value::list({}));
  }
  if (calls == nullptr || !calls->is_list() || (text_arguments && object_arguments)) return adapted;
  std::vector<Value> changed;
  for (const Value& call : calls->as_items()) {
    changed.push_back(call);
    const Value* given = arguments_of(call);
    if (given == nullptr) continue;
    Value arguments = *given;
    if (given->is_string() && !text_arguments) {
      Result<Value> parsed = text::parse_json(given->as_string());
      if (!parsed.ok() || !parsed->is_map()) continue;  // not JSON: as it is
      arguments = std::move(parsed).value();
    } else if (given->is_map() && !object_arguments) {
      ORRERY_ASSIGN(std::string json, text::dump_json(*given));
      arguments = Value::string(std::move(json));
    } else {
      continue;
    }
    const Value* function = call.find("function");
    changed.back() = function != nullptr ? with(call, "function", with(*function, "arguments", std::move(arguments)))
                                         : with(call, "arguments", std::move(arguments));
  }
  return with(adapted, "tool_calls", Value::list(std::move(changed)));
}

}  // namespace orrery::engine
