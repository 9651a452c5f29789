// Automata with `empty` edges -> the network, by the subset construction, with calls and token sets as further letters.
#include <algorithm>
#include <map>

#include "runtime/text/grammar/automata/network.h"
#include "runtime/text/pace.h"

namespace orrery::text::grammar {
namespace {

// A part of a rule after the construction: its states are numbered from 0, the start.
struct Part {
  struct StateLists {
    std::vector<Edge> edges;
    std::vector<Call> calls;
    std::vector<TokenEdge> tokens;
    bool final = false;
  };
  std::vector<StateLists> states;
  bool deterministic = true;
};

class Subsets {
 public:
  Subsets(const Nfa& nfa, Pace* pace, uint64_t most_work) : nfa_(nfa), pace_(*pace), most_work_(most_work) {}

  // False: the deterministic form is too large, or the work was cancelled.
  bool run(Part* part) {
    index();
    part_ = part;
    part->states.clear();
    std::vector<uint32_t> start;
    mark(Nfa::kStart, &start);
    finish(&start);
    // The start is a state of its own: no text has been read, so the rule cannot end.
    add_set(start);
    part->states.reserve(std::min<size_t>(nfa_.n_states, 4096));
    part->states.emplace_back();
    const size_t most_states = 256 + 8 * (size_t{nfa_.n_states} + nfa_.n_saved);
    for (uint32_t s = 0; s < sets_.size(); ++s) {
      if (pace_.stop() || work_ > most_work_ || sets_.size() > most_states) return false;
      expand(s);
    }
    part->states[0].final = false;
    return true;
  }

  // One state for each state that an edge enters; edges may overlap.
  bool run_without_subsets(Part* part, size_t most_edges) {
    part->states.clear();
    part->deterministic = false;
    std::vector<uint32_t> number(nfa_.n_states, kNoNode), todo;
    const auto number_of = [&](uint32_t s) {
      if (number[s] == kNoNode) {
        number[s] = static_cast<uint32_t>(todo.size());
        todo.push_back(s);
        part->states.emplace_back();
      }
      return number[s];
    };
    number_of(Nfa::kStart);
    size_t n_edges = 0;
    for (uint32_t i = 0; i < todo.size(); ++i) {
      std::vector<uint32_t> members;
      mark(todo[i], &members);
      finish(&members);
      for (const uint32_t m : members) {
        if (pace_.stop()) return false;
        if (m == Nfa::kFinal && i != 0) part->states[i].final = true;
        for (uint32_t k = begin_[m]; k < begin_[m + 1]; ++k) {
          const NfaEdge& e = nfa_.edges[order_[k]];
          if (e.type == NfaEdge::empty || !useful_[e.to]) continue;
          const uint32_t to = number_of(e.to);
          if (e.type == NfaEdge::bytes) part->states[i].edges.push_back({e.first, e.last, Edge::none, to});
          if (e.type == NfaEdge::call) part->states[i].calls.push_back({e.value, to, Edge::none});
          if (e.type == NfaEdge::tokens) part->states[i].tokens.push_back({e.value, to, Edge::none});
          if (++n_edges > most_edges) return false;
        }
      }
    }
    return true;
  }

