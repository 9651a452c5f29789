// Chat templates: the Jinja language of the templates in model files, with the semantics of Jinja2's immutable
// sandbox as model publishers use it (trim_blocks, lstrip_blocks, break and continue, tojson without HTML escapes).
// source -> lexer -> parser -> a checked syntax tree, once. Then render(context) -> prompt text, any number of times,
// from any number of threads. Templates are hostile input: nesting, steps, memory and output are all bounded.
//
// A template cannot access files, import, include, or change a caller's value. Lists and dicts are read-only, as in
// the sandbox, but for append() of a list that the template has made.
#pragma once

#include <atomic>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/text/jinja/interpreter/limits.h"
#include "runtime/text/json/value.h"

namespace orrery::text {

namespace jinja {
struct Program;
}

class ChatTemplate {
 public:
  // Errors: unsupported_template, with line and column, for syntax errors and for parts of the language that are not
  // supported (include, import, extends, unknown filters and tests).
  static Result<ChatTemplate> compile(std::string_view source);

  // The result knows which of its bytes the template wrote: Value::literal()s of the context count as such.
  // `context`: a map of the names that the template sees. `now`: the time for strftime_now(); null: the local time.
  // Errors: invalid_argument with the template's own message if it calls raise_exception; context_full if the text is
  // longer than limits.max_output_bytes, with both numbers in the detail; cancelled if limits.cancel was set;
  // unsupported_template for every other failure, including the other limits. Every error names the line and column
  // of the expression.
  Result<Text> render(const Value& context, const TemplateLimits& limits = {}, const std::tm* now = nullptr) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const jinja::Program> program_;
};

// Values that publishers' templates expect in their context.
struct ChatOptions {
  const Value* tools = nullptr;      // a list of tool schemas; null: none
  const Value* documents = nullptr;  // for retrieval templates; null: none
  bool add_generation_prompt = false;
  std::string bos_token, eos_token;  // their bytes count as the template's
  const Value* extra = nullptr;      // a map of further names (enable_thinking, custom_tools, ...); they replace the names above
  const std::tm* now = nullptr;      // for strftime_now; null: the local time
  TemplateLimits limits;
};

// Renders `messages`, a list of {role, content, ...} maps.
Result<Text> render_chat(const ChatTemplate& chat_template, const Value& messages, const ChatOptions& options);

}  // namespace orrery::text
