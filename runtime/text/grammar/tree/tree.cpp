#include "runtime/text/grammar/tree/tree.h"

#include <algorithm>
#include <utility>

namespace orrery::text::grammar {

uint32_t Tree::literal(std::string_view text) {
  const TreeNode node{NodeType::literal, static_cast<uint32_t>(bytes.size()), static_cast<uint32_t>(text.size()), 0};
  bytes += text;
  return add(node);
}

uint32_t Tree::add_set(CharSet set) {
  if (!sets.empty() && sets.back() == set) return static_cast<uint32_t>(sets.size() - 1);
  sets.push_back(std::move(set));
  return static_cast<uint32_t>(sets.size() - 1);
}

uint32_t Tree::chars(CharSet set) { return add({NodeType::chars, add_set(std::move(set)), 0, 0}); }

uint32_t Tree::list(NodeType type, const std::vector<uint32_t>& parts) {
  if (parts.size() == 1) return parts[0];
  const TreeNode node{type, static_cast<uint32_t>(children.size()), static_cast<uint32_t>(parts.size()), 0};
  children.insert(children.end(), parts.begin(), parts.end());
  return add(node);
}

uint32_t Tree::sequence(const std::vector<uint32_t>& parts) { return list(NodeType::sequence, parts); }
uint32_t Tree::choice(const std::vector<uint32_t>& parts) { return list(NodeType::choice, parts); }

uint32_t Tree::repeat(uint32_t child, uint32_t least, uint32_t most) {
  if (most == 0) return empty();
  if (least == 1 && most == 1) return child;
  const TreeNode inner = nodes[child];
  if (inner.type == NodeType::repeat) {
    // (x{a,b}){c,d} is x{ac,bd} where the numbers of x have no gap: from one round to the next, or with one number of rounds.
    const uint64_t a = inner.b, b = inner.c, c = least, d = most;
    if (c == d || (inner.c == kUnbounded ? (c > 0 || a <= 1) : b * c + 1 >= a * (c + 1))) {
      const auto bound = [](uint64_t n) { return static_cast<uint32_t>(n < kUnbounded - 1 ? n : kUnbounded - 1); };
      return repeat(inner.a, bound(a * c), inner.c == kUnbounded || most == kUnbounded ? kUnbounded : bound(b * d));
    }
  }
  return add({NodeType::repeat, child, least, most});
}

uint32_t Tree::tokens(TokenSet set) {
  token_sets.push_back(std::move(set));
  return add({NodeType::tokens, static_cast<uint32_t>(token_sets.size() - 1), 0, 0});
}

uint32_t Tree::graph(Graph graph) {
  graphs.push_back(std::move(graph));
  return add({NodeType::graph, static_cast<uint32_t>(graphs.size() - 1), 0, 0});
}

uint32_t Tree::graft(const Tree& other) {
  const auto size = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
  const uint32_t n_nodes = size(nodes), n_children = size(children), n_bytes = size(bytes), n_sets = size(sets),
                 n_token_sets = size(token_sets), n_graphs = size(graphs), n_machines = size(machines), n_members = size(member_lists),
                 n_rules = size(rules);
  const auto moved = [&](uint32_t node) { return node == kNoNode ? kNoNode : node + n_nodes; };
  for (TreeNode node : other.nodes) {
    switch (node.type) {
      case NodeType::literal: node.a += n_bytes; break;
      case NodeType::chars: node.a += n_sets; break;
      case NodeType::sequence:
      case NodeType::choice: node.a += n_children; break;
      case NodeType::repeat: node.a += n_nodes; break;
      case NodeType::rule: node.a += n_rules; break;
      case NodeType::tokens: node.a += n_token_sets; break;
      case NodeType::graph: node.a += n_graphs; break;
      case NodeType::machine: node.a += n_machines; break;
      case NodeType::members: node.a += n_members; break;
    }
    nodes.push_back(node);
  }
  for (const uint32_t child : other.children) children.push_back(moved(child));
  bytes += other.bytes;
  sets.insert(sets.end(), other.sets.begin(), other.sets.end());
  token_sets.insert(token_sets.end(), other.token_sets.begin(), other.token_sets.end());
  for (Graph graph : other.graphs) {
    for (Graph::Edge& edge : graph.edges) edge.set += n_sets;
    graphs.push_back(std::move(graph));
  }
  for (Machine machine : other.machines) {
    for (Machine::Edge& edge : machine.edges) edge.node = moved(edge.node);
    machines.push_back(std::move(machine));
  }
  for (Members members : other.member_lists) {
    for (uint32_t* part : {&members.open, &members.separator, &members.close, &members.close_empty}) *part += n_rules;
    for (Members::Member& member : members.list) member.rule += n_rules;
    member_lists.push_back(std::move(members));
  }
  for (Rule rule : other.rules) {
    rule.body = moved(rule.body);
    rules.push_back(std::move(rule));
  }
  return this->rule(other.root + n_rules);
}

uint32_t Tree::machine(Machine machine) {
  machines.push_back(std::move(machine));
  return add({NodeType::machine, static_cast<uint32_t>(machines.size() - 1), 0, 0});
}

uint32_t Tree::members(Members members) {
  member_lists.push_back(std::move(members));
  return add({NodeType::members, static_cast<uint32_t>(member_lists.size() - 1), 0, 0});
}

uint32_t Members::n_required() const {
  return static_cast<uint32_t>(std::count_if(list.begin(), list.end(), [](const Member& m) { return m.required; }));
}

// Its body stands for the true one: a byte that no text has.
uint32_t Tree::deferred_rule(std::string name, uint32_t number, uint32_t bytes_of_a_text) {
  const uint32_t index = add_rule(std::move(name));
  rules[index].body = literal("\xFF");
  rules[index].own = true;
  rules[index].deferred = number;
  rules[index].deferred_bytes = bytes_of_a_text;
  return index;
}

uint32_t Tree::add_rule(std::string name, uint32_t line, uint32_t column) {
  Rule rule;
  rule.name = std::move(name);
  rule.line = line;
  rule.column = column;
  rules.push_back(std::move(rule));
  return static_cast<uint32_t>(rules.size() - 1);
}

size_t Tree::memory_bytes() const {
  size_t n = nodes.capacity() * sizeof(TreeNode) + children.capacity() * sizeof(uint32_t) + bytes.capacity();
  for (const CharSet& set : sets) n += sizeof set + set.ranges().capacity() * sizeof(CharRange);
  for (const Machine& m : machines) n += sizeof m + m.edges.capacity() * sizeof(Machine::Edge);
  for (const Graph& g : graphs) n += sizeof g + g.edges.capacity() * sizeof(Graph::Edge);
  for (const Members& m : member_lists) n += sizeof m + m.list.capacity() * sizeof(Members::Member);
  return n + rules.capacity() * sizeof(Rule);
}

namespace {

// The least solution: a node waits for a number of its parts, and tells the nodes that wait for it. Each edge of the tree is used once.
std::vector<bool> least_solution(const Tree& tree, bool (*known)(const Tree&, const TreeNode&), bool empty_members_are_known) {
  const size_t n = tree.nodes.size(), n_rules = tree.rules.size();
  // Edges part -> whole, of rules too: number n + r is rule r. Behind them the states and edges of machines: a state waits for one edge
  // that enters it, an edge for its node and for the state that it leaves. Behind these, two of each list of members: `enough` waits for
  // one that repeats, or for `several`, which waits for the members that `least` asks for beyond the required ones.
  std::vector<uint32_t> machine_begin;
  size_t n_all = n + n_rules;
  for (const Machine& m : tree.machines) {
    machine_begin.push_back(static_cast<uint32_t>(n_all));
    n_all += m.n_states + m.edges.size();
  }
  const auto enough_of = [first = static_cast<uint32_t>(n_all)](uint32_t list) { return first + 2 * list; };
  n_all += 2 * tree.member_lists.size();
  std::vector<uint32_t> start(n_all + 1, 0), whole, waits(n_all, 1);
  const auto each_edge = [&](auto&& use) {
    for (uint32_t i = 0; i < n; ++i) {
      const TreeNode& node = tree.nodes[i];
      if (node.type == NodeType::sequence || node.type == NodeType::choice) {
        for (uint32_t k = 0; k < node.b; ++k) use(tree.children[node.a + k], i);
      } else if (node.type == NodeType::repeat) {
        use(node.a, i);
      } else if (node.type == NodeType::rule) {
        use(static_cast<uint32_t>(n) + node.a, i);
      } else if (node.type == NodeType::machine) {
        use(machine_begin[node.a] + Machine::kFinal, i);
      } else if (node.type == NodeType::members) {
        use(enough_of(node.a), i);
        for (const Members::Member& m : tree.member_lists[node.a].list)
          if (m.required) use(static_cast<uint32_t>(n) + m.rule, i);
      }
    }
    for (size_t m = 0; m < tree.machines.size(); ++m) {
      const Machine& machine = tree.machines[m];
      for (uint32_t e = 0; e < machine.edges.size(); ++e) {
        const uint32_t edge = machine_begin[m] + machine.n_states + e;
        use(machine_begin[m] + machine.edges[e].from, edge);
        if (machine.edges[e].node != kNoNode) use(machine.edges[e].node, edge);
        use(edge, machine_begin[m] + machine.edges[e].to);
      }
    }
    for (uint32_t l = 0; l < tree.member_lists.size(); ++l) {
      use(enough_of(l) + 1, enough_of(l));
      for (const Members::Member& m : tree.member_lists[l].list)
        if (!m.required) use(static_cast<uint32_t>(n) + m.rule, enough_of(l) + !m.repeats);
    }
    for (uint32_t r = 0; r < n_rules; ++r)
      if (tree.rules[r].body != kNoNode) use(tree.rules[r].body, static_cast<uint32_t>(n) + r);
  };
  each_edge([&](uint32_t part, uint32_t) { ++start[part + 1]; });
  for (size_t i = 0; i + 1 < start.size(); ++i) start[i + 1] += start[i];
  whole.resize(start.back());
  std::vector<uint32_t> fill(start.begin(), start.end() - 1);
  each_edge([&](uint32_t part, uint32_t i) { whole[fill[part]++] = i; });

  std::vector<bool> is(n_all, false);
  std::vector<uint32_t> todo;
  for (size_t m = 0; m < tree.machines.size(); ++m) {
    const Machine& machine = tree.machines[m];
    for (uint32_t e = 0; e < machine.edges.size(); ++e)
      if (machine.edges[e].node != kNoNode) waits[machine_begin[m] + machine.n_states + e] = 2;
    is[machine_begin[m] + Machine::kStart] = true;
    todo.push_back(machine_begin[m] + Machine::kStart);
  }
  for (uint32_t l = 0; l < tree.member_lists.size(); ++l) {
    const Members& members = tree.member_lists[l];
    const uint32_t required = members.n_required(), several = enough_of(l) + 1;
    waits[several] = std::max(members.least, required) - required;
    if (waits[several] > 0 || !empty_members_are_known) continue;
    is[several] = true;
    todo.push_back(several);
  }
  for (uint32_t i = 0; i < n; ++i) {
    const TreeNode& node = tree.nodes[i];
    if (node.type == NodeType::sequence) waits[i] = node.b;
    if (node.type == NodeType::members) waits[i] = 1 + tree.member_lists[node.a].n_required();
    if (known(tree, node) || (node.type == NodeType::sequence && node.b == 0) || (node.type == NodeType::repeat && node.b == 0)) {
      is[i] = true;
      todo.push_back(i);
    }
  }
  while (!todo.empty()) {
    const uint32_t part = todo.back();
    todo.pop_back();
    for (uint32_t k = start[part]; k < start[part + 1]; ++k) {
      const uint32_t i = whole[k];
      if (is[i] || --waits[i] > 0) continue;
      is[i] = true;
      todo.push_back(i);
    }
  }
  is.resize(n);
  return is;
}

}  // namespace

TreeFacts tree_facts(const Tree& tree) {
  TreeFacts facts;
  facts.nullable = least_solution(
      tree,
      [](const Tree& t, const TreeNode& node) {
        if (node.type == NodeType::literal) return node.b == 0;
        return node.type == NodeType::graph && t.graphs[node.a].n_states > 0 && t.graphs[node.a].final[t.graphs[node.a].start];
      },
      false);
  facts.productive = least_solution(
      tree,
      [](const Tree& t, const TreeNode& node) {
        switch (node.type) {
          case NodeType::literal: return true;
          case NodeType::chars: return !t.sets[node.a].empty();
          case NodeType::tokens: return t.token_sets[node.a].negated || !t.token_sets[node.a].ids.empty();
          case NodeType::graph: return t.graphs[node.a].n_states > 0;
          default: return false;
        }
      },
      true);
  return facts;
}

}  // namespace orrery::text::grammar
