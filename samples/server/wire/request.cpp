// See request.h: the fields of one kind of request alone.
#include "wire/request.h"

#include <utility>

#include "wire/fields.h"

namespace orrery::server {
namespace {

// Content is text, null beside calls, or parts of type "text". The library changes it to what the model's template takes.
void check_content(const Json& content, const std::string& place) {
  if (content.is_string() || content.is_null()) return;
  if (!content.is_array()) refuse_field(place, "expected a string, or an array of parts");
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part = place + "[" + std::to_string(i) + "]";
    Fields fields(content[i], part);
    const auto type = fields.text("type");
    if (!type) refuse_field(part + ".type", "expected a string");
    if (*type != "text") refuse_field(part + ".type", "this server reads parts of type text, not '" + type->substr(0, 40) + "'");
    const Json* text = fields.take("text");
    if (!text || !text->is_string()) refuse_field(part + ".text", "expected a string");
    fields.accept({"cache_control"});
    fields.finish();
  }
}

void check_calls(const Json& calls, const std::string& place) {
  if (!calls.is_array()) refuse_field(place, "expected an array");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string here = place + "[" + std::to_string(i) + "]";
    Fields call(calls[i], here);
    call.only("type", "function", "this server knows calls of type function alone");
    call.text("id");
    call.integer("index", 0, INT32_MAX);
    const Json* function = call.take("function");
    if (!function) refuse_field(here + ".function", "expected an object");
    Fields inner(*function, here + ".function");
    if (!inner.text("name")) refuse_field(here + ".function.name", "expected a string");
    const Json* arguments = inner.take("arguments");
    if (!arguments || !(arguments->is_string() || arguments->is_object()))
      refuse_field(here + ".function.arguments", "expected a string of JSON");
    inner.finish();
    call.finish();
  }
}

void read_messages(Fields& fields, const Options& options, Request* request) {
  const Json* messages = fields.take("messages");
  if (!messages || !messages->is_array() || messages->empty()) refuse_field("messages", "expected an array of at least one message");
  if (messages->size() > options.messages) refuse_field("messages", "at most " + std::to_string(options.messages) + " messages");
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string here = "messages[" + std::to_string(i) + "]";
    Fields message((*messages)[i], here);
    const auto role = message.text("role");
    if (!role || role->empty()) refuse_field(here + ".role", "expected a string");
    const Json* content = message.take("content");
    if (content) check_content(*content, here + ".content");
    const Json* calls = message.take("tool_calls");
    if (calls) check_calls(*calls, here + ".tool_calls");
    if (!content && !calls) refuse_field(here + ".content", "expected a string, or an array of parts");
    for (const char* name : {"name", "tool_call_id", "reasoning_content"}) message.text(name);
    if (message.take("audio")) refuse_field(here + ".audio", "this server has no audio");
    if (message.take("function_call")) refuse_field(here + ".function_call", "this server takes tool_calls instead");
    message.accept({"refusal", "annotations"});
    message.finish();
    Json plain = (*messages)[i];
    for (const char* name : {"refusal", "annotations", "audio", "function_call"}) plain.erase(name);
    if (!calls) plain.erase("tool_calls");  // null: none
    request->messages.push_back(text_of(plain));
  }
}

void read_tools(Fields& fields, Request* request) {
  const Json* tools = fields.take("tools");
  const Json* choice = fields.take("tool_choice");
  const auto several = fields.boolean("parallel_tool_calls");
  if (!tools || (tools->is_array() && tools->empty())) {
    if (choice && *choice != "none" && *choice != "auto") refuse_field("tool_choice", "there are no tools");
    return;
  }
  if (!tools->is_array() || tools->size() > 256) refuse_field("tools", "expected an array of at most 256 tools");
  bool named = false;
  const bool by_name = choice && choice->is_object();
  if (by_name) {
    Fields outer(*choice, "tool_choice");
    outer.only("type", "function", "this server knows tools of type function alone");
    const Json* function = outer.take("function");
    if (!function) refuse_field("tool_choice.function", "expected an object with the tool's name");
    Fields inner(*function, "tool_choice.function");
    request->tool_name = inner.text("name").value_or("");
    inner.finish();
    outer.finish();
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string here = "tools[" + std::to_string(i) + "]";
    Fields tool((*tools)[i], here);
    if (!tool.take("type")) refuse_field(here + ".type", "expected \"function\"");
    tool.only("type", "function", "this server knows tools of type function alone");
    const Json* function = tool.take("function");
    if (!function) refuse_field(here + ".function", "expected an object");
    Fields inner(*function, here + ".function");
    const auto name = inner.text("name");
    if (!name || name->empty()) refuse_field(here + ".function.name", "expected a string");
    named = named || *name == request->tool_name;
    inner.text("description");
    inner.boolean("strict");  // calls always fit their schema
    if (const Json* parameters = inner.take("parameters"); parameters && !parameters->is_object())
      refuse_field(here + ".function.parameters", "expected a JSON schema");
    inner.finish();
    tool.finish();
  }
  request->tools = text_of(*tools);
  request->one_call = several.has_value() && !*several;
  request->tool_choice = ORRERY_TOOLS_AUTO;
  if (by_name) {
    if (!named) refuse_field("tool_choice", "'" + request->tool_name.substr(0, 100) + "' is not among the tools");
    request->tool_choice = ORRERY_TOOLS_REQUIRED;
  } else if (choice && *choice == "required") {
    request->tool_choice = ORRERY_TOOLS_REQUIRED;
  } else if (choice && *choice == "none") {
    request->tool_choice = ORRERY_TOOLS_NONE;
  } else if (choice && *choice != "auto") {
    refuse_field("tool_choice", "expected none, auto, required, or a tool's name in an object");
  }
}

