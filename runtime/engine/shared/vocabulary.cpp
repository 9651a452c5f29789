#include "runtime/engine/shared/vocabulary.h"

#include <string_view>

namespace orrery::engine {

namespace {
constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
}

Result<std::shared_ptr<const Vocabulary>> Vocabulary::from_gguf(const gguf::File& file) {
  ORRERY_ASSIGN(text::Tokenizer tokenizer, text::Tokenizer::from_gguf(file));
  std::shared_ptr<Vocabulary> vocabulary(new Vocabulary(std::move(tokenizer)));
  for (uint64_t i = 0; i < file.n_keys(); ++i) {
    const std::string_view key = file.key(i);
    std::string_view source;
    if (key.substr(0, kTemplateKey.size()) != kTemplateKey || !file.value(i).as_string(&source)) continue;
    const std::string_view rest = key.substr(kTemplateKey.size());
    if (rest.empty())
      vocabulary->templates_.emplace("", source);
    else if (rest[0] == '.')
      vocabulary->templates_.emplace(rest.substr(1), source);
  }
  return std::shared_ptr<const Vocabulary>(std::move(vocabulary));
}

const std::string* Vocabulary::template_source(const std::string& name) const {
  const auto it = templates_.find(name);
  return it == templates_.end() ? nullptr : &it->second;
}

std::string Vocabulary::token_text(int32_t id) const {
  return id < 0 ? std::string() : std::string(tokenizer_.token_bytes(id));
}

Result<ChatRenderer> ChatRenderer::make(std::shared_ptr<const Vocabulary> vocabulary, TemplateChoice choice) {
  const std::string* source = &choice.source;
  if (choice.source.empty()) {
    source = vocabulary->template_source(choice.name);
    if (source == nullptr)
      return choice.name.empty()
                 ? error(Code::unsupported_template, "the model's file has no chat template, and none was given")
                 : error(Code::invalid_argument, "the model's file has no chat template named '%s'",
                         choice.name.c_str());
  }
  ORRERY_ASSIGN(text::ChatTemplate compiled, text::ChatTemplate::compile(*source));
  return ChatRenderer(std::move(vocabulary), std::move(choice), std::move(compiled));
}

Result<std::string> ChatRenderer::render(const text::Value& messages, const text::TemplateLimits& limits) const {
  text::ChatOptions options;
  options.limits = limits;
  if (!choice_.tools.is_undefined()) options.tools = &choice_.tools;
  if (!choice_.variables.is_undefined()) options.extra = &choice_.variables;
  options.add_generation_prompt = choice_.add_generation_prompt;
  options.bos_token = vocabulary_->bos_text();
  options.eos_token = vocabulary_->eos_text();
  return text::render_chat(template_, messages, options);
}

}  // namespace orrery::engine
