// The automata that a matcher runs: all rules' states in one array. A state reads bytes, calls rules, reads whole tokens, and may end its
// rule. Most rules are deterministic over bytes; a rule whose deterministic form would be too large keeps several edges for one byte.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/grammar/automata/nfa.h"

namespace orrery::text::grammar {

struct Edge {
  // A counted rule's boundary is the state between two rounds. An edge that begins a round is taken while fewer than `most` have begun, and
  // counts it; an edge that leaves is taken once `least` rounds have begun. A rule with members in any order only calls: a member that may
  // still come, the separator while some member may, what closes it once all is there that must be.
  enum Action : uint8_t { none, begins_round, leaves_rounds, takes_member, goes_on, closes };
  uint8_t first, last;
  Action action;
  uint32_t target;
};

struct Call {
  uint32_t rule, target;
  Edge::Action action;
  uint16_t member = 0;  // of takes_member: in NetworkMembers::list
};

struct TokenEdge {
  uint32_t set, target;
  Edge::Action action;
};

struct State {
  uint32_t edges = 0, calls = 0, tokens = 0;  // where they begin; the next state's say where they end
  uint32_t rule = 0;
  bool final = false;       // its rule may end here; at a boundary: once `least` rounds have begun
  bool tail = false;        // nothing but the end of its rule is possible
  bool ends_round = false;  // of a counted rule: here the boundary is reached too
  bool suffix = false;      // of a counted rule: the rounds have been left
};

struct NetworkRule {
  std::string name;
  uint32_t line = 0, column = 0;
  uint32_t start = 0;
  bool counted = false;
  uint32_t boundary = 0, least = 0, most = 0;
  bool deterministic = true;                        // at most one edge for a byte
  bool leaf = true;                                 // calls no rule and reads no whole token
  bool whole_rounds = true;                         // counted: no state that ends a round reads on within the round
  bool any_order = false;                           // `boundary` is a number in Network::members
  uint32_t deferred = kNoNode, deferred_bytes = 0;  // as of the tree's rule
};

// Members in any order. The rule's states from its start: before `open`, before the first member, behind a member, behind a separator, at its
// end. They read nothing but by calls.
struct NetworkMembers : Members {
  enum Place : uint32_t { start, opened, behind_member, behind_separator, end, n_places };
  uint32_t rule = 0;
  uint32_t n_needed = 0, n_once = 0;  // members that are required, that do not repeat
  std::vector<uint64_t> required;     // (members) as bits
};

struct Network {
  std::vector<State> states;  // one more than there are: the last one ends the lists
  std::vector<Edge> edges;    // of a state: by first byte
  std::vector<Call> calls;
  std::vector<TokenEdge> token_edges;
  std::vector<NetworkRule> rules;
  std::vector<NetworkMembers> members;
  std::vector<TokenSet> token_sets;
  uint32_t root = 0;
  bool root_nullable = false;
  bool has_deferred = false;
  uint8_t byte_class[256] = {};  // bytes of one class are alike in every state
  uint32_t n_classes = 1;

  uint32_t n_states() const { return static_cast<uint32_t>(states.size()) - 1; }
  size_t memory_bytes() const;
};

Result<Network> compile(const Tree& tree, const CompileLimits& limits);

}  // namespace orrery::text::grammar