void read_form(Fields& fields, Request* request) {
  const Json* format = fields.take("response_format");
  if (!format) return;
  Fields outer(*format, "response_format");
  const auto type = outer.text("type");
  const Json* wrapped = outer.take("json_schema");
  if (type && *type == "json_object") {
    request->grammar = "{\"type\": \"object\"}";
  } else if (type && *type == "json_schema") {
    if (!wrapped) refuse_field("response_format.json_schema", "expected an object with the schema");
    Fields inner(*wrapped, "response_format.json_schema");
    const Json* schema = inner.take("schema");
    if (!schema || !(schema->is_object() || schema->is_boolean()))
      refuse_field("response_format.json_schema.schema", "expected a JSON schema");
    inner.text("name"), inner.text("description");
    inner.boolean("strict");  // answers always fit the schema
    inner.finish();
    request->grammar = text_of(*schema);
  } else if (!type || *type != "text") {
    refuse_field("response_format.type", "expected text, json_object or json_schema");
  }
  outer.finish();
}

// Variables of the model's chat template.
void read_variables(Fields& fields, Request* request) {
  Json variables = Json::object();
  if (const Json* given = fields.take("chat_template_kwargs")) {
    if (!given->is_object()) refuse_field("chat_template_kwargs", "expected an object");
    variables = *given;
  }
  if (const auto effort = fields.text("reasoning_effort")) {
    variables["reasoning_effort"] = *effort;
    if (*effort == "none") variables["enable_thinking"] = false;
  }
  if (!variables.empty()) request->variables = text_of(variables);
}

}  // namespace

Request read_chat(const Json& body, const Options& options) {
  Request request;
  request.chat = true;
  Fields fields(body, "");
  read_messages(fields, options, &request);
  read_tools(fields, &request);
  read_form(fields, &request);
  read_variables(fields, &request);
  request.logprobs = fields.boolean("logprobs").value_or(false);
  if (const auto top = fields.integer("top_logprobs", 0, 20)) {
    if (!request.logprobs) refuse_field("top_logprobs", "it goes with logprobs: true alone");
    request.n_logprobs = static_cast<uint32_t>(*top);
  }
  request.continue_last = fields.boolean("continue_final_message").value_or(false);
  fields.only("add_generation_prompt", !request.continue_last, "it is the contrary of continue_final_message");
  fields.only("modalities", Json::array({"text"}), "this server answers in text alone");
  read_common(fields, options, &request);
  fields.finish();
  return request;
}

Request read_completion(const Json& body, const Options& options) {
  Request request;
  Fields fields(body, "");
  const Json* prompt = fields.take("prompt");
  if (prompt && prompt->is_array() && prompt->size() == 1 && (*prompt)[0].is_string()) prompt = &(*prompt)[0];
  if (prompt && prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
  } else if (prompt && prompt->is_array() && !prompt->empty()) {
    request.prompt_is_tokens = true;
    for (const Json& token : *prompt) {
      if (!token.is_number_unsigned() || token.get<uint64_t>() > INT32_MAX)
        refuse_field("prompt", "expected one text, or the numbers of one text's tokens");
      request.prompt_tokens.push_back(token.get<int32_t>());
    }
  } else {
    refuse_field("prompt", "expected one text, or the numbers of one text's tokens");
  }
  fields.only("echo", false, "this server does not repeat the prompt");
  fields.only("best_of", 1, "this server gives one answer to a request");
  if (const auto suffix = fields.text("suffix"); suffix && !suffix->empty())
    refuse_field("suffix", "this server continues a prompt at its end alone");
  if (const auto top = fields.integer("logprobs", 0, 20)) request.logprobs = true, request.n_logprobs = static_cast<uint32_t>(*top);
  read_common(fields, options, &request);
  fields.finish();
  return request;
}

}  // namespace orrery::server
