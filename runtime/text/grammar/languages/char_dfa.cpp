#include "runtime/text/grammar/languages/char_dfa.h"

#include <algorithm>
#include <map>

#include "runtime/text/unicode/utf8.h"

namespace orrery::text::grammar {

Status CharDfa::too_large() { return error(Code::unsupported, "the patterns of a text need more than %zu states together", kMostStates); }

CharDfa CharDfa::all() {
  CharDfa dfa;
  dfa.states.resize(1);
  dfa.states[0].final = true;
  dfa.states[0].edges = {{0, 0xD7FF, 0}, {0xE000, 0x10FFFF, 0}};
  return dfa;
}

CharDfa CharDfa::of_texts(const std::vector<std::string>& texts) {
  CharDfa dfa;
  if (texts.empty()) return dfa;
  std::vector<std::map<uint32_t, uint32_t>> next(1);
  dfa.states.resize(1);
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const CodePoint c = utf8_decode(p, end);
      p += c.length;
      const auto [found, is_new] = next[at].emplace(c.value, static_cast<uint32_t>(dfa.states.size()));
      at = found->second;
      if (is_new) {
        next.emplace_back();
        dfa.states.emplace_back();
      }
    }
    dfa.states[at].final = true;
  }
  for (size_t s = 0; s < next.size(); ++s)
    for (const auto& [c, to] : next[s]) dfa.states[s].edges.push_back({c, c, to});
  return dfa;
}

size_t CharDfa::size_of(const std::vector<std::string>& sorted) {
  size_t n = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    size_t same = 0;
    while (i > 0 && same < sorted[i].size() && same < sorted[i - 1].size() && sorted[i][same] == sorted[i - 1][same]) ++same;
    n += static_cast<size_t>(
        std::count_if(sorted[i].begin() + static_cast<std::ptrdiff_t>(same), sorted[i].end(), [](char c) { return (c & 0xC0) != 0x80; }));
  }
  return n;
}

bool CharDfa::matches(std::string_view text) const {
  if (states.empty()) return false;
  uint32_t at = 0;
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const CodePoint c = utf8_decode(p, end);
    p += c.length;
    uint32_t to = kDead;
    for (const Edge& e : states[at].edges)
      if (c.value >= e.first && c.value <= e.last) to = e.target;
    if (to == kDead) return false;
    at = to;
  }
  return states[at].final;
}

bool CharDfa::texts(size_t most, std::vector<std::string>* out) const {
  if (states.empty()) return true;
  std::vector<std::pair<uint32_t, std::string>> todo = {{0, ""}};
  for (size_t work = 0; !todo.empty(); ++work) {
    const auto [at, text] = todo.back();
    todo.pop_back();
    if (text.size() > 4096 || work > 64 * most + 4096) return false;
    if (states[at].final) out->push_back(text);
    if (out->size() > most) return false;
    for (const Edge& e : states[at].edges) {
      if (e.last - e.first >= most) return false;
      for (uint32_t c = e.first; c <= e.last; ++c) {
        std::string longer = text;
        utf8_append(c, &longer);
        todo.emplace_back(e.target, std::move(longer));
      }
    }
  }
  return true;
}

// Aho and Corasick's automaton over characters. A state is the longest end of the text so far that begins one of `texts`.
CharDfa CharDfa::without(const std::vector<std::string>& texts) {
  struct Node {
    std::map<uint32_t, uint32_t> next;
    uint32_t fail = 0;
    bool found = false;
  };
  std::vector<Node> nodes(1);
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const CodePoint c = utf8_decode(p, end);
      p += c.length;
      const auto [found, is_new] = nodes[at].next.emplace(c.value, static_cast<uint32_t>(nodes.size()));
      at = found->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[at].found = true;
  }
  // Breadth first: a node's failure has its complete row before the node needs it.
  std::vector<uint32_t> order;
  for (const auto& [c, child] : nodes[0].next) order.push_back(child);
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t at = order[i];
    const Node& fail = nodes[nodes[at].fail];
    nodes[at].found = nodes[at].found || fail.found;
    for (const auto& [c, child] : std::map<uint32_t, uint32_t>(nodes[at].next)) {
      const auto shorter = fail.next.find(c);
      nodes[child].fail = shorter == fail.next.end() ? 0 : shorter->second;
      order.push_back(child);
    }
    nodes[at].next.insert(fail.next.begin(), fail.next.end());  // those of its own stay
  }
  CharDfa dfa;
  dfa.states.resize(nodes.size());
  const CharSet all_chars = CharSet::all();
  for (uint32_t s = 0; s < nodes.size(); ++s) {
    if (nodes[s].found) continue;  // dead: it is trimmed
    dfa.states[s].final = true;
    CharSet named;
    for (const auto& [c, child] : nodes[s].next) {
      named.add(c, c);
      if (!nodes[child].found) dfa.states[s].edges.push_back({c, c, child});
    }
    const CharSet others = all_chars.minus(named);
    for (const CharRange& r : others.ranges()) dfa.states[s].edges.push_back({r.first, r.last, 0});
    std::sort(dfa.states[s].edges.begin(), dfa.states[s].edges.end(), [](const Edge& a, const Edge& b) { return a.first < b.first; });
  }
  dfa.trim();
  return dfa;
}

