// Tree -> automata over bytes.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "runtime/text/grammar/automata/nfa.h"
#include "runtime/text/pace.h"

namespace orrery::text::grammar {

void Nfa::literal(std::string_view text, uint32_t from, uint32_t to) {
  if (text.empty()) return empty(from, to);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t next = i + 1 == text.size() ? to : state();
    const auto byte = static_cast<uint8_t>(text[i]);
    bytes(from, byte, byte, next);
    from = next;
  }
}

void Nfa::chars(const CharSet& set, uint32_t from, uint32_t to) {
  std::vector<ByteSequence> sequences;
  for (const CharRange& range : set.ranges()) {
    if (range.last <= 0x7F) bytes(from, static_cast<uint8_t>(range.first), static_cast<uint8_t>(range.last), to);
    else append_utf8(range, &sequences);
  }
  for (const ByteSequence& sequence : sequences) {
    uint32_t next = to;
    for (uint32_t i = sequence.n - 1; i > 0; --i) {
      const uint64_t key = uint64_t{next} << 16 | uint64_t{sequence.first[i]} << 8 | sequence.last[i];
      const auto [at, is_new] = rests_.emplace(key, n_states);
      if (is_new) bytes(state(), sequence.first[i], sequence.last[i], next);
      else ++n_saved;
      next = at->second;
    }
    bytes(from, sequence.first[0], sequence.last[0], next);
  }
}

namespace {

constexpr uint32_t kMostCopied = 64;  // positions of a rule or repetition that is copied
constexpr uint32_t kWide = 1000;      // characters of a set that makes a repetition a text: its automaton is shared, not copied

class Lowering {
 public:
  Lowering(const Tree& tree, const CompileLimits& limits) : tree_(tree), limits_(limits), pace_(limits.cancel), facts_(tree_facts(tree)) {}

  Result<Automata> run() {
    ORRERY_TRY(measure());
    if (!facts_.productive[tree_.rules[tree_.root].body]) {
      Status none = error(Code::invalid_argument, "no text fits rule %s", tree_.rules[tree_.root].name.c_str());
      none.detail().line = tree_.rules[tree_.root].line;
      none.detail().column = tree_.rules[tree_.root].column;
      return none;
    }
    automaton_of_rule(tree_.root);
    size_t states = 0;
    for (size_t i = 0; i < out_.list.size(); ++i) {  // the list grows
      Nfa nfa;
      if (out_.list[i].members) build_members(i, &nfa);
      else build(todo_bodies_[i], &nfa);
      if (pace_.look()) return error(Code::cancelled, "compiling a grammar was cancelled");
      states += nfa.n_states;
      edges_ += nfa.edges.size();
      if (too_large_ || states > limits_.states || edges_ > limits_.edges) return too_large(i);
      out_.list[i].nfa = std::move(nfa);
    }
    out_.root_nullable = facts_.nullable[tree_.rules[tree_.root].body];
    return std::move(out_);
  }

 private:
  Status too_large(size_t i) const {
    Status large = error(Code::unsupported, "the grammar needs more than %u states or %u edges; the limit was reached in rule %s",
                         limits_.states, limits_.edges, out_.list[i].name.c_str());
    large.detail().line = out_.list[i].line;
    large.detail().column = out_.list[i].column;
    return large;
  }

  // ---- Which rules recurse, and how large nodes are ----

  template <class Use>
  void each_child(uint32_t i, Use use) const {
    const TreeNode& node = tree_.nodes[i];
    if (node.type == NodeType::sequence || node.type == NodeType::choice) {
      for (uint32_t k = 0; k < node.b; ++k) use(tree_.children[node.a + k]);
    } else if (node.type == NodeType::repeat) {
      use(node.a);
    } else if (node.type == NodeType::machine) {
      for (const Machine::Edge& e : tree_.machines[node.a].edges)
        if (e.node != kNoNode) use(e.node);
    }
  }

  static void add_rules(const Members& members, std::vector<uint32_t>* names) {
    names->insert(names->end(), {members.open, members.separator, members.close, members.close_empty});
    for (const Members::Member& m : members.list) names->push_back(m.rule);
  }

