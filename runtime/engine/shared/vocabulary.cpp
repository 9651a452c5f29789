#include "runtime/engine/shared/vocabulary.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/engine/shared/grammars.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::engine {

namespace {
constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
}

Vocabulary::Vocabulary(text::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)), grammars_(std::make_shared<Grammars>()) {}

Result<std::shared_ptr<text::grammar::Grammar>> Vocabulary::grammar(std::string_view source,
                                                                    const text::grammar::GrammarOptions& options) const {
  return grammars_->get(tokenizer_, source, options);
}

Result<std::shared_ptr<text::grammar::Grammar>> Vocabulary::grammar(const text::grammar::Tree& tree,
                                                                    const text::grammar::GrammarOptions& options,
                                                                    std::vector<std::string> notices,
                                                                    text::grammar::Deferred::Grow grow) const {
  return grammars_->make(tokenizer_, tree, options, std::move(notices), std::move(grow));
}

Result<std::shared_ptr<const Vocabulary>> Vocabulary::from_gguf(const gguf::File& file) {
  ORRERY_ASSIGN(text::Tokenizer tokenizer, text::Tokenizer::from_gguf(file));
  std::shared_ptr<Vocabulary> vocabulary(new Vocabulary(std::move(tokenizer)));
  for (uint64_t i = 0; i < file.n_keys(); ++i) {
    const std::string_view key = file.key(i);
    std::string_view source;
    if (key.substr(0, kTemplateKey.size()) != kTemplateKey || !file.value(i).as_string(&source)) continue;
    const std::string_view rest = key.substr(kTemplateKey.size());
    if (rest.empty()) vocabulary->templates_.emplace("", source);
    else if (rest[0] == '.') vocabulary->templates_.emplace(rest.substr(1), source);
  }
  return std::shared_ptr<const Vocabulary>(std::move(vocabulary));
}

Status Vocabulary::check_same_tokens(const Vocabulary& draft) const {
  const text::Tokenizer &own = tokenizer_, &other = draft.tokenizer_;
  // Published models of one family differ in rows that only pad the tables.
  const int32_t n_common = std::min(own.n_vocab(), other.n_vocab());
  const text::Tokenizer& longer = own.n_vocab() > other.n_vocab() ? own : other;
  for (int32_t id = n_common; id < longer.n_vocab(); ++id)
    if (longer.token_type(id) != text::TokenType::unused)
      return option_error(Code::invalid_argument, "draft_model",
                          "the draft model has another vocabulary: %d tokens, where the model has %d, and they are not all padding",
                          other.n_vocab(), own.n_vocab());
  const auto shown = [](std::string_view bytes) {
    std::string valid;
    text::utf8_append_valid(bytes.substr(0, 40), &valid);
    return valid;
  };
  for (int32_t id = 0; id < n_common; ++id) {
    if (own.token_bytes(id) != other.token_bytes(id))
      return option_error(Code::invalid_argument, "draft_model",
                          "the draft model has another vocabulary: its token %d is '%s', the model's is '%s'", id,
                          shown(other.token_bytes(id)).c_str(), shown(own.token_bytes(id)).c_str());
    if (own.token_type(id) != other.token_type(id))
      return option_error(Code::invalid_argument, "draft_model",
                          "the draft model has another vocabulary: the type of its token %d is %d, the model's is %d", id,
                          static_cast<int>(other.token_type(id)), static_cast<int>(own.token_type(id)));
  }
  using Special = text::SpecialTokens;
  constexpr std::pair<const char*, int32_t Special::*> kSpecial[] = {{"bos", &Special::bos}, {"eos", &Special::eos}, {"eot", &Special::eot},
                                                                     {"eom", &Special::eom}, {"unk", &Special::unk}, {"pad", &Special::pad},
                                                                     {"sep", &Special::sep}};
  for (const auto& [name, id] : kSpecial)
    if (own.special().*id != other.special().*id)
      return option_error(Code::invalid_argument, "draft_model",
                          "the draft model has another vocabulary: its %s token is %d, the model's is %d", name, other.special().*id,
                          own.special().*id);
  return ok_status();
}

const std::string* Vocabulary::template_source(const std::string& name) const {
  const auto it = templates_.find(name);
  return it == templates_.end() ? nullptr : &it->second;
}

std::string Vocabulary::token_text(int32_t id) const { return id < 0 ? std::string() : std::string(tokenizer_.token_bytes(id)); }

