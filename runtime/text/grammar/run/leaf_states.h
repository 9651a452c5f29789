// The automata of texts that walks of a vocabulary read: the states of leaf rules; and several such states that stand together, as one state.
// A *joint state* reads what any of its states reads. Where several texts are under way, one walk of a joint state finds what they allow
// together, and it finds as quickly as for one text where all plain text is allowed: each of them may forbid what another allows.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/text/grammar/automata/network.h"

namespace orrery::text::grammar {

class LeafStates {
 public:
  static constexpr size_t kMostTogether = 32;
  static constexpr size_t kMostJoint = 1u << 14;  // joint states; see full()

  explicit LeafStates(const Network& network) : network_(network), n_(network.n_states()) {}

  // The joint state of these states, 2 to kMostTogether: the number of a state that the network has not.
  uint32_t together(std::vector<uint32_t> states);
  bool is_joint(uint32_t state) const { return state >= n_; }
  const std::vector<uint32_t>& parts(uint32_t joint) const { return joints_[joint - n_].parts; }
  bool full() const { return joints_.size() > kMostJoint; }
  void forget() {  // all joint states
    joints_.clear();
    numbers_.clear();
  }
  size_t size() const { return n_ + joints_.size(); }

  struct Edges {
    const Edge *first, *last;
    const Edge* begin() const { return first; }
    const Edge* end() const { return last; }
  };
  Edges edges(uint32_t state) {  // deterministic, ascending; valid until the next forget()
    if (is_joint(state)) return joint_edges(state);
    return {network_.edges.data() + network_.states[state].edges, network_.edges.data() + network_.states[state + 1].edges};
  }
  // Bit i: part i of a joint state ends its rule. Otherwise 1 or 0.
  uint32_t ends(uint32_t state) const { return is_joint(state) ? joints_[state - n_].ends : network_.states[state].final; }
  bool tail(uint32_t state) const { return is_joint(state) ? joints_[state - n_].tail : network_.states[state].tail; }
  bool counted(uint32_t state) const { return !is_joint(state) && network_.rules[network_.states[state].rule].counted; }
  bool boundary(uint32_t state) const { return counted(state) && network_.rules[network_.states[state].rule].boundary == state; }

 private:
  static constexpr uint32_t kDead = 0xFFFFFFFF;
  struct Joint {
    std::vector<uint32_t> parts;  // kDead: this text has been refused
    std::vector<Edge> edges;
    uint32_t ends;
    bool tail, has_edges;
  };
  Edges joint_edges(uint32_t state);

  const Network& network_;
  const uint32_t n_;
  std::vector<Joint> joints_;
  std::map<std::vector<uint32_t>, uint32_t> numbers_;
};

}  // namespace orrery::text::grammar
