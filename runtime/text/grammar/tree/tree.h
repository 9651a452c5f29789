// The tree that every language becomes: rules over literals, sets of characters, sequences, choices, repetitions, references, sets of
// tokens, automata over characters (graphs), and members in any order. A node's children have smaller numbers than the node, so a loop over the numbers visits
// children first, and no walk recurses. Nodes may be shared: the tree is a directed graph without cycles but for references to rules.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/grammar/tree/char_set.h"

namespace orrery::text::grammar {

constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNoNode = std::numeric_limits<uint32_t>::max();

enum class NodeType : uint8_t {
  literal,   // a, b: offset and length in Tree::bytes
  chars,     // a: index in Tree::sets
  sequence,  // a, b: offset and number in Tree::children
  choice,    // a, b: offset and number in Tree::children; a choice without children is the empty language
  repeat,    // a: the child; b, c: least and most, or kUnbounded
  rule,      // a: index in Tree::rules
  tokens,    // a: index in Tree::token_sets
  graph,     // a: index in Tree::graphs
  machine,   // a: index in Tree::machines
  members,   // a: index in Tree::member_lists
};

struct TreeNode {
  NodeType type;
  uint32_t a = 0, b = 0, c = 0;
};

struct Rule {
  std::string name;
  uint32_t body = kNoNode;
  uint32_t line = 0, column = 0;
  bool own = false;  // gets an automaton of its own, whatever its size: many grammars or places share it
  // A deferred rule has a number and the bytes of a text of it; its true body is compiled when an answer reaches the rule (run/deferred.h).
  uint32_t deferred = kNoNode, deferred_bytes = 0;
};

// One token out of a set of ids, or one that is not in it.
struct TokenSet {
  std::vector<int32_t> ids;  // ascending
  bool negated = false;
};

// An automaton over characters. Every state reaches a final one.
struct Graph {
  struct Edge {
    uint32_t from, to, set;  // set: index in Tree::sets
  };
  uint32_t n_states = 0, start = 0;
  std::vector<Edge> edges;
  std::vector<bool> final;  // (n_states)
};

// An automaton over nodes: what stands between two states is a node's text. Sequences with many optional parts need it to stay small.
struct Machine {
  struct Edge {
    uint32_t from, to, node;  // node: kNoNode reads nothing
  };
  static constexpr uint32_t kStart = 0, kFinal = 1;
  uint32_t n_states = 2;
  std::vector<Edge> edges;
  uint32_t state() { return n_states++; }
};

// Members in any order, as an object's are: `open`, the members with a separator between them, and `close`. Without a member, `close_empty`
// stands behind `open`. All parts are rules with automata of their own, and none derives the empty text. No text begins two members, so what
// has been read says which members have come.
struct Members {
  struct Member {
    uint32_t rule;
    bool required = false, repeats = false;  // without `repeats` it comes at most once; what repeats is not required
  };
  static constexpr uint32_t kMost = 512;
  uint32_t open = 0, separator = 0, close = 0, close_empty = 0;
  std::vector<Member> list;
  uint32_t least = 0,
           most = kUnbounded;  // least: at most the number of members, unless some repeat. most: at least the number of required members
  uint32_t n_required() const;
};

class Tree {
 public:
  uint32_t literal(std::string_view text);
  uint32_t empty() { return literal({}); }
  uint32_t nothing() { return choice({}); }  // the empty language
  uint32_t chars(CharSet set);
  uint32_t sequence(const std::vector<uint32_t>& parts);
  uint32_t choice(const std::vector<uint32_t>& parts);
  uint32_t repeat(uint32_t child, uint32_t least, uint32_t most);
  uint32_t optional(uint32_t child) { return repeat(child, 0, 1); }
  uint32_t rule(uint32_t index) { return add({NodeType::rule, index, 0, 0}); }
  uint32_t tokens(TokenSet set);
  uint32_t graph(Graph graph);
  uint32_t machine(Machine machine);
  uint32_t members(Members members);
  uint32_t add_rule(std::string name, uint32_t line = 0, uint32_t column = 0);
  uint32_t deferred_rule(std::string name, uint32_t number, uint32_t bytes);
  uint32_t add_set(CharSet set);
  uint32_t graft(const Tree& other);  // takes over another tree's rules; a node that refers to its root

  std::string_view text(const TreeNode& literal) const { return std::string_view(bytes).substr(literal.a, literal.b); }
  size_t memory_bytes() const;

  std::vector<TreeNode> nodes;
  std::vector<uint32_t> children;
  std::string bytes;
  std::vector<CharSet> sets;
  std::vector<TokenSet> token_sets;
  std::vector<Graph> graphs;
  std::vector<Machine> machines;
  std::vector<Members> member_lists;
  std::vector<Rule> rules;
  uint32_t root = 0;  // index in rules

 private:
  uint32_t add(TreeNode node) {
    nodes.push_back(node);
    return static_cast<uint32_t>(nodes.size() - 1);
  }
  uint32_t list(NodeType type, const std::vector<uint32_t>& parts);
};

// What is true of a node if it is true of its parts, as the least solution over all rules.
struct TreeFacts {
  std::vector<bool> nullable;    // derives the empty text
  std::vector<bool> productive;  // derives some text
};
TreeFacts tree_facts(const Tree& tree);

}  // namespace orrery::text::grammar