 private:
  void index() {
    begin_.assign(nfa_.n_states + 1, 0);
    order_.resize(nfa_.edges.size());
    for (const NfaEdge& e : nfa_.edges) ++begin_[e.from + 1];
    for (uint32_t s = 0; s < nfa_.n_states; ++s) begin_[s + 1] += begin_[s];
    std::vector<uint32_t> fill(begin_.begin(), begin_.end() - 1);
    for (uint32_t i = 0; i < nfa_.edges.size(); ++i) order_[fill[nfa_.edges[i].from]++] = i;
    stamp_.assign(nfa_.n_states, 0);
    of_one_.assign(nfa_.n_states, kNotMade);
    // States from which the end can be reached.
    std::vector<uint32_t> enter(nfa_.n_states + 1, 0), by_target(nfa_.edges.size());
    for (const NfaEdge& e : nfa_.edges) ++enter[e.to + 1];
    for (uint32_t s = 0; s < nfa_.n_states; ++s) enter[s + 1] += enter[s];
    fill.assign(enter.begin(), enter.end() - 1);
    for (uint32_t i = 0; i < nfa_.edges.size(); ++i) by_target[fill[nfa_.edges[i].to]++] = i;
    useful_.assign(nfa_.n_states, false);
    useful_[Nfa::kFinal] = true;
    std::vector<uint32_t> todo = {Nfa::kFinal};
    while (!todo.empty()) {
      const uint32_t s = todo.back();
      todo.pop_back();
      for (uint32_t k = enter[s]; k < enter[s + 1]; ++k) {
        const uint32_t from = nfa_.edges[by_target[k]].from;
        if (useful_[from]) continue;
        useful_[from] = true;
        todo.push_back(from);
      }
    }
    significant_.assign(nfa_.n_states, false);
    significant_[Nfa::kFinal] = true;
    for (const NfaEdge& e : nfa_.edges)
      if (e.type != NfaEdge::empty) significant_[e.from] = true;
  }

  // Adds what `empty` edges reach from s to the set under construction.
  void mark(uint32_t s, std::vector<uint32_t>* members) {
    if (stamp_[s] == turn_ || !useful_[s]) return;
    stamp_[s] = turn_;
    closure_.assign(1, s);
    while (!closure_.empty()) {
      const uint32_t at = closure_.back();
      closure_.pop_back();
      ++work_;
      if (significant_[at]) members->push_back(at);
      for (uint32_t k = begin_[at]; k < begin_[at + 1]; ++k) {
        const NfaEdge& e = nfa_.edges[order_[k]];
        if (e.type != NfaEdge::empty || stamp_[e.to] == turn_ || !useful_[e.to]) continue;
        stamp_[e.to] = turn_;
        closure_.push_back(e.to);
      }
    }
  }
  void finish(std::vector<uint32_t>* members) {
    ++turn_;
    std::sort(members->begin(), members->end());
  }

  uint32_t subset(const std::vector<uint32_t>& targets) {
    const bool one = std::all_of(targets.begin(), targets.end(), [&](uint32_t t) { return t == targets[0]; });
    if (one && of_one_[targets[0]] != kNotMade) return of_one_[targets[0]];
    members_.clear();
    for (const uint32_t t : targets) mark(t, &members_);
    finish(&members_);
    const uint32_t number = members_.empty() ? kNoNode : number_of(members_);
    if (one) of_one_[targets[0]] = number;
    return number;
  }

  // The state of these members, by a table with open addressing.
  uint32_t number_of(const std::vector<uint32_t>& members) {
    if (sets_.size() * 2 >= slots_.size()) {
      slots_.assign(std::max<size_t>(256, slots_.size() * 2), kNoNode);
      for (uint32_t s = 1; s < sets_.size(); ++s)
        *slot(&members_of_sets_[sets_[s].begin], sets_[s].n) = s;  // 0, the start, is a state of its own
    }
    uint32_t* const found = slot(members.data(), members.size());
    if (*found != kNoNode) return *found;
    const auto number = static_cast<uint32_t>(sets_.size());
    *found = number;
    work_ += members.size();
    add_set(members);
    part_->states.emplace_back();
    part_->states.back().final = std::binary_search(members.begin(), members.end(), uint32_t{Nfa::kFinal});
    return number;
  }
  uint32_t* slot(const uint32_t* members, size_t n) {
    uint64_t hash = n;
    for (size_t i = 0; i < n; ++i) {
      hash = (hash ^ members[i]) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == kNoNode) return &slots_[at];
      const Set& set = sets_[slots_[at]];
      if (set.n == n && std::equal(members, members + n, members_of_sets_.data() + set.begin)) return &slots_[at];
    }
  }
  void add_set(const std::vector<uint32_t>& members) {
    sets_.push_back({members_of_sets_.size(), members.size()});
    members_of_sets_.insert(members_of_sets_.end(), members.begin(), members.end());
  }

