// See json_file.h.
#include "json_file.h"

#include <algorithm>

#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {

constexpr int kDeepest = 256;

Json parse_json(const std::string& text, const std::string& name) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) {
        throw Failure(kExitFailure, format("%s: byte %zu: nested deeper than %d", name.c_str(), i, kDeepest));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Failure(kExitFailure, format("%s: is not JSON: error at byte %zu", name.c_str(), error.byte));
  }
}

namespace {

// A place in a JSON text, and steps over its parts. The end of the text ends every step.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}
  // The next character that is no blank and no separator, 0 at the end.
  char next() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n,:", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void enter() { ++at_; }  // over a bracket
  // The whole value at this place, and the place behind it.
  std::string_view value() {
    const size_t begin = at_;
    int depth = 0;
    do {
      const char c = text_[at_];
      if (c == '"') {
        for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\';
        ++at_;
      } else if (c == '{' || c == '[') {
        ++depth, ++at_;
      } else if (c == '}' || c == ']') {
        --depth, ++at_;
      } else if (depth > 0) {
        at_ = std::min(text_.find_first_of("\"{}[]", at_), text_.size());
      } else {
        at_ = std::min(text_.find_first_of(",:]} \t\r\n", at_), text_.size());  // a number or a word
      }
    } while (depth > 0 && at_ < text_.size());
    at_ = std::min(at_, text_.size());
    return text_.substr(begin, at_ - begin);
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

void walk_json(const std::string& text,
               const std::function<void(std::string_view part, const std::string& key, const Json& value)>& visit) {
  const auto parsed = [](std::string_view part) { return Json::parse(part.begin(), part.end(), nullptr, false); };
  const auto key_of = [&](std::string_view part) {
    const Json key = parsed(part);
    return key.is_string() ? key.get<std::string>() : std::string();
  };
  Scanner scan(text);
  if (scan.next() != '{') return;
  scan.enter();
  while (scan.next() == '"') {
    const std::string part = key_of(scan.value());
    const char opening = scan.next();
    if (opening != '{' && opening != '[') {
      visit("", part, parsed(scan.value()));
      continue;
    }
    scan.enter();
    for (char c; (c = scan.next()) != '}' && c != ']' && c != '\0';) {
      const std::string key = opening == '{' ? key_of(scan.value()) : std::string();
      if (opening == '{') scan.next();
      visit(part, key, parsed(scan.value()));
    }
    scan.enter();
  }
}

std::string dump_json(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

}  // namespace orrery::tool
