// What an answer may be when its session has tools: reasoning, content, calls. The rules become a grammar, so a model can write only calls
// that its format and the tools' schemas allow. AnswerParser reads such an answer back, byte for byte, as it is written.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/format/format.h"
#include "runtime/text/grammar/tree/limits.h"
#include "runtime/text/grammar/tree/tree.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace orrery::text::format {

// The numbers of ORRERY_TOOLS_.
enum class ToolChoice : uint32_t { ignored = 0, automatic = 1, none = 2, required = 3 };

struct Tool {
  std::string name;
  std::string schema;                                  // of its arguments: JSON
  Value parameters;                                    // the same as `schema`
  std::optional<uint32_t> plain_bytes;                 // of grammar::plain_bytes()
  std::map<std::string, bool, std::less<>> is_string;  // of tagged arguments, by key; filled in by answer_tree()
};
// Reads a list of tools as chat templates take it: {"type": "function", "function": {"name", "parameters"}}, or the inner object alone.
// invalid_argument names the tool and its fault.
Result<std::vector<Tool>> tools_of(const Value& list);

struct AnswerRules {
  ChatFormat format;
  std::vector<Tool> tools;  // that may be called
  ToolChoice choice = ToolChoice::automatic;
  bool many = true;            // several calls
  bool may_reason = true;      // the answer may begin with reasoning
  bool reasons_first = false;  // the prompt has opened the reasoning
  bool calls() const { return choice == ToolChoice::automatic || choice == ToolChoice::required; }
};

// The answers that the rules allow; ends of turns are cut off the rules' format. `content`: what the content must be; null: any text
// without the marks of calls. `tokenizer` knows which marks are control tokens; null: none is. Errors: those of schemas, with the tool's
// name; unsupported, where the template has no calls. `compiled`: the tools, by their places in the list, whose arguments have their rules.
// Arguments of other tools are deferred rules with the tool's number, if their schema is plain. Null: all have their rules.
Result<grammar::Tree> answer_tree(AnswerRules* rules, const grammar::Tree* content, const Tokenizer* tokenizer,
                                  const grammar::CompileLimits& limits, std::vector<std::string>* notices,
                                  const std::vector<uint32_t>* compiled = nullptr);

}  // namespace orrery::text::format
