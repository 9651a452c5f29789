// Which tokens one state allows, whatever stands below it on the stack. A token that ends the state's rule midway is *pending* at a node of
// the token tree: the tokens below that node depend on the stack. So one walk of the vocabulary serves every place where the state occurs.
//
// A rule that calls no other rule has leaf masks, shared by all grammars of a vocabulary. A counted rule's leaf mask holds for every count:
// it remembers how many rounds a token begins.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/text/grammar/automata/network.h"
#include "runtime/text/grammar/run/space.h"
#include "runtime/text/grammar/run/token_trie.h"
#include "runtime/text/pace.h"

namespace orrery::text::grammar {

// A set of tokens: few as a list, many as bits.
struct Tokens {
  std::vector<uint32_t> ids;    // if `words` is empty
  std::vector<uint32_t> words;  // (n_words)
  void assign(std::vector<uint32_t> list, size_t n_words);
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
  std::vector<Rounds> pending;

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
  std::shared_ptr<const LocalMask> local(const Item& item, Pace* pace);

 private:
  static constexpr uint32_t kDead = 0xFFFFFFFF;
  struct Step {
    uint32_t target;  // or kDead
    Edge::Action action;
  };
  struct Row {
    Step steps[256];
  };
  struct Place {
    uint32_t state, rounds;
    bool left;
  };
  const Row& row(uint32_t state);
  std::string digest(uint32_t state);
  uint32_t majority(uint32_t state);
  bool pops(uint32_t state) const;
  bool walk_leaf(uint32_t state, LeafMask* mask, Pace* pace);
  bool walk_difference(uint32_t state, uint32_t base_state, const LeafMask& base, LeafMask* mask, Pace* pace);

  const Network& network_;
  const TokenTrie& trie_;
  MaskCache& cache_;
  Space space_;
  std::vector<uint32_t> row_of_;  // (states) or kDead
  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<uint32_t> with_rows_;
};

}  // namespace orrery::text::grammar
