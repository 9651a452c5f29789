// Left recursion, by the left-corner transform on automata. In a set S of rules that begin with each other, rule A becomes: one copy of the
// automata of S, entered by what begins a rule of S and is not in S; where the copy of a rule B ends, the text so far may be the beginning
// of every rule that begins with B; where A's copy ends, A may end. So a left-recursive rule becomes a loop, and calls that remain in the
// copies stand behind at least one byte.
#include <algorithm>

#include "runtime/text/grammar/automata/nfa.h"
#include "runtime/text/pace.h"

namespace orrery::text::grammar {
namespace {

class LeftCorners {
 public:
  LeftCorners(Automata* automata, const CompileLimits& limits) : automata_(*automata), limits_(limits), pace_(limits.cancel) {}

  Status run() {
    const auto n = static_cast<uint32_t>(automata_.list.size());
    first_.resize(n);
    for (uint32_t a = 0; a < n; ++a) {
      ORRERY_TRY(find_first_edges(a));
    }
    find_components(n);
    std::vector<Nfa> rewritten(n);
    size_t edges = 0;
    for (uint32_t a = 0; a < n; ++a) {
      if (members_[component_[a]].size() == 1 && !begins_with_itself(a)) continue;
      for (const uint32_t b : members_[component_[a]]) {
        edges += automata_.list[b].nfa.edges.size();
        if (!automata_.list[b].counted) continue;
        return refuse(a, "rule %s begins with itself through a counted repetition");
      }
      if (edges > limits_.edges / 8) return refuse(a, "rule %s begins with itself through too many rules");
      rewritten[a] = rewrite(a);
      if (pace_.look()) return error(Code::cancelled, "compiling a grammar was cancelled");
    }
    for (uint32_t a = 0; a < n; ++a)
      if (!rewritten[a].edges.empty()) automata_.list[a].nfa = std::move(rewritten[a]);
    return ok_status();
  }

 private:
  Status refuse(uint32_t a, const char* what) const {
    Status status = error(Code::unsupported, "%s", "");
    status.detail().message = what;
    status.detail().message.replace(status.detail().message.find("%s"), 2, automata_.list[a].name);
    status.detail().line = automata_.list[a].line;
    status.detail().column = automata_.list[a].column;
    return status;
  }

  // The edges that read the first byte of a rule: those of the states that `empty` edges reach from the start.
  Status find_first_edges(uint32_t a) {
    if (!automata_.list[a].prefix.empty()) return ok_status();
    const Nfa& nfa = automata_.list[a].nfa;
    std::vector<uint32_t> begin(nfa.n_states + 1, 0), order(nfa.edges.size());
    for (const NfaEdge& e : nfa.edges) ++begin[e.from + 1];
    for (uint32_t s = 0; s < nfa.n_states; ++s) begin[s + 1] += begin[s];
    std::vector<uint32_t> fill(begin.begin(), begin.end() - 1);
    for (uint32_t i = 0; i < nfa.edges.size(); ++i) order[fill[nfa.edges[i].from]++] = i;
    std::vector<bool> seen(nfa.n_states, false);
    std::vector<uint32_t> todo = {Nfa::kStart};
    seen[Nfa::kStart] = true;
    while (!todo.empty()) {
      if (pace_.stop()) return error(Code::cancelled, "compiling a grammar was cancelled");
      const uint32_t s = todo.back();
      todo.pop_back();
      for (uint32_t k = begin[s]; k < begin[s + 1]; ++k) {
        const NfaEdge& e = nfa.edges[order[k]];
        if (e.type != NfaEdge::empty) {
          first_[a].push_back(order[k]);
        } else if (!seen[e.to]) {
          seen[e.to] = true;
          todo.push_back(e.to);
        }
      }
    }
    return ok_status();
  }

  template <class Use>
  void each_first_call(uint32_t a, Use use) const {
    for (const uint32_t i : first_[a])
      if (automata_.list[a].nfa.edges[i].type == NfaEdge::call) use(automata_.list[a].nfa.edges[i]);
  }

  bool begins_with_itself(uint32_t a) const {
    bool found = false;
    each_first_call(a, [&](const NfaEdge& e) { found = found || e.value == a; });
    return found;
  }

  void find_components(uint32_t n) {  // Tarjan's, without recursion
    component_.assign(n, 0);
    std::vector<std::vector<uint32_t>> begins(n);
    for (uint32_t a = 0; a < n; ++a) each_first_call(a, [&](const NfaEdge& e) { begins[a].push_back(e.value); });
    std::vector<uint32_t> index(n, 0), low(n, 0), next(n, 0), stack, path;
    std::vector<bool> on(n, false);
    uint32_t count = 0;
    for (uint32_t root = 0; root < n; ++root) {
      if (index[root] != 0) continue;
      path.assign(1, root);
      while (!path.empty()) {
        const uint32_t a = path.back();
        if (index[a] == 0) {
          index[a] = low[a] = ++count;
          stack.push_back(a);
          on[a] = true;
        }
        bool deeper = false;
        for (; next[a] < begins[a].size(); ++next[a]) {
          const uint32_t b = begins[a][next[a]];
          if (index[b] == 0) {
            path.push_back(b);
            deeper = true;
            break;
          }
          if (on[b]) low[a] = std::min(low[a], low[b]);
        }
        if (deeper) continue;
        if (low[a] == index[a]) {
          members_.emplace_back();
          uint32_t m;
          do {
            m = stack.back();
            stack.pop_back();
            on[m] = false;
            component_[m] = static_cast<uint32_t>(members_.size() - 1);
            members_.back().push_back(m);
          } while (m != a);
        }
        path.pop_back();
        if (!path.empty()) low[path.back()] = std::min(low[path.back()], low[a]);
      }
    }
  }

  Nfa rewrite(uint32_t goal) {
    const uint32_t component = component_[goal];
    const std::vector<uint32_t>& members = members_[component];
    Nfa out;
    std::vector<uint32_t> base(automata_.list.size(), 0);
    for (const uint32_t b : members) {
      base[b] = out.n_states;
      out.n_states += automata_.list[b].nfa.n_states;
    }
    for (const uint32_t b : members) {
      const Nfa& nfa = automata_.list[b].nfa;
      for (NfaEdge e : nfa.edges) {
        e.from += base[b];
        e.to += base[b];
        out.edges.push_back(e);
      }
      for (const uint32_t i : first_[b]) {
        NfaEdge e = nfa.edges[i];
        e.to += base[b];
        if (e.type == NfaEdge::call && component_[e.value] == component) {
          out.empty(base[e.value] + Nfa::kFinal, e.to);
        } else {
          e.from = Nfa::kStart;
          out.edges.push_back(e);
        }
      }
    }
    out.empty(base[goal] + Nfa::kFinal, Nfa::kFinal);
    return out;
  }

  Automata& automata_;
  const CompileLimits& limits_;
  Pace pace_;
  std::vector<std::vector<uint32_t>> first_;    // (automata) indices of edges
  std::vector<uint32_t> component_;             // (automata)
  std::vector<std::vector<uint32_t>> members_;  // (components)
};

}  // namespace

Status remove_left_recursion(Automata* automata, const CompileLimits& limits) { return LeftCorners(automata, limits).run(); }

}  // namespace orrery::text::grammar
