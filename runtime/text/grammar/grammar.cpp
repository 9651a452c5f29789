#include "runtime/text/grammar/grammar.h"

#include "runtime/text/grammar/languages/gbnf.h"

namespace orrery::text::grammar {

Result<std::shared_ptr<Grammar>> Grammar::compile(std::string_view source, const GrammarOptions& options,
                                                  std::shared_ptr<const TokenTrie> trie, const Tokenizer* tokenizer) {
  std::shared_ptr<Grammar> grammar(new Grammar);
  GbnfOptions gbnf;
  gbnf.root = options.root;
  gbnf.n_vocab = trie->n_vocab();
  if (tokenizer != nullptr) gbnf.find_token = [tokenizer](std::string_view name) { return tokenizer->find(name); };
  ORRERY_ASSIGN(const Tree tree, parse_gbnf(source, gbnf, options.limits));
  ORRERY_ASSIGN(Network network, ::orrery::text::grammar::compile(tree, options.limits));
  grammar->shared_ = std::make_shared<MatcherShared>(std::move(network), std::move(trie), options.cache_bytes);
  return grammar;
}

}  // namespace orrery::text::grammar
