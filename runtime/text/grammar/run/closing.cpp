#include "runtime/text/grammar/run/closing.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace orrery::text::grammar {
namespace {

uint32_t sum(uint32_t a, uint32_t b) {
  return a == kNever || b == kNever ? kNever : static_cast<uint32_t>(std::min<uint64_t>(uint64_t{a} + b, kNever - 1));
}
uint32_t times(uint32_t n, uint32_t a) {
  if (n == 0) return 0;
  return a == kNever ? kNever : static_cast<uint32_t>(std::min<uint64_t>(uint64_t{n} * a, kNever - 1));
}

}  // namespace

// Every variable (of a state, or of a rule: leaving, one round, the whole) is the least of sums of others. They are settled in rising
// order, so each sum is made once, when its last part is settled.
Costs::Costs(const Network& network, const TokenTrie& trie) : network_(network) {
  for (int c = 0; c < 256; ++c) {
    const char byte = static_cast<char>(c);
    n_tokens_[c + 1] = n_tokens_[c] + (trie.longest_prefix({&byte, 1}) >= 0);
  }
  for (const TokenSet& set : network.token_sets) {
    const auto usable = [&](int32_t id) {
      return static_cast<uint32_t>(id) < trie.n_vocab() && std::find(trie.ends().begin(), trie.ends().end(), id) == trie.ends().end();
    };
    const auto first = std::find_if(set.ids.begin(), set.ids.end(), usable);
    token_of_.push_back(set.negated || first == set.ids.end() ? -1 : *first);
  }
  const uint32_t n_states = network.n_states(), n_rules = static_cast<uint32_t>(network.rules.size());
  const uint32_t leave = n_states, round = leave + n_rules, whole = round + n_rules, n = whole + n_rules;
  struct Sum {
    uint32_t to, a, b, more;  // to <= a + b + more; b: kNever where there is one part
  };
  std::vector<Sum> sums;
  std::vector<uint32_t> cost(n, kNever), begin(n + 1, 0), of;
  using Entry = std::pair<uint32_t, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<bool> settled(n, false);
  const auto at_most = [&](uint32_t v, uint32_t c) {
    if (c < cost[v]) queue.push({cost[v] = c, v});
  };
  for (uint32_t s = 0; s < n_states; ++s) {
    const State &state = network.states[s], &next = network.states[s + 1];
    const NetworkRule& rule = network.rules[state.rule];
    if (rule.deferred != kNoNode) {  // some text of the rule has deferred_bytes bytes
      if (s == rule.start) at_most(s, rule.deferred_bytes);
      continue;
    }
    if (rule.any_order) continue;
    const bool boundary = rule.counted && s == rule.boundary;
    const auto end_of = [&](Edge::Action action) {
      return action == Edge::begins_round ? round + state.rule : action == Edge::leaves_rounds ? leave + state.rule : s;
    };
    for (uint32_t e = state.edges; e < next.edges; ++e) {
      const Edge& edge = network.edges[e];
      if (n_tokens_[edge.last + 1] > n_tokens_[edge.first]) sums.push_back({end_of(edge.action), edge.target, kNever, 1});
    }
    for (uint32_t t = state.tokens; t < next.tokens; ++t) {
      const TokenEdge& edge = network.token_edges[t];
      if (token_of(edge.set) >= 0) sums.push_back({end_of(edge.action), edge.target, kNever, 1});
    }
    for (uint32_t c = state.calls; c < next.calls; ++c)
      sums.push_back({end_of(network.calls[c].action), network.calls[c].target, whole + network.calls[c].rule, 0});
    if (state.final) at_most(boundary ? leave + state.rule : s, 0);
    if (state.ends_round || boundary) at_most(s, 0);
  }
  for (uint32_t r = 0; r < n_rules; ++r) {
    const NetworkRule& rule = network.rules[r];
    if (!rule.counted && !rule.any_order) sums.push_back({whole + r, rule.start, kNever, 0});
  }
  for (const Sum& x : sums) {
    ++begin[x.a + 1];
    if (x.b != kNever) ++begin[x.b + 1];
  }
  for (uint32_t v = 0; v < n; ++v) begin[v + 1] += begin[v];
  of.resize(begin[n]);
  std::vector<uint32_t> at(begin.begin(), begin.end() - 1);
  for (uint32_t i = 0; i < sums.size(); ++i) {
    of[at[sums[i].a]++] = i;
    if (sums[i].b != kNever) of[at[sums[i].b]++] = i;
  }
  // A counted rule: from its start to the boundary, its rounds, and out.
  const auto try_counted = [&](uint32_t r) {
    const NetworkRule& rule = network.rules[r];
    if (!rule.counted || !settled[rule.start] || !settled[leave + r] || (rule.least > 0 && !settled[round + r])) return;
    at_most(whole + r, sum(sum(cost[rule.start], cost[leave + r]), times(rule.least, cost[round + r])));
  };
  // Members in any order: all that are required, and the cheapest ones of the others that `least` asks for. They settle in rising order.
  struct Part {
    uint32_t list, member;  // member: kNoNode is what stands around members
  };
  struct Rest {
    uint32_t around, required, others, sum;  // what is not settled; what the others cost
  };
  std::vector<std::vector<Part>> parts(network.members.empty() ? 0 : n_rules);
  std::vector<Rest> rests;
  for (uint32_t l = 0; l < network.members.size(); ++l) {
    const NetworkMembers& m = network.members[l];
    const uint32_t others = std::max(m.least, m.n_needed) - m.n_needed, needed = m.n_needed + others;
    const uint32_t open = network.calls[network.states[network.rules[m.rule].start].calls].rule;
    rests.push_back({needed > 1 ? 3u : 2u, m.n_needed, others, 0});
    parts[open].push_back({l, kNoNode});
    parts[needed > 0 ? m.close : m.close_empty].push_back({l, kNoNode});
    if (needed > 1) parts[m.separator].push_back({l, kNoNode});
    for (uint32_t i = 0; i < m.list.size(); ++i) parts[m.list[i].rule].push_back({l, i});
  }
  cheapest_.resize(network.members.size());
  const auto settle_part = [&](const Part& part, uint32_t c) {
    const NetworkMembers& m = network.members[part.list];
    Rest& rest = rests[part.list];
    if (part.member == kNoNode) {
      --rest.around;
    } else if (m.list[part.member].required) {
      --rest.required;
      rest.sum = sum(rest.sum, c);
    } else {
      cheapest_[part.list].push_back(part.member);
      const uint32_t taken = std::min(rest.others, m.list[part.member].repeats ? kNever : 1);
      rest.others -= taken;
      rest.sum = sum(rest.sum, times(taken, c));
    }
    if (rest.around > 0 || rest.required > 0 || rest.others > 0) return;
    const uint32_t needed = std::max(m.least, m.n_needed), start = network.rules[m.rule].start;
    const uint32_t open = cost[whole + network.calls[network.states[start].calls].rule];
    const uint32_t between = needed > 1 ? times(needed - 1, cost[whole + m.separator]) : 0;
    at_most(whole + m.rule, sum(sum(open, between), sum(rest.sum, cost[whole + (needed > 0 ? m.close : m.close_empty)])));
  };
  while (!queue.empty()) {
    const auto [c, v] = queue.top();
    queue.pop();
    if (settled[v]) continue;
    settled[v] = true;
    for (uint32_t i = begin[v]; i < begin[v + 1]; ++i) {
      const Sum& x = sums[of[i]];
      if (settled[x.a] && (x.b == kNever || settled[x.b])) at_most(x.to, sum(sum(cost[x.a], x.b == kNever ? 0 : cost[x.b]), x.more));
    }
    if (v >= whole && !parts.empty())
      for (const Part& part : parts[v - whole]) settle_part(part, c);
    if (v >= leave && v < whole) try_counted((v - leave) % n_rules);
    if (v < n_states && v == network.rules[network.states[v].rule].start) try_counted(network.states[v].rule);
  }
  state_.assign(cost.begin(), cost.begin() + n_states);
  leave_.assign(cost.begin() + leave, cost.begin() + round);
  round_.assign(cost.begin() + round, cost.begin() + whole);
  rule_.assign(cost.begin() + whole, cost.end());
}