Result<ChatRenderer> ChatRenderer::make(std::shared_ptr<const Vocabulary> vocabulary, TemplateChoice choice) {
  const std::string* source = &choice.source;
  if (choice.source.empty()) {
    source = vocabulary->template_source(choice.name);
    if (source == nullptr)
      return choice.name.empty() ? error(Code::unsupported_template, "the model's file has no chat template, and none was given")
                                 : option_error(Code::invalid_argument, "template_name", "the model's file has no chat template named '%s'",
                                                choice.name.c_str());
  }
  ORRERY_ASSIGN(text::ChatTemplate compiled, text::ChatTemplate::compile(*source));
  return ChatRenderer(std::move(vocabulary), std::move(choice), std::move(compiled));
}

Result<text::Value> ChatRenderer::adapted(const text::Value& messages, const text::ChatOptions& options) const {
  static constexpr std::string_view kRoles[] = {"system",  "developer",   "user",        "assistant", "tool",    "function",
                                                "ipython", "observation", "environment", "model",     "chatbot", "tool_response"};
  std::vector<text::Value> out;
  out.reserve(messages.as_items().size());
  for (const text::Value& message : messages.as_items()) {
    out.push_back(message);
    if (MessageShapes::is_wire_shape(message)) {
      if (!shapes_) shapes_ = MessageShapes::of(template_, options);
      ORRERY_ASSIGN(out.back(), shapes_->adapt(message));
    }
    const text::Value* role = message.find("role");
    if (role == nullptr || !role->is_string()) continue;
    const std::string_view word = role->as_string();
    if (std::find(std::begin(kRoles), std::end(kRoles), word) == std::end(kRoles)) continue;
    std::vector<text::TokenSpan> spelled;
    vocabulary_->tokenizer().find_control(word, &spelled);
    if (!spelled.empty()) continue;
    text::Map map = out.back().as_map();
    map.set("role", text::Value::literal(std::string(word)));
    out.back() = text::Value::map(std::move(map));
  }
  return text::Value::list(std::move(out));
}

text::ChatOptions ChatRenderer::options() const {
  text::ChatOptions options;
  if (!choice_.tools.is_undefined()) options.tools = &choice_.tools;
  if (!choice_.variables.is_undefined()) options.extra = &choice_.variables;
  options.add_generation_prompt = choice_.add_generation_prompt;
  options.bos_token = vocabulary_->bos_text();
  options.eos_token = vocabulary_->eos_text();
  return options;
}

Result<const text::format::ChatFormat*> ChatRenderer::format() const {
  if (!format_) {
    const std::string* source = choice_.source.empty() ? vocabulary_->template_source(choice_.name) : &choice_.source;
    ORRERY_ASSIGN(text::format::ChatFormat derived, text::format::derive(template_, *source, options()));
    format_ = std::make_shared<const text::format::ChatFormat>(std::move(derived));
  }
  return format_.get();
}

Result<std::shared_ptr<const AnswerForm>> ChatRenderer::form(const FormRequest& request, text::format::Opening opening) const {
  const text::grammar::GrammarOptions& o = request.content_options;
  const std::string parts[] = {std::to_string(static_cast<int>(request.tools)),
                               std::to_string(request.one_call),
                               std::to_string(static_cast<int>(opening)),
                               std::to_string(static_cast<int>(o.language)),
                               std::to_string(static_cast<int>(o.schema.whitespace)),
                               o.root,
                               request.tool,
                               request.content};
  std::string key;
  for (const std::string& part : parts) key += part + '\0';
  const auto kept = std::find_if(forms_.begin(), forms_.end(), [&](const auto& f) { return f.first == key; });
  if (kept != forms_.end()) {
    std::rotate(kept, kept + 1, forms_.end());
    return forms_.back().second;
  }
  ORRERY_ASSIGN(const text::format::ChatFormat* known, format());
  ORRERY_ASSIGN(std::shared_ptr<const AnswerForm> made, make_form(*vocabulary_, *known, choice_.tools, request, opening));
  if (forms_.size() == kMostForms) forms_.erase(forms_.begin());
  forms_.emplace_back(std::move(key), std::move(made));
  return forms_.back().second;
}

Result<text::Text> ChatRenderer::render(const text::Value& messages, const text::TemplateLimits& limits) const {
  text::ChatOptions options = this->options();
  options.limits = limits;
  if (!messages.is_list()) return error(Code::invalid_argument, "messages must be a list");
  ORRERY_ASSIGN(const text::Value taken, adapted(messages, options));
  return text::render_chat(template_, taken, options);
}

}  // namespace orrery::engine
