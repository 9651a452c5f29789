// Deterministic automata over characters: what a text may be, as far as patterns, keys, formats and enumerations say it. They can be
// intersected, joined and complemented, which is how several constraints on one text become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/grammar/tree/limits.h"
#include "runtime/text/grammar/tree/tree.h"

namespace orrery::text::grammar {

struct CharDfa {
  static constexpr uint32_t kDead = 0xFFFFFFFF;
  static constexpr size_t kMostStates = 20000, kMostEdges = 400000;
  struct Edge {
    uint32_t first, last, target;
  };
  struct State {
    std::vector<Edge> edges;  // ascending, disjoint; what no edge names is dead
    bool final = false;
  };
  std::vector<State> states;  // states[0] is the start; none: the empty language

  static CharDfa all();                                            // every text
  static CharDfa of_texts(const std::vector<std::string>& texts);  // UTF-8
  static size_t size_of(const std::vector<std::string>& sorted);   // at most the states of of_texts()
  static CharDfa without(const std::vector<std::string>& texts);   // the texts that contain none of these, which are UTF-8 and not empty
  bool empty() const { return states.empty(); }
  bool matches(std::string_view text) const;
  // The texts, if there are at most `most`; false: there are more.
  bool texts(size_t most, std::vector<std::string>* out) const;
  Graph graph(Tree* tree) const;

  enum class Combine { both, either, first_only };
  static Status too_large();  // unsupported
  // too_large() beyond kMostStates.
  static Result<CharDfa> combine(const CharDfa& a, const CharDfa& b, Combine how);
  Result<CharDfa> complement() const { return combine(all(), *this, Combine::first_only); }
  // The texts of `least` to `most` characters.
  Result<CharDfa> of_length(uint32_t least, uint32_t most) const;
  void trim();  // removes states from which no final state can be reached
};

// An ECMA-262 regular expression, read as with the flag `u`.
struct Expression {
  CharDfa dfa;
  // Where it is ^[class]{least,most}$: these, and `dfa` is not made.
  bool simple = false;
  CharSet set;
  uint32_t least = 0, most = 0;
};
// search: the expression may match anywhere in a text, as JSON schema's `pattern`; otherwise it matches the whole text.
// Errors: invalid_argument and unsupported with column and offset.
Result<Expression> parse_expression(std::string_view source, bool search, const CompileLimits& limits);

}  // namespace orrery::text::grammar
