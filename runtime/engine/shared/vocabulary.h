// A file's tokenizer and chat templates, without weights. Immutable and shared.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/shared/answer_form.h"
#include "runtime/engine/shared/message_shapes.h"
#include "runtime/gguf/gguf.h"
#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace orrery::text::grammar {
class Grammar;
struct GrammarOptions;
class Tree;
}  // namespace orrery::text::grammar

namespace orrery::engine {

class Grammars;

class Vocabulary {
 public:
  static Result<std::shared_ptr<const Vocabulary>> from_gguf(const gguf::File& file);

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  // invalid_argument, and the first difference: a draft model's tokens do not mean what this vocabulary's tokens mean. One of the two may
  // have more padding (TokenType::unused) at its end.
  Status check_same_tokens(const Vocabulary& draft) const;
  // The source of the file's template of that name ("": the default). Null: the file has no such template.
  const std::string* template_source(const std::string& name) const;
  // A grammar over these tokens: compiled, or found among the last ones.
  Result<std::shared_ptr<text::grammar::Grammar>> grammar(std::string_view source, const text::grammar::GrammarOptions& options) const;
  // The same of a tree, which is not kept; grow: as of text::grammar::Grammar::of_tree().
  Result<std::shared_ptr<text::grammar::Grammar>> grammar(const text::grammar::Tree& tree, const text::grammar::GrammarOptions& options,
                                                          std::vector<std::string> notices, text::grammar::Deferred::Grow grow) const;
  // The texts of two control tokens that templates print. "": the vocabulary lacks the token.
  std::string bos_text() const { return token_text(tokenizer_.bos()); }
  std::string eos_text() const { return token_text(tokenizer_.eos()); }

 private:
  explicit Vocabulary(text::Tokenizer tokenizer);
  std::string token_text(int32_t id) const;

  text::Tokenizer tokenizer_;
  std::map<std::string, std::string> templates_;  // by name; "": the default
  const std::shared_ptr<Grammars> grammars_;
};

// The template of a conversation, and its input besides the messages.
struct TemplateChoice {
  bool add_generation_prompt = true;
  std::string source;     // the caller's own; empty: the file's
  std::string name;       // one of the file's; empty: the default
  text::Value tools;      // a list, or undefined
  text::Value variables;  // a map, or undefined
};

// A compiled template, which sessions keep.
class ChatRenderer {
 public:
  static Result<ChatRenderer> make(std::shared_ptr<const Vocabulary> vocabulary, TemplateChoice choice);
  // limits: the length of the text, and a flag that ends the rendering. Errors: see chat_template.h.
  // Of the text, the words of well-known roles ("user") count as the template's own, because templates make control tokens with them
  // ("<|" + role + "|>"). All other text of messages, tools and variables is data.
  Result<text::Text> render(const text::Value& messages, const text::TemplateLimits& limits = {}) const;
  const TemplateChoice& choice() const { return choice_; }
  // What an answer may be: by this template's format, which is derived once, and the choice's tools. The last forms are kept.
  Result<std::shared_ptr<const AnswerForm>> form(const FormRequest& request, text::format::Opening opening) const;
  Result<const text::format::ChatFormat*> format() const;

 private:
  ChatRenderer(std::shared_ptr<const Vocabulary> vocabulary, TemplateChoice choice, text::ChatTemplate compiled)
      : vocabulary_(std::move(vocabulary)), choice_(std::move(choice)), template_(std::move(compiled)) {}

  text::ChatOptions options() const;
  // The messages as the template takes them (MessageShapes), with roles that count as its own text.
  Result<text::Value> adapted(const text::Value& messages, const text::ChatOptions& options) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  TemplateChoice choice_;
  text::ChatTemplate template_;
  mutable std::optional<MessageShapes> shapes_;  // made when a message needs them; one thread at a time renders
  mutable std::shared_ptr<const text::format::ChatFormat> format_;
  static constexpr size_t kMostForms = 4;
  mutable std::vector<std::pair<std::string, std::shared_ptr<const AnswerForm>>> forms_;  // by what they were made from; the last used last
};

}  // namespace orrery::engine
