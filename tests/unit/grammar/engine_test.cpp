// The engine of grammars against a recogniser that shares no code with it: a table of which parts of a text each part of a grammar derives,
// filled until nothing changes. It knows neither automata nor stacks, so left recursion and ambiguity are nothing special to it.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "runtime/text/grammar/languages/gbnf.h"
#include "runtime/text/grammar/run/matcher.h"

namespace orrery::text::grammar::engine_test {
namespace {

// ---- The oracle ----

struct Part {
  enum Type { text, one_of, all_of, any_of, times, rule } type;
  std::string chars;  // text, one_of
  std::vector<int> parts;
  int least = 0, most = 0;  // times; most -1: any number
  int index = 0;            // rule
};

struct Oracle {
  std::vector<Part> parts;
  std::vector<int> rules;  // bodies; rules[0] is the root

  // reach[p][i]: bit j: part p derives text[i, j). begin[p][i]: some text of part p begins with text[i, end).
  std::vector<std::vector<uint32_t>> reach;
  std::vector<std::vector<bool>> begin;
  std::vector<bool> productive;

  void find_productive() {
    productive.assign(parts.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t p = 0; p < parts.size(); ++p) {
        const Part& part = parts[p];
        bool is = part.type == Part::text || part.type == Part::one_of || (part.type == Part::times && part.least == 0);
        if (part.type == Part::all_of) {
          is = true;
          for (const int c : part.parts) is = is && productive[size_t(c)];
        }
        if (part.type == Part::any_of)
          for (const int c : part.parts) is = is || productive[size_t(c)];
        if (part.type == Part::times) is = is || productive[size_t(part.parts[0])];
        if (part.type == Part::rule) is = productive[size_t(rules[size_t(part.index)])];
        if (is && !productive[p]) productive[p] = changed = true;
      }
    }
  }