  void expand(uint32_t s) {
    bytes_.clear();
    std::map<uint32_t, std::vector<uint32_t>> calls, tokens;
    for (size_t i = 0; i < sets_[s].n; ++i) {
      const uint32_t m = members_of_sets_[sets_[s].begin + i];
      for (uint32_t k = begin_[m]; k < begin_[m + 1]; ++k) {
        const NfaEdge& e = nfa_.edges[order_[k]];
        ++work_;
        if (!useful_[e.to]) continue;
        if (e.type == NfaEdge::bytes) bytes_.push_back(order_[k]);
        if (e.type == NfaEdge::call) calls[e.value].push_back(e.to);
        if (e.type == NfaEdge::tokens) tokens[e.value].push_back(e.to);
      }
    }
    edges_.clear();
    if (bytes_.size() == 1) {
      const NfaEdge& e = nfa_.edges[bytes_[0]];
      const uint32_t known = of_one_[e.to], to = known != kNotMade ? known : subset({e.to});
      if (to != kNoNode) edges_.push_back({e.first, e.last, Edge::none, to});
    } else if (!bytes_.empty()) {
      cut_bytes(&edges_);
    }
    std::vector<Call> call_list;
    for (const auto& call : calls)
      if (const uint32_t to = subset(call.second); to != kNoNode) call_list.push_back({call.first, to, Edge::none});
    std::vector<TokenEdge> token_list;
    for (const auto& t : tokens)
      if (const uint32_t to = subset(t.second); to != kNoNode) token_list.push_back({t.first, to, Edge::none});
    Part::StateLists& lists = part_->states[s];
    lists.edges = edges_;
    lists.calls = std::move(call_list);
    lists.tokens = std::move(token_list);
  }

  // Bytes between two neighbouring ends of edges are alike.
  void cut_bytes(std::vector<Edge>* edges) {
    bool begins[257] = {};
    for (const uint32_t i : bytes_) {
      begins[nfa_.edges[i].first] = true;
      begins[nfa_.edges[i].last + 1] = true;
    }
    uint16_t piece[257];
    uint16_t n = 0;
    uint32_t first[257] = {};
    for (uint32_t b = 0; b < 257; ++b) {
      if (b == 0 || begins[b]) first[n++] = b;
      piece[b] = static_cast<uint16_t>(n - 1);
    }
    if (n == 256 + 1 || first[n - 1] == 256) --n;
    std::vector<std::vector<uint32_t>>& targets = targets_;
    targets.resize(std::max<size_t>(targets.size(), n + 1u));
    for (uint32_t p = 0; p <= n; ++p) targets[p].clear();
    for (const uint32_t i : bytes_) {
      const NfaEdge& e = nfa_.edges[i];
      for (uint32_t p = piece[e.first]; p <= piece[e.last]; ++p, ++work_) targets[p].push_back(e.to);
    }
    for (uint32_t p = 0; p < n; ++p) {
      if (targets[p].empty()) continue;
      const uint32_t to = subset(targets[p]);
      if (to == kNoNode) continue;
      const uint32_t last = p + 1 < n ? first[p + 1] - 1 : 255;
      if (!edges->empty() && edges->back().target == to && edges->back().last + 1u == first[p]) {
        edges->back().last = static_cast<uint8_t>(last);
      } else {
        edges->push_back({static_cast<uint8_t>(first[p]), static_cast<uint8_t>(last), Edge::none, to});
      }
    }
  }

