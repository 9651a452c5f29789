// ECMA-262 regular expressions -> automata over characters. The parser keeps its own stack. Assertions are edges that read nothing: ^ may
// be passed before the first character, $ after the last one.
#include <algorithm>
#include <map>

#include "runtime/text/grammar/languages/char_dfa.h"
#include "runtime/text/pace.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::text::grammar {
namespace {

struct ExpressionNode {
  enum Type : uint8_t { set, sequence, choice, repeat, begin, end } type;
  uint32_t a = 0, b = 0, c = 0;  // set: index; sequence, choice: offset and number in children; repeat: child, least, most
};

CharSet digits() { return CharSet{{'0', '9'}}; }
CharSet words() { return CharSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharSet spaces() {
  return CharSet{{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                 {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, const CompileLimits& limits) : text_(text), limits_(limits), pace_(limits.cancel) {}

  Result<uint32_t> run() {
    if (text_.size() > limits_.source_bytes) return fail(0, "the expression is too long", Code::unsupported);
    if (!utf8_valid(text_)) return fail(0, "the expression is not UTF-8");
    std::vector<Group> groups(1);
    while (at_ < text_.size()) {
      if (pace_.stop()) return error(Code::cancelled, "reading an expression was cancelled");
      const size_t begin = at_;
      const char c = text_[at_];
      if (c == '(') {
        if (groups.size() > limits_.depth) return fail(at_, "groups are nested too deeply", Code::unsupported);
        ++at_;
        ORRERY_TRY(group_prefix(begin));
        groups.emplace_back();
        groups.back().open = begin;
      } else if (c == ')') {
        if (groups.size() == 1) return fail(at_, "a parenthesis closes no group");
        ++at_;
        const uint32_t node = close(&groups.back());
        groups.pop_back();
        groups.back().sequence.push_back(node);
        groups.back().quantifiable = true;
      } else if (c == '|') {
        ++at_;
        Group& g = groups.back();
        g.choices.push_back(list(ExpressionNode::sequence, g.sequence));
        g.sequence.clear();
        g.quantifiable = false;
      } else if (c == '*' || c == '+' || c == '?' || (c == '{' && is_quantifier())) {
        ORRERY_TRY(quantifier(&groups.back()));
      } else if (c == '^' || c == '$') {
        ++at_;
        nodes.push_back({c == '^' ? ExpressionNode::begin : ExpressionNode::end, 0, 0, 0});
        groups.back().sequence.push_back(last());
        groups.back().quantifiable = false;
      } else {
        CharSet set;
        if (c == '[') {
          ORRERY_TRY(char_class(&set));
        } else if (c == '.') {
          ++at_;
          set = CharSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement();
        } else {
          bool is_class;
          ORRERY_TRY(character(&set, &is_class, false));
        }
        sets.push_back(std::move(set));
        nodes.push_back({ExpressionNode::set, static_cast<uint32_t>(sets.size() - 1), 0, 0});
        groups.back().sequence.push_back(last());
        groups.back().quantifiable = true;
      }
    }
    if (groups.size() > 1) return fail(groups.back().open, "this parenthesis is not closed");
    return close(&groups.back());
  }

  std::vector<ExpressionNode> nodes;
  std::vector<uint32_t> children;
  std::vector<CharSet> sets;

 private:
  struct Group {
    std::vector<uint32_t> choices, sequence;
    size_t open = 0;
    bool quantifiable = false;
  };

  Status fail(size_t at, const char* what, Code code = Code::invalid_argument) const {
    Status status = error(code, "expression, column %zu: %s", at + 1, what);
    status.detail().offset = at;
    status.detail().line = 1;
    status.detail().column = static_cast<uint32_t>(at + 1);
    return status;
  }
  uint32_t last() const { return static_cast<uint32_t>(nodes.size() - 1); }
  uint32_t list(ExpressionNode::Type type, const std::vector<uint32_t>& parts) {
    if (parts.size() == 1) return parts[0];
    nodes.push_back({type, static_cast<uint32_t>(children.size()), static_cast<uint32_t>(parts.size()), 0});
    children.insert(children.end(), parts.begin(), parts.end());
    return last();
  }
  uint32_t close(Group* g) {
    g->choices.push_back(list(ExpressionNode::sequence, g->sequence));
    return list(ExpressionNode::choice, g->choices);
  }

  Status group_prefix(size_t begin) {
    if (at_ >= text_.size() || text_[at_] != '?') return ok_status();
    const std::string_view rest = text_.substr(at_ + 1);
    if (rest.substr(0, 1) == ":") return at_ += 2, ok_status();
    if (rest.substr(0, 1) == "=" || rest.substr(0, 1) == "!") return fail(begin, "look-ahead is not supported", Code::unsupported);
    if (rest.substr(0, 2) == "<=" || rest.substr(0, 2) == "<!") return fail(begin, "look-behind is not supported", Code::unsupported);
    if (rest.substr(0, 1) == "<") {
      const size_t end = text_.find('>', at_);
      if (end == std::string_view::npos || end == at_ + 2) return fail(begin, "a group's name is not closed");
      at_ = end + 1;
      return ok_status();
    }
    return fail(begin, "this kind of group is not supported", Code::unsupported);
  }

  bool is_quantifier() const {
    size_t i = at_ + 1;
    const auto digit = [&] { return i < text_.size() && text_[i] >= '0' && text_[i] <= '9'; };
    if (!digit()) return false;
    while (digit()) ++i;
    if (i < text_.size() && text_[i] == ',') ++i;
    while (digit()) ++i;
    return i < text_.size() && text_[i] == '}';
  }

  Result<uint32_t> number() {
    const size_t begin = at_;
    uint64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
      if (value > limits_.repeat) return fail(begin, "the number is too large", Code::unsupported);
    }
    return static_cast<uint32_t>(value);
  }

  Status quantifier(Group* g) {
    const size_t begin = at_;
    if (!g->quantifiable) return fail(begin, "a quantifier follows nothing that it could repeat");
    const char c = text_[at_++];
    uint32_t least = c == '+', most = c == '?' ? 1 : kUnbounded;
    if (c == '{') {
      ORRERY_ASSIGN(least, number());
      most = least;
      if (text_[at_] == ',') {
        ++at_;
        most = kUnbounded;
        if (text_[at_] != '}') {
          ORRERY_ASSIGN(most, number());
        }
      }
      ++at_;
      if (most < least) return fail(begin, "the quantifier's upper bound is below its lower bound");
    }
    if (at_ < text_.size() && text_[at_] == '?') ++at_;  // lazy: the same texts
    uint32_t& child = g->sequence.back();
    nodes.push_back({ExpressionNode::repeat, child, least, most});
    child = last();
    g->quantifiable = false;
    return ok_status();
  }

  int hex(size_t n, uint32_t* value) {
    *value = 0;
    for (size_t i = 0; i < n; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) return -1;
      *value = *value * 16 + static_cast<uint32_t>(digit);
    }
    return 0;
  }

  // One character, or an escape that stands for a class.
  Status character(CharSet* set, bool* is_class, bool in_class) {
    const size_t begin = at_;
    *is_class = false;
    if (text_[at_] != '\\') {
      const CodePoint c = utf8_decode(text_.data() + at_, text_.data() + text_.size());
      at_ += c.length;
      set->add(c.value, c.value);
      return ok_status();
    }
    if (++at_ >= text_.size()) return fail(begin, "the expression ends within an escape");
    const char c = text_[at_++];
    uint32_t value = 0;
    switch (c) {
      case 'd': return *set = digits(), *is_class = true, ok_status();
      case 'D': return *set = digits().complement(), *is_class = true, ok_status();
      case 'w': return *set = words(), *is_class = true, ok_status();
      case 'W': return *set = words().complement(), *is_class = true, ok_status();
      case 's': return *set = spaces(), *is_class = true, ok_status();
      case 'S': return *set = spaces().complement(), *is_class = true, ok_status();
      case 't': value = '\t'; break;
      case 'n': value = '\n'; break;
      case 'r': value = '\r'; break;
      case 'f': value = '\f'; break;
      case 'v': value = '\v'; break;
      case 'b':
        if (!in_class) return fail(begin, "the assertion \\b is not supported", Code::unsupported);
        value = '\b';
        break;
      case 'B': return fail(begin, "the assertion \\B is not supported", Code::unsupported);
      case 'p':
      case 'P': return fail(begin, "character properties (\\p) are not supported", Code::unsupported);
      case 'k': return fail(begin, "back references are not supported", Code::unsupported);
      case 'c': {
        const char letter = at_ < text_.size() ? text_[at_] : '\0';
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))) return fail(begin, "\\c needs a letter");
        ++at_;
        value = static_cast<uint32_t>(letter) % 32;
        break;
      }
      case 'x':
        if (hex(2, &value) < 0) return fail(begin, "\\x needs two hexadecimal digits");
        break;
      case 'u':
        if (at_ < text_.size() && text_[at_] == '{') {
          ++at_;
          const size_t first = at_;
          while (at_ < text_.size() && text_[at_] != '}') {
            uint32_t digit;
            if (hex(1, &digit) < 0 || value > 0x10FFFF) return fail(begin, "\\u{ needs hexadecimal digits and }");
            value = value * 16 + digit;
          }
          if (at_ >= text_.size() || at_ == first) return fail(begin, "\\u{ needs hexadecimal digits and }");
          ++at_;
        } else {
          if (hex(4, &value) < 0) return fail(begin, "\\u needs four hexadecimal digits");
          if (value >= 0xD800 && value < 0xDC00 && text_.substr(at_, 2) == "\\u") {  // a pair is one character
            const size_t back = at_;
            uint32_t low;
            at_ += 2;
            if (hex(4, &low) == 0 && low >= 0xDC00 && low <= 0xDFFF) {
              value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
            } else {
              at_ = back;
            }
          }
        }
        if (value > 0x10FFFF) return fail(begin, "an escape that is no character");
        break;  // a surrogate alone is in no text: the set stays empty
      default:
        if (c == '0' && !(at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')) break;
        if (c >= '0' && c <= '9') return fail(begin, "back references are not supported", Code::unsupported);
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return fail(begin, "unknown escape");
        --at_;
        {
          const CodePoint other = utf8_decode(text_.data() + at_, text_.data() + text_.size());
          at_ += other.length;
          value = other.value;
        }
    }
    set->add(value, value);
    return ok_status();
  }

  Status char_class(CharSet* out) {
    const size_t begin = at_++;
    const bool negated = at_ < text_.size() && text_[at_] == '^';
    if (negated) ++at_;
    CharSet set;
    while (at_ < text_.size() && text_[at_] != ']') {
      if (pace_.stop()) return error(Code::cancelled, "reading an expression was cancelled");
      const size_t from = at_;
      CharSet first, second;
      bool first_class, second_class;
      ORRERY_TRY(character(&first, &first_class, true));
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        const size_t dash = at_++;
        ORRERY_TRY(character(&second, &second_class, true));
        if (first_class || second_class) {  // a class is no end of a range: the dash is itself
          set.add('-', '-');
          set.add(first);
          set.add(second);
          continue;
        }
        (void)dash;
        if (first.empty() || second.empty()) return fail(from, "a range of surrogates");
        if (second.ranges()[0].first < first.ranges()[0].first) return fail(from, "a range of characters that ends before it begins");
        set.add(first.ranges()[0].first, second.ranges()[0].first);
        continue;
      }
      set.add(first);
    }
    if (at_ >= text_.size()) return fail(begin, "this class is not closed");
    ++at_;
    *out = negated ? set.complement() : std::move(set);
    return ok_status();
  }

