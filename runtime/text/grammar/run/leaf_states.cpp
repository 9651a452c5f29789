#include "runtime/text/grammar/run/leaf_states.h"

#include <algorithm>

namespace orrery::text::grammar {

uint32_t LeafStates::together(std::vector<uint32_t> states) {
  const auto [at, is_new] = numbers_.emplace(std::move(states), static_cast<uint32_t>(size()));
  if (!is_new) return at->second;
  Joint joint{at->first, {}, 0, true, false};
  for (size_t i = 0; i < joint.parts.size(); ++i) {
    if (joint.parts[i] == kDead) continue;
    const State& state = network_.states[joint.parts[i]];
    if (state.final) joint.ends |= 1u << i;
    joint.tail = joint.tail && state.tail;
  }
  joints_.push_back(std::move(joint));
  return at->second;
}

LeafStates::Edges LeafStates::joint_edges(uint32_t number) {
  if (!joints_[number - n_].has_edges) {
    const std::vector<uint32_t> parts = joints_[number - n_].parts;  // a copy: the list grows
    std::vector<Edges> left(parts.size(), {nullptr, nullptr});
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i] != kDead) left[i] = edges(parts[i]);
    std::vector<Edge> made;
    std::vector<uint32_t> targets(parts.size());
    for (uint32_t byte = 0; byte < 256;) {
      uint32_t alike = 256;  // the first byte that some part may tell apart
      bool any = false;
      for (size_t i = 0; i < parts.size(); ++i) {
        Edges& e = left[i];
        while (e.first < e.last && e.first->last < byte) ++e.first;
        targets[i] = kDead;
        if (e.first == e.last) continue;
        if (e.first->first > byte) {
          alike = std::min(alike, uint32_t{e.first->first});
          continue;
        }
        targets[i] = e.first->target;
        alike = std::min(alike, e.first->last + 1u);
        any = true;
      }
      if (any) {
        const uint32_t to = together(targets);
        if (!made.empty() && made.back().target == to && made.back().last + 1u == byte) {
          made.back().last = static_cast<uint8_t>(alike - 1);
        } else {
          made.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(alike - 1), Edge::none, to});
        }
      }
      byte = alike;
    }
    joints_[number - n_].edges = std::move(made);
    joints_[number - n_].has_edges = true;
  }
  const std::vector<Edge>& edges = joints_[number - n_].edges;
  return {edges.data(), edges.data() + edges.size()};
}

}  // namespace orrery::text::grammar
