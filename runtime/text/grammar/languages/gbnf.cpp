#include "runtime/text/grammar/languages/gbnf.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "runtime/text/pace.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::text::grammar {
namespace {

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

class GbnfParser {
 public:
  GbnfParser(std::string_view source, const GbnfOptions& options, const CompileLimits& limits)
      : text_(source), options_(options), limits_(limits), pace_(limits.cancel) {}

  Result<Tree> run() {
    if (text_.size() > limits_.source_bytes)
      return memory_error(Code::unsupported, text_.size(), limits_.source_bytes, "a grammar of %zu bytes; at most %zu are read",
                          text_.size(), limits_.source_bytes);
    skip_space(true);
    while (at_ < text_.size()) ORRERY_TRY(rule());
    for (const auto& [name, used] : rules_) {
      if (tree_.rules[used.index].body != kNoNode || used.first_use == std::string_view::npos) continue;
      first_missing_ = std::min(first_missing_, used.first_use);
    }
    if (first_missing_ != std::string_view::npos) {
      size_t end = first_missing_;
      while (end < text_.size() && is_name(text_[end])) ++end;
      return fail(first_missing_, "rule %s is not defined", text_.substr(first_missing_, end - first_missing_));
    }
    const auto root = rules_.find(std::string(options_.root));
    if (root == rules_.end() || tree_.rules[root->second.index].body == kNoNode)
      return fail(text_.size(), "the grammar has no rule %s", options_.root);
    tree_.root = root->second.index;
    return std::move(tree_);
  }

 private:
  struct Name {
    uint32_t index = 0;
    size_t first_use = std::string_view::npos;
    std::string_view body;  // its text, once defined
  };
  struct Group {
    std::vector<uint32_t> choices, sequence;
    size_t open;  // where its parenthesis stands
  };

  Status fail(size_t at, const char* what, std::string_view name = {}, Code code = Code::invalid_argument) const {
    const size_t line_start = at == 0 ? 0 : text_.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    const std::string shown(name.substr(0, 100));
    Status status = error(code, "%s", what);
    std::string& message = status.detail().message;
    if (const size_t mark = message.find("%s"); mark != std::string::npos) message.replace(mark, 2, shown);
    status.detail().offset = at;
    status.detail().line = static_cast<uint32_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n')) + 1;
    status.detail().column = static_cast<uint32_t>(at - line_start) + 1;
    message =
        "grammar, line " + std::to_string(status.detail().line) + ", column " + std::to_string(status.detail().column) + ": " + message;
    return status;
  }

