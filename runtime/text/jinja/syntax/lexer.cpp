// One pass over the source, after unifying newlines. In root text, the lexer searches for the next tag. In a tag, it
// reads tokens until the end mark, which counts only while brackets are balanced.
#include "runtime/text/jinja/syntax/lexer.h"

#include <algorithm>

#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::jinja {

namespace {

constexpr size_t kMaxTokens = 500'000;

struct Operator {
  std::string_view text;
  TokenType type;
};
// Longer operators first.
constexpr Operator kOperators[] = {
    {"//", TokenType::floordiv}, {"**", TokenType::pow},   {"==", TokenType::eq},      {"!=", TokenType::ne},      {">=", TokenType::ge},
    {"<=", TokenType::le},       {"+", TokenType::add},    {"-", TokenType::sub},      {"/", TokenType::div},      {"*", TokenType::mul},
    {"%", TokenType::mod},       {"~", TokenType::tilde},  {"[", TokenType::lbracket}, {"]", TokenType::rbracket}, {"(", TokenType::lparen},
    {")", TokenType::rparen},    {"{", TokenType::lbrace}, {"}", TokenType::rbrace},   {">", TokenType::gt},       {"<", TokenType::lt},
    {"=", TokenType::assign},    {".", TokenType::dot},    {":", TokenType::colon},    {"|", TokenType::pipe},     {",", TokenType::comma},
    {";", TokenType::semicolon},
};

class Lexer {
 public:
  explicit Lexer(std::string source) : s_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (pos_ < s_.size()) {
      if (!root()) return std::move(status_);
      if (tokens_.size() > kMaxTokens) return template_error(position(pos_), "the template is too long");
    }
    add(TokenType::end, s_.size(), {});
    return std::move(tokens_);
  }

 private:
  // Positions are requested in rising order, so each line is counted once.
  Position position(size_t at) {
    if (at < counted_) {  // an error at an earlier place
      counted_ = 0;
      where_ = {};
    }
    while (counted_ < at) {
      if (s_[counted_] == '\n') {
        ++where_.line;
        where_.column = 1;
        ++counted_;
      } else {
        counted_ += unicode::sequence_length(s_, counted_);
        ++where_.column;
      }
    }
    return where_;
  }
  bool fail(size_t at, const std::string& message) {
    status_ = template_error(position(at), message);
    return false;
  }
  void add(TokenType type, size_t at, std::string text) { tokens_.push_back({type, position(at), std::move(text)}); }

  bool starts(size_t at, std::string_view what) const { return s_.compare(at, what.size(), what) == 0; }
  size_t skip_space(size_t at) const {
    while (at < s_.size() && unicode::is(unicode::decode(s_, at), unicode::kSpace)) at += unicode::sequence_length(s_, at);
    return at;
  }
  bool is_space_only(size_t from, size_t to) const { return from < to && skip_space(from) >= to; }
  size_t rstrip(size_t from, size_t to) const {
    size_t end = from;
    for (size_t i = from; i < to; i += unicode::sequence_length(s_, i))
      if (!unicode::is(unicode::decode(s_, i), unicode::kSpace)) end = i + unicode::sequence_length(s_, i);
    return end;
  }

  // Adds the text up to `tag`, without the blanks that the tag's sign or lstrip_blocks removes.
  void add_data(size_t from, size_t tag, char sign, bool is_variable) {
    size_t to = tag;
    if (sign == '-') {
      to = rstrip(from, tag);
    } else if (sign != '+' && !is_variable) {
      size_t line = tag;
      while (line > from && s_[line - 1] != '\n') --line;
      if ((line > from || line_starting_) && is_space_only(line, tag)) to = line;
    }
    if (to > from) add(TokenType::data, from, s_.substr(from, to - from));
  }
  void moved_to(size_t pos) {
    line_starting_ = pos > 0 && s_[pos - 1] == '\n';
    pos_ = pos;
  }

  // The end of `%}` with the white space that it removes, from after an optional sign. npos if no block ends here.
  size_t block_end(size_t at) const {
    if (starts(at, "-%}")) return skip_space(at + 3);
    if (starts(at, "+%}")) return at + 3;
    if (starts(at, "%}")) return at + 2 + (at + 2 < s_.size() && s_[at + 2] == '\n' ? 1 : 0);
    return std::string::npos;
  }

