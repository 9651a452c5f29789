// How far an answer is from its end: the shortest text that completes the answer, and the tokens of that text. With them the sampler
// refuses tokens after which a limited answer could not be completed.
//
// Only bytes that are tokens by themselves are counted on, and tokens that the grammar names, each as one byte: so every such text can be
// written.
//
// The least bytes of every state and rule are found once (Knuth's generalisation of Dijkstra's algorithm: a rule costs what its cheapest
// way costs). A configuration's least bytes are the least over its items and their stacks. Of the shortest texts the first one by bytes is
// taken, cut into tokens greedily. The text behind one of its tokens is again the shortest text there, so an answer that can be closed with
// n tokens left has a token after which n - 1 suffice.
#pragma once

#include <unordered_map>
#include <vector>

#include "runtime/text/grammar/run/space.h"
#include "runtime/text/grammar/run/token_trie.h"

namespace orrery::text::grammar {

constexpr uint32_t kNever = 0xFFFFFFFF;  // no such text completes the answer, or it is longer than kMostClosing

// The least bytes on the way to an end, for every state of a network.
class Costs {
 public:
  Costs(const Network& network, const TokenTrie& trie);
  // From a state with a count, which is one of `space`, to the end of its rule.
  uint32_t to_end(const Space& space, uint32_t state, uint32_t count) const;
  bool is_token(uint32_t byte) const { return n_tokens_[byte + 1] > n_tokens_[byte]; }
  int32_t token_of(uint32_t set) const { return token_of_[set]; }  // a token of a set that the grammar names; -1: none is counted on

 private:
  uint32_t members_to_end(const Space& space, const NetworkMembers& members, uint32_t place, uint32_t set) const;

  const Network& network_;
  uint32_t n_tokens_[257] = {};                  // of the bytes below each
  std::vector<int32_t> token_of_;                // (token sets)
  std::vector<uint32_t> state_;                  // to the end of its rule; within a counted rule's rounds: to the boundary
  std::vector<uint32_t> leave_, round_, rule_;   // (rules) from the boundary to the rule's end, and through one round; the whole rule
  std::vector<std::vector<uint32_t>> cheapest_;  // (Network::members) members that are not required, the cheapest ones first
};

// One matcher's. Holds for one space until forget().
class Closing {
 public:
  static constexpr uint32_t kMostClosing = 1u << 14;  // bytes

  Closing(const Network& network, const TokenTrie& trie) : network_(network), trie_(trie) {}
  void forget();
  uint32_t bytes(const Costs& costs, const Space& space, uint32_t configuration);
  std::vector<int32_t> way(const Costs& costs, Space* space,
                           uint32_t configuration);  // tokens of the shortest text; where bytes() is not kNever
  uint32_t tokens(const Costs& costs, Space* space, uint32_t configuration);
  // Whether `left` tokens suffice.
  bool fits(const Costs& costs, Space* space, uint32_t configuration, uint32_t left);
  // Moves out the deferred rules that way() has met since the last call. The texts of these rules are not known, so way() found no tokens.
  void take_deferred(std::vector<uint32_t>* numbers) {
    numbers->insert(numbers->end(), met_.begin(), met_.end());
    met_.clear();
  }

 private:
  const Network& network_;
  const TokenTrie& trie_;
  std::vector<uint32_t> below_;  // (nodes) least bytes of a node's stacks; kUnset: not known
  std::vector<uint32_t> todo_;
  std::vector<uint32_t> met_;                      // deferred rules
  std::unordered_map<uint32_t, uint32_t> tokens_;  // by configuration
};

}  // namespace orrery::text::grammar