  void skip_space(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        break;
      }
    }
  }

  std::string_view name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  Name& named(std::string_view text, size_t at) {
    const auto [found, is_new] = rules_.try_emplace(std::string(text));
    if (is_new) {
      const size_t line_start = at == 0 ? 0 : text_.rfind('\n', at - 1) + 1;
      while (counted_to_ < at) lines_ += text_[counted_to_++] == '\n';
      found->second.index = tree_.add_rule(std::string(text), lines_, static_cast<uint32_t>(at - line_start) + 1);
    }
    return found->second;
  }

  Status rule() {
    const size_t begin = at_;
    const std::string_view rule_name = name();
    if (rule_name.empty()) return fail(at_, "expected the name of a rule");
    Name& entry = named(rule_name, begin);
    skip_space(false);
    if (text_.substr(at_, 3) != "::=") return fail(at_, "expected ::= after the name %s", rule_name);
    at_ += 3;
    skip_space(true);
    const size_t body_begin = at_;
    ORRERY_ASSIGN(const uint32_t body, alternatives());
    std::string_view body_text = text_.substr(body_begin, at_ - body_begin);
    if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r')
      return fail(at_, "expected the end of the line after rule %s", rule_name);
    skip_space(true);
    Name& again = rules_.find(std::string(rule_name))->second;
    (void)entry;
    while (!body_text.empty() && (body_text.back() == ' ' || body_text.back() == '\t')) body_text.remove_suffix(1);
    if (tree_.rules[again.index].body != kNoNode) {
      if (again.body != body_text) return fail(begin, "rule %s is defined twice", rule_name);
      return ok_status();
    }
    again.body = body_text;
    tree_.rules[again.index].body = body;
    return ok_status();
  }

  Result<uint32_t> alternatives() {
    std::vector<Group> groups(1);
    const auto end_choice = [&] {
      Group& g = groups.back();
      g.choices.push_back(tree_.sequence(g.sequence));
      g.sequence.clear();
    };
    while (at_ < text_.size()) {
      if (pace_.stop()) return error(Code::cancelled, "reading a grammar was cancelled");
      const bool nested = groups.size() > 1;
      const size_t begin = at_;
      const char c = text_[at_];
      if (c == '"') {
        ORRERY_ASSIGN(const uint32_t node, literal());
        groups.back().sequence.push_back(node);
      } else if (c == '[') {
        ORRERY_ASSIGN(const uint32_t node, char_class());
        groups.back().sequence.push_back(node);
      } else if (c == '.') {
        ++at_;
        groups.back().sequence.push_back(tree_.chars(CharSet::all()));
      } else if (c == '<' || c == '!') {
        ORRERY_ASSIGN(const uint32_t node, token());
        groups.back().sequence.push_back(node);
      } else if (c == '(') {
        if (groups.size() > limits_.depth) return fail(at_, "groups are nested too deeply", {}, Code::unsupported);
        ++at_;
        groups.emplace_back();
        groups.back().open = begin;
        skip_space(true);
        continue;
      } else if (c == ')') {
        if (!nested) return fail(at_, "a parenthesis closes no group");
        ++at_;
        end_choice();
        const uint32_t node = tree_.choice(groups.back().choices);
        groups.pop_back();
        groups.back().sequence.push_back(node);
        skip_space(groups.size() > 1);
        continue;
      } else if (c == '|') {
        ++at_;
        end_choice();
        skip_space(true);
        continue;
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (groups.back().sequence.empty()) return fail(at_, "a repetition follows nothing that it could repeat");
        uint32_t least = c == '+', most = c == '?' ? 1 : kUnbounded;
        ++at_;
        if (c == '{') ORRERY_TRY(bounds(&least, &most));
        uint32_t& last = groups.back().sequence.back();
        last = tree_.repeat(last, least, most);
      } else if (is_name(c)) {
        const std::string_view rule_name = name();
        Name& entry = named(rule_name, begin);
        entry.first_use = std::min(entry.first_use, begin);
        groups.back().sequence.push_back(tree_.rule(entry.index));
      } else {
        break;
      }
      skip_space(nested);
    }
    if (groups.size() > 1) return fail(groups.back().open, "this parenthesis is not closed");
    end_choice();
    return tree_.choice(groups.back().choices);
  }

  Result<uint32_t> number() {
    const size_t begin = at_;
    uint64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + static_cast<uint64_t>(text_[at_++] - '0');
      if (value > limits_.repeat) return fail(begin, "the number is too large", {}, Code::unsupported);
    }
    if (at_ == begin) return fail(at_, "expected a number");
    return static_cast<uint32_t>(value);
  }

  Status bounds(uint32_t* least, uint32_t* most) {
    const size_t begin = at_;
    skip_space(false);
    ORRERY_ASSIGN(*least, number());
    *most = *least;
    skip_space(false);
    if (at_ < text_.size() && text_[at_] == ',') {
      ++at_;
      skip_space(false);
      *most = kUnbounded;
      if (at_ < text_.size() && text_[at_] != '}') {
        ORRERY_ASSIGN(*most, number());
        skip_space(false);
      }
    }
    if (at_ >= text_.size() || text_[at_] != '}') return fail(at_, "expected } at the end of a repetition");
    ++at_;
    if (*most < *least) return fail(begin, "the repetition's upper bound is below its lower bound");
    return ok_status();
  }

  // One character of a literal or of a class, escaped or not.
  Result<uint32_t> character() {
    const size_t begin = at_;
    if (text_[at_] != '\\') {
      const CodePoint c = utf8_decode(text_.data() + at_, text_.data() + text_.size());
      if (c.value == kInvalidCodePoint) return fail(at_, "a byte that is not UTF-8");
      at_ += c.length;
      return uint32_t{c.value};
    }
    ++at_;
    if (at_ >= text_.size()) return fail(begin, "the grammar ends within an escape");
    const char c = text_[at_++];
    switch (c) {
      case 't': return uint32_t{'\t'};
      case 'r': return uint32_t{'\r'};
      case 'n': return uint32_t{'\n'};
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-': return static_cast<uint32_t>(c);
      default: break;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) return fail(begin, "unknown escape \\%s", std::string_view(&text_[begin + 1], 1));
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const int digit = at_ < text_.size() ? hex_digit(text_[at_]) : -1;
      if (digit < 0 || value > 0xFFFFFFF) return fail(begin, "an escape needs its exact number of hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return fail(begin, "an escape that is no character");
    return value;
  }

  Result<uint32_t> literal() {
    const size_t begin = at_++;
    std::string bytes;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (pace_.stop()) return error(Code::cancelled, "reading a grammar was cancelled");
      ORRERY_ASSIGN(const uint32_t c, character());
      utf8_append(c, &bytes);
    }
    if (at_ >= text_.size()) return fail(begin, "this literal is not closed");
    ++at_;
    return tree_.literal(bytes);
  }

  Result<uint32_t> char_class() {
    const size_t begin = at_++;
    const bool negated = at_ < text_.size() && text_[at_] == '^';
    if (negated) ++at_;
    CharSet set;
    bool any = false;
    while (at_ < text_.size() && text_[at_] != ']') {
      if (pace_.stop()) return error(Code::cancelled, "reading a grammar was cancelled");
      const size_t from = at_;
      ORRERY_ASSIGN(const uint32_t first, character());
      uint32_t last = first;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        ORRERY_ASSIGN(last, character());
        if (last < first) return fail(from, "a range of characters that ends before it begins");
      }
      set.add(first, last);
      any = true;
    }
    if (at_ >= text_.size()) return fail(begin, "this class is not closed");
    ++at_;
    if (!any && !negated) return fail(begin, "a class without characters");
    return tree_.chars(negated ? set.complement() : std::move(set));
  }

  Result<uint32_t> token() {
    const size_t begin = at_;
    TokenSet set;
    if (text_[at_] == '!') {
      set.negated = true;
      ++at_;
    }
    if (at_ >= text_.size() || text_[at_] != '<') return fail(begin, "expected < after !");
    const size_t end = text_.find('>', at_);
    if (end == std::string_view::npos || text_.substr(at_, end - at_).find('\n') != std::string_view::npos)
      return fail(begin, "this token is not closed");
    const std::string_view shown = text_.substr(at_, end + 1 - at_);
    if (shown.size() > 4 && shown[1] == '[') {
      at_ += 2;
      ORRERY_ASSIGN(const uint32_t id, number());
      if (text_.substr(at_, 2) != "]>") return fail(at_, "expected ]> after a token's number");
      at_ += 2;
      if (options_.n_vocab != 0 && id >= options_.n_vocab) return fail(begin, "the vocabulary has no token %s", shown);
      set.ids.push_back(static_cast<int32_t>(id));
      return tree_.tokens(std::move(set));
    }
    const int32_t id = options_.find_token ? options_.find_token(shown) : -1;
    if (id < 0) return fail(begin, "the vocabulary has no token %s", shown);
    at_ = end + 1;
    set.ids.push_back(id);
    return tree_.tokens(std::move(set));
  }

  const std::string_view text_;
  const GbnfOptions& options_;
  const CompileLimits& limits_;
  Pace pace_;
  Tree tree_;
  size_t at_ = 0, first_missing_ = std::string_view::npos;
  uint32_t lines_ = 1;
  size_t counted_to_ = 0;
  std::unordered_map<std::string, Name> rules_;
};

}  // namespace

Result<Tree> parse_gbnf(std::string_view source, const GbnfOptions& options, const CompileLimits& limits) {
  return GbnfParser(source, options, limits).run();
}

}  // namespace orrery::text::grammar