Graph CharDfa::graph(Tree* tree) const {
  Graph g;
  g.n_states = static_cast<uint32_t>(states.size());
  g.final.resize(states.size());
  for (uint32_t s = 0; s < states.size(); ++s) {
    g.final[s] = states[s].final;
    std::map<uint32_t, CharSet> by_target;
    for (const Edge& e : states[s].edges) by_target[e.target].add(e.first, e.last);
    for (auto& [to, set] : by_target) g.edges.push_back({s, to, tree->add_set(std::move(set))});
  }
  return g;
}

void CharDfa::trim() {
  std::vector<std::vector<uint32_t>> from(states.size());
  std::vector<bool> useful(states.size(), false);
  std::vector<uint32_t> todo;
  for (uint32_t s = 0; s < states.size(); ++s) {
    for (const Edge& e : states[s].edges) from[e.target].push_back(s);
    if (states[s].final) {
      useful[s] = true;
      todo.push_back(s);
    }
  }
  while (!todo.empty()) {
    const uint32_t s = todo.back();
    todo.pop_back();
    for (const uint32_t f : from[s])
      if (!useful[f]) {
        useful[f] = true;
        todo.push_back(f);
      }
  }
  if (states.empty() || !useful[0]) {
    states.clear();
    return;
  }
  std::vector<uint32_t> number(states.size(), kDead);
  uint32_t n = 0;
  for (uint32_t s = 0; s < states.size(); ++s)
    if (useful[s]) number[s] = n++;
  for (uint32_t s = 0; s < states.size(); ++s) {
    if (!useful[s]) continue;
    std::vector<Edge> edges;
    for (Edge e : states[s].edges) {
      if (!useful[e.target]) continue;
      e.target = number[e.target];
      if (!edges.empty() && edges.back().target == e.target && edges.back().last + 1 == e.first) {
        edges.back().last = e.last;
      } else {
        edges.push_back(e);
      }
    }
    const bool final = states[s].final;
    states[number[s]].edges = std::move(edges);
    states[number[s]].final = final;
  }
  states.resize(n);
}

Result<CharDfa> CharDfa::combine(const CharDfa& a, const CharDfa& b, Combine how) {
  CharDfa out;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> number;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto number_of = [&](uint32_t x, uint32_t y) {
    const bool dead = how == Combine::both ? x == kDead || y == kDead : how == Combine::first_only ? x == kDead : x == kDead && y == kDead;
    if (dead) return kDead;
    const auto [at, is_new] = number.emplace(std::make_pair(x, y), static_cast<uint32_t>(pairs.size()));
    if (is_new) pairs.emplace_back(x, y);
    return at->second;
  };
  if (number_of(a.empty() ? kDead : 0, b.empty() ? kDead : 0) == kDead) return out;
  const std::vector<Edge> none;
  size_t n_edges = 0;
  for (size_t s = 0; s < pairs.size(); ++s) {
    const auto [x, y] = pairs[s];
    const bool in_a = x != kDead && a.states[x].final, in_b = y != kDead && b.states[y].final;
    State state;
    state.final = how == Combine::both ? in_a && in_b : how == Combine::either ? in_a || in_b : in_a && !in_b;
    const std::vector<Edge>&p = x == kDead ? none : a.states[x].edges, &q = y == kDead ? none : b.states[y].edges;
    size_t i = 0, j = 0;
    uint32_t at = 0;
    while (i < p.size() || j < q.size()) {
      // The characters from `at` on that have one target in each.
      const uint32_t p_first = i < p.size() ? p[i].first : kDead, q_first = j < q.size() ? q[j].first : kDead;
      at = std::max(at, std::min(p_first, q_first));
      const bool in_p = at >= p_first, in_q = at >= q_first;
      const uint32_t last = std::min(in_p ? p[i].last : p_first - 1, in_q ? q[j].last : q_first - 1);
      const uint32_t to = number_of(in_p ? p[i].target : kDead, in_q ? q[j].target : kDead);
      if (to != kDead) {
        if (!state.edges.empty() && state.edges.back().target == to && state.edges.back().last + 1 == at) {
          state.edges.back().last = last;
        } else {
          state.edges.push_back({at, last, to});
        }
      }
      at = last + 1;
      if (i < p.size() && p[i].last < at) ++i;
      if (j < q.size() && q[j].last < at) ++j;
    }
    n_edges += state.edges.size();
    out.states.push_back(std::move(state));
    if (pairs.size() > kMostStates || n_edges > kMostEdges) return too_large();
  }
  out.trim();
  return out;
}

Result<CharDfa> CharDfa::of_length(uint32_t least, uint32_t most) const {
  if (least == 0 && most == kUnbounded) return *this;
  CharDfa out;
  if (empty()) return out;
  const uint32_t cap = most == kUnbounded ? least : most;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> number = {{{0, 0}, 0}};
  std::vector<std::pair<uint32_t, uint32_t>> pairs = {{0, 0}};
  for (size_t s = 0; s < pairs.size(); ++s) {
    const auto [at, n] = pairs[s];
    State state;
    state.final = states[at].final && n >= least;
    if (n < cap || most == kUnbounded) {
      for (Edge e : states[at].edges) {
        const auto [found, is_new] = number.emplace(std::make_pair(e.target, std::min(n + 1, cap)), static_cast<uint32_t>(pairs.size()));
        if (is_new) pairs.emplace_back(found->first);
        e.target = found->second;
        state.edges.push_back(e);
      }
    }
    out.states.push_back(std::move(state));
    if (pairs.size() > kMostStates) return too_large();
  }
  out.trim();
  return out;
}

}  // namespace orrery::text::grammar