uint32_t Costs::members_to_end(const Space& space, const NetworkMembers& members, uint32_t place, uint32_t set) const {
  if (place == NetworkMembers::end) return 0;
  const Space::Tally now = space.tally(members, set);
  uint32_t n = now.missing, cost = 0;  // members to come
  for (uint32_t i = 0, left = n; left > 0; ++i) {
    if (!members.list[i].required || space.is_taken(set, i)) continue;
    cost = sum(cost, rule_[members.list[i].rule]);
    --left;
  }
  uint32_t others = std::max(members.least, now.taken + n) - now.taken - n;
  if (place == NetworkMembers::behind_separator && n + others == 0) others = 1;
  n += others;
  for (const uint32_t i : cheapest_[network_.rules[members.rule].boundary]) {
    if (others == 0) break;
    if (!members.list[i].repeats && space.is_taken(set, i)) continue;
    const uint32_t taken = std::min(others, members.list[i].repeats ? kNever : 1);
    cost = sum(cost, times(taken, rule_[members.list[i].rule]));
    others -= taken;
  }
  if (others > 0) return kNever;
  if (place == NetworkMembers::opened && n == 0) return rule_[members.close_empty];
  const uint32_t separators = n - (place == NetworkMembers::behind_member ? 0 : 1);
  return sum(sum(cost, times(separators, rule_[members.separator])), rule_[members.close]);
}