  const Nfa& nfa_;
  Pace& pace_;
  const uint64_t most_work_;
  uint64_t work_ = 0;
  Part* part_ = nullptr;
  std::vector<uint32_t> begin_, order_;  // edges by state
  std::vector<bool> useful_, significant_;
  std::vector<uint32_t> stamp_, closure_, bytes_;
  uint32_t turn_ = 1;
  struct Set {
    size_t begin, n;  // in members_of_sets_
  };
  std::vector<Set> sets_;
  std::vector<uint32_t> members_of_sets_;
  static constexpr uint32_t kNotMade = kNoNode - 1;
  std::vector<uint32_t> slots_;    // numbers of sets_, or kNoNode
  std::vector<uint32_t> of_one_;   // (states of the automaton) the state of one target
  std::vector<uint32_t> members_;  // of the set under construction
  std::vector<std::vector<uint32_t>> targets_;
  std::vector<Edge> edges_;
};

class Compiler {
 public:
  Compiler(const Tree& tree, const CompileLimits& limits) : tree_(tree), limits_(limits), pace_(limits.cancel) {}

  Result<Network> run() {
    ORRERY_ASSIGN(Automata automata, lower(tree_, limits_));
    ORRERY_TRY(remove_left_recursion(&automata, limits_));
    out_.root_nullable = automata.root_nullable;
    out_.token_sets = tree_.token_sets;
    out_.rules.resize(automata.list.size());
    for (uint32_t r = 0; r < automata.list.size(); ++r) {
      Automaton& automaton = automata.list[r];
      NetworkRule& rule = out_.rules[r];
      rule.name = automaton.name;
      rule.line = automaton.line;
      rule.column = automaton.column;
      rule.deferred = automaton.deferred;
      rule.deferred_bytes = automaton.deferred_bytes;
      out_.has_deferred = out_.has_deferred || rule.deferred != kNoNode;
      ORRERY_TRY(add_rule(automaton, r));
      automaton.nfa = Nfa();
    }
    State end;
    end.edges = static_cast<uint32_t>(out_.edges.size());
    end.calls = static_cast<uint32_t>(out_.calls.size());
    end.tokens = static_cast<uint32_t>(out_.token_edges.size());
    out_.states.push_back(end);
    find_classes();
    const size_t bytes = out_.memory_bytes();
    if (bytes > limits_.memory_bytes) {
      Status large = memory_error(Code::unsupported, bytes, limits_.memory_bytes,
                                  "the grammar's automata need %zu bytes, at most %zu are allowed", bytes, limits_.memory_bytes);
      return large;
    }
    return std::move(out_);
  }

 private:
  Status too_large(const NetworkRule& rule) const {
    if (pace_.stopped()) return error(Code::cancelled, "compiling a grammar was cancelled");
    Status large = error(Code::unsupported, "the grammar needs more than %u states or %u edges; the limit was reached in rule %s",
                         limits_.states, limits_.edges, rule.name.c_str());
    large.detail().line = rule.line;
    large.detail().column = rule.column;
    return large;
  }

  Status make_part(const Nfa& nfa, NetworkRule* rule, Part* part) {
    Subsets subsets(nfa, &pace_, 4096 + 64 * uint64_t{nfa.edges.size() + nfa.n_states + 2 * nfa.n_saved});
    if (subsets.run(part)) return ok_status();
    if (pace_.stopped()) return error(Code::cancelled, "compiling a grammar was cancelled");
    if (!subsets.run_without_subsets(part, limits_.edges)) return too_large(*rule);
    rule->deterministic = false;
    return ok_status();
  }

