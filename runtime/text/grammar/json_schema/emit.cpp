// Forms -> rules. Keys come in the schema's order, then required ones that it does not declare, then others, unless any order is asked for;
// white space is bounded.
#include <algorithm>

#include "runtime/text/grammar/json_schema/reader.h"
#include "runtime/text/json/json.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::grammar {
namespace {

constexpr size_t kMostMachineStates = 40000;
constexpr uint64_t kMostContainsStates = 4096;

// The characters that Python's repr() writes as they are, but the backslash.
CharSet printable_characters() {
  CharSet all;
  for (uint32_t c = 0x20, first = c; c <= 0x110000; ++c) {
    if (c < 0x110000 && c != '\\' && !unicode::is(c, unicode::kUnprintable)) continue;
    if (first < c) all.add(first, c - 1);
    first = c + 1;
  }
  return all;
}

class SchemaEmitter {
 public:
  SchemaEmitter(SchemaDocument* document, const SchemaOptions& options, const CompileLimits& limits)
      : document_(*document), options_(options), pace_(limits.cancel) {}

  Result<Tree> run() {
    tree_.root = rule_of(document_.root());
    while (!todo_.empty()) {
      const Todo next = todo_.back();
      const auto [conjunction, rule] = std::pair(next.conjunction, next.rule);
      notation_ = next.notation;
      todo_.pop_back();
      if (pace_.look()) return error(Code::cancelled, "compiling a schema was cancelled");
      place_ = document_.place_of(conjunction);
      ORRERY_ASSIGN(const Form* form, document_.form(conjunction));
      std::vector<uint32_t> choices;
      if (options_.tagged != nullptr && rule == tree_.root && !tagged_done_) {
        tagged_done_ = true;
        for (const Alternative& a : *form)
          if (a.types & kObject) ORRERY_TRY(tagged(a.object, &choices));
        tree_.rules[rule].body = tree_.choice(choices);
        continue;
      }
      for (const Alternative& a : *form) ORRERY_TRY(alternative(a, &choices));
      tree_.rules[rule].body = tree_.choice(choices);
    }
    return std::move(tree_);
  }

 private:
  Status refuse(const char* why) const { return error(Code::unsupported, "schema %.300s: %s", place_.c_str(), why); }

  uint32_t rule_of(Conjunction c) {
    const auto [at, is_new] = rules_.emplace(std::pair(c, notation_), 0);
    if (is_new) {
      at->second = tree_.add_rule("schema " + document_.place_of(c).substr(0, 200));
      todo_.push_back({c, at->second, notation_});
    }
    return at->second;
  }
  uint32_t value(Conjunction c) { return tree_.rule(rule_of(c)); }

  // ---- White space and punctuation ----

  uint32_t space() {
    if (notation_ != Notation::json || options_.whitespace != SchemaOptions::Whitespace::free) return tree_.empty();
    if (space_rule_ == kNoNode) {
      space_rule_ = tree_.add_rule("white space");
      tree_.rules[space_rule_].own = true;
      const uint32_t blanks = tree_.repeat(tree_.chars(CharSet{{' ', ' '}, {'\t', '\t'}}), 0, 32);
      tree_.rules[space_rule_].body = tree_.choice({tree_.empty(), tree_.literal(" "), tree_.sequence({tree_.literal("\n"), blanks})});
    }
    return tree_.rule(space_rule_);
  }
  uint32_t comma() {
    if (notation_ == Notation::bare) return mark(marks().comma);
    if (notation_ == Notation::python) return tree_.literal(", ");
    if (options_.whitespace == SchemaOptions::Whitespace::spaced) return tree_.literal(", ");
    return tree_.sequence({tree_.literal(","), space()});
  }
  uint32_t colon() {
    if (notation_ == Notation::bare) return mark(marks().colon);
    if (notation_ == Notation::python) return tree_.literal(": ");
    if (options_.whitespace == SchemaOptions::Whitespace::spaced) return tree_.literal(": ");
    return tree_.sequence({tree_.literal(":"), space()});
  }

  // ---- Other notations than JSON ----

  const BareMarks& marks() const { return options_.tagged->format->bare; }
  uint32_t mark(std::string_view text) { return options_.tagged->literal(&tree_, text); }

  // true, false and null: 0, 1 and 2.
  uint32_t word(size_t which) {
    constexpr const char *kJson[] = {"true", "false", "null"}, *kPython[] = {"True", "False", "None"};
    if (notation_ == Notation::bare) return tree_.literal(options_.tagged->format->words[which]);
    return tree_.literal((notation_ == Notation::python ? kPython : kJson)[which]);
  }

