// See parse.h. Comments and line breaks are passed over; a statement ends with a semicolon, a label with a colon. A brace that begins a
// statement opens or closes a scope.
#include "tests/ptx/executor/parse.h"

#include <cctype>
#include <cstdlib>
#include <sstream>

#include "tests/ptx/executor/program.h"

namespace orrery::ptx {

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.' || c == ':'; }

std::string trimmed(const std::string& s) {
  const size_t a = s.find_first_not_of(" \t\r\n");
  return a == std::string::npos ? "" : s.substr(a, s.find_last_not_of(" \t\r\n") - a + 1);
}

// Characters, without comments and .loc, and the line of each.
class Reader {
 public:
  Reader(const std::string& file, const std::string& text) : file_(file), text_(text) {}

  void skip() {
    for (;;) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) line_ += text_[at_++] == '\n';
      if (text_.compare(at_, 2, "//") == 0 || text_.compare(at_, 5, ".loc\t") == 0) {  // .loc: a line of the source (-lineinfo)
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.compare(at_, 2, "/*") == 0) {
        const size_t end = std::min(text_.find("*/", at_), text_.size() - 2) + 2;
        for (; at_ < end; ++at_) line_ += text_[at_] == '\n';
      } else {
        return;
      }
    }
  }
  bool ended() { return skip(), at_ >= text_.size(); }
  char peek() { return ended() ? '\0' : text_[at_]; }
  char take() { return text_[at_++]; }
  uint32_t line() const { return line_; }
  std::string word() {
    skip();
    const size_t begin = at_;
    // A single colon ends a label; two belong to a mnemonic's modifier.
    while (at_ < text_.size() && is_word(text_[at_])) {
      if (text_[at_] == ':') {
        if (text_.compare(at_, 2, "::") != 0) break;
        ++at_;
      }
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  // Up to one of `ends` outside brackets and strings, without comments; the end is taken too.
  std::string until(const std::string& ends) {
    std::string out;
    int depth = 0;
    bool quoted = false;
    for (;;) {
      if (!quoted) {
        const size_t before = at_;
        skip();
        if (at_ != before && !out.empty()) out += ' ';
      }
      if (at_ >= text_.size()) refuse(file_, line_, "the text ends within a statement");
      const char c = text_[at_++];
      if (c == '"') quoted = !quoted;
      if (!quoted && depth == 0 && ends.find(c) != std::string::npos) return trimmed(out);
      if (c == '(' || c == '[' || c == '{') ++depth;
      if (c == ')' || c == ']' || c == '}') --depth;
      out += c;
    }
  }

 private:
  const std::string& file_;
  const std::string& text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

Statement parse_statement(Reader* in) {
  Statement s;
  const char c = in->peek();
  s.line = in->line();
  if (c == '{' || c == '}') {
    in->take();
    s.kind = c == '{' ? Statement::open : Statement::close;
    return s;
  }
  if (c == '@') {
    in->take();
    if (in->peek() == '!') in->take(), s.guard = "!";
    s.guard += in->word();
  }
  s.word = in->word();
  if (s.word.empty()) in->until(";");
  if (in->peek() == ':') {
    in->take();
    s.kind = Statement::label;
    return s;
  }
  const std::string rest = in->until(";");
  if (!s.word.empty() && s.word[0] == '.') {
    s.kind = Statement::directive;
    s.word.erase(0, 1);
    s.text = rest;
  } else {
    s.operands = split_operands(rest);
  }
  return s;
}

// What stands between a function's parameters and its body.
void parse_limits(const std::string& text, FunctionText* f) {
  const size_t at = text.find(".maxntid");
  if (at == std::string::npos) return;
  std::stringstream in(text.substr(at + 8));
  uint32_t n = 1, product = 1;
  char comma = ',';
  while (comma == ',' && in >> n) {
    product *= n;
    if (!(in >> comma)) break;
  }
  f->max_threads = product;
}

}  // namespace

void refuse(const std::string& file, uint32_t line, const std::string& what) {
  throw Refused(file + ":" + std::to_string(line) + ": " + what);
}

std::vector<std::string> split_operands(const std::string& text) {
  std::vector<std::string> out;
  int depth = 0;
  std::string now;
  for (const char c : text) {
    if (c == '[' || c == '{' || c == '(') ++depth;
    if (c == ']' || c == '}' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      out.push_back(trimmed(now));
      now.clear();
    } else {
      now += c;
    }
  }
  now = trimmed(now);
  if (!now.empty()) out.push_back(now);
  return out;
}

ParameterText parse_variable(const std::string& file, uint32_t line, const std::string& text) {
  ParameterText v;
  std::stringstream in(text);
  std::string word;
  uint32_t element = 0;
  while (in >> word) {
    if (word == ".align") {
      in >> v.align;
    } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".param" || word == ".ptr" || word == ".global") {
    } else if (word[0] == '.') {
      const size_t digits = word.find_first_of("0123456789");
      element = digits == std::string::npos ? 0 : static_cast<uint32_t>(std::atoi(word.c_str() + digits) / 8);
      if (element == 0) refuse(file, line, "a variable of type " + word);
    } else {
      const size_t bracket = word.find('[');
      v.name = word.substr(0, bracket);
      v.bytes = element;
      if (bracket != std::string::npos) v.bytes = element * static_cast<uint32_t>(std::atoi(word.c_str() + bracket + 1));
    }
  }
  if (v.align == 1) v.align = element;
  if (v.name.empty() || element == 0) refuse(file, line, "a variable that is not understood: " + text);
  return v;
}