  Status add_rule(const Automaton& automaton, uint32_t r) {
    NetworkRule& rule = out_.rules[r];
    if (automaton.members) return add_members(*automaton.members, r);
    Part body;
    ORRERY_TRY(make_part(automaton.nfa, &rule, &body));
    if (!automaton.counted) {
      rule.start = append(body, r, false);
      return check_size(r);
    }
    rule.counted = true;
    rule.most = automaton.most;
    rule.least = automaton.prefix.empty() && automaton.suffix.empty() ? std::max(1u, automaton.least) : automaton.least;
    // The suffix's first edge joins the boundary's edges; states behind it follow.
    const auto n = static_cast<uint32_t>(body.states.size());
    for (Edge& e : body.states[0].edges) e.action = Edge::begins_round;
    for (Call& c : body.states[0].calls) c.action = Edge::begins_round;
    for (TokenEdge& t : body.states[0].tokens) t.action = Edge::begins_round;
    for (uint32_t s = 1; s < n; ++s) {
      const auto& lists = body.states[s];
      if (lists.final && !(lists.edges.empty() && lists.calls.empty() && lists.tokens.empty())) rule.whole_rounds = false;
    }
    std::vector<bool> round_ends(n, false);
    for (uint32_t s = 1; s < n; ++s) {
      round_ends[s] = body.states[s].final;
      body.states[s].final = false;
    }
    if (automaton.suffix.empty()) {
      body.states[0].final = true;
    } else {
      const std::string& suffix = automaton.suffix;
      for (size_t i = 0; i < suffix.size(); ++i) {
        const auto byte = static_cast<uint8_t>(suffix[i]);
        const auto next = static_cast<uint32_t>(body.states.size());
        body.states.emplace_back();
        auto& from = body.states[i == 0 ? 0 : next - 1].edges;
        const Edge edge{byte, byte, i == 0 ? Edge::leaves_rounds : Edge::none, next};
        const auto at = std::lower_bound(from.begin(), from.end(), edge, [](const Edge& a, const Edge& b) { return a.first < b.first; });
        if ((at != from.end() && at->first <= byte) || (at != from.begin() && std::prev(at)->last >= byte)) rule.deterministic = false;
        from.insert(at, edge);
      }
      body.states.back().final = true;
    }
    if (rule.whole_rounds) {  // states that only end a round are the boundary
      for (auto& lists : body.states) {
        for (Edge& e : lists.edges)
          if (e.target < n && round_ends[e.target]) e.target = 0;
        for (Call& c : lists.calls)
          if (c.target < n && round_ends[c.target]) c.target = 0;
        for (TokenEdge& t : lists.tokens)
          if (t.target < n && round_ends[t.target]) t.target = 0;
      }
    }
    rule.boundary = append(body, r, true);
    if (!rule.whole_rounds)
      for (uint32_t s = 1; s < n; ++s) out_.states[rule.boundary + s].ends_round = round_ends[s];
    for (uint32_t s = n; s < body.states.size(); ++s) out_.states[rule.boundary + s].suffix = true;
    rule.start = rule.boundary;
    for (size_t i = automaton.prefix.size(); i > 0; --i) {
      const auto byte = static_cast<uint8_t>(automaton.prefix[i - 1]);
      State state;
      state.edges = static_cast<uint32_t>(out_.edges.size());
      state.calls = static_cast<uint32_t>(out_.calls.size());
      state.tokens = static_cast<uint32_t>(out_.token_edges.size());
      state.rule = r;
      out_.states.push_back(state);
      out_.edges.push_back({byte, byte, Edge::none, rule.start});
      rule.start = static_cast<uint32_t>(out_.states.size() - 1);
    }
    return check_size(r);
  }