uint32_t Costs::to_end(const Space& space, uint32_t state, uint32_t count) const {
  const State& s = network_.states[state];
  const NetworkRule& rule = network_.rules[s.rule];
  if (rule.any_order) return members_to_end(space, network_.members[rule.boundary], state - rule.start, count);
  if (!rule.counted || s.suffix) return state_[state];
  return sum(sum(state_[state], leave_[s.rule]), times(rule.least - std::min(rule.least, count), round_[s.rule]));
}

void Closing::forget() {
  below_.clear();
  tokens_.clear();
}

uint32_t Closing::bytes(const Costs& costs, const Space& space, uint32_t configuration) {
  if (configuration == Space::kTooAmbiguous) return kNever;
  if (space.may_end(configuration)) return 0;
  below_.resize(space.n_nodes(), Space::kUnset);
  uint32_t least = kNever;
  for (uint32_t i = 0; i < space.n_items(configuration); ++i) {
    const Item item = space.items(configuration)[i];
    todo_.assign(1, item.node);
    while (!todo_.empty()) {  // nodes below first
      const uint32_t node = todo_.back();
      if (below_[node] != Space::kUnset) {
        todo_.pop_back();
        continue;
      }
      uint32_t its = kNever;
      bool known = true;
      for (uint32_t e = 0; e < space.n_entries(node); ++e) {
        const Space::Entry& entry = space.entries(node)[e];
        if (entry.state == Space::kBottomState) its = 0;
        if (entry.state >= Space::kUnknownState) continue;
        if (below_[entry.parent] == Space::kUnset) {
          todo_.push_back(entry.parent);
          known = false;
          continue;
        }
        its = std::min(its, sum(costs.to_end(space, entry.state, entry.count), below_[entry.parent]));
      }
      if (!known) continue;
      below_[node] = its == kNever ? kNever - 1 : its;  // kUnset is kNever
      todo_.pop_back();
    }
    least = std::min(least, sum(costs.to_end(space, item.state, item.count), below_[item.node]));
  }
  return least > kMostClosing ? kNever : least;
}

std::vector<int32_t> Closing::way(const Costs& costs, Space* space, uint32_t configuration) {
  std::vector<int32_t> out;
  std::string text;  // not yet cut into tokens
  const auto cut = [&] {
    const std::vector<int32_t> tokens = trie_.cut(text, SIZE_MAX);
    out.insert(out.end(), tokens.begin(), tokens.end());
    text.clear();
  };
  uint32_t at = configuration;
  for (uint32_t left = bytes(costs, *space, at); left > 0; --left) {
    if (space->deferred(at)) {
      space->add_deferred(at, &met_);
      return {};
    }
    bool found = false;
    uint32_t tried = 0;  // classes, which are numbered in the order of bytes
    for (uint32_t c = 0; c < 256 && !found; ++c) {
      if (network_.byte_class[c] < tried || !costs.is_token(c)) continue;
      tried = network_.byte_class[c] + 1u;
      const uint32_t to = space->step(at, static_cast<uint8_t>(c));
      if (to == Space::kRefused || bytes(costs, *space, to) != left - 1) continue;
      text += static_cast<char>(c);
      at = to;
      found = true;
    }
    for (uint32_t i = 0; i < space->n_items(at) && !found; ++i) {
      const uint32_t state = space->items(at)[i].state;
      for (uint32_t t = network_.states[state].tokens; t < network_.states[state + 1].tokens && !found; ++t) {
        const int32_t id = costs.token_of(network_.token_edges[t].set);
        const uint32_t to = id < 0 ? Space::kRefused : space->step_token(at, id, false, Space::kRefused);
        if (to == Space::kRefused || bytes(costs, *space, to) != left - 1) continue;
        cut();
        out.push_back(id);
        at = to;
        found = true;
      }
    }
    if (!found) return {};
  }
  cut();
  return out;
}

uint32_t Closing::tokens(const Costs& costs, Space* space, uint32_t configuration) {
  const uint32_t least = bytes(costs, *space, configuration);
  if (least == kNever || least == 0) return least;
  const auto [at, is_new] = tokens_.emplace(configuration, kNever);
  if (!is_new) return at->second;
  const auto n = static_cast<uint32_t>(way(costs, space, configuration).size());
  if (!met_.empty()) return tokens_.erase(configuration), kNever;
  return tokens_[configuration] = n == 0 ? kNever : n;
}

bool Closing::fits(const Costs& costs, Space* space, uint32_t configuration, uint32_t left) {
  const uint32_t least = bytes(costs, *space, configuration);
  if (least == kNever || least <= left) return least != kNever;
  if (least > uint64_t{left} * trie_.depth()) return false;
  return tokens(costs, space, configuration) <= left;
}

}  // namespace orrery::text::grammar