  // A string of these texts.
  Result<uint32_t> written(const CharDfa& dfa) {
    if (notation_ == Notation::json) return quoted(dfa);
    if (notation_ == Notation::bare) {
      ORRERY_ASSIGN(const CharDfa raw, CharDfa::combine(dfa, CharDfa::without({marks().close}), CharDfa::Combine::both));
      if (raw.empty()) return tree_.nothing();
      return tree_.sequence({mark(marks().open), tree_.rule(own_rule("text", tree_.graph(raw.graph(&tree_)))), mark(marks().close)});
    }
    // Python's repr(): between apostrophes; a text that has some, and no quotation marks, stands between those. Others are not written.
    const CharDfa no_apostrophe = CharDfa::without({"'"});
    ORRERY_ASSIGN(const CharDfa plain, CharDfa::combine(dfa, no_apostrophe, CharDfa::Combine::both));
    ORRERY_ASSIGN(CharDfa other, CharDfa::combine(dfa, no_apostrophe, CharDfa::Combine::first_only));
    ORRERY_ASSIGN(other, CharDfa::combine(other, CharDfa::without({"\""}), CharDfa::Combine::both));
    std::vector<uint32_t> choices;
    if (!plain.empty()) choices.push_back(quoted(plain, "'"));
    if (!other.empty()) choices.push_back(quoted(other, "\""));
    return tree_.choice(choices);
  }
  // One character as repr() has it. What it writes as a number is left out.
  uint32_t python_char(const CharSet& set) {
    if (printable_.empty()) printable_ = printable_characters();
    std::vector<uint32_t> choices;
    const CharSet plain = set.intersect(printable_);
    if (!plain.empty()) choices.push_back(tree_.chars(plain));
    CharSet letters;
    for (const auto& [c, letter] : {std::pair('\\', '\\'), std::pair('\n', 'n'), std::pair('\r', 'r'), std::pair('\t', 't')})
      if (set.contains(static_cast<uint32_t>(c))) letters.add(static_cast<uint32_t>(letter), static_cast<uint32_t>(letter));
    if (!letters.empty()) choices.push_back(tree_.sequence({tree_.literal("\\"), tree_.chars(letters)}));
    return tree_.choice(choices);
  }
  // A key of an object, declared or not.
  Result<uint32_t> key_of(const std::string& name) {
    if (notation_ != Notation::bare) return written(CharDfa::of_texts({name}));
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_bare_key_byte)) return unwritten(name);
    return tree_.literal(name);
  }
  Result<uint32_t> key_of(const CharDfa& dfa) {
    if (notation_ != Notation::bare) return written(dfa);
    CharDfa names;
    names.states.resize(2);
    for (CharDfa::State& s : names.states)
      s.edges = {{'-', '.', 1}, {'0', '9', 1}, {'A', 'Z', 1}, {'_', '_', 1}, {'a', 'z', 1}, {0x80, 0xD7FF, 1}, {0xE000, 0x10FFFF, 1}};
    names.states[1].final = true;
    ORRERY_ASSIGN(const CharDfa keys, CharDfa::combine(dfa, names, CharDfa::Combine::both));
    return keys.empty() ? tree_.nothing() : tree_.graph(keys.graph(&tree_));
  }
  Status unwritten(const std::string& key) const {
    return refuse(("the key '" + key.substr(0, 100) + "' cannot be written in this model's format of calls").c_str());
  }

  // ---- Scalars ----

  // One character of a set as it stands in a JSON text: as itself, or behind a backslash.
  uint32_t json_char(const CharSet& set) {
    static constexpr std::pair<uint32_t, char> kShort[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'\b', 'b'},
                                                           {'\f', 'f'}, {'\n', 'n'},  {'\r', 'r'}, {'\t', 't'}};
    const CharSet plain = set.minus(CharSet{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
    CharSet letters;
    for (const auto& [c, letter] : kShort)
      if (set.contains(c)) letters.add(static_cast<uint32_t>(letter), static_cast<uint32_t>(letter));
    std::vector<uint32_t> choices;
    if (!plain.empty()) choices.push_back(tree_.chars(plain));
    if (!letters.empty()) {
      if (!(letters == escaped_letters_)) {  // mostly the last ones, or all: one node makes one state behind the backslash
        escaped_letters_ = letters;
        escaped_ = tree_.sequence({tree_.literal("\\"), tree_.chars(letters)});
      }
      choices.push_back(escaped_);
    }
    return tree_.choice(choices);
  }

  uint32_t quoted(const StringForm& s) {
    if (s.dfa == nullptr) {
      const bool free = s.least == 0 && s.most == kUnbounded && s.set == CharSet::all();
      if (free && string_rule_ != kNoNode) return tree_.rule(string_rule_);
      const uint32_t node = tree_.sequence({tree_.literal("\""), tree_.repeat(json_char(s.set), s.least, s.most), tree_.literal("\"")});
      const uint32_t rule = own_rule("string", node);
      if (free) string_rule_ = rule;
      return tree_.rule(rule);
    }
    return kNoNode;
  }
  uint32_t own_rule(const char* name, uint32_t body) {
    const uint32_t rule = tree_.add_rule(name + (" of " + place_));
    tree_.rules[rule].own = true;
    tree_.rules[rule].body = body;
    return rule;
  }
  uint32_t quoted(const CharDfa& dfa, const char* quote = "\"") {
    Machine machine;
    const uint32_t base = machine.n_states;
    machine.n_states += static_cast<uint32_t>(dfa.states.size());
    machine.edges.push_back({Machine::kStart, base, tree_.literal(quote)});
    const uint32_t end = tree_.literal(quote);
    for (uint32_t s = 0; s < dfa.states.size(); ++s) {
      if (dfa.states[s].final) machine.edges.push_back({base + s, Machine::kFinal, end});
      std::map<uint32_t, CharSet> by_target;
      for (const CharDfa::Edge& e : dfa.states[s].edges) by_target[e.target].add(e.first, e.last);
      for (const auto& [to, set] : by_target)
        machine.edges.push_back({base + s, base + to, notation_ == Notation::python ? python_char(set) : json_char(set)});
    }
    return tree_.rule(own_rule("string", tree_.machine(std::move(machine))));
  }
  Result<uint32_t> string(const StringForm& s) {
    if (notation_ == Notation::json) {
      if (const uint32_t node = quoted(s); node != kNoNode) return node;
    }
    ORRERY_ASSIGN(const std::shared_ptr<const CharDfa> dfa, dfa_of(s));
    if (dfa->empty()) return tree_.nothing();
    return written(*dfa);
  }

  Result<uint32_t> number(const NumberForm& n) {
    if (n.free() && number_rule_ != kNoNode) return tree_.rule(number_rule_);
    if (n.free()) {
      const uint32_t digit = tree_.chars(CharSet{{'0', '9'}}), minus = tree_.optional(tree_.literal("-"));
      const uint32_t whole =
          tree_.choice({tree_.literal("0"), tree_.sequence({tree_.chars(CharSet{{'1', '9'}}), tree_.repeat(digit, 0, 16)})});
      const uint32_t fraction = tree_.optional(tree_.sequence({tree_.literal("."), tree_.repeat(digit, 1, 17)}));
      // Below 290: with 17 digits before it, a number is still one of 64 bits.
      const uint32_t two = tree_.repeat(digit, 1, 2),
                     hundreds = tree_.sequence({tree_.chars(CharSet{{'0', '1'}}), tree_.repeat(digit, 2, 2)});
      const uint32_t below_290 =
          tree_.choice({two, hundreds, tree_.sequence({tree_.literal("2"), tree_.chars(CharSet{{'0', '8'}}), digit})});
      const uint32_t up = tree_.sequence({tree_.optional(tree_.literal("+")), below_290}),
                     down = tree_.sequence({tree_.literal("-"), tree_.repeat(digit, 1, 3)});
      const uint32_t power = tree_.choice({up, down});
      const uint32_t exponent = tree_.optional(tree_.sequence({tree_.chars(CharSet{{'E', 'E'}, {'e', 'e'}}), power}));
      number_rule_ = own_rule("number", tree_.sequence({minus, whole, fraction, exponent}));
      return tree_.rule(number_rule_);
    }
    NumberRange range;
    range.integer = n.integer;
    range.least = n.least;
    range.most = n.most;
    range.above_least = n.above_least;
    range.below_most = n.below_most;
    range.multiples = n.multiples;
    const bool integer = n.integer && !n.least && !n.most && n.multiples.empty();
    if (integer && integer_rule_ != kNoNode) return tree_.rule(integer_rule_);
    const char* why = "";
    const std::optional<uint32_t> node = number_node(range, &tree_, &why);
    if (!node) return refuse(why);
    const uint32_t rule = own_rule("number", *node);
    if (integer) integer_rule_ = rule;
    return tree_.rule(rule);
  }

  Result<uint32_t> constant(const Value& v, int depth) {
    if (depth > 200) return refuse("an enumerated value is nested too deeply");
    if (!v.is_list() && !v.is_map()) {
      if (v.is_float()) {  // 2.0 is 2
        const auto d = decimal_of(v);
        if (d && d->is_integer() && d->whole.size() < 17) return tree_.literal((d->negative ? "-" : "") + d->whole);
      }
      if (v.is_bool() || v.is_none()) return word(v.is_none() ? 2 : v.as_bool() ? 0 : 1);
      if (v.is_string() && notation_ != Notation::json) return written(CharDfa::of_texts({std::string(v.as_string())}));
      ORRERY_ASSIGN(const std::string text, dump_json(v));
      return tree_.literal(text);
    }
    if (v.is_map() && any_order() && v.as_map().size() > 1) {
      std::vector<Members::Member> members;
      for (const auto& [key, item] : v.as_map().entries()) {
        ORRERY_ASSIGN(const std::string name, dump_json(key));
        ORRERY_ASSIGN(const uint32_t node, constant(item, depth + 1));
        members.push_back({own_rule("member", tree_.sequence({tree_.literal(name), colon(), node})), true, false});
      }
      return members_in_any_order(std::move(members), 0, kUnbounded);
    }
    if (v.is_list() ? v.as_items().empty() : v.as_map().size() == 0)
      return tree_.sequence({tree_.literal(v.is_list() ? "[" : "{"), space(), tree_.literal(v.is_list() ? "]" : "}")});
    std::vector<uint32_t> parts = {tree_.literal(v.is_list() ? "[" : "{"), space()};
    bool first = true;
    const auto separate = [&] {
      if (!first) parts.push_back(comma());
      first = false;
    };
    if (v.is_list()) {
      for (const Value& item : v.as_items()) {
        separate();
        ORRERY_ASSIGN(const uint32_t node, constant(item, depth + 1));
        parts.push_back(node);
      }
    } else {
      std::vector<Map::Entry> entries = v.as_map().entries();
      const auto before = [&](const auto& a, const auto& b) {
        return options_.tagged->format->before(a.first.as_string(), b.first.as_string());
      };
      if (sorts_keys()) std::stable_sort(entries.begin(), entries.end(), before);
      for (const auto& [key, item] : entries) {
        separate();
        ORRERY_ASSIGN(const uint32_t name, notation_ == Notation::json ? constant(key, depth + 1) : key_of(std::string(key.as_string())));
        parts.push_back(name);
        parts.push_back(colon());
        ORRERY_ASSIGN(const uint32_t node, constant(item, depth + 1));
        parts.push_back(node);
      }
    }
    parts.push_back(space());
    parts.push_back(tree_.literal(v.is_list() ? "]" : "}"));
    return tree_.sequence(parts);
  }

  // ---- Lists and objects ----

  // The values of a conjunction, if they are finitely many and at most `most`.
  Result<bool> finite_values(Conjunction c, size_t most, std::vector<Value>* out) {
    if (c == kAnything) return false;
    ORRERY_ASSIGN(const Form* form, document_.form(c));
    std::vector<Value> found;
    for (const Alternative& a : *form) {
      Alternative rest = a;
      rest.values = nullptr;
      std::vector<Value> some;
      if (a.values != nullptr) {
        some = *a.values;
      } else {
        if (a.types & (kArray | kObject)) return false;
        if (a.types & kNull) some.push_back(Value::none());
        if (a.types & kTrue) some.push_back(Value::boolean(true));
        if (a.types & kFalse) some.push_back(Value::boolean(false));
        if (a.types & kString) {
          ORRERY_ASSIGN(const std::shared_ptr<const CharDfa> dfa, dfa_of(a.string));
          std::vector<std::string> texts;
          if (!dfa->texts(most, &texts)) return false;
          for (std::string& text : texts) some.push_back(Value::string(std::move(text)));
        }
        if (a.types & kNumber) {
          const NumberForm& n = a.number;
          constexpr int64_t kNoBound = INT64_MAX;
          const auto bound = [](const Decimal& d) {
            if (!d.is_integer() || d.whole.size() > 9) return kNoBound;
            const auto whole = static_cast<int64_t>(scaled(d, 0).value_or(0));
            return d.negative ? -whole : whole;
          };
          const int64_t first = n.integer && n.least ? bound(*n.least) : kNoBound, last = n.integer && n.most ? bound(*n.most) : kNoBound;
          if (first == kNoBound || last == kNoBound || last - first > 1000) return false;
          for (int64_t i = first; i <= last; ++i) some.push_back(Value::integer(i));
        }
      }
      for (const Value& v : some) {
        ORRERY_ASSIGN(const bool ok, document_.satisfies(v, rest));
        if (ok && std::none_of(found.begin(), found.end(), [&](const Value& o) { return json_equal(o, v); })) found.push_back(v);
        if (found.size() > most) return false;
      }
    }
    *out = std::move(found);
    return true;
  }

  // Items that differ from one another: a state for each set of values that have been written.
  Result<uint32_t> unique_array(const ArrayForm& a) {
    const auto refuse_unique = [&](const std::string& why) {
      return error(Code::unsupported, "schema %.300s/uniqueItems: %s", place_.c_str(), why.c_str());
    };
    constexpr size_t kMostValues = 64;
    const size_t n_places = std::min<size_t>(a.prefix.size() + 1, a.most == kUnbounded ? a.prefix.size() + 1 : a.most);
    std::vector<Value> values;
    std::vector<std::vector<size_t>> allowed;  // by the item's place; the last one is of all later items
    for (size_t i = 0; i < n_places; ++i) {
      const Conjunction c = i < a.prefix.size() ? a.prefix[i] : a.rest;
      std::vector<Value> found;
      ORRERY_ASSIGN(const bool none, document_.is_nothing(c));
      if (!none) {
        ORRERY_ASSIGN(const bool finite, finite_values(c, kMostValues, &found));
        if (!finite)
          return refuse_unique("it is supported where items have at most 64 values, by enum, const, boolean or a range of integers");
      }
      allowed.emplace_back();
      for (const Value& v : found) {
        size_t at = 0;
        while (at < values.size() && !json_equal(values[at], v)) ++at;
        if (at == values.size()) values.push_back(v);
        if (at >= kMostValues) return refuse_unique("it is supported where items have at most 64 values");
        allowed.back().push_back(at);
      }
    }
    std::vector<uint32_t> nodes;
    std::vector<uint64_t> counted;  // of each value: the contains that it counts for
    if (a.contains.size() > 64) return refuse_unique("too many contains at one place");
    for (const Value& v : values) {
      ORRERY_ASSIGN(const uint32_t node, constant(v, 0));
      nodes.push_back(node);
      counted.push_back(0);
      for (size_t k = 0; k < a.contains.size(); ++k) {
        ORRERY_ASSIGN(const bool fits, document_.satisfies(v, a.contains[k].what));
        counted.back() |= uint64_t{fits} << k;
      }
    }
    Machine machine;
    const uint32_t close = tree_.sequence({space(), tree_.literal("]")}), separator = comma(), first = machine.state();
    machine.edges.push_back({Machine::kStart, first, tree_.sequence({tree_.literal("["), space()})});
    std::map<uint64_t, uint32_t> states = {{0, first}};
    std::vector<uint64_t> todo = {0};
    while (!todo.empty()) {
      if (pace_.look()) return error(Code::cancelled, "compiling a schema was cancelled");
      const uint64_t used = todo.back();
      todo.pop_back();
      const uint32_t at = states[used];
      size_t n = 0;
      std::vector<uint32_t> of_contains(a.contains.size(), 0);
      for (size_t v = 0; v < values.size(); ++v) {
        if ((used >> v & 1) == 0) continue;
        ++n;
        for (size_t k = 0; k < a.contains.size(); ++k) of_contains[k] += static_cast<uint32_t>(counted[v] >> k & 1);
      }
      bool may_end = n >= a.least;
      for (size_t k = 0; k < a.contains.size(); ++k) may_end = may_end && of_contains[k] >= a.contains[k].least;
      if (may_end) machine.edges.push_back({at, Machine::kFinal, n == 0 ? tree_.literal("]") : close});
      if (n >= a.most) continue;
      uint32_t from = kNoNode;
      for (const size_t v : allowed[std::min(n, allowed.size() - 1)]) {
        if (used >> v & 1) continue;
        if (from == kNoNode) {
          from = at;
          if (n > 0) from = machine.state(), machine.edges.push_back({at, from, separator});
        }
        const auto [found, is_new] = states.emplace(used | uint64_t{1} << v, 0);
        if (is_new) {
          if (states.size() > kMostContainsStates)
            return refuse_unique("it needs more than " + std::to_string(kMostContainsStates) + " sets of " + std::to_string(values.size()) +
                                 " values; a smaller maxItems needs fewer");
          found->second = machine.state();
          todo.push_back(found->first);
        }
        machine.edges.push_back({from, found->second, nodes[v]});
      }
    }
    return tree_.machine(std::move(machine));
  }

  Result<uint32_t> array(const ArrayForm& a) {
    if (a.unique && a.most > 1) return unique_array(a);
    Machine machine;
    const uint32_t open = tree_.sequence({tree_.literal("["), space()}), close = tree_.sequence({space(), tree_.literal("]")});
    const uint32_t empty = tree_.literal("]");  // white space stands behind the bracket that opens
    const uint32_t separator = comma();
    const uint32_t first = machine.state();
    machine.edges.push_back({Machine::kStart, first, open});
    if (!a.contains.empty()) {
      ORRERY_TRY(with_contains(a, first, separator, close, &machine));
      return tree_.machine(std::move(machine));
    }
    const auto n = static_cast<uint32_t>(std::min<size_t>(a.prefix.size(), a.most));
    uint32_t at = first;
    bool reached = true;  // the end of the prefix
    for (uint32_t i = 0; i < n; ++i) {
      if (i >= a.least) machine.edges.push_back({at, Machine::kFinal, i == 0 ? empty : close});
      ORRERY_ASSIGN(const bool none, document_.is_nothing(a.prefix[i]));
      if (none) {
        reached = false;
        break;
      }
      uint32_t from = at;
      if (i > 0) {
        from = machine.state();
        machine.edges.push_back({at, from, separator});
      }
      const uint32_t next = machine.state();
      machine.edges.push_back({from, next, value(a.prefix[i])});
      at = next;
    }
    if (!reached) return tree_.machine(std::move(machine));
    if (n >= a.least) machine.edges.push_back({at, Machine::kFinal, n == 0 ? empty : close});
    ORRERY_ASSIGN(const bool no_rest, document_.is_nothing(a.rest));
    if (a.most > n && !no_rest) {
      const uint32_t item = value(a.rest), more = tree_.sequence({separator, item});
      const uint32_t least = std::max(1u, a.least > n ? a.least - n : 0), most = a.most == kUnbounded ? kUnbounded : a.most - n;
      uint32_t rest;
      if (n > 0) {
        rest = tree_.repeat(more, least, most);
      } else {
        rest = tree_.sequence({item, tree_.repeat(more, least - 1, most == kUnbounded ? kUnbounded : most - 1)});
      }
      machine.edges.push_back({at, Machine::kFinal, tree_.sequence({rest, close})});
    }
    return tree_.machine(std::move(machine));
  }

  // States: items so far, as far as they matter, and how many of them are of the kind that the array must contain.
  Status with_contains(const ArrayForm& a, uint32_t first, uint32_t separator, uint32_t close, Machine* machine) {
    if (a.contains.size() > 1) return refuse("more than one contains at one place is not supported");
    const ArrayForm::Contains& contains = a.contains[0];
    const auto cap = static_cast<uint32_t>(std::max<uint64_t>({a.prefix.size() + 1, a.least, a.most == kUnbounded ? 0 : a.most, 1}));
    const uint64_t n_states = uint64_t{cap} * (contains.least + uint64_t{1});
    if (n_states > kMostContainsStates) {
      const std::string why = "contains counts its items in " + std::to_string(n_states) + " states; at most " +
                              std::to_string(kMostContainsStates) + " are supported";
      return refuse(why.c_str());
    }
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> states = {{{0, 0}, first}};
    std::vector<std::pair<uint32_t, uint32_t>> todo = {{0, 0}};
    while (!todo.empty()) {
      const auto [n, k] = todo.back();
      todo.pop_back();
      const uint32_t at = states[{n, k}];
      if (n >= a.least && k >= contains.least) machine->edges.push_back({at, Machine::kFinal, n == 0 ? tree_.literal("]") : close});
      if (n >= a.most) continue;
      const Conjunction item = n < a.prefix.size() ? a.prefix[n] : a.rest;
      uint32_t from = at;
      if (n > 0) {
        from = machine->state();
        machine->edges.push_back({at, from, separator});
      }
      for (const bool counted : {false, true}) {
        if (counted && k >= contains.least) continue;
        const Conjunction c = counted ? document_.join(item, contains.what) : item;
        ORRERY_ASSIGN(const bool none, document_.is_nothing(c));
        if (none) continue;
        const std::pair<uint32_t, uint32_t> to = {std::min(n + 1, cap), k + counted};
        const auto [found, is_new] = states.emplace(to, 0);
        if (is_new) {
          found->second = machine->state();
          todo.push_back(to);
        }
        machine->edges.push_back({from, found->second, value(c)});
      }
    }
    return ok_status();
  }

  bool sorts_keys() const { return notation_ == Notation::bare && options_.tagged->format->order != KeyOrder::given; }
  void sort_keys(std::vector<std::pair<std::string, Conjunction>>* properties) const {
    std::stable_sort(properties->begin(), properties->end(),
                     [&](const auto& a, const auto& b) { return options_.tagged->format->before(a.first, b.first); });
  }

  struct Member {
    uint32_t node;
    bool required;
  };

  Result<uint32_t> object(const ObjectForm& o) {
    // What a key's value must satisfy, by key.
    std::vector<std::pair<std::string, Conjunction>> properties = o.properties;
    std::vector<std::string> names;
    for (const auto& p : properties) names.push_back(p.first);
    std::sort(names.begin(), names.end());
    for (const std::string& name : o.required)
      if (!std::binary_search(names.begin(), names.end(), name)) properties.emplace_back(name, o.of(name));
    ORRERY_TRY(check_others(o, names));
    if (sorts_keys()) sort_keys(&properties);
    std::vector<std::string> required_names = o.required;
    std::sort(required_names.begin(), required_names.end());
    std::vector<Member> members;
    std::vector<Members::Member> in_any_order;
    for (const auto& [name, c] : properties) {
      const bool required = std::binary_search(required_names.begin(), required_names.end(), name);
      ORRERY_ASSIGN(const bool none, document_.is_nothing(c));
      if (none && required) return tree_.nothing();
      if (none) continue;
      if (any_order()) {
        ORRERY_ASSIGN(const uint32_t rule, member_rule(name, c));
        in_any_order.push_back({rule, required, false});
        continue;
      }
      uint32_t key;
      if (notation_ == Notation::json) {
        ORRERY_ASSIGN(const std::string text, dump_json(Value::string(name)));
        key = tree_.literal(text);
      } else {
        ORRERY_ASSIGN(key, key_of(name));
      }
      members.push_back({tree_.sequence({key, colon(), value(c)}), required});
    }
    std::vector<uint32_t> others;
    ORRERY_TRY(other_members(o, properties, &others));
    if (any_order()) {
      for (const uint32_t other : others) in_any_order.push_back({tree_.nodes[other].a, false, true});
      return members_in_any_order(std::move(in_any_order), o.least, o.most);
    }

    const uint32_t cap = std::max({1u, o.least, o.most == kUnbounded ? 0 : o.most});
    const auto n = static_cast<uint32_t>(members.size());
    if (cap > 1 && others.empty() && o.least > n) return tree_.nothing();
    const uint32_t rounds = others.empty() ? std::min(cap, std::max(n, 1u)) : cap;
    if ((uint64_t{n} + 1) * (uint64_t{rounds} + 1) > kMostMachineStates)
      return refuse("minProperties or maxProperties needs too many states");
    Machine machine;
    const uint32_t open = tree_.sequence({tree_.literal("{"), space()}), close = tree_.sequence({space(), tree_.literal("}")});
    const uint32_t separator = comma();
    // State (i, c): before member i, with c members written, at most `rounds` of them told apart.
    const uint32_t base = machine.n_states;
    machine.n_states += (n + 1) * (rounds + 1);
    const auto state = [&](uint32_t i, uint32_t c) { return base + i * (rounds + 1) + c; };
    machine.edges.push_back({Machine::kStart, state(0, 0), open});
    std::vector<bool> used((n + 1) * (rounds + 1), false);
    used[0] = true;
    for (uint32_t i = 0; i <= n; ++i) {
      for (uint32_t c = 0; c <= rounds; ++c) {
        if (!used[i * (rounds + 1) + c]) continue;
        const uint32_t at = state(i, c), next = std::min(c + 1, rounds);
        const bool full = o.most != kUnbounded && c >= o.most;
        if (i == n && c >= o.least) machine.edges.push_back({at, Machine::kFinal, c == 0 ? tree_.literal("}") : close});
        if (i < n && !members[i].required) {
          machine.edges.push_back({at, state(i + 1, c), kNoNode});
          used[(i + 1) * (rounds + 1) + c] = true;
        }
        if (full || (i == n && others.empty())) continue;
        uint32_t from = at;
        if (c > 0) {
          from = machine.state();
          machine.edges.push_back({at, from, separator});
        }
        if (i < n) {
          machine.edges.push_back({from, state(i + 1, next), members[i].node});
          used[(i + 1) * (rounds + 1) + next] = true;
        } else {
          for (const uint32_t other : others) machine.edges.push_back({from, state(n, next), other});
          used[n * (rounds + 1) + next] = true;
        }
      }
    }
    return tree_.machine(std::move(machine));
  }

  bool any_order() const { return options_.any_order && notation_ == Notation::json; }
  // A declared key with its value. Objects share it: choices of a schema mostly have the same members.
  Result<uint32_t> member_rule(const std::string& name, Conjunction c) {
    const auto [at, is_new] = member_rules_.emplace(std::pair(name, c), 0);
    if (is_new) {
      ORRERY_ASSIGN(const std::string key, dump_json(Value::string(name)));
      at->second = own_rule("member", tree_.sequence({tree_.literal(key), colon(), value(c)}));
    }
    return at->second;
  }
  // The same of keys that are not declared.
  Result<uint32_t> members_rule(const CharDfa& keys, Conjunction c) {
    std::vector<uint32_t> words;
    for (const CharDfa::State& s : keys.states) {
      words.push_back(static_cast<uint32_t>(2 * s.edges.size() + s.final));
      for (const CharDfa::Edge& e : s.edges) words.insert(words.end(), {e.first, e.last, e.target});
    }
    const auto [at, is_new] = others_rules_.emplace(std::pair(std::move(words), c), 0);
    if (is_new) {
      ORRERY_ASSIGN(const uint32_t key, key_of(keys));
      at->second = own_rule("members", tree_.sequence({key, colon(), value(c)}));
    }
    return at->second;
  }
  Result<uint32_t> members_in_any_order(std::vector<Members::Member> list, uint32_t least, uint32_t most) {
    const auto repeating = static_cast<uint32_t>(std::count_if(list.begin(), list.end(), [](const auto& m) { return m.repeats; }));
    if (list.size() > Members::kMost)
      return refuse(("an object has more than " + std::to_string(Members::kMost) + " keys, which may come in any order").c_str());
    Members members;
    members.list = std::move(list);
    members.least = least;
    members.most = most;
    if (members.n_required() > most || least > most || (repeating == 0 && least > members.list.size())) return tree_.nothing();
    if (open_rule_ == kNoNode) {
      open_rule_ = own_rule("{", tree_.sequence({tree_.literal("{"), space()}));
      separator_rule_ = own_rule("comma", comma());
      close_rule_ = own_rule("}", tree_.sequence({space(), tree_.literal("}")}));
      close_empty_rule_ = own_rule("}", tree_.literal("}"));
    }
    members.open = open_rule_, members.separator = separator_rule_;
    members.close = close_rule_, members.close_empty = close_empty_rule_;
    return tree_.members(std::move(members));
  }

  // Refuses what other_members() would refuse after all members have been read, with much less memory: other keys need a state for each
  // beginning of a declared key. Names: sorted.
  Status check_others(const ObjectForm& o, const std::vector<std::string>& names) {
    if (!o.classes.empty() || CharDfa::size_of(names) <= CharDfa::kMostStates) return ok_status();
    ORRERY_ASSIGN(const bool none, document_.is_nothing(o.rest));
    return none ? ok_status() : CharDfa::too_large();
  }

  // Keys that are not declared, by what their values must satisfy.
  Status other_members(const ObjectForm& o, const std::vector<std::pair<std::string, Conjunction>>& properties,
                       std::vector<uint32_t>* others) {
    std::vector<std::string> names;
    for (const auto& p : properties) names.push_back(p.first);
    const CharDfa declared = CharDfa::of_texts(names);
    const auto add = [&](const CharDfa& keys, Conjunction c) -> Status {
      if (any_order()) {
        ORRERY_ASSIGN(const uint32_t rule, members_rule(keys, c));
        others->push_back(tree_.rule(rule));
        return ok_status();
      }
      ORRERY_ASSIGN(const uint32_t key, key_of(keys));
      others->push_back(tree_.sequence({key, colon(), value(c)}));
      return ok_status();
    };
    for (const auto& [dfa, c] : o.classes) {
      ORRERY_ASSIGN(const bool none, document_.is_nothing(c));
      if (none) continue;
      ORRERY_ASSIGN(const CharDfa keys, CharDfa::combine(*dfa, declared, CharDfa::Combine::first_only));
      if (!keys.empty()) ORRERY_TRY(add(keys, c));
    }
    ORRERY_ASSIGN(const bool none, document_.is_nothing(o.rest));
    if (none) return ok_status();
    if (names.empty() && o.classes.empty() && notation_ == Notation::json && !any_order()) {
      others->push_back(tree_.sequence({quoted(StringForm()), colon(), value(o.rest)}));
      return ok_status();
    }
    CharDfa keys = CharDfa::all();
    ORRERY_ASSIGN(keys, CharDfa::combine(keys, declared, CharDfa::Combine::first_only));
    for (const auto& [dfa, c] : o.classes) {
      ORRERY_ASSIGN(keys, CharDfa::combine(keys, *dfa, CharDfa::Combine::first_only));
    }
    if (!keys.empty()) ORRERY_TRY(add(keys, o.rest));
    return ok_status();
  }

  Status alternative(const Alternative& a, std::vector<uint32_t>* choices) {
    if (a.values != nullptr) {
      Alternative rest = a;
      rest.values = nullptr;
      for (const Value& v : *a.values) {
        if (pace_.stop()) return error(Code::cancelled, "compiling a schema was cancelled");
        ORRERY_ASSIGN(const bool ok, document_.satisfies(v, rest));
        if (!ok) continue;
        ORRERY_ASSIGN(const uint32_t node, constant(v, 0));
        choices->push_back(node);
      }
      return ok_status();
    }
    if (a.types & kNull) choices->push_back(word(2));
    if (a.types & kFalse) choices->push_back(word(1));
    if (a.types & kTrue) choices->push_back(word(0));
    if (a.types & kNumber) {
      ORRERY_ASSIGN(const uint32_t node, number(a.number));
      choices->push_back(node);
    }
    if (a.types & kString) {
      ORRERY_ASSIGN(const uint32_t node, string(a.string));
      choices->push_back(node);
    }
    if (a.types & kArray) {
      ORRERY_ASSIGN(const uint32_t node, array(a.array));
      choices->push_back(node);
    }
    if (a.types & kObject) {
      ORRERY_ASSIGN(const uint32_t node, object(a.object));
      choices->push_back(node);
    }
    return ok_status();
  }

  // ---- Tagged arguments ----

  // Only declared keys, in the schema's order or by name.
  Status tagged(const ObjectForm& o, std::vector<uint32_t>* choices) {
    const TaggedFormat& format = *options_.tagged->format;
    const auto literal = [&](std::string_view text) { return options_.tagged->literal(&tree_, text); };
    std::vector<std::pair<std::string, Conjunction>> properties = o.properties;
    for (const std::string& name : o.required)
      if (std::none_of(properties.begin(), properties.end(), [&](const auto& p) { return p.first == name; }))
        properties.emplace_back(name, o.of(name));
    if (format.order != KeyOrder::given) sort_keys(&properties);
    Machine machine;
    uint32_t before_first = Machine::kStart, after_some = machine.state();  // without and with arguments so far
    bool may_be_first = true;
    for (const auto& [name, c] : properties) {
      const bool required = std::find(o.required.begin(), o.required.end(), name) != o.required.end();
      ORRERY_ASSIGN(const bool nothing, document_.is_nothing(c));
      if (nothing && required) return ok_status();
      if (nothing) continue;
      if (name.empty() || name.find(format.key_end()) != std::string::npos) return unwritten(name);
      uint32_t node = kNoNode;
      ORRERY_TRY(tagged_value(name, c, literal, &node));
      const uint32_t next_first = machine.state(), next_some = machine.state();
      if (may_be_first) {
        machine.edges.push_back({before_first, next_some, tree_.sequence({literal(format.open), tree_.literal(name), node})});
        if (!required) machine.edges.push_back({before_first, next_first, kNoNode});
      }
      machine.edges.push_back({after_some, next_some, tree_.sequence({literal(format.next_key), tree_.literal(name), node})});
      if (!required) machine.edges.push_back({after_some, next_some, kNoNode});
      may_be_first = may_be_first && !required;
      before_first = next_first, after_some = next_some;
    }
    if (may_be_first) machine.edges.push_back({before_first, Machine::kFinal, literal(format.none)});
    machine.edges.push_back({after_some, Machine::kFinal, literal(format.end)});
    choices->push_back(tree_.machine(std::move(machine)));
    return ok_status();
  }

  Status enter(Notation notation) {
    if (notation == Notation::none) return refuse("lists and objects are not supported in this model's format of calls");
    notation_ = notation;
    return ok_status();
  }

  // From a key's end to its value's end. What may be a string is one.
  template <class Literal>
  Status tagged_value(const std::string& name, Conjunction c, const Literal& literal, uint32_t* node) {
    const TaggedFormat& format = *options_.tagged->format;
    const std::string place = document_.place_of(c);
    ORRERY_ASSIGN(const Form* form, document_.form(c));
    std::vector<uint32_t> strings, others;
    for (const Alternative& a : *form) {
      place_ = place;
      if (a.values != nullptr) {
        for (const Value& v : *a.values) {
          Alternative rest = a;
          rest.values = nullptr;
          ORRERY_ASSIGN(const bool fits, document_.satisfies(v, rest));
          if (!fits) continue;
          if (v.is_string()) {
            if (v.as_string().find(format.string_end) == std::string_view::npos) strings.push_back(tree_.literal(v.as_string()));
          } else if (v.is_bool() || v.is_none()) {
            others.push_back(tree_.literal(format.words[v.is_none() ? 2 : v.as_bool() ? 0 : 1]));
          } else {
            if (v.is_list() || v.is_map()) ORRERY_TRY(enter(v.is_list() ? format.lists : format.objects));
            Result<uint32_t> value = constant(v, 0);
            notation_ = Notation::json;
            if (!value.ok()) return value.take_status();
            others.push_back(*value);
          }
        }
        continue;
      }
      if (a.types & kString) {
        ORRERY_ASSIGN(const std::shared_ptr<const CharDfa> dfa, dfa_of(a.string));
        ORRERY_ASSIGN(CharDfa raw, CharDfa::combine(*dfa, CharDfa::without({format.string_end}), CharDfa::Combine::both));
        if (!raw.empty()) strings.push_back(tree_.rule(own_rule("text", tree_.graph(raw.graph(&tree_)))));
      }
      if (a.types & kTrue) others.push_back(tree_.literal(format.words[0]));
      if (a.types & kFalse) others.push_back(tree_.literal(format.words[1]));
      if (a.types & kNull) others.push_back(tree_.literal(format.words[2]));
      if (!strings.empty()) continue;
      for (const auto& [types, notation] :
           {std::pair(kNumber, Notation::json), std::pair(kArray, format.lists), std::pair(kObject, format.objects)}) {
        Alternative rest = a;
        rest.types &= types;
        if (rest.types == 0) continue;
        ORRERY_TRY(enter(notation));
        Status status = alternative(rest, &others);
        notation_ = Notation::json;
        if (!status.ok()) return status;
      }
    }
    (*options_.tagged->is_string)[name] = !strings.empty();
    const size_t kind = strings.empty() ? 1 : 0;
    *node = tree_.sequence({literal(format.to_value[kind]), tree_.choice(kind == 0 ? strings : others), literal(format.close[kind])});
    return ok_status();
  }

  SchemaDocument& document_;
  const SchemaOptions& options_;
  bool tagged_done_ = false;
  Pace pace_;
  Tree tree_;
  std::string place_;  // of the rule under construction
  struct Todo {
    Conjunction conjunction;
    uint32_t rule;
    Notation notation;
  };
  Notation notation_ = Notation::json;  // of what is emitted now
  CharSet printable_;                   // printable_characters(), once it is needed
  std::map<std::pair<Conjunction, Notation>, uint32_t> rules_;
  std::vector<Todo> todo_;
  CharSet escaped_letters_;
  uint32_t escaped_ = kNoNode;  // a backslash and one of escaped_letters_
  std::map<std::pair<std::string, Conjunction>, uint32_t> member_rules_;
  std::map<std::pair<std::vector<uint32_t>, Conjunction>, uint32_t> others_rules_;
  uint32_t open_rule_ = kNoNode, separator_rule_ = kNoNode, close_rule_ = kNoNode, close_empty_rule_ = kNoNode;
  uint32_t space_rule_ = kNoNode, string_rule_ = kNoNode, number_rule_ = kNoNode, integer_rule_ = kNoNode;
};

}  // namespace

bool TaggedFormat::before(std::string_view a, std::string_view b) const {
  if (order == KeyOrder::bytes) return a < b;
  return unicode::lower(a) < unicode::lower(b);
}

std::string_view TaggedFormat::key_end() const {
  const std::string_view a = to_value[0], b = to_value[1];
  size_t same = 0;
  while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
  return a.substr(0, same);
}

Result<Tree> schema_tree(std::string_view source, const SchemaOptions& options, const CompileLimits& limits,
                         std::vector<std::string>* notices) {
  JsonLimits json;
  json.max_depth = limits.depth;
  json.max_bytes = limits.source_bytes;
  json.cancel = limits.cancel;
  ORRERY_ASSIGN(Value root, parse_json(source, json));
  SchemaDocument document(std::move(root), limits, notices, options.formats);
  ORRERY_TRY(document.index());
  return SchemaEmitter(&document, options, limits).run();
}

}  // namespace orrery::text::grammar
