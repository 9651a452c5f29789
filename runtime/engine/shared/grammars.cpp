#include "runtime/engine/shared/grammars.h"

#include <algorithm>
#include <utility>

namespace orrery::engine {

Result<std::shared_ptr<const text::grammar::TokenTrie>> Grammars::trie(const text::Tokenizer& tokenizer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!trie_) {
    ORRERY_ASSIGN(trie_, text::grammar::TokenTrie::make(tokenizer));
  }
  return trie_;
}

Result<std::shared_ptr<text::grammar::Grammar>> Grammars::make(const text::Tokenizer& tokenizer, const text::grammar::Tree& tree,
                                                               const text::grammar::GrammarOptions& options,
                                                               std::vector<std::string> notices, text::grammar::Deferred::Grow grow) {
  const AccountScope scope(account_);
  ORRERY_ASSIGN(std::shared_ptr<const text::grammar::TokenTrie> tokens, trie(tokenizer));
  return text::grammar::Grammar::of_tree(tree, options, std::move(tokens), std::move(notices), std::move(grow));
}

Result<std::shared_ptr<text::grammar::Grammar>> Grammars::get(const text::Tokenizer& tokenizer, std::string_view source,
                                                              const text::grammar::GrammarOptions& options) {
  const AccountScope scope(account_);
  if (source.size() > options.limits.source_bytes)
    return memory_error(Code::unsupported, source.size(), options.limits.source_bytes, "the grammar has %zu bytes, at most %zu are taken",
                        source.size(), options.limits.source_bytes);
  std::string key = std::to_string(static_cast<uint32_t>(options.language)) + ',' +
                    std::to_string(static_cast<uint32_t>(options.schema.whitespace)) + ',' + std::to_string(options.schema.any_order) +
                    ',' + std::to_string(options.limits.memory_bytes) + ',' + options.root + '\0';
  key += source;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& k) { return k.key == key; });
    if (at != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, at);
      return kept_.front().grammar;
    }
  }
  ORRERY_ASSIGN(std::shared_ptr<const text::grammar::TokenTrie> tokens, trie(tokenizer));
  ORRERY_ASSIGN(std::shared_ptr<text::grammar::Grammar> grammar,
                text::grammar::Grammar::compile(source, options, std::move(tokens), &tokenizer));
  const size_t bytes = key.size() + grammar->network().memory_bytes();
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_front({std::move(key), grammar, bytes});
  bytes_ += bytes;
  while (kept_.size() > kMostKept || (bytes_ > kMostKeptBytes && kept_.size() > 1)) {
    bytes_ -= kept_.back().bytes;
    kept_.pop_back();
  }
  return grammar;
}

}  // namespace orrery::engine