  bool root() {
    size_t tag = pos_;
    while (true) {
      tag = s_.find('{', tag);
      if (tag == std::string::npos) {
        add(TokenType::data, pos_, s_.substr(pos_));
        pos_ = s_.size();
        return true;
      }
      if (tag + 1 < s_.size() && (s_[tag + 1] == '%' || s_[tag + 1] == '{' || s_[tag + 1] == '#')) break;
      ++tag;
    }
    const char kind = s_[tag + 1];
    size_t inside = tag + 2;
    char sign = 0;
    if (inside < s_.size() && (s_[inside] == '-' || s_[inside] == '+')) sign = s_[inside++];
    add_data(pos_, tag, sign, kind == '{');
    if (kind == '#') return comment(tag, inside);
    if (kind == '%') {
      const size_t raw = raw_begin(inside);
      if (raw != std::string::npos) return raw_block(tag, raw);
    }
    add(kind == '{' ? TokenType::variable_begin : TokenType::block_begin, tag, {});
    moved_to(inside);
    return inside_tag(tag, kind == '{');
  }

  bool comment(size_t tag, size_t inside) {
    const size_t close = s_.find("#}", inside);
    if (close == std::string::npos) return fail(tag, "the comment does not end");
    size_t end = close + 2;
    const char sign = close > inside ? s_[close - 1] : '\0';
    if (sign == '-') end = skip_space(end);
    else if (sign != '+' && end < s_.size() && s_[end] == '\n') ++end;
    moved_to(end);
    return true;
  }

  size_t raw_begin(size_t inside) const {
    size_t at = skip_space(inside);
    if (!starts(at, "raw")) return std::string::npos;
    at = skip_space(at + 3);
    if (starts(at, "-%}")) return skip_space(at + 3);
    if (starts(at, "%}")) return at + 2;
    return std::string::npos;
  }

  bool raw_block(size_t tag, size_t from) {
    moved_to(from);
    for (size_t open = s_.find("{%", from); open != std::string::npos; open = s_.find("{%", open + 1)) {
      size_t at = open + 2;
      char sign = 0;
      if (at < s_.size() && (s_[at] == '-' || s_[at] == '+')) sign = s_[at++];
      at = skip_space(at);
      if (!starts(at, "endraw")) continue;
      const size_t end = block_end(skip_space(at + 6));
      if (end == std::string::npos) continue;
      add_data(from, open, sign, false);
      moved_to(end);
      return true;
    }
    return fail(tag, "the raw block does not end");
  }

  bool inside_tag(size_t tag, bool is_variable) {
    std::vector<char> open;
    while (pos_ < s_.size()) {
      if (open.empty()) {
        size_t end = std::string::npos;
        if (!is_variable) end = block_end(pos_);
        else if (starts(pos_, "-}}")) end = skip_space(pos_ + 3);
        else if (starts(pos_, "}}")) end = pos_ + 2;
        if (end != std::string::npos) {
          add(is_variable ? TokenType::variable_end : TokenType::block_end, pos_, {});
          moved_to(end);
          return true;
        }
      }
      const size_t after_space = skip_space(pos_);
      if (after_space != pos_) {
        pos_ = after_space;
        continue;
      }
      const char c = s_[pos_];
      if (c >= '0' && c <= '9') number();
      else if (c == '\'' || c == '"') {
        if (!string()) return false;
      } else if (c == '_' || unicode::is(unicode::decode(s_, pos_), unicode::kWord)) {
        if (!name()) return false;
      } else if (!op(&open)) {
        return false;
      }
    }
    return fail(tag, is_variable ? "'{{' is never closed" : "'{%' is never closed");
  }

  bool digit(size_t at) const { return at < s_.size() && s_[at] >= '0' && s_[at] <= '9'; }
  // Digits with single "_" between them, from `at`; returns the end.
  size_t digits(size_t at) const {
    while (digit(at) || (at < s_.size() && s_[at] == '_' && digit(at + 1))) ++at;
    return at;
  }

