// Configurations: where an answer may stand in the grammar, as small numbers. Equal configurations have one number, so a step that was made
// once is one look-up, and an answer's whole state is one number.
//
// A node is a set of stacks: for each return state (and its count of rounds) the node of the stacks below. A configuration is a set of
// items (state, count, node). Ambiguity multiplies neither: stacks that differ only below a return state share its entry. No text makes two
// numbers for one set, so what a configuration holds, and whether it is too large, depends on the text alone.
//
// In a rule with members in any order, the count is the number of the set of members that have come. The sets are interned too, so only the sets
// exist that texts have led to.
#pragma once

#include <vector>

#include "runtime/text/grammar/automata/network.h"

namespace orrery::text::grammar {

struct Item {
  uint32_t state, count, node;
};

class Space {
 public:
  static constexpr uint32_t kRefused = 0;                // the number of the configuration without items
  static constexpr uint32_t kTooAmbiguous = 0xFFFFFFFE;  // instead of a number: more items or stacks than the limits allow
  static constexpr uint32_t kUnset = 0xFFFFFFFF;
  static constexpr uint32_t kEmpty = 0, kBottom = 1,
                            kUnknown = 2;  // nodes: no stack; the stack of the answer's start; what a local mask does not know
  static constexpr uint32_t kMostItems = 1024, kMostEntries = 4096;
  static constexpr uint32_t kMostReachable = 1u << 14;  // entries below one configuration that has a wide node

  explicit Space(const Network& network);  // which outlives the space

  uint32_t start();                                     // at the beginning of a text
  uint32_t single(const Item& item);                    // of one item as it stands
  uint32_t step(uint32_t configuration, uint8_t byte);  // kRefused, kTooAmbiguous, or a number
  // Behind `token`, whose bytes lead to `by_bytes` (or kRefused): with the states that read the whole token.
  uint32_t step_token(uint32_t configuration, int32_t token, bool is_end, uint32_t by_bytes);
  uint32_t after_pop(uint32_t node);  // where a rule's end leads

  const Item* items(uint32_t configuration) const { return &items_[configurations_[configuration].begin]; }
  uint32_t n_items(uint32_t configuration) const { return configurations_[configuration].n; }
  bool may_end(uint32_t configuration) const { return configurations_[configuration].may_end; }
  bool escapes(uint32_t configuration) const { return configurations_[configuration].escapes; }  // the end of a rule leads to kUnknown
  // A deferred rule begins here, so the configuration's steps are not known.
  bool deferred(uint32_t configuration) const { return configurations_[configuration].deferred; }
  void add_deferred(uint32_t configuration, std::vector<uint32_t>* numbers) const;  // of the rules that begin here

  // A stack's top and the node below it. Nodes below have smaller numbers; kBottom and kUnknown have one entry, of kBottomState or
  // kUnknownState.
  struct Entry {
    uint32_t state, count, parent;
    bool operator==(const Entry& o) const { return state == o.state && count == o.count && parent == o.parent; }
  };
  static constexpr uint32_t kBottomState = 0xFFFFFFFF, kUnknownState = 0xFFFFFFFE;
  const Entry* entries(uint32_t node) const { return &entries_[nodes_[node].begin]; }
  uint32_t n_entries(uint32_t node) const { return nodes_[node].n; }
  size_t n_nodes() const { return nodes_.size(); }

  // Members that have come.
  struct Taken {
    uint32_t begin, n;    // words in taken_words_: a bit for each member that comes at most once; the bits behind these words are 0
    uint32_t n_repeated;  // how many members of the other kind have come; counted as far as `least` tells such numbers apart
  };
  bool is_taken(uint32_t set, uint32_t member) const {
    const Taken& t = taken_[set];
    return member / 64 < t.n && (taken_words_[t.begin + member / 64] >> (member % 64) & 1) != 0;
  }
  struct Tally {
    uint32_t taken, missing;  // members that have come, and required ones that have not
  };
  Tally tally(const NetworkMembers& members, uint32_t set) const;

  size_t memory_bytes() const;
  void clear();
  // Takes over a configuration of another space of the same network.
  uint32_t copy(const Space& other, uint32_t configuration);

 private:
  struct Node {
    uint32_t begin, n;  // in entries_
    uint32_t popped;    // the configuration after_pop(), or kUnset
    uint32_t width;     // most entries of a node that can be reached from here
  };
  struct Configuration {
    uint32_t begin, n;  // in items_
    uint32_t row;       // in rows_, or kUnset
    bool may_end, escapes, deferred;
  };
  // Numbers by hash; the caller compares.
  class Index {
   public:
    template <class Equal>
    uint32_t find(uint64_t hash, Equal equal) const {
      for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
        if (slots_[at].number == kUnset) return kUnset;
        if (slots_[at].hash == static_cast<uint32_t>(hash >> 32) && equal(slots_[at].number)) return slots_[at].number;
      }
    }
    void insert(uint64_t hash, uint32_t number);
    void clear();
    size_t memory_bytes() const { return slots_.size() * sizeof(Slot); }
    Index() { clear(); }

   private:
    struct Slot {
      uint32_t hash, number;
    };
    void place(uint64_t hash_high, uint64_t at, uint32_t number);
    std::vector<Slot> slots_;
    std::vector<uint64_t> hashes_;  // by order of insertion, to grow
    std::vector<uint32_t> numbers_;
  };
  struct Union {
    uint32_t a, b, result;
  };
  struct Frame {
    uint32_t a, b, i, j;
    size_t base;  // of the entries made so far, in united_
  };

  const State& state(uint32_t q) const { return network_->states[q]; }
  uint32_t node(const Entry* entries, size_t n);
  uint32_t push(uint32_t q, uint32_t count, uint32_t parent) {
    const Entry entry{q, count, parent};
    return node(&entry, 1);
  }
  uint32_t unite(uint32_t a, uint32_t b);
  void begin_closure();
  void add(uint32_t q, uint32_t count, uint32_t node);
  void pop(uint32_t node);
  uint32_t close();
  uint32_t configuration(const std::vector<Item>& items, bool may_end, bool escapes);
  bool too_many_reachable();
  bool begin_round(const NetworkRule& rule, Edge::Action action, uint32_t* count) const;
  bool call(const NetworkRule& rule, const Call& call, uint32_t* count);
  uint32_t with_member(uint32_t set, const NetworkMembers& members, uint32_t member);
  uint32_t taken(const std::vector<uint64_t>& words, uint32_t n_repeated);

  const Network* network_;
  std::vector<Node> nodes_;
  std::vector<Entry> entries_;
  std::vector<Configuration> configurations_;
  std::vector<Item> items_;
  std::vector<uint32_t> rows_;  // steps, by configuration and byte class
  std::vector<Union> unions_;
  std::vector<Taken> taken_;  // 0: no member
  std::vector<uint64_t> taken_words_;
  Index node_index_, configuration_index_, union_index_, taken_index_;

  // One closure's work.
  std::vector<Item> work_;
  std::vector<uint32_t> todo_;
  std::vector<bool> queued_;
  std::vector<uint32_t> work_slots_;  // open addressing by (state, count), once there are many
  std::vector<Item> kept_;
  std::vector<uint32_t> reached_;  // (nodes) by turn
  uint32_t turn_ = 0;
  std::vector<Frame> frames_;
  std::vector<Entry> united_;
  bool may_end_ = false, escapes_ = false, too_ambiguous_ = false;
};

}  // namespace orrery::text::grammar
