#include "runtime/text/grammar/grammar.h"

#include "runtime/text/grammar/languages/char_dfa.h"
#include "runtime/text/grammar/languages/gbnf.h"

namespace orrery::text::grammar {
namespace {

// The whole answer matches the expression.
Result<Tree> tree_of_expression(std::string_view source, const CompileLimits& limits) {
  ORRERY_ASSIGN(const Expression expression, parse_expression(source, false, limits));
  Tree tree;
  tree.root = tree.add_rule("expression", 1, 1);
  tree.rules[0].body = expression.simple ? tree.repeat(tree.chars(expression.set), expression.least, expression.most)
                                         : tree.graph(expression.dfa.graph(&tree));
  return tree;
}

}  // namespace

Result<Tree> Grammar::tree_of(std::string_view source, const GrammarOptions& options, uint32_t n_vocab, const Tokenizer* tokenizer,
                              std::vector<std::string>* notices) {
  switch (options.language) {
    case Language::gbnf: {
      GbnfOptions gbnf;
      gbnf.root = options.root;
      gbnf.n_vocab = n_vocab;
      if (tokenizer != nullptr) gbnf.find_token = [tokenizer](std::string_view name) { return tokenizer->find(name); };
      return parse_gbnf(source, gbnf, options.limits);
    }
    case Language::json_schema: return schema_tree(source, options.schema, options.limits, notices);
    case Language::expression: break;
  }
  return tree_of_expression(source, options.limits);
}

Result<std::shared_ptr<Grammar>> Grammar::of_tree(const Tree& tree, const GrammarOptions& options, std::shared_ptr<const TokenTrie> trie,
                                                  std::vector<std::string> notices, Deferred::Grow grow) {
  std::shared_ptr<Grammar> grammar(new Grammar);
  ORRERY_ASSIGN(Network network, ::orrery::text::grammar::compile(tree, options.limits));
  if (network.has_deferred) grammar->deferred_ = std::make_shared<Deferred>(std::move(grow), options.limits, trie, options.cache_bytes);
  grammar->shared_ = std::make_shared<MatcherShared>(std::move(network), std::move(trie), options.cache_bytes);
  grammar->notices_ = std::move(notices);
  return grammar;
}

size_t Grammar::match(std::string_view text, bool* complete) const {
  std::shared_ptr<MatcherShared> shared = shared_;
  for (;;) {
    std::vector<uint32_t> met;
    const size_t read = Matcher::match(shared->network, text, complete, &met);
    if (met.empty()) return read;
    auto grown = deferred_->grown(*shared, std::move(met), nullptr);
    if (!grown.ok()) return read;
    shared = *grown;
  }
}

Result<std::shared_ptr<Grammar>> Grammar::compile(std::string_view source, const GrammarOptions& options,
                                                  std::shared_ptr<const TokenTrie> trie, const Tokenizer* tokenizer) {
  std::vector<std::string> notices;
  ORRERY_ASSIGN(const Tree tree, tree_of(source, options, trie->n_vocab(), tokenizer, &notices));
  return of_tree(tree, options, std::move(trie), std::move(notices));
}

}  // namespace orrery::text::grammar