  void read(const std::string& text) {
    const int n = int(text.size());
    reach.assign(parts.size(), std::vector<uint32_t>(size_t(n) + 1, 0));
    begin.assign(parts.size(), std::vector<bool>(size_t(n) + 1, false));
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t p = 0; p < parts.size(); ++p) {
        for (int i = 0; i <= n; ++i) {
          uint32_t to = 0;
          bool starts = false;
          one(p, text, i, &to, &starts);
          starts = starts || (to >> n & 1);
          if (to != reach[p][size_t(i)] || starts != begin[p][size_t(i)]) {
            reach[p][size_t(i)] |= to;
            begin[p][size_t(i)] = begin[p][size_t(i)] || starts;
            changed = true;
          }
        }
      }
    }
  }

  void one(size_t p, const std::string& text, int i, uint32_t* to, bool* starts) const {
    const Part& part = parts[p];
    const int n = int(text.size());
    switch (part.type) {
      case Part::text: {
        const std::string rest = text.substr(size_t(i));
        if (rest.substr(0, part.chars.size()) == part.chars) *to |= 1u << (i + int(part.chars.size()));
        if (part.chars.substr(0, rest.size()) == rest) *starts = true;
        return;
      }
      case Part::one_of:
        if (i == n) *starts = true;
        if (i < n && part.chars.find(text[size_t(i)]) != std::string::npos) *to |= 1u << (i + 1);
        return;
      case Part::all_of: {
        if (!productive[p]) return;
        uint32_t at = 1u << i;
        for (const int c : part.parts) at = next(size_t(c), n, at, starts);
        *to |= at;
        return;
      }
      case Part::any_of:
        for (const int c : part.parts) {
          *to |= reach[size_t(c)][size_t(i)];
          if (begin[size_t(c)][size_t(i)]) *starts = true;
        }
        return;
      case Part::times: {
        uint32_t at = 1u << i;
        if (part.least == 0) *to |= at;
        for (int k = 1; k <= (part.most < 0 ? part.least + n + 2 : part.most) && at != 0; ++k) {
          at = productive[size_t(part.parts[0])] ? next(size_t(part.parts[0]), n, at, starts) : 0;
          if (k >= part.least) *to |= at;
        }
        return;
      }
      case Part::rule: {
        const size_t body = size_t(rules[size_t(part.index)]);
        *to |= reach[body][size_t(i)];
        if (begin[body][size_t(i)]) *starts = true;
        return;
      }
    }
  }
  uint32_t next(size_t c, int n, uint32_t at, bool* starts) const {
    uint32_t out = 0;
    for (int i = 0; i <= n; ++i) {
      if (!(at >> i & 1)) continue;
      out |= reach[c][size_t(i)];
      if (begin[c][size_t(i)]) *starts = true;
    }
    return out;
  }
  bool member(const std::string& text) {
    read(text);
    return reach[size_t(rules[0])][0] >> text.size() & 1;
  }
  bool prefix() const { return begin[size_t(rules[0])][0]; }  // after read()

  std::string source(int p) const {
    const Part& part = parts[size_t(p)];
    std::string out;
    switch (part.type) {
      case Part::text: return "\"" + part.chars + "\"";
      case Part::one_of: return "[" + part.chars + "]";
      case Part::all_of:
        for (const int c : part.parts) out += source(c) + " ";
        return "(" + out + ")";
      case Part::any_of:
        for (const int c : part.parts) out += (out.empty() ? "" : " | ") + source(c);
        return "(" + out + ")";
      case Part::times:
        out = source(part.parts[0]);
        if (part.least == 0 && part.most == -1) return out + "*";
        if (part.least == 1 && part.most == -1) return out + "+";
        if (part.least == 0 && part.most == 1) return out + "?";
        return out + "{" + std::to_string(part.least) + "," + (part.most < 0 ? "" : std::to_string(part.most)) + "}";
      case Part::rule: return part.index == 0 ? "root" : "r" + std::to_string(part.index);
    }
    return out;
  }
  std::string source() const {
    std::string out;
    for (size_t r = 0; r < rules.size(); ++r) out += (r == 0 ? "root" : "r" + std::to_string(r)) + " ::= " + source(rules[r]) + "\n";
    return out;
  }
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int below(int n) { return int(engine_() % uint32_t(n)); }

  // Any grammar at all: left-recursive, nullable, ambiguous, with rules that derive nothing.
  Oracle grammar() {
    Oracle g;
    const int n = 1 + below(5);
    for (int r = 0; r < n; ++r) g.rules.push_back(choice(&g, n, 0));
    g.find_productive();
    return g;
  }

 private:
  int add(Oracle* g, Part part) {
    g->parts.push_back(std::move(part));
    return int(g->parts.size()) - 1;
  }
  int choice(Oracle* g, int n, int depth) {
    Part part{Part::any_of, "", {}, 0, 0, 0};
    const int k = 1 + below(3);
    for (int i = 0; i < k; ++i) part.parts.push_back(sequence(g, n, depth));
    return add(g, part);
  }
  int sequence(Oracle* g, int n, int depth) {
    Part part{Part::all_of, "", {}, 0, 0, 0};
    const int k = below(4);
    for (int i = 0; i < k; ++i) {
      int item;
      const int what = below(10);
      if (what < 4 || depth > 2) {
        std::string text;
        for (int c = below(8) == 0 ? 0 : 1 + below(2); c > 0; --c) text += char('a' + below(3));
        item = add(g, {Part::text, text, {}, 0, 0, 0});
      } else if (what < 5) {
        item = add(g, {Part::one_of, below(2) ? "ab" : "bc", {}, 0, 0, 0});
      } else if (what < 8) {
        item = add(g, {Part::rule, "", {}, 0, 0, below(n)});
      } else {
        item = choice(g, n, depth + 1);
      }
      const int often = below(12);
      if (often == 0) item = add(g, {Part::times, "", {item}, 0, -1, 0});
      if (often == 1) item = add(g, {Part::times, "", {item}, 1, -1, 0});
      if (often == 2) item = add(g, {Part::times, "", {item}, 0, 1, 0});
      if (often == 3) {
        const int least = below(3);
        item = add(g, {Part::times, "", {item}, least, below(4) == 0 ? -1 : std::max(1, least + below(3)), 0});
      }
      if (often == 4) item = add(g, {Part::times, "", {item}, below(4), 40 + below(60), 0});  // long enough to be counted
      part.parts.push_back(item);
    }
    return add(g, part);
  }
  std::mt19937 engine_;
};

