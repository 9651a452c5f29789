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

Result<std::shared_ptr<Grammar>> Grammar::compile(std::string_view source, const GrammarOptions& options,
                                                  std::shared_ptr<const TokenTrie> trie, const Tokenizer* tokenizer) {
  std::shared_ptr<Grammar> grammar(new Grammar);
  Tree tree;
  switch (options.language) {
    case Language::gbnf: {
      GbnfOptions gbnf;
      gbnf.root = options.root;
      gbnf.n_vocab = trie->n_vocab();
      if (tokenizer != nullptr) gbnf.find_token = [tokenizer](std::string_view name) { return tokenizer->find(name); };
      ORRERY_ASSIGN(tree, parse_gbnf(source, gbnf, options.limits));
      break;
    }
    case Language::json_schema: {
      ORRERY_ASSIGN(tree, schema_tree(source, options.schema, options.limits, &grammar->notices_));
      break;
    }
    case Language::expression: {
      ORRERY_ASSIGN(tree, tree_of_expression(source, options.limits));
      break;
    }
  }
  ORRERY_ASSIGN(Network network, ::orrery::text::grammar::compile(tree, options.limits));
  grammar->shared_ = std::make_shared<MatcherShared>(std::move(network), std::move(trie), options.cache_bytes);
  return grammar;
}

}  // namespace orrery::text::grammar
