// How a model writes what is not plain text: its reasoning and its calls of tools. The format comes from the model's own chat template:
// small conversations are rendered (probes), their differences show what stands around names, arguments and ids, and print() of the format
// must give the renderings back, byte for byte. A table beside has what probes cannot see. So a call that is written in its format is
// rendered again as it was written, and the next turn finds its KV.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/grammar/json_schema/tagged.h"
#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/json/value.h"

namespace orrery::text::format {

// What stands around the model's reasoning: <think> and </think>. An answer may begin inside: then the prompt ends with `open`, or `open`
// is empty.
struct ReasoningFormat {
  std::string open, close;
  std::string after;  // stands between `close` and the rest of the answer, blanks aside
  bool known() const { return !close.empty(); }
};

// A text between two values of a call. The byte kCounter stands for the call's number in the message: 0, 1, ...
inline constexpr char kCounter = '\x01';

// What a call consists of, in the order in which it is written. A call has a name and arguments; an id or not.
enum class Field : uint8_t { name, id, arguments };

using grammar::BareMarks;
using grammar::KeyOrder;
using grammar::Notation;
using grammar::TaggedFormat;

struct CallFormat {
  std::string first;          // from the answer's start to the first call's first field
  std::string after_content;  // the same behind content
  std::string next;           // from a call's last field to the next call's first one
  std::string last;           // from the last call's last field to the end of the turn
  std::vector<Field> fields;
  std::vector<std::string> between;    // (fields.size() - 1)
  std::optional<TaggedFormat> tagged;  // none: the arguments are a JSON object
  bool compact = false;                // JSON without spaces after ',' and ':'
  bool many = false;                   // several calls in one message
  bool with_content = false;           // calls may follow content
  bool text_arguments = false;         // the template takes arguments as JSON text
  uint32_t id_length = 0;              // letters and digits in an id; 0: an id has 1 to 40 characters that a tool's name may have

  // The text that begins a call and that content cannot have: the first tag of `first`. Empty: a call has no mark of its own.
  std::string trigger() const;
};

inline bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }
// Names and ids consist of these.
inline bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

inline constexpr const char* kFromProbes = "probes";

struct ChatFormat {
  ReasoningFormat reasoning;
  std::string content_open, content_close;  // what stands around content that is no blank; content_close: to the end of the turn
  std::optional<CallFormat> call;
  std::string prompt_end;  // what the template ends a prompt with, for the model to go on
  std::string source;      // kFromProbes, or the name of the table's row
  std::string why_none;    // of `call`: why the template has none
};

// Where a prompt with this end leaves the reasoning: not begun, open, or over.
enum class Opening : uint8_t { none, open, closed };
Opening opening(const ReasoningFormat& reasoning, std::string_view prompt_end);

// `source`: the template's own. `options`: tools are not read. Fails only where the template cannot render a question: unsupported_template
// and invalid_argument, as render_chat().
Result<ChatFormat> derive(const ChatTemplate& chat_template, std::string_view source, const ChatOptions& options);

struct Call {
  std::string name, id;
  Value arguments;  // a map
};
// The calls as the template prints them from the answer's start to the end of the turn; with content before them where it is not empty.
Result<std::string> print(const CallFormat& format, const std::vector<Call>& calls, std::string_view content);

// The format as JSON, as orrery_chat_format() gives it.
Result<Value> describe(const ChatFormat& format);

// A row of the table: the format of templates that print no calls and whose source has both marks.
struct KnownFormat {
  const char* name;
  const char* marks[2];
  CallFormat (*call)();
};
const KnownFormat* known_format(std::string_view source);
// Reasoning's marks where no probe shows them: those whose end the source names.
ReasoningFormat known_reasoning(std::string_view source);

}  // namespace orrery::text::format
