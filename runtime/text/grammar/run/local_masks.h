// Which tokens one state allows, whatever stands below it on the stack. A token that ends the state's rule midway is *pending* at a node of
// the token tree: the tokens below that node depend on the stack. So one walk of the vocabulary serves every place where the state occurs.
//
// A rule that calls no other rule has leaf masks, shared by all grammars of a vocabulary. A counted rule's leaf mask holds for every count:
// it remembers how many rounds a token begins.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/text/grammar/automata/network.h"
#include "runtime/text/grammar/run/leaf_states.h"
#include "runtime/text/grammar/run/plain_text.h"
#include "runtime/text/grammar/run/space.h"
#include "runtime/text/grammar/run/token_trie.h"
#include "runtime/text/pace.h"

namespace orrery::text::grammar {

// A set of tokens: few as a list, many as bits.
struct Tokens {
  std::vector<uint32_t> ids;    // if `words` is empty
  std::vector<uint32_t> words;  // (n_words)
  void assign(std::vector<uint32_t> list, size_t n_words);
  void assign_bits(std::vector<uint32_t> bits, size_t n_tokens);  // bits (n_words) of n_tokens tokens
  void add_to(uint32_t* mask) const;
};

struct LocalMask {
  Tokens tokens;
  std::vector<uint32_t> pending;   // nodes of the token tree
  std::vector<uint32_t> deferred;  // rules that tokens reach: not all tokens are known before these rules are compiled
};

struct LeafMask {
  struct Rounds {
    uint32_t at;      // a token, or a node of the token tree
    uint32_t rounds;  // begun on the way there
  };
  Tokens tokens;                       // that stay before the suffix, with any number of rounds
  std::vector<uint32_t> by_rounds;     // counted: the same tokens by rounds
  std::vector<uint32_t> rounds_begin;  // tokens of r rounds: by_rounds[rounds_begin[r] .. rounds_begin[r + 1])
  std::vector<Rounds> left;            // tokens that end in the suffix
  std::vector<Rounds> pending;         // of a rule that is not counted: `rounds` is 1

  // Adds the tokens that begin at most `most` rounds.
  void add_to(uint32_t* mask, size_t n_words, uint32_t most) const;
  size_t memory_bytes() const;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<std::vector<uint32_t>>> limited_;  // by number of rounds
};

// The masks of one grammar, filled on first use. Any number of threads may share it.
class MaskCache {
 public:
  explicit MaskCache(size_t most_bytes) : most_bytes_(most_bytes) {}
  std::shared_ptr<const LocalMask> find(uint64_t state, uint64_t counts) const;
  void keep(uint64_t state, uint64_t counts, std::shared_ptr<const LocalMask> mask);
  std::shared_ptr<LeafMask> find_leaf(uint32_t state) const;
  void keep_leaf(uint32_t state, std::shared_ptr<LeafMask> mask);
  std::shared_ptr<LeafMask> find_leaf(const std::vector<uint32_t>& states) const;  // of states together
  void keep_leaf(const std::vector<uint32_t>& states, std::shared_ptr<LeafMask> mask);
  size_t memory_bytes() const;

 private:
  struct Key {
    uint64_t state, counts;
    bool operator==(const Key& o) const { return state == o.state && counts == o.counts; }
  };
  struct Hash {
    size_t operator()(const Key& k) const {
      return static_cast<size_t>((k.state * 0x9E3779B97F4A7C15u) ^ (k.counts * 0xC2B2AE3D27D4EB4Fu));
    }
  };
  void make_room(size_t bytes);
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const LocalMask>, Hash> masks_;
  std::unordered_map<uint32_t, std::shared_ptr<LeafMask>> leaves_;
  std::map<std::vector<uint32_t>, std::shared_ptr<LeafMask>> joint_leaves_;
  size_t bytes_ = 0;
  const size_t most_bytes_;
};

// Walks for one thread.
class MaskMaker {
 public:
  MaskMaker(const Network& network, const TokenTrie& trie, MaskCache& cache);

  static bool has_leaf(const NetworkRule& rule) { return rule.leaf && rule.deterministic && (!rule.counted || rule.whole_rounds); }
  // Null: `pace` said stop.
  std::shared_ptr<LeafMask> leaf(uint32_t state, Pace* pace);
  bool knows_leaf(uint32_t state) const { return cache_.find_leaf(state) != nullptr; }
  // What several states allow together: `rounds` of a pending node has bit i if states[i] ends its rule there. The rules are not counted.
  // Null as well if the states have too many joint states.
  std::shared_ptr<LeafMask> leaf_together(const std::vector<uint32_t>& states, Pace* pace);
  std::shared_ptr<const LocalMask> local(const Item& item, Pace* pace);
  // The nodes of the token tree that the walks have stepped on. They pass the others without a look at states.
  uint64_t n_steps() const { return n_steps_; }

 private:
  static constexpr uint32_t kDead = 0xFFFFFFFF;
  // A state's steps. A cell is kDead, or the target's row, or its state while it has no row; what the target is, and what happens on the way.
  static constexpr uint32_t kTarget = (1u << 26) - 1, kHasNoRow = 1u << 26, kBegins = 1u << 27, kLeaves = 1u << 28, kFinal = 1u << 29,
                            kTail = 1u << 30;
  struct Row {
    uint32_t cells[256];
  };
  uint32_t row_of(uint32_t state);
  // The row that a cell leads to.
  uint32_t target(uint32_t row, uint8_t byte, uint32_t cell) {
    if (cell & kHasNoRow) return make_target(row, byte, cell & kTarget);
    return cell & kTarget;
  }
  uint32_t make_target(uint32_t row, uint8_t byte, uint32_t state);
  void forget_rows();
  std::string digest(uint32_t state);
  uint32_t majority(uint32_t state);
  template <bool counted>
  bool walk(uint32_t state, LeafMask* mask, Pace* pace);
  bool walk_difference(uint32_t state, uint32_t base_state, const LeafMask& base, LeafMask* mask, Pace* pace);

  const Network& network_;
  const TokenTrie& trie_;
  MaskCache& cache_;
  Space space_;
  LeafStates states_;
  PlainReach plain_;
  TextLoops loops_;
  std::vector<uint32_t> row_of_;  // (states) or kDead
  std::vector<Row> rows_;
  std::vector<uint32_t> row_states_;  // (rows)
  std::vector<uint8_t> row_reach_;    // (rows) of plain text
  std::vector<uint32_t> number_;      // (states) in the digest under construction, or kDead
  uint64_t n_steps_ = 0;
};

}  // namespace orrery::text::grammar
