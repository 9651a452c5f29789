// The interface between callers and the Jinja engine: compile once, render with a context. render_chat() adds the
// names that publishers' templates expect.
#include "runtime/text/jinja/chat_template.h"

#include "runtime/text/jinja/syntax/parser.h"
#include "runtime/text/jinja/interpreter/interpreter.h"

namespace orrery::text {

Result<ChatTemplate> ChatTemplate::compile(std::string_view source) {
  ORRERY_ASSIGN(auto program, jinja::parse(source));
  return ChatTemplate(std::move(program));
}

Result<Text> ChatTemplate::render(const Value& context, const TemplateLimits& limits, const std::tm* now) const {
  if (!context.is_map()) return error(Code::invalid_argument, "the context of a chat template must be a map");
  return jinja::Interp(*program_, context, limits, now).run();
}

Result<Text> render_chat(const ChatTemplate& chat_template, const Value& messages, const ChatOptions& options) {
  if (!messages.is_list()) return error(Code::invalid_argument, "messages must be a list");
  if (options.extra != nullptr && !options.extra->is_map())
    return error(Code::invalid_argument, "the further names of a chat template must be a map");
  Map context;
  context.set("messages", messages);
  context.set("tools", options.tools != nullptr ? *options.tools : Value::none());
  context.set("documents", options.documents != nullptr ? *options.documents : Value::none());
  context.set("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  context.set("bos_token", Value::literal(options.bos_token));
  context.set("eos_token", Value::literal(options.eos_token));
  if (options.extra != nullptr)
    for (const Map::Entry& e : options.extra->as_map().entries()) context.set(e.first, e.second);
  return chat_template.render(Value::map(std::move(context)), options.limits, options.now);
}

}  // namespace orrery::text