  // Tarjan's strongly connected components, callees first, without recursion.
  Status measure() {
    const auto n = static_cast<uint32_t>(tree_.rules.size());
    size_.assign(tree_.nodes.size(), 0);
    text_.assign(tree_.nodes.size(), false);
    recursive_.assign(n, false);
    std::vector<std::vector<uint32_t>> names(n);
    std::vector<uint32_t> seen(tree_.nodes.size(), kNoNode), todo;
    for (uint32_t r = 0; r < n; ++r) {
      if (tree_.rules[r].body == kNoNode) continue;
      todo.assign(1, tree_.rules[r].body);
      while (!todo.empty()) {
        if (pace_.stop()) return error(Code::cancelled, "compiling a grammar was cancelled");
        const uint32_t i = todo.back();
        todo.pop_back();
        if (seen[i] == r) continue;
        seen[i] = r;
        if (tree_.nodes[i].type == NodeType::rule) names[r].push_back(tree_.nodes[i].a);
        if (tree_.nodes[i].type == NodeType::members) add_rules(tree_.member_lists[tree_.nodes[i].a], &names[r]);
        each_child(i, [&](uint32_t c) { todo.push_back(c); });
      }
    }
    std::vector<uint32_t> index(n, 0), low(n, 0), stack, next(n, 0), path;
    std::vector<bool> on(n, false);
    uint32_t count = 0;
    for (uint32_t first = 0; first < n; ++first) {
      if (index[first] != 0) continue;
      path.assign(1, first);
      while (!path.empty()) {
        const uint32_t r = path.back();
        if (index[r] == 0) {
          index[r] = low[r] = ++count;
          stack.push_back(r);
          on[r] = true;
        }
        bool deeper = false;
        while (next[r] < names[r].size()) {
          const uint32_t s = names[r][next[r]];
          if (index[s] == 0) {
            path.push_back(s);
            deeper = true;
            break;
          }
          if (on[s]) low[r] = std::min(low[r], low[s]);
          ++next[r];
        }
        if (deeper) continue;
        if (low[r] == index[r]) {
          const bool alone = stack.back() == r && std::find(names[r].begin(), names[r].end(), r) == names[r].end();
          std::vector<uint32_t> members;
          do {
            members.push_back(stack.back());
            on[stack.back()] = false;
            stack.pop_back();
          } while (members.back() != r);
          for (const uint32_t m : members) recursive_[m] = !alone;
          for (const uint32_t m : members) ORRERY_TRY(measure_rule(m));
        }
        path.pop_back();
        if (!path.empty()) low[path.back()] = std::min(low[path.back()], low[r]);
      }
    }
    return ok_status();
  }

  // Children first, by a stack that meets every node twice.
  Status measure_rule(uint32_t r) {
    if (tree_.rules[r].body == kNoNode) return ok_status();
    std::vector<std::pair<uint32_t, bool>> todo = {{tree_.rules[r].body, false}};
    while (!todo.empty()) {
      if (pace_.stop()) return error(Code::cancelled, "compiling a grammar was cancelled");
      const auto [i, ready] = todo.back();
      if (size_[i] != 0) {
        todo.pop_back();
        continue;
      }
      if (!ready) {
        todo.back().second = true;
        each_child(i, [&](uint32_t c) {
          if (size_[c] == 0) todo.emplace_back(c, false);
        });
        continue;
      }
      todo.pop_back();
      measure_node(i);
    }
    return ok_status();
  }

