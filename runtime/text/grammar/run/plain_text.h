// Plain text: printable characters but quotation marks and backslashes, in UTF-8. Most tokens of a vocabulary are plain text to their end, and
// most states of a text's automaton read any plain text. So a walk of the vocabulary need not step through the subtrees of the token tree
// that hold plain text alone: a state that reads every plain text as long as the subtree is deep allows all tokens below it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/text/grammar/run/leaf_states.h"
#include "runtime/text/grammar/run/space.h"
#include "runtime/text/grammar/run/token_trie.h"

namespace orrery::text::grammar {

// For each node of a token tree: 1 + the bytes below it, if its byte ends a character and every way on from it is plain text, whose last
// character may be cut; 0 otherwise, and above kMostPlainBytes.
constexpr uint32_t kMostPlainBytes = 254;
std::vector<uint8_t> plain_heights(const std::vector<TokenTrie::Node>& nodes, uint32_t depth);

// Bytes in groups: letters and what stands between them; characters that marks and notations begin with; white space and controls; characters
// of several bytes. For each node of a token tree: the groups of the bytes below it. A walk passes by a subtree whose groups all lead from a
// configuration back to it, and by one that has none of the groups that can come.
constexpr uint8_t kCharacterGroup = 1 << 5, kBrokenGroup = 1 << 6,
                  kMidCharacter = 1 << 7;  // the last one: the node's byte ends no character
uint8_t group_of(uint8_t byte);
std::vector<uint8_t> groups_below(const std::vector<TokenTrie::Node>& nodes, uint32_t depth);
// The groups with a byte that `configuration` reads, and kMidCharacter.
uint8_t groups_read(Space* space, uint32_t configuration);

// Groups whose characters lead from configurations of one space back to the same configuration.
class TextLoops {
 public:
  uint8_t of(Space* space, uint32_t configuration) {
    if (configuration >= known_.size()) known_.resize(configuration + size_t{1}, kNotKnown);
    if (known_[configuration] == kNotKnown) known_[configuration] = find(space, configuration);
    return known_[configuration];
  }
  void forget() { known_.clear(); }  // with the space

 private:
  static constexpr uint8_t kNotKnown = 0xFF;
  static uint8_t find(Space* space, uint32_t configuration);
  std::vector<uint8_t> known_;
};

// How much plain text states read.
class PlainReach {
 public:
  // Of every plain text that begins with a whole character, the first reach() - 1 bytes lead from `state` to states that go on: none of them
  // ends a rule. In a counted rule, each of the characters begins one round. At least 1; kMostPlainBytes + 1: plain text of any length.
  // It is a lower bound where the automaton is large.
  uint32_t reach(LeafStates& states, uint32_t state) {
    if (state >= reach_.size() || reach_[state] == 0) find(states, state);
    return reach_[state];
  }
  void forget();  // with the joint states. `states` is the same in all calls; a maker of masks may have moved meanwhile

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  // A state, and how much of a character has been read.
  struct Place {
    uint32_t state, next;  // the state's next place
    uint32_t met;          // in met_, or kNone
    uint8_t part, reach;   // 0: not known
  };
  struct Step {
    uint32_t from, to;  // in met_
  };
  // Finds the reach of `state` and of the states that plain text leads to from there.
  void find(LeafStates& states, uint32_t state);
  uint32_t place(const LeafStates& states, uint32_t state, uint8_t part);
  uint32_t expand(LeafStates& states, uint32_t from);

  std::vector<uint8_t> reach_;   // (states)
  std::vector<uint32_t> first_;  // (states) in places_
  std::vector<Place> places_;
  // One search's.
  std::vector<uint32_t> met_;  // places
  std::vector<Step> steps_;
  std::vector<std::vector<uint32_t>> by_reach_;
};

}  // namespace orrery::text::grammar
