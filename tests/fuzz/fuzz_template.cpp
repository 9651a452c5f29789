// Chat templates from strangers: whatever the source, compiling and rendering it must end soon with text or
// an error that names its place.
#include <cstdint>
#include <cstdlib>

#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/json/json.h"

using namespace orrery;
using namespace orrery::text;

namespace {

const char* const kContext =
    R"({"messages": [{"role": "system", "content": "Be é."}, {"role": "user", "content": "Hi 🙂"}, {"role": "assistant",
    "content": null, "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": [1, 2.5, "y"]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "array"}}}}}],
    "n": 7, "f": 2.5, "s": "a b,c\n", "xs": [3, 1, 2], "d": {"b": 1, "a": 2}, "add_generation_prompt": true})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Result<ChatTemplate> compiled = ChatTemplate::compile(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!compiled.ok()) {
    if (compiled.status().code() != Code::unsupported_template) std::abort();
    return 0;
  }
  static const Value context = parse_json(kContext).value();
  TemplateLimits limits;
  limits.max_steps = 20'000;
  limits.max_work_bytes = 4 << 20;
  limits.max_output_bytes = 1 << 20;
  const std::tm now{};
  Result<Text> text = compiled->render(context, limits, &now);
  if (text.ok() && text.value().size() > limits.max_output_bytes) std::abort();
  if (!text.ok() && text.status().detail().line == 0) std::abort();
  return 0;
}
