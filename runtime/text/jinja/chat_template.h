// Chat templates: the Jinja language that models bring along in their files, with the semantics of Jinja2's
// immutable sandbox as model publishers use it (trim_blocks, lstrip_blocks, break and continue, tojson
// without HTML escapes). source -> lexer -> parser -> a checked syntax tree, once; then render(context) ->
// prompt text, any number of times, from any number of threads.  Templates come from strangers: nesting,
// steps, memory and output are all bounded.
//
// There is no file access, no import, no include and no way to change a value of the caller: lists and dicts
// are read-only, as in the sandbox (a template that calls list.append fails there too).
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
  // Syntax errors, and what the language here leaves out (include, import, extends, unknown filters and
  // tests), are unsupported_template with line and column.
  static Result<ChatTemplate> compile(std::string_view source);

  // `context`: a map of the names that the template sees.  `now`: what strftime_now() reads; null for the
  // local time. Errors: invalid_argument with the template's own message when it calls raise_exception;
  // context_full when the text is longer than limits.max_output_bytes, with both numbers in the detail;
  // cancelled when limits.cancel was set; unsupported_template for every other failure, the other limits
  // included.  All carry the line and column of the expression.
  Result<std::string> render(const Value& context, const TemplateLimits& limits = {},
                             const std::tm* now = nullptr) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const jinja::Program> program_;
};

// What publishers' templates expect to find in their context.
struct ChatOptions {
  const Value* tools = nullptr;      // a list of tool schemas; null: none
  const Value* documents = nullptr;  // for retrieval templates; null: none
  bool add_generation_prompt = false;
  std::string bos_token, eos_token;
  const Value* extra =
      nullptr;  // a map of further names (enable_thinking, custom_tools, ...); wins over the above
  const std::tm* now = nullptr;  // for strftime_now; null: the local time
  TemplateLimits limits;
};

// Renders `messages`, a list of {role, content, ...} maps.
Result<std::string> render_chat(const ChatTemplate& chat_template, const Value& messages,
                                const ChatOptions& options);

}  // namespace orrery::text