  Status add_members(const Members& of, uint32_t r) {
    NetworkMembers members;
    static_cast<Members&>(members) = of;
    members.rule = r;
    members.required.assign((of.list.size() + 63) / 64, 0);
    Part part;
    part.states.resize(NetworkMembers::n_places);
    part.states[NetworkMembers::start].calls = {{of.open, NetworkMembers::opened, Edge::none}};
    part.states[NetworkMembers::behind_member].calls = {{of.separator, NetworkMembers::behind_separator, Edge::goes_on},
                                                        {of.close, NetworkMembers::end, Edge::closes}};
    auto& first = part.states[NetworkMembers::opened].calls;
    for (size_t i = 0; i < of.list.size(); ++i) {
      const Members::Member& m = of.list[i];
      first.push_back({m.rule, NetworkMembers::behind_member, Edge::takes_member, static_cast<uint16_t>(i)});
      members.n_once += !m.repeats;
      members.n_needed += m.required;
      if (m.required) members.required[i / 64] |= uint64_t{1} << (i % 64);
    }
    part.states[NetworkMembers::behind_separator].calls = first;
    first.push_back({of.close_empty, NetworkMembers::end, Edge::closes});
    part.states[NetworkMembers::end].final = true;
    NetworkRule& rule = out_.rules[r];
    rule.any_order = true;
    rule.boundary = static_cast<uint32_t>(out_.members.size());
    rule.start = append(part, r, false);
    out_.members.push_back(std::move(members));
    return check_size(r);
  }

  Status check_size(uint32_t r) {
    if (pace_.look()) return error(Code::cancelled, "compiling a grammar was cancelled");
    if (out_.states.size() > limits_.states || out_.edges.size() + out_.calls.size() > limits_.edges) return too_large(out_.rules[r]);
    return ok_status();
  }

  uint32_t append(const Part& part, uint32_t r, bool counted) {
    const auto base = static_cast<uint32_t>(out_.states.size());
    NetworkRule& rule = out_.rules[r];
    if (!part.deterministic) rule.deterministic = false;
    for (const auto& lists : part.states) {
      State state;
      state.edges = static_cast<uint32_t>(out_.edges.size());
      state.calls = static_cast<uint32_t>(out_.calls.size());
      state.tokens = static_cast<uint32_t>(out_.token_edges.size());
      state.rule = r;
      state.final = lists.final;
      state.tail =
          lists.final && lists.edges.empty() && lists.calls.empty() && lists.tokens.empty() && !(counted && out_.states.size() == base);
      out_.states.push_back(state);
      const auto before = [](const Edge& a, const Edge& b) { return a.first < b.first; };
      const auto begin = static_cast<std::ptrdiff_t>(out_.edges.size());
      for (Edge e : lists.edges) {
        e.target += base;
        out_.edges.push_back(e);
      }
      if (!part.deterministic) std::stable_sort(out_.edges.begin() + begin, out_.edges.end(), before);
      for (Call c : lists.calls) {
        c.target += base;
        out_.calls.push_back(c);
      }
      for (TokenEdge t : lists.tokens) {
        t.target += base;
        out_.token_edges.push_back(t);
      }
      if (!lists.calls.empty() || !lists.tokens.empty()) rule.leaf = false;
    }
    return base;
  }

  void find_classes() {
    bool begins[257] = {};
    for (const Edge& e : out_.edges) {
      begins[e.first] = true;
      begins[e.last + 1] = true;
    }
    uint32_t n = 0;
    for (uint32_t b = 0; b < 256; ++b) {
      if (b > 0 && begins[b]) ++n;
      out_.byte_class[b] = static_cast<uint8_t>(n);
    }
    out_.n_classes = n + 1;
  }

  const Tree& tree_;
  const CompileLimits& limits_;
  Pace pace_;
  Network out_;
};

}  // namespace

size_t Network::memory_bytes() const {
  size_t bytes = states.size() * sizeof(State) + edges.size() * sizeof(Edge) + calls.size() * sizeof(Call) +
                 token_edges.size() * sizeof(TokenEdge) + rules.size() * sizeof(NetworkRule);
  for (const NetworkMembers& m : members)
    bytes += sizeof m + m.list.size() * sizeof(Members::Member) + m.required.size() * sizeof(uint64_t);
  for (const TokenSet& set : token_sets) bytes += set.ids.size() * sizeof(int32_t);
  return bytes;
}

Result<Network> compile(const Tree& tree, const CompileLimits& limits) { return Compiler(tree, limits).run(); }

}  // namespace orrery::text::grammar