Result<Network> network_of(const std::string& source) {
  CompileLimits limits;
  ORRERY_ASSIGN(const Tree tree, parse_gbnf(source, {}, limits));
  return compile(tree, limits);
}

TEST(GrammarEngine, TakesWhatTheOracleTakes) {
  size_t texts = 0, members = 0, empty = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    Oracle oracle = Random(seed).grammar();
    const std::string source = oracle.source();
    auto network = network_of(source);
    if (!oracle.productive[size_t(oracle.rules[0])]) {
      EXPECT_FALSE(network.ok()) << source;
      ++empty;
      continue;
    }
    if (!network.ok() && network.status().code() == Code::unsupported) {
      EXPECT_NE(std::string(network.status().message()).find("begins with itself through a counted"), std::string::npos)
          << network.status().message();
      continue;
    }
    ASSERT_TRUE(network.ok()) << network.status().message() << "\n" << source;
    std::vector<std::string> todo = {""};
    for (size_t k = 0; k < todo.size(); ++k) {
      const std::string text = todo[k];
      const bool is_member = oracle.member(text), is_prefix = oracle.prefix();
      bool complete;
      const size_t read = Matcher::match(*network, text, &complete);
      ASSERT_EQ(read == text.size(), is_prefix) << seed << " '" << text << "'\n" << source;
      ASSERT_EQ(complete, is_member) << seed << " '" << text << "'\n" << source;
      ++texts;
      members += is_member;
      if (is_prefix && text.size() < 5)
        for (const char c : {'a', 'b', 'c'}) todo.push_back(text + c);
    }
  }
  EXPECT_GT(texts, 2000u);
  EXPECT_GT(members, 500u);
  EXPECT_GT(empty, 5u);
}

// Every token of a vocabulary of 1 to 5 bytes, at every step of random answers. The token tree has equal texts and texts within texts.
TEST(GrammarEngine, MasksAllowWhatTheOracleAllows) {
  size_t masks = 0, allowed_tokens = 0, counted = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    Random random(seed + 100000);
    Oracle oracle = random.grammar();
    const std::string source = oracle.source();
    auto network = network_of(source);
    if (!network.ok()) continue;
    for (const NetworkRule& rule : network->rules) counted += rule.counted;
    std::vector<std::string> tokens;
    for (const char c : {'a', 'b', 'c'}) tokens.push_back(std::string(1, c));
    for (int i = 0; i < 30; ++i) {
      std::string token;
      for (int n = random.below(5); n >= 0; --n) token += char('a' + random.below(3));
      tokens.push_back(token);
    }
    tokens.push_back("");  // the end
    const int32_t end = int32_t(tokens.size()) - 1;
    auto trie = TokenTrie::make(std::vector<std::string_view>(tokens.begin(), tokens.end()), {end});
    ASSERT_TRUE(trie.ok());
    auto shared = std::make_shared<MatcherShared>(std::move(network).value(), *trie, seed % 3 == 0 ? size_t{1} << 12 : size_t{8} << 20);
    for (int answer = 0; answer < 3; ++answer) {
      Matcher matcher(shared);
      std::string text;
      std::vector<std::string> taken_texts;
      for (int step = 0; step < 20 && text.size() < 14; ++step) {
        auto mask = matcher.mask();
        ASSERT_TRUE(mask.ok()) << mask.status().message() << "\n" << source;
        const std::vector<uint32_t> words(*mask, *mask + matcher.n_words());
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < end; ++id) {
          oracle.read(text + tokens[size_t(id)]);
          const bool bit = words[size_t(id) / 32] >> (id % 32) & 1;
          ASSERT_EQ(bit, oracle.prefix()) << seed << " '" << text << "' + '" << tokens[size_t(id)] << "'\n" << source;
          if (bit) allowed.push_back(id);
        }
        ASSERT_EQ(bool(words[size_t(end) / 32] >> (end % 32) & 1), oracle.member(text)) << source;
        ++masks;
        allowed_tokens += allowed.size();
        // A refused token changes nothing.
        for (int32_t id = 0; id < end; ++id) {
          if (words[size_t(id) / 32] >> (id % 32) & 1) continue;
          auto refused = matcher.accept(id);
          ASSERT_TRUE(refused.ok() && !*refused);
          break;
        }
        if (allowed.empty()) break;
        const int32_t token = allowed[size_t(random.below(int(allowed.size())))];
        auto taken = matcher.accept(token);
        ASSERT_TRUE(taken.ok() && *taken);
        text += tokens[size_t(token)];
        taken_texts.push_back(tokens[size_t(token)]);
        if (random.below(3) == 0) {
          const size_t n = size_t(random.below(int(matcher.n_tokens())));
          matcher.rewind(n);
          ASSERT_EQ(matcher.n_tokens(), n);
          taken_texts.resize(n);
          text.clear();
          for (const std::string& t : taken_texts) text += t;
        }
      }
    }
  }
  EXPECT_GT(masks, 500u);
  EXPECT_GT(allowed_tokens, 1500u);
  EXPECT_GT(counted, 40u);
}

