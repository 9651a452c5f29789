// The grammars of one vocabulary: compiled once, kept among the last ones, shared by any number of answers and threads.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/base/allocation/account.h"
#include "runtime/base/status.h"
#include "runtime/text/grammar/grammar.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace orrery::engine {

class Grammars {
 public:
  static constexpr size_t kMostKept = 32;
  static constexpr size_t kMostKeptBytes = 32u << 20;  // of sources and automata

  // Compiles `source`, or finds it. Errors are those of text::grammar::Grammar::compile().
  Result<std::shared_ptr<text::grammar::Grammar>> get(const text::Tokenizer& tokenizer, std::string_view source,
                                                      const text::grammar::GrammarOptions& options);

  // Compiles a tree; grow: as of text::grammar::Grammar::of_tree().
  Result<std::shared_ptr<text::grammar::Grammar>> make(const text::Tokenizer& tokenizer, const text::grammar::Tree& tree,
                                                       const text::grammar::GrammarOptions& options, std::vector<std::string> notices,
                                                       text::grammar::Deferred::Grow grow);

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<text::grammar::Grammar> grammar;
    size_t bytes;
  };
  Result<std::shared_ptr<const text::grammar::TokenTrie>> trie(const text::Tokenizer& tokenizer);

  const AccountRef account_ = AccountRef::current();  // the vocabulary's
  std::mutex mutex_;                                  // of what follows
  std::shared_ptr<const text::grammar::TokenTrie> trie_;
  std::list<Kept> kept_;  // the last used first
  size_t bytes_ = 0;
};

}  // namespace orrery::engine