ModuleText parse(const std::string& file, const std::string& text) {
  ModuleText module;
  Reader in(file, text);
  while (!in.ended()) {
    const uint32_t line = in.line();
    std::string word = in.word();
    while (word == ".visible" || word == ".weak" || word == ".extern" || word == ".common") word = in.word();
    if (word == ".version" || word == ".target" || word == ".address_size") {
      in.word();
      while (in.peek() == ',') in.take(), in.word();
    } else if (word == ".file") {  // debug information (-lineinfo) ends the text: names of files, and strings
      if (text.find(".entry", text.rfind("\t.file\t")) != std::string::npos) refuse(file, line, "kernels behind debug information");
      break;
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      const std::string all = in.until(";");
      const size_t equals = all.find('=');
      const ParameterText v = parse_variable(file, line, trimmed(all.substr(0, equals)));
      VariableText variable{v.name, word.substr(1), v.align, v.bytes, {}};
      if (equals != std::string::npos) {
        const std::string list = trimmed(all.substr(equals + 1));
        if (all.find(".b8") == std::string::npos || list.empty() || list[0] != '{') refuse(file, line, "initial values that are not bytes");
        for (const std::string& value : split_operands(list.substr(1, list.size() - 2)))
          variable.values.push_back(static_cast<uint8_t>(std::strtol(value.c_str(), nullptr, 0)));
      }
      module.variables.push_back(variable);
    } else if (word == ".entry" || word == ".func") {
      FunctionText f;
      f.entry = word == ".entry";
      f.line = line;
      if (in.peek() == '(') {
        in.take();
        f.result = parse_variable(file, line, in.until(")"));
      }
      f.name = in.word();
      if (in.peek() == '(') {
        in.take();
        for (const std::string& p : split_operands(in.until(")"))) f.parameters.push_back(parse_variable(file, line, p));
      }
      std::string limits;
      while (in.peek() != '{' && in.peek() != ';') {
        if (in.ended()) refuse(file, line, "a function without a body");
        limits += in.take();
        const std::string more = in.word();
        limits += more + " ";
      }
      if (in.take() == ';') continue;  // a declaration
      parse_limits(limits, &f);
      for (int depth = 1; depth > 0;) {
        if (in.ended()) refuse(file, line, "a function that does not end");
        Statement s = parse_statement(&in);
        if (s.kind == Statement::open) ++depth;
        if (s.kind == Statement::close) --depth;
        if (depth > 0) f.body.push_back(std::move(s));
      }
      module.functions.push_back(std::move(f));
    } else {
      refuse(file, line, "\"" + word + "\" outside functions");
    }
  }
  return module;
}

}  // namespace orrery::ptx
