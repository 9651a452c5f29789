// The shapes of messages that a chat template takes. Applications send what the OpenAI wire has: `content` as text, as null beside tool
// calls or as a list of typed parts, arguments of tool calls as a JSON text. Publishers' templates each take some of these, and print
// "None", a list in Python's notation or escaped JSON for the others. So a template is tried once on small conversations, and messages are
// changed to what it takes. Text stays data (text/origin_text.h).
#pragma once

#include "runtime/base/status.h"
#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/json/value.h"

namespace orrery::engine {

struct MessageShapes {
  bool strings = true, parts = true;                    // of `content`
  bool null_content = true;                             // beside tool calls
  bool text_arguments = true, object_arguments = true;  // of tool calls

  // Whether a message has a shape that some template does not take.
  static bool is_wire_shape(const text::Value& message);
  static MessageShapes of(const text::ChatTemplate& chat_template, const text::ChatOptions& options);
  // The message as the template takes it. invalid_argument: a part that is no text, for a template that takes text alone.
  Result<text::Value> adapt(const text::Value& message) const;
};

}  // namespace orrery::engine
