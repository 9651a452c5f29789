#include "runtime/engine/shared/answer_form.h"

#include <algorithm>
#include <optional>

#include "runtime/engine/shared/vocabulary.h"

namespace orrery::engine {

using text::format::ToolChoice;

namespace {
constexpr size_t kMostCompiled = 4;  // tools that are compiled at once
}

Result<std::shared_ptr<const AnswerForm>> make_form(const Vocabulary& vocabulary, const text::format::ChatFormat& format,
                                                    const text::Value& tools, const FormRequest& request, text::format::Opening opening) {
  auto form = std::make_shared<AnswerForm>();
  text::format::AnswerRules& rules = form->rules;
  rules.format = format;
  rules.choice = request.tools;
  rules.many = !request.one_call;
  rules.may_reason = opening != text::format::Opening::closed;
  rules.reasons_first = opening == text::format::Opening::open;
  if (request.tools != ToolChoice::ignored && tools.is_undefined())
    return option_error(Code::invalid_argument, "tools", "the answer may call tools, but the session has none: expected tools_json");
  if (rules.calls()) {
    ORRERY_ASSIGN(rules.tools, text::format::tools_of(tools));
    if (!request.tool.empty()) {
      const auto other = [&](const text::format::Tool& t) { return t.name != request.tool; };
      rules.tools.erase(std::remove_if(rules.tools.begin(), rules.tools.end(), other), rules.tools.end());
      if (rules.tools.empty())
        return option_error(Code::invalid_argument, "tool_name", "the session has no tool named '%.200s'", request.tool.c_str());
    }
    if (rules.tools.empty())
      return option_error(Code::invalid_argument, "tools", "the answer may call tools, but the session's list of tools is empty");
  }
  const text::Tokenizer& tokenizer = vocabulary.tokenizer();
  const auto n_vocab = static_cast<uint32_t>(tokenizer.n_vocab());
  std::vector<std::string> notices;
  std::optional<text::grammar::Tree> content;
  const size_t most = request.content_options.limits.source_bytes;
  if (request.content.size() > most)
    return memory_error(Code::unsupported, request.content.size(), most, "the grammar has %zu bytes, at most %zu are taken",
                        request.content.size(), most);
  if (!request.content.empty()) {
    ORRERY_ASSIGN(content, text::grammar::Grammar::tree_of(request.content, request.content_options, n_vocab, &tokenizer, &notices));
  }
  // An answer calls few of many tools: the grammar compiles a tool's arguments when the answer calls the tool.
  const std::vector<uint32_t> none;
  const bool defers = rules.tools.size() > kMostCompiled;
  ORRERY_ASSIGN(const text::grammar::Tree tree,
                text::format::answer_tree(&rules, content ? &*content : nullptr, &tokenizer, request.content_options.limits, &notices,
                                          defers ? &none : nullptr));
  text::grammar::Deferred::Grow grow;
  if (defers)
    grow = [rules, content, &tokenizer](const std::vector<uint32_t>& compiled, const text::grammar::CompileLimits& limits) {
      text::format::AnswerRules copy = rules;
      std::vector<std::string> noticed;  // plain schemas have nothing to notice
      return text::format::answer_tree(&copy, content ? &*content : nullptr, &tokenizer, limits, &noticed, &compiled);
    };
  ORRERY_ASSIGN(form->grammar, vocabulary.grammar(tree, request.content_options, std::move(notices), std::move(grow)));
  return std::shared_ptr<const AnswerForm>(std::move(form));
}

}  // namespace orrery::engine