  const std::string_view text_;
  const CompileLimits& limits_;
  Pace pace_;
  size_t at_ = 0;
};

// The automaton with assertions, and its subset construction.
class ExpressionAutomaton {
 public:
  ExpressionAutomaton(const ExpressionParser& parsed, const CompileLimits& limits) : parsed_(parsed), pace_(limits.cancel) {}

  Result<CharDfa> run(uint32_t root, bool search) {
    std::vector<Task> todo;
    const uint32_t start = state(), final = state();
    if (search) {
      const uint32_t anywhere = state();
      edge(start, anywhere, kNothing);
      edges_.push_back({anywhere, anywhere, kAny});
      todo.push_back({root, anywhere, final});
      edges_.push_back({final, final, kAny});
    } else {
      todo.push_back({root, start, final});
    }
    while (!todo.empty()) {
      if (pace_.stop()) return error(Code::cancelled, "compiling an expression was cancelled");
      if (n_states_ > CharDfa::kMostStates || edges_.size() > CharDfa::kMostEdges || todo.size() > CharDfa::kMostEdges)
        return error(Code::unsupported, "the expression needs more than %zu states", CharDfa::kMostStates);
      const Task task = todo.back();
      todo.pop_back();
      build(task, &todo);
    }
    return subsets(start, final);
  }