  void number() {
    const size_t start = pos_;
    const auto finish = [&](TokenType type, size_t end) {
      std::string text = s_.substr(start, end - start);
      text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
      add(type, start, std::move(text));
      pos_ = end;
    };
    const size_t whole = digits(start);
    if (start == 0 || s_[start - 1] != '.') {
      size_t end = whole;
      if (end < s_.size() && s_[end] == '.' && digit(end + 1)) end = digits(end + 1);
      size_t exponent = end;
      if (exponent < s_.size() && (s_[exponent] == 'e' || s_[exponent] == 'E')) {
        ++exponent;
        if (exponent < s_.size() && (s_[exponent] == '+' || s_[exponent] == '-')) ++exponent;
        if (digit(exponent)) end = digits(exponent);
      }
      if (end != whole) return finish(TokenType::floating, end);
    }
    if (s_[start] == '0') {
      const char base = start + 1 < s_.size() ? static_cast<char>(s_[start + 1] | 0x20) : '\0';
      const auto valid = [base](char c) {
        if (base == 'b') return c == '0' || c == '1';
        if (base == 'o') return c >= '0' && c <= '7';
        return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
      };
      if (base == 'b' || base == 'o' || base == 'x') {
        size_t end = start + 2;
        while (true) {
          size_t next = end;
          if (next < s_.size() && s_[next] == '_') ++next;
          if (next >= s_.size() || !valid(s_[next])) break;
          end = next + 1;
        }
        if (end > start + 2) return finish(TokenType::integer, end);
      }
      size_t end = start + 1;  // a leading zero may be followed only by zeros
      while (end < whole && (s_[end] == '0' || (s_[end] == '_' && s_[end + 1] == '0'))) ++end;
      return finish(TokenType::integer, end);
    }
    finish(TokenType::integer, whole);
  }

  bool name() {
    const size_t start = pos_;
    bool first = true;
    while (pos_ < s_.size()) {
      const uint32_t c = unicode::decode(s_, pos_);
      if (!unicode::is(c, unicode::kWord)) break;
      if (c >= 0x80 && !unicode::is(c, unicode::kAlpha | (first ? 0u : unicode::kDecimal)))
        return fail(pos_, "invalid character in identifier");
      first = false;
      pos_ += unicode::sequence_length(s_, pos_);
    }
    add(TokenType::name, start, s_.substr(start, pos_ - start));
    return true;
  }

  bool op(std::vector<char>* open) {
    for (const Operator& o : kOperators) {
      if (!starts(pos_, o.text)) continue;
      const char c = o.text[0];
      if (c == '{') open->push_back('}');
      else if (c == '(') open->push_back(')');
      else if (c == '[') open->push_back(']');
      else if (c == '}' || c == ')' || c == ']') {
        if (open->empty()) return fail(pos_, std::string("unexpected '") + c + "'");
        if (open->back() != c) return fail(pos_, std::string("unexpected '") + c + "', expected '" + open->back() + "'");
        open->pop_back();
      }
      add(o.type, pos_, std::string(o.text));
      pos_ += o.text.size();
      return true;
    }
    return fail(pos_, "unexpected character");
  }

  // Hexadecimal digits of an escape.
  bool hex(size_t at, size_t count, size_t limit, uint32_t* out) const {
    if (at + count > limit) return false;
    uint32_t v = 0;
    for (size_t i = at; i < at + count; ++i) {
      const char c = s_[i];
      const char low = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') v = v * 16 + static_cast<uint32_t>(c - '0');
      else if (low >= 'a' && low <= 'f') v = v * 16 + static_cast<uint32_t>(low - 'a' + 10);
      else return false;
    }
    *out = v;
    return true;
  }

  bool string() {
    const size_t start = pos_;
    const char quote = s_[start];
    size_t end = start + 1;
    while (end < s_.size() && s_[end] != quote) end += s_[end] == '\\' ? 2 : 1;
    if (end >= s_.size()) return fail(start, "the string does not end");
    std::string text;
    for (size_t i = start + 1; i < end;) {
      if (s_[i] != '\\') {
        text += s_[i++];
        continue;
      }
      if (!escape(&i, end, &text)) return false;
    }
    add(TokenType::string, start, std::move(text));
    pos_ = end + 1;
    return true;
  }