// Rewinding, and a cache that holds nothing, change no mask.
TEST(GrammarEngine, RewindingAndForgettingChangeNothing) {
  const std::string source =
      "root ::= \"{\" (pair (\",\" pair)*)? \"}\"\n"
      "pair ::= string \":\" value\n"
      "string ::= \"\\\"\" [a-z]{0,90} \"\\\"\"\n"
      "value ::= string | root | \"[\" (value (\",\" value)*)? \"]\" | [0-9]{1,70}\n";
  std::vector<std::string> tokens;
  for (int c = 0x20; c < 0x7F; ++c) tokens.push_back(std::string(1, char(c)));
  for (const char* t :
       {"{\"", "\":", "\",", "\":\"", "ab", "abc", "]]", "}}", "}]", "12", "123", ",\"", "[[", "[\"", "\"]", "\"}", "[1", "\":[", ":1}"})
    tokens.push_back(t);
  tokens.push_back("");
  const int32_t end = int32_t(tokens.size()) - 1;
  auto trie = TokenTrie::make(std::vector<std::string_view>(tokens.begin(), tokens.end()), {end});
  ASSERT_TRUE(trie.ok());
  auto small = std::make_shared<MatcherShared>(network_of(source).value(), *trie, 1);
  auto large = std::make_shared<MatcherShared>(network_of(source).value(), *trie, 64 << 20);
  std::mt19937 random(5);
  for (int answer = 0; answer < 20; ++answer) {
    Matcher a(small), b(large);
    std::vector<std::vector<uint32_t>> masks;
    std::vector<int32_t> taken;
    for (int i = 0; i < 60; ++i) {
      auto x = a.mask(), y = b.mask();
      ASSERT_TRUE(x.ok() && y.ok());
      const std::vector<uint32_t> words(*y, *y + b.n_words());
      ASSERT_TRUE(std::equal(words.begin(), words.end(), *x));
      if (masks.size() > taken.size()) {
        ASSERT_EQ(words, masks[taken.size()]);
      } else {
        masks.push_back(words);
      }
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < end; ++id)
        if (words[size_t(id) / 32] >> (id % 32) & 1) allowed.push_back(id);
      if (allowed.empty()) break;
      if (random() % 5 == 0) {
        const size_t n = taken.size() - std::min<size_t>(taken.size(), random() % 6);
        a.rewind(n);
        b.rewind(n);
        masks.resize(n + 1);
        taken.resize(n);
        continue;
      }
      taken.push_back(allowed[random() % allowed.size()]);
      auto p = a.accept(taken.back()), q = b.accept(taken.back());
      ASSERT_TRUE(p.ok() && *p && q.ok() && *q);
      if (masks.size() > taken.size()) masks.resize(taken.size());
    }
  }
}

}  // namespace
}  // namespace orrery::text::grammar::engine_test