 private:
  static constexpr uint32_t kNothing = 0xFFFFFFFF, kBegin = 0xFFFFFFFE, kEnd = 0xFFFFFFFD, kAny = 0xFFFFFFFC;  // instead of a set
  struct Task {
    uint32_t node, from, to;
  };
  struct NEdge {
    uint32_t from, to, set;
  };
  uint32_t state() { return n_states_++; }
  void edge(uint32_t from, uint32_t to, uint32_t set) { edges_.push_back({from, to, set}); }

  void build(const Task& task, std::vector<Task>* todo) {
    const ExpressionNode& node = parsed_.nodes[task.node];
    switch (node.type) {
      case ExpressionNode::set: return edge(task.from, task.to, node.a);
      case ExpressionNode::begin: return edge(task.from, task.to, kBegin);
      case ExpressionNode::end: return edge(task.from, task.to, kEnd);
      case ExpressionNode::choice:
        for (uint32_t k = 0; k < node.b; ++k) todo->push_back({parsed_.children[node.a + k], task.from, task.to});
        return;
      case ExpressionNode::sequence: {
        if (node.b == 0) return edge(task.from, task.to, kNothing);
        uint32_t at = task.from;
        for (uint32_t k = 0; k < node.b; ++k) {
          const uint32_t next = k + 1 == node.b ? task.to : state();
          todo->push_back({parsed_.children[node.a + k], at, next});
          at = next;
        }
        return;
      }
      case ExpressionNode::repeat: {
        uint32_t at = task.from;
        if (node.b > CharDfa::kMostStates || (node.c != kUnbounded && node.c > CharDfa::kMostStates)) {
          n_states_ += CharDfa::kMostStates + 1;  // refused by the caller
          return;
        }
        for (uint32_t k = 0; k < node.b; ++k) {
          const uint32_t next = state();
          todo->push_back({node.a, at, next});
          at = next;
        }
        if (node.c == kUnbounded) {
          const uint32_t loop = state(), end = state();
          edge(at, loop, kNothing);
          todo->push_back({node.a, loop, end});
          edge(end, loop, kNothing);
          return edge(loop, task.to, kNothing);
        }
        for (uint32_t k = node.b; k < node.c; ++k) {
          edge(at, task.to, kNothing);
          const uint32_t next = state();
          todo->push_back({node.a, at, next});
          at = next;
        }
        return edge(at, task.to, kNothing);
      }
    }
  }

