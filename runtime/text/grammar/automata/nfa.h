// Automata over bytes before they are made deterministic. Each has one start (state 0) and one final state (state 1); no edge enters the
// start, and none leaves the final state. Every call reads at least one byte or token: the empty text of a rule is an `empty` edge beside
// the call.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/grammar/tree/limits.h"
#include "runtime/text/grammar/tree/tree.h"

namespace orrery::text::grammar {

struct NfaEdge {
  enum Type : uint8_t { empty, bytes, call, tokens };
  uint32_t from, to;
  uint32_t value;  // call: the automaton; tokens: the index in Tree::token_sets
  Type type;
  uint8_t first, last;  // bytes
};

struct Nfa {
  static constexpr uint32_t kStart = 0, kFinal = 1;
  uint32_t n_states = 2;
  std::vector<NfaEdge> edges;
  size_t n_saved = 0;  // states that chars() did not make because it had them

  uint32_t state() { return n_states++; }
  void empty(uint32_t from, uint32_t to) { edges.push_back({from, to, 0, NfaEdge::empty, 0, 0}); }
  void bytes(uint32_t from, uint8_t first, uint8_t last, uint32_t to) { edges.push_back({from, to, 0, NfaEdge::bytes, first, last}); }
  void literal(std::string_view text, uint32_t from, uint32_t to);
  void chars(const CharSet& set, uint32_t from, uint32_t to);

 private:
  // States from which the rest of a character leads to one state, by its next byte's range and the state behind it: whole alphabets but for a
  // few letters lead from many states to one.
  std::unordered_map<uint64_t, uint32_t> rests_;
};

// One automaton: a rule, or a counted repetition: prefix, then `nfa` least to most times, then suffix.
struct Automaton {
  std::string name;
  uint32_t line = 0, column = 0;
  Nfa nfa;
  bool counted = false;
  uint32_t least = 0, most = 0;                     // counted
  std::string prefix, suffix;                       // counted
  uint32_t deferred = kNoNode, deferred_bytes = 0;  // as of the tree's rule
  std::optional<Members> members;                   // with automata as its rules. `nfa` then has only what it begins with: a call of `open`
};

struct Automata {
  std::vector<Automaton> list;  // list[0] is the root
  bool root_nullable = false;
};

// Small rules that do not recurse are copied into the rules that name them; long repetitions become automata of their own.
Result<Automata> lower(const Tree& tree, const CompileLimits& limits);

// Rewrites rules that begin with themselves, directly or through others. A cycle through a counted repetition is unsupported.
Status remove_left_recursion(Automata* automata, const CompileLimits& limits);

}  // namespace orrery::text::grammar