  bool escape(size_t* at, size_t end, std::string* text) {
    const size_t start = *at;
    const char c = s_[start + 1];
    *at = start + 2;
    switch (c) {
      case '\n': return true;  // a continued line
      case '\\':
      case '\'':
      case '"': *text += c; return true;
      case 'a': *text += '\a'; return true;
      case 'b': *text += '\b'; return true;
      case 'f': *text += '\f'; return true;
      case 'n': *text += '\n'; return true;
      case 'r': *text += '\r'; return true;
      case 't': *text += '\t'; return true;
      case 'v': *text += '\v'; return true;
      case 'N': return fail(start, "\\N{...} escapes are not supported");
      default: break;
    }
    uint32_t code = 0;
    if (c >= '0' && c <= '7') {
      size_t i = start + 1;
      for (; i < end && i < start + 4 && s_[i] >= '0' && s_[i] <= '7'; ++i) code = code * 8 + static_cast<uint32_t>(s_[i] - '0');
      *at = i;
      unicode::append(code, text);
      return true;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : (c == 'u' ? 4 : 8);
      if (!hex(*at, count, end, &code)) return fail(start, std::string("truncated \\") + c + " escape");
      *at += count;
      uint32_t low = 0;
      if (code >= 0xD800 && code < 0xDC00 && starts(*at, "\\u") && hex(*at + 2, 4, end, &low) && low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        *at += 6;
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return fail(start, "the escape names no character");
      unicode::append(code, text);
      return true;
    }
    *text += '\\';  // an unknown escape is kept as written
    if (static_cast<unsigned char>(c) < 0x80) {
      *text += c;
      return true;
    }
    // A backslash before a character outside ASCII escapes that character's own \x, \u or \U form.
    const uint32_t other = unicode::decode(s_, start + 1);
    *at = start + 1 + unicode::sequence_length(s_, start + 1);
    *text += format(other < 0x100 ? "x%02x" : (other < 0x10000 ? "u%04x" : "U%08x"), other);
    return true;
  }

  const std::string s_;
  size_t pos_ = 0;
  bool line_starting_ = true;
  size_t counted_ = 0;
  Position where_;
  std::vector<Token> tokens_;
  Status status_;
};

}  // namespace

Status template_error(Position at, const std::string& message) {
  Status status = error(Code::unsupported_template, "chat template, line %u, column %u: %s", at.line, at.column, message.c_str());
  status.detail().line = at.line;
  status.detail().column = at.column;
  return status;
}

const char* describe(TokenType type) {
  switch (type) {
    case TokenType::end: return "end of template";
    case TokenType::data: return "template text";
    case TokenType::variable_begin: return "'{{'";
    case TokenType::variable_end: return "'}}'";
    case TokenType::block_begin: return "'{%'";
    case TokenType::block_end: return "'%}'";
    case TokenType::name: return "a name";
    case TokenType::string: return "a string";
    case TokenType::integer: return "an integer";
    case TokenType::floating: return "a float";
    case TokenType::add: return "'+'";
    case TokenType::sub: return "'-'";
    case TokenType::mul: return "'*'";
    case TokenType::div: return "'/'";
    case TokenType::floordiv: return "'//'";
    case TokenType::mod: return "'%'";
    case TokenType::pow: return "'**'";
    case TokenType::tilde: return "'~'";
    case TokenType::assign: return "'='";
    case TokenType::eq: return "'=='";
    case TokenType::ne: return "'!='";
    case TokenType::lt: return "'<'";
    case TokenType::le: return "'<='";
    case TokenType::gt: return "'>'";
    case TokenType::ge: return "'>='";
    case TokenType::dot: return "'.'";
    case TokenType::comma: return "','";
    case TokenType::colon: return "':'";
    case TokenType::semicolon: return "';'";
    case TokenType::pipe: return "'|'";
    case TokenType::lparen: return "'('";
    case TokenType::rparen: return "')'";
    case TokenType::lbracket: return "'['";
    case TokenType::rbracket: return "']'";
    case TokenType::lbrace: return "'{'";
    case TokenType::rbrace: return "'}'";
  }
  return "?";
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size();) {
    if (source[i] == '\r') {
      text += '\n';
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 2 : 1;
      continue;
    }
    const size_t n = unicode::valid_sequence(source, i);
    if (n == 0) {
      Status status = error(Code::unsupported_template, "chat template: invalid UTF-8 at byte %zu", i);
      status.detail().offset = i;
      return status;
    }
    text.append(source, i, n);
    i += n;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();  // keep_trailing_newline is off
  return Lexer(std::move(text)).run();
}

}  // namespace orrery::text::jinja