  void closure(std::vector<uint32_t>* set, bool begin, bool end) {
    ++turn_;
    stamp_.resize(n_states_, 0);
    for (const uint32_t s : *set) stamp_[s] = turn_;
    for (size_t i = 0; i < set->size(); ++i) {
      const uint32_t at = (*set)[i];
      for (uint32_t k = first_[at]; k < first_[at + 1]; ++k) {
        const NEdge& e = edges_[k];
        ++work_;
        if (stamp_[e.to] == turn_ || !(e.set == kNothing || (begin && e.set == kBegin) || (end && e.set == kEnd))) continue;
        stamp_[e.to] = turn_;
        set->push_back(e.to);
      }
    }
    std::sort(set->begin(), set->end());
  }

  Result<CharDfa> subsets(uint32_t start, uint32_t final) {
    std::stable_sort(edges_.begin(), edges_.end(), [](const NEdge& a, const NEdge& b) { return a.from < b.from; });
    first_.assign(n_states_ + 1, 0);
    for (const NEdge& e : edges_) ++first_[e.from + 1];
    for (uint32_t s = 0; s < n_states_; ++s) first_[s + 1] += first_[s];
    CharDfa dfa;
    std::map<std::vector<uint32_t>, uint32_t> number;
    std::vector<std::vector<uint32_t>> sets;
    const auto number_of = [&](std::vector<uint32_t> members, bool begin) {
      closure(&members, begin, false);
      if (!begin) {
        if (const auto known = number.find(members); known != number.end()) return known->second;
        number.emplace(members, static_cast<uint32_t>(sets.size()));
      }
      std::vector<uint32_t> at_end = members;
      closure(&at_end, begin, true);
      dfa.states.emplace_back();
      dfa.states.back().final = std::binary_search(at_end.begin(), at_end.end(), final);
      sets.push_back(std::move(members));
      return static_cast<uint32_t>(sets.size() - 1);
    };
    number_of({start}, true);
    size_t n_edges = 0;
    const CharSet any = CharSet::all();
    for (uint32_t s = 0; s < sets.size(); ++s) {
      if (pace_.look()) return error(Code::cancelled, "compiling an expression was cancelled");
      std::vector<std::pair<uint32_t, uint32_t>> ranges;  // begins: (first, edge)
      struct Range {
        uint32_t first, last, to;
      };
      std::vector<Range> all;
      for (const uint32_t m : sets[s])
        for (uint32_t k = first_[m]; k < first_[m + 1]; ++k) {
          const NEdge& e = edges_[k];
          if (e.set == kNothing || e.set == kBegin || e.set == kEnd) continue;
          for (const CharRange& r : (e.set == kAny ? any : parsed_.sets[e.set]).ranges()) all.push_back({r.first, r.last, e.to});
        }
      std::vector<uint32_t> cuts;
      for (const Range& r : all) {
        cuts.push_back(r.first);
        cuts.push_back(r.last + 1);
      }
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
      std::vector<Range> open;
      size_t next = 0;
      for (size_t c = 0; c + 1 < cuts.size(); ++c) {
        for (; next < all.size() && all[next].first <= cuts[c]; ++next) open.push_back(all[next]);
        open.erase(std::remove_if(open.begin(), open.end(), [&](const Range& r) { return r.last < cuts[c]; }), open.end());
        if (open.empty()) continue;
        std::vector<uint32_t> targets;
        for (const Range& r : open) targets.push_back(r.to);
        std::sort(targets.begin(), targets.end());
        targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
        work_ += targets.size();
        const uint32_t to = number_of(std::move(targets), false);
        auto& edges = dfa.states[s].edges;
        if (!edges.empty() && edges.back().target == to && edges.back().last + 1 == cuts[c]) {
          edges.back().last = cuts[c + 1] - 1;
        } else {
          edges.push_back({cuts[c], cuts[c + 1] - 1, to});
          ++n_edges;
        }
      }
      if (sets.size() > CharDfa::kMostStates || n_edges > CharDfa::kMostEdges || work_ > 20000000)
        return error(Code::unsupported, "the expression needs more than %zu states", CharDfa::kMostStates);
    }
    dfa.trim();
    return dfa;
  }