  void measure_node(uint32_t i) {
    const TreeNode& node = tree_.nodes[i];
    uint64_t size = 1;
    bool text = false;
    switch (node.type) {
      case NodeType::literal: size = node.b; break;
      case NodeType::chars: size = std::max<size_t>(1, tree_.sets[node.a].ranges().size()); break;
      case NodeType::sequence:
      case NodeType::choice:
      case NodeType::machine:
        size = 0;
        each_child(i, [&](uint32_t c) {
          size += size_[c];
          text = text || text_[c];
        });
        break;
      case NodeType::repeat: {
        const uint32_t copies = node.c == kUnbounded ? std::max(1u, node.b) : node.c;
        size = uint64_t{size_[node.a]} * copies;
        text = text_[node.a] || (copies_of(node) == 0) || (node.c == kUnbounded && wide(node.a));
        if (size > kMostCopied && copies > 1) size = 1;  // counted: an automaton of its own
        break;
      }
      case NodeType::rule:
        text = !copied(node.a) ? false : text_[tree_.rules[node.a].body];
        size = copied(node.a) ? size_[tree_.rules[node.a].body] : 1;
        break;
      case NodeType::tokens:
      case NodeType::members: break;
      case NodeType::graph:
        size = tree_.graphs[node.a].edges.size() + 1;
        text = size > kMostCopied;
        break;
    }
    size_[i] = static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(size, 1), 1u << 30));
    text_[i] = text;
  }

  // How often a repetition's child is written out; 0: it is counted.
  uint32_t copies_of(const TreeNode& node) const {
    const uint32_t copies = node.c == kUnbounded ? std::max(1u, node.b) : node.c;
    return copies > 1 && uint64_t{size_[node.a]} * copies > kMostCopied ? 0 : copies;
  }

  bool wide(uint32_t i) const {
    const TreeNode& node = tree_.nodes[i];
    if (node.type == NodeType::chars) return tree_.sets[node.a].size() > kWide;
    if (node.type == NodeType::rule) return copied(node.a) && wide_rule(node.a);
    bool found = false;
    if (node.type == NodeType::choice)
      each_child(i, [&](uint32_t c) {
        const TreeNode& child = tree_.nodes[c];
        found = found || (child.type == NodeType::chars && tree_.sets[child.a].size() > kWide);
      });
    return found;
  }
  bool wide_rule(uint32_t r) const {  // one level: `char ::= [^"] | "\\" ...`
    const uint32_t body = tree_.rules[r].body;
    if (tree_.nodes[body].type == NodeType::rule) return false;
    return wide(body);
  }

  bool copied(uint32_t r) const {
    const Rule& rule = tree_.rules[r];
    return !rule.own && !recursive_[r] && rule.body != kNoNode && size_[rule.body] != 0 && size_[rule.body] <= kMostCopied &&
           !text_[rule.body];
  }

  // ---- Automata ----

  uint32_t automaton_of_rule(uint32_t r) {
    const auto [at, is_new] = rules_.emplace(r, static_cast<uint32_t>(out_.list.size()));
    if (is_new) {
      Automaton automaton;
      automaton.name = tree_.rules[r].name;
      automaton.line = tree_.rules[r].line;
      automaton.column = tree_.rules[r].column;
      automaton.deferred = tree_.rules[r].deferred;
      automaton.deferred_bytes = tree_.rules[r].deferred_bytes;
      out_.list.push_back(std::move(automaton));
      todo_bodies_.push_back(tree_.rules[r].body);
    }
    return at->second;
  }

  // Named and placed as the automaton under construction, of which it is a part.
  Automaton of_current() const {
    Automaton automaton;
    automaton.name = out_.list[current_].name;
    automaton.line = out_.list[current_].line;
    automaton.column = out_.list[current_].column;
    return automaton;
  }

  uint32_t automaton_of_repeat(uint32_t repeat, uint32_t prefix, uint32_t suffix) {
    const TreeNode& node = tree_.nodes[repeat];
    const auto [at, is_new] = repeats_.emplace(std::make_tuple(repeat, prefix, suffix), static_cast<uint32_t>(out_.list.size()));
    if (is_new) {
      Automaton automaton = of_current();
      automaton.counted = true;
      automaton.least = facts_.nullable[node.a] ? 0 : node.b;
      automaton.most = node.c;
      if (prefix != kNoNode) automaton.prefix = std::string(tree_.text(tree_.nodes[prefix]));
      if (suffix != kNoNode) automaton.suffix = std::string(tree_.text(tree_.nodes[suffix]));
      out_.list.push_back(std::move(automaton));
      todo_bodies_.push_back(node.a);
    }
    return at->second;
  }

  uint32_t automaton_of_members(uint32_t node) {
    const auto [at, is_new] = members_.emplace(node, static_cast<uint32_t>(out_.list.size()));
    if (is_new) {
      Automaton automaton = of_current();
      automaton.members = tree_.member_lists[tree_.nodes[node].a];
      out_.list.push_back(std::move(automaton));
      todo_bodies_.push_back(node);
    }
    return at->second;
  }
  // Members that derive no text are left out.
  void build_members(size_t i, Nfa* nfa) {
    current_ = building_++;
    Members made = std::exchange(*out_.list[i].members, {});
    const std::vector<Members::Member> list = std::exchange(made.list, {});
    for (uint32_t* part : {&made.open, &made.separator, &made.close, &made.close_empty}) *part = automaton_of_rule(*part);
    for (const Members::Member& m : list)
      if (facts_.productive[tree_.rules[m.rule].body]) made.list.push_back({automaton_of_rule(m.rule), m.required, m.repeats});
    nfa->edges.push_back({Nfa::kStart, Nfa::kFinal, made.open, NfaEdge::call, 0, 0});
    out_.list[i].members = std::move(made);
  }

  bool is_counted(uint32_t i) const { return tree_.nodes[i].type == NodeType::repeat && copies_of(tree_.nodes[i]) == 0; }
  bool is_text(uint32_t i) const { return tree_.nodes[i].type == NodeType::literal && tree_.nodes[i].b > 0; }

  void call_repeat(uint32_t repeat, uint32_t prefix, uint32_t suffix, uint32_t from, uint32_t to, Nfa* nfa) {
    nfa->edges.push_back({from, to, automaton_of_repeat(repeat, prefix, suffix), NfaEdge::call, 0, 0});
    if (prefix == kNoNode && suffix == kNoNode && facts_.nullable[repeat]) nfa->empty(from, to);
  }

  struct Task {
    uint32_t node, from, to;
  };

  void build(uint32_t body, Nfa* nfa) {
    current_ = building_++;
    rests_.clear();
    std::vector<Task> todo = {{body, Nfa::kStart, Nfa::kFinal}};
    while (!todo.empty()) {
      if (pace_.stop() || nfa->edges.size() + edges_ > limits_.edges || nfa->n_states > limits_.states) {
        too_large_ = !pace_.stopped();
        return;
      }
      const Task task = todo.back();
      todo.pop_back();
      if (!facts_.productive[task.node]) continue;
      const TreeNode& node = tree_.nodes[task.node];
      const uint32_t from = task.from, to = task.to;
      switch (node.type) {
        case NodeType::literal: nfa->literal(tree_.text(node), from, to); break;
        case NodeType::chars: nfa->chars(tree_.sets[node.a], from, to); break;
        case NodeType::choice: each_child(task.node, [&](uint32_t c) { todo.push_back({c, from, to}); }); break;
        case NodeType::tokens: nfa->edges.push_back({from, to, node.a, NfaEdge::tokens, 0, 0}); break;
        case NodeType::sequence: sequence(node, from, to, nfa, &todo); break;
        case NodeType::repeat: repeat(task.node, from, to, nfa, &todo); break;
        case NodeType::graph: graph(tree_.graphs[node.a], from, to, nfa); break;
        case NodeType::machine: machine(tree_.machines[node.a], from, to, nfa, &todo); break;
        case NodeType::members: nfa->edges.push_back({from, to, automaton_of_members(task.node), NfaEdge::call, 0, 0}); break;
        case NodeType::rule:
          if (copied(node.a)) {
            todo.push_back({tree_.rules[node.a].body, from, to});
          } else {
            nfa->edges.push_back({from, to, automaton_of_rule(node.a), NfaEdge::call, 0, 0});
            if (facts_.nullable[tree_.rules[node.a].body]) nfa->empty(from, to);
          }
          break;
      }
    }
  }

  // A counted repetition takes the literals next to it along: the automaton of a quoted text then ends with its quote.
  void sequence(const TreeNode& node, uint32_t from, uint32_t to, Nfa* nfa, std::vector<Task>* todo) {
    if (node.b == 0) return nfa->empty(from, to);
    const uint32_t* parts = &tree_.children[node.a];
    for (uint32_t i = 0; i < node.b;) {
      uint32_t end = i + 1, prefix = kNoNode, suffix = kNoNode, counted = kNoNode;
      if (is_counted(parts[i])) {
        counted = parts[i];
      } else if (is_text(parts[i]) && i + 1 < node.b && is_counted(parts[i + 1])) {
        prefix = parts[i];
        counted = parts[i + 1];
        end = i + 2;
      }
      if (counted != kNoNode && end < node.b && is_text(parts[end])) suffix = parts[end++];
      uint32_t next = to;
      bool known = false;  // the rest of a pair leads to `to` already, from another place
      if (end < node.b && node.b == 2) {
        const auto [at, is_new] = rests_.emplace(uint64_t{node.a} << 32 | to, nfa->n_states);
        known = !is_new;
        if (is_new) nfa->state();
        else ++nfa->n_saved;
        next = at->second;
      } else if (end < node.b) {
        next = nfa->state();
      }
      if (counted != kNoNode) {
        call_repeat(counted, prefix, suffix, from, next, nfa);
      } else {
        todo->push_back({parts[i], from, next});
      }
      if (known) return;
      from = next;
      i = end;
    }
  }

  void repeat(uint32_t i, uint32_t from, uint32_t to, Nfa* nfa, std::vector<Task>* todo) {
    const TreeNode& node = tree_.nodes[i];
    if (is_counted(i)) return call_repeat(i, kNoNode, kNoNode, from, to, nfa);
    uint32_t at = from;
    for (uint32_t k = 0; k < node.b; ++k) {
      const bool last = k + 1 == node.b && node.c == node.b;
      const uint32_t next = last ? to : nfa->state();
      todo->push_back({node.a, at, next});
      at = next;
    }
    if (node.c == kUnbounded) {
      const uint32_t loop = nfa->state(), end = nfa->state();
      nfa->empty(at, loop);
      todo->push_back({node.a, loop, end});
      nfa->empty(end, loop);
      nfa->empty(loop, to);
      return;
    }
    for (uint32_t k = node.b; k < node.c; ++k) {
      nfa->empty(at, to);
      const uint32_t next = k + 1 == node.c ? to : nfa->state();
      todo->push_back({node.a, at, next});
      at = next;
    }
    if (node.c == 0) nfa->empty(from, to);
  }

  void graph(const Graph& g, uint32_t from, uint32_t to, Nfa* nfa) {
    const uint32_t base = nfa->n_states;
    nfa->n_states += g.n_states;
    nfa->empty(from, base + g.start);
    for (uint32_t s = 0; s < g.n_states; ++s)
      if (g.final[s]) nfa->empty(base + s, to);
    for (const Graph::Edge& e : g.edges) nfa->chars(tree_.sets[e.set], base + e.from, base + e.to);
  }

  void machine(const Machine& m, uint32_t from, uint32_t to, Nfa* nfa, std::vector<Task>* todo) {
    const uint32_t base = nfa->n_states;
    nfa->n_states += m.n_states;
    nfa->empty(from, base + Machine::kStart);
    nfa->empty(base + Machine::kFinal, to);
    for (const Machine::Edge& e : m.edges) {
      if (e.node == kNoNode) {
        nfa->empty(base + e.from, base + e.to);
      } else {
        todo->push_back({e.node, base + e.from, base + e.to});
      }
    }
  }

  const Tree& tree_;
  const CompileLimits& limits_;
  Pace pace_;
  TreeFacts facts_;
  std::vector<uint32_t> size_;   // (nodes) positions, with copies; 0: not measured
  std::vector<bool> text_;       // (nodes) holds a long text
  std::vector<bool> recursive_;  // (rules)
  Automata out_;
  std::vector<uint32_t> todo_bodies_;  // (automata) the node that each automaton is made of
  std::map<uint32_t, uint32_t> rules_, members_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> repeats_;
  std::unordered_map<uint64_t, uint32_t> rests_;  // of the automaton under construction: the states before the second part of a pair
  uint32_t current_ = 0, building_ = 0;
  size_t edges_ = 0;
  bool too_large_ = false;
};

}  // namespace

Result<Automata> lower(const Tree& tree, const CompileLimits& limits) { return Lowering(tree, limits).run(); }

}  // namespace orrery::text::grammar
