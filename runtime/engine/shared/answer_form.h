// What an answer may be when it has tools, or when its reasoning is told apart: the rules, and the grammar that holds the model to them.
// Made from the chat template's format, the session's tools and an answer's options.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/text/format/answer.h"
#include "runtime/text/grammar/grammar.h"

namespace orrery::engine {

class Vocabulary;

struct FormRequest {
  text::format::ToolChoice tools = text::format::ToolChoice::ignored;
  std::string tool;  // the only one that may be called; empty: any
  bool one_call = false;
  bool split_reasoning = false;       // reasoning is told apart; `content` begins after it
  uint32_t max_reasoning_tokens = 0;  // 0: no limit
  std::string content;                // a grammar's source: of the content; empty: none
  text::grammar::GrammarOptions content_options;
  bool any() const { return tools != text::format::ToolChoice::ignored || split_reasoning; }
};

struct AnswerForm {
  text::format::AnswerRules rules;
  std::shared_ptr<text::grammar::Grammar> grammar;
};

// `tools`: the session's, or undefined. Errors: invalid_argument and unsupported, for tools that cannot be called and for `content`.
Result<std::shared_ptr<const AnswerForm>> make_form(const Vocabulary& vocabulary, const text::format::ChatFormat& format,
                                                    const text::Value& tools, const FormRequest& request, text::format::Opening opening);

}  // namespace orrery::engine