  const ExpressionParser& parsed_;
  Pace pace_;
  uint32_t n_states_ = 0, turn_ = 0;
  uint64_t work_ = 0;
  std::vector<NEdge> edges_;
  std::vector<uint32_t> first_, stamp_;
};

}  // namespace

Result<Expression> parse_expression(std::string_view source, bool search, const CompileLimits& limits) {
  ExpressionParser parser(source, limits);
  ORRERY_ASSIGN(const uint32_t root, parser.run());
  Expression out;
  // ^[class]{least,most}$, or without its anchors where the whole text is meant
  uint32_t body = root;
  const ExpressionNode top = parser.nodes[root];
  bool begins = !search, ends = !search;
  if (top.type == ExpressionNode::sequence && top.b > 0) {
    uint32_t first = top.a, last = top.a + top.b;
    if (parser.nodes[parser.children[first]].type == ExpressionNode::begin) begins = true, ++first;
    if (last > first && parser.nodes[parser.children[last - 1]].type == ExpressionNode::end) ends = true, --last;
    body = last - first == 1 ? parser.children[first] : root;
  }
  const ExpressionNode node = parser.nodes[body];
  if (begins && ends && node.type == ExpressionNode::repeat && parser.nodes[node.a].type == ExpressionNode::set) {
    out.simple = true;
    out.set = parser.sets[parser.nodes[node.a].a];
    out.least = node.b;
    out.most = node.c;
    return out;
  }
  ORRERY_ASSIGN(out.dfa, ExpressionAutomaton(parser, limits).run(root, search));
  return out;
}

}  // namespace orrery::text::grammar
