// Grammars: what an answer may be. A grammar is compiled once for a vocabulary and shared by any number of matchers and threads; a matcher
// follows one answer and says which tokens may come next. README.md says how it works.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/grammar/json_schema/form.h"
#include "runtime/text/grammar/run/matcher.h"
#include "runtime/text/grammar/tree/limits.h"

namespace orrery::text::grammar {

enum class Language : uint32_t { gbnf, json_schema, expression };

struct GrammarOptions {
  Language language = Language::gbnf;
  std::string root = "root";  // GBNF: the rule that an answer is
  SchemaOptions schema;       // JSON schema
  CompileLimits limits;
  size_t cache_bytes = 8u << 20;  // of the masks; and of each matcher's configurations
};

class Grammar {
 public:
  // Errors: invalid_argument with line, column and offset; unsupported, by name, for what a language has and this compiler has not, and
  // beyond a limit; cancelled. `tokenizer` may be null: names of tokens are then refused.
  static Result<std::shared_ptr<Grammar>> compile(std::string_view source, const GrammarOptions& options,
                                                  std::shared_ptr<const TokenTrie> trie, const Tokenizer* tokenizer = nullptr);

  // The same of a tree. `notices`: see below. grow: gives trees in which deferred rules have their bodies; null where `tree` has none.
  static Result<std::shared_ptr<Grammar>> of_tree(const Tree& tree, const GrammarOptions& options, std::shared_ptr<const TokenTrie> trie,
                                                  std::vector<std::string> notices, Deferred::Grow grow = nullptr);
  // The tree of a source; errors are those of compile().
  static Result<Tree> tree_of(std::string_view source, const GrammarOptions& options, uint32_t n_vocab, const Tokenizer* tokenizer,
                              std::vector<std::string>* notices);

  Matcher matcher() const { return Matcher(shared_, deferred_); }
  // The number of bytes of `text` that can begin an answer; complete: the whole text is an answer.
  size_t match(std::string_view text, bool* complete) const;
  // What is accepted and does not constrain: unknown formats and keywords of a schema.
  const std::vector<std::string>& notices() const { return notices_; }
  const Network& network() const { return shared_->network; }
  const TokenTrie& trie() const { return *shared_->trie; }
  size_t memory_bytes() const { return shared_->network.memory_bytes() + shared_->masks.memory_bytes(); }

 private:
  Grammar() = default;
  std::shared_ptr<MatcherShared> shared_;
  std::shared_ptr<Deferred> deferred_;
  std::vector<std::string> notices_;
};

}  // namespace orrery::text::grammar
