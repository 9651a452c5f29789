// The JSON reader is one recursive descent with a depth bound over a validated byte range. The writer gives the text
// of json.dumps. Both refuse doubtful input: no comments, no trailing commas, no lone surrogates, no NaN on input.
#include "runtime/text/json/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "runtime/os/stack_room.h"
#include "runtime/text/pace.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text {

namespace {

constexpr uint32_t kMaxDumpDepth = 1000;

class Reader {
 public:
  Reader(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits), pace_(limits.cancel) {}

  Result<Value> read() {
    if (text_.size() > limits_.max_bytes) {
      return memory_error(Code::invalid_argument, text_.size(), limits_.max_bytes, "JSON text of %zu bytes is longer than the %llu allowed",
                          text_.size(), static_cast<unsigned long long>(limits_.max_bytes));
    }
    Value v;
    skip_space();
    if (!read_value(&v, 0)) return take_error();
    skip_space();
    if (pos_ != text_.size()) {
      fail("text after the end of the value");
      return take_error();
    }
    return v;
  }

 private:
  bool fail(const char* what) { return fail_at(pos_, what); }
  bool fail_at(size_t at, const char* what) {
    error_ = what;
    error_at_ = at;
    return false;
  }
  Status take_error() {
    if (pace_.stopped()) return error(Code::cancelled, "JSON: reading was cancelled");
    if (!no_stack_.ok()) return std::move(no_stack_);
    uint32_t line = 1;
    size_t line_start = 0;
    for (size_t i = 0; i < error_at_; ++i) {
      if (text_[i] == '\n') {
        ++line;
        line_start = i + 1;
      }
    }
    const auto column = static_cast<uint32_t>(error_at_ - line_start + 1);
    Status status = error(Code::invalid_argument, "JSON: %s at line %u, column %u (byte %zu)", error_, line, column, error_at_);
    status.detail().line = line;
    status.detail().column = column;
    status.detail().offset = error_at_;
    return status;
  }

  void skip_space() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\t' || text_[pos_] == '\n' || text_[pos_] == '\r')) ++pos_;
  }
  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  bool digit() const { return pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9'; }

  bool read_value(Value* out, uint32_t depth) {
    if (stack_.low()) {
      bool done = false;
      const auto level = [&] { done = read_value(out, depth); };
      no_stack_ = stack_.on_new_stack(level);
      return done;
    }
    if (pace_.stop()) return false;
    if (pos_ >= text_.size()) return fail("a value is missing");
    switch (text_[pos_]) {
      case '{': return read_object(out, depth);
      case '[': return read_list(out, depth);
      case '"': {
        std::string s;
        if (!read_string(&s)) return false;
        *out = Value::string(std::move(s));
        return true;
      }
      case 't': return read_word("true", Value::boolean(true), out);
      case 'f': return read_word("false", Value::boolean(false), out);
      case 'n': return read_word("null", Value::none(), out);
      default:
        if (at('-') || digit()) return read_number(out);
        return fail("unexpected character");
    }
  }

  bool read_word(std::string_view word, Value value, Value* out) {
    if (text_.substr(pos_, word.size()) != word) return fail("unexpected character");
    pos_ += word.size();
    *out = std::move(value);
    return true;
  }

  bool read_list(Value* out, uint32_t depth) {
    if (depth >= limits_.max_depth) return fail("nesting is too deep");
    ++pos_;
    std::vector<Value> items;
    skip_space();
    if (!at(']')) {
      while (true) {
        skip_space();
        Value v;
        if (!read_value(&v, depth + 1)) return false;
        items.push_back(std::move(v));
        skip_space();
        if (at(']')) break;
        if (!at(',')) return fail("expected ',' or ']'");
        ++pos_;
      }
    }
    ++pos_;
    *out = Value::list(std::move(items));
    return true;
  }

  bool read_object(Value* out, uint32_t depth) {
    if (depth >= limits_.max_depth) return fail("nesting is too deep");
    ++pos_;
    Map map;
    skip_space();
    if (!at('}')) {
      while (true) {
        skip_space();
        if (!at('"')) return fail("expected a string as key");
        std::string key;
        if (!read_string(&key)) return false;
        skip_space();
        if (!at(':')) return fail("expected ':'");
        ++pos_;
        skip_space();
        Value v;
        if (!read_value(&v, depth + 1)) return false;
        map.set(Value::string(std::move(key)), std::move(v));
        skip_space();
        if (at('}')) break;
        if (!at(',')) return fail("expected ',' or '}'");
        ++pos_;
      }
    }
    ++pos_;
    *out = Value::map(std::move(map));
    return true;
  }

  bool read_hex4(uint32_t* out) {
    if (text_.size() - pos_ < 4) return fail("\\u wants four hexadecimal digits");
    uint32_t v = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = text_[pos_ + static_cast<size_t>(i)];
      uint32_t d;
      if (c >= '0' && c <= '9') d = static_cast<uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f') d = static_cast<uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F') d = static_cast<uint32_t>(c - 'A' + 10);
      else return fail("\\u wants four hexadecimal digits");
      v = v * 16 + d;
    }
    pos_ += 4;
    *out = v;
    return true;
  }

  bool read_string(std::string* out) {
    ++pos_;
    while (true) {
      const size_t start = pos_;
      while (pos_ < text_.size()) {
        const auto c = static_cast<unsigned char>(text_[pos_]);
        if (c == '"' || c == '\\' || c < 0x20) break;
        if (c < 0x80) {
          ++pos_;
          continue;
        }
        const size_t n = unicode::valid_sequence(text_, pos_);
        if (n == 0) return fail("invalid UTF-8");
        if (pace_.stop()) return false;
        pos_ += n;
      }
      out->append(text_, start, pos_ - start);
      if (pos_ >= text_.size()) return fail("the string does not end");
      if (text_[pos_] == '"') break;
      if (text_[pos_] != '\\') return fail("control character in a string");
      if (pace_.stop() || !read_escape(out)) return false;
    }
    ++pos_;
    return true;
  }

  bool read_escape(std::string* out) {
    const size_t start = pos_++;
    if (pos_ >= text_.size()) return fail("the string does not end");
    const char c = text_[pos_++];
    switch (c) {
      case '"':
      case '\\':
      case '/': out->push_back(c); return true;
      case 'b': out->push_back('\b'); return true;
      case 'f': out->push_back('\f'); return true;
      case 'n': out->push_back('\n'); return true;
      case 'r': out->push_back('\r'); return true;
      case 't': out->push_back('\t'); return true;
      case 'u': break;
      default: return fail_at(start, "unknown escape");
    }
    uint32_t code;
    if (!read_hex4(&code)) return false;
    if (code >= 0xDC00 && code < 0xE000) return fail_at(start, "low surrogate without a high one");
    if (code >= 0xD800 && code < 0xDC00) {
      uint32_t low;
      if (text_.substr(pos_, 2) != "\\u") return fail_at(start, "high surrogate without a low one");
      pos_ += 2;
      if (!read_hex4(&low)) return false;
      if (low < 0xDC00 || low >= 0xE000) return fail_at(start, "high surrogate without a low one");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    unicode::append(code, out);
    return true;
  }

  bool read_number(Value* out) {
    const size_t start = pos_;
    if (at('-')) ++pos_;
    if (!digit()) return fail("expected a digit");
    if (at('0')) {
      ++pos_;
      if (digit()) return fail("a number must not begin with 0");
    } else {
      while (digit()) ++pos_;
    }
    bool integral = true;
    if (at('.')) {
      integral = false;
      ++pos_;
      if (!digit()) return fail("expected a digit after '.'");
      while (digit()) ++pos_;
    }
    if (at('e') || at('E')) {
      integral = false;
      ++pos_;
      if (at('+') || at('-')) ++pos_;
      if (!digit()) return fail("expected a digit in the exponent");
      while (digit()) ++pos_;
    }
    const char *first = text_.data() + start, *last = text_.data() + pos_;
    if (integral) {
      int64_t i;
      if (std::from_chars(first, last, i).ec == std::errc()) *out = Value::integer(i);
      else *out = Value::big_integer(std::string(first, last));
      return true;
    }
    double d;
    const auto parsed = std::from_chars(first, last, d);
    if (parsed.ec == std::errc::result_out_of_range) {
      // A number too small for a double reads as zero, as in other readers. A number too large has no value.
      if (!underflows(std::string_view(first, static_cast<size_t>(last - first)))) return fail_at(start, "number out of range");
      d = *first == '-' ? -0.0 : 0.0;
    }
    *out = Value::floating(d);
    return true;
  }

  // For a literal outside the range of a double: whether it is too small rather than too large. The scientific
  // exponent of the first non-zero digit decides.
  static bool underflows(std::string_view number) {
    int64_t exponent = 0;
    const size_t e = number.find_first_of("eE");
    if (e != std::string_view::npos) {
      std::string_view digits = number.substr(e + 1);
      const bool negative = digits[0] == '-';
      if (digits[0] == '+' || negative) digits.remove_prefix(1);
      for (char c : digits) exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 1'000'000'000'000);
      if (negative) exponent = -exponent;
    }
    const std::string_view mantissa = number.substr(0, e);
    const size_t point = std::min(mantissa.find('.'), mantissa.size());
    const size_t lead = mantissa.find_first_of("123456789");
    if (lead == std::string_view::npos) return true;
    return exponent + static_cast<int64_t>(point) - static_cast<int64_t>(lead) < 0;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  Pace pace_;
  StackRoom stack_;
  Status no_stack_;
  size_t pos_ = 0;
  const char* error_ = "";
  size_t error_at_ = 0;
};

class Writer {
 public:
  explicit Writer(const JsonFormat& format) : format_(format), pace_(format.cancel) {
    item_separator_ = format.custom_separators || !format.item_separator.empty() ? format.item_separator : format.pretty ? "," : ", ";
  }

  bool write(const Value& v, uint32_t depth) {
    if (stack_.low()) {
      bool done = false;
      const auto level = [&] { done = write(v, depth); };
      no_stack = stack_.on_new_stack(level);
      return done;
    }
    if (pace_.stop()) return false;
    if (depth > kMaxDumpDepth) return fail("nesting is too deep");
    if (out.size() > format_.max_bytes) return fail("the text is longer than allowed");
    switch (v.kind()) {
      case Kind::none: out += "null"; return true;
      case Kind::boolean: out += v.as_bool() ? "true" : "false"; return true;
      case Kind::integer: out += std::to_string(v.as_int()); return true;
      case Kind::big_integer: out += v.as_string(); return true;
      case Kind::floating: write_float(v.as_float()); return true;
      case Kind::string: return write_string(v.as_text());
      case Kind::list:
      case Kind::tuple: return write_list(v, depth);
      case Kind::map: return write_map(v.as_map(), depth);
      case Kind::undefined: return fail("an undefined value has no JSON form");
      default: return fail("a value of this type has no JSON form");
    }
  }

  bool cancelled() const { return pace_.stopped(); }

  std::string out;
  const char* problem = "";
  Status no_stack;

 private:
  bool fail(const char* what) {
    problem = what;
    return false;
  }

  void write_float(double d) {
    if (std::isnan(d)) out += "NaN";
    else if (std::isinf(d)) out += d > 0 ? "Infinity" : "-Infinity";
    else out += format_float(d);
  }

  void line(uint32_t depth) {
    if (!format_.pretty) return;
    out += '\n';
    for (uint32_t i = 0; i < depth && out.size() <= format_.max_bytes; ++i) out += format_.indent;
  }

  bool write_list(const Value& v, uint32_t depth) {
    const std::vector<Value>& items = v.as_items();
    if (items.empty()) {
      out += "[]";
      return true;
    }
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out += item_separator_;
      line(depth + 1);
      if (!write(items[i], depth + 1)) return false;
    }
    line(depth);
    out += ']';
    return true;
  }

  bool write_key(const Value& key) {
    switch (key.kind()) {
      case Kind::string: return write_string(key.as_text());
      case Kind::none: out += "\"null\""; return true;
      case Kind::boolean: out += key.as_bool() ? "\"true\"" : "\"false\""; return true;
      case Kind::integer:
      case Kind::big_integer:
      case Kind::floating:
        out += '"';
        if (!write(key, 0)) return false;
        out += '"';
        return true;
      default: return fail("keys must be strings, numbers, booleans or none");
    }
  }

  bool write_map(const Map& map, uint32_t depth) {
    if (map.size() == 0) {
      out += "{}";
      return true;
    }
    std::vector<const Map::Entry*> entries;
    entries.reserve(map.size());
    for (const Map::Entry& e : map.entries()) entries.push_back(&e);
    if (format_.sort_keys) {
      for (const Map::Entry* e : entries)
        if (!e->first.is_string()) return fail("only string keys can be sorted");
      std::stable_sort(entries.begin(), entries.end(),
                       [](const Map::Entry* a, const Map::Entry* b) { return a->first.as_string() < b->first.as_string(); });
    }
    out += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i != 0) out += item_separator_;
      line(depth + 1);
      if (!write_key(entries[i]->first)) return false;
      out += format_.key_separator;
      if (!write(entries[i]->second, depth + 1)) return false;
    }
    line(depth);
    out += '}';
    return true;
  }

  bool write_string(TextView text) {
    out += '"';
    const bool done = text.each_run([this](std::string_view run, Origin origin) {
      reach(Origin::data);
      const bool whole = write_characters(run);
      reach(origin);
      return whole;
    });
    out += '"';
    return done;
  }
  void reach(Origin origin) {
    if (format_.origins != nullptr) format_.origins->reach(out.size(), origin);
  }

  bool write_characters(std::string_view s) {
    for (size_t pos = 0; pos < s.size();) {
      if (pace_.stop()) return false;
      const auto c = static_cast<unsigned char>(s[pos]);
      if (c < 0x80) {
        ++pos;
        switch (c) {
          case '"': out += "\\\""; break;
          case '\\': out += "\\\\"; break;
          case '\n': out += "\\n"; break;
          case '\r': out += "\\r"; break;
          case '\t': out += "\\t"; break;
          case '\b': out += "\\b"; break;
          case '\f': out += "\\f"; break;
          default:
            if (c < 0x20 || (c == 0x7F && format_.ensure_ascii)) escape(c);
            else out += static_cast<char>(c);
        }
        continue;
      }
      const size_t n = unicode::sequence_length(s, pos);
      if (!format_.ensure_ascii) {
        out.append(s, pos, n);
      } else {
        const uint32_t code = unicode::decode(s, pos);
        if (code >= 0x10000) {
          escape(0xD800 + ((code - 0x10000) >> 10));
          escape(0xDC00 + ((code - 0x10000) & 0x3FF));
        } else {
          escape(code);
        }
      }
      pos += n;
    }
    return true;
  }

  void escape(uint32_t unit) {
    static constexpr char kHex[] = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kHex[(unit >> shift) & 15];
  }

  const JsonFormat& format_;
  Pace pace_;
  StackRoom stack_;
  std::string item_separator_;
};

}  // namespace

Result<Value> parse_json(std::string_view text, const JsonLimits& limits) { return Reader(text, limits).read(); }

Result<std::string> dump_json(const Value& value, const JsonFormat& format) {
  Writer writer(format);
  const bool written = writer.write(value, 0);
  if (format.bytes_written != nullptr) *format.bytes_written = writer.out.size();
  if (format.origins != nullptr) format.origins->reach(writer.out.size(), Origin::data);
  if (writer.cancelled()) return error(Code::cancelled, "JSON: writing was cancelled");
  if (!writer.no_stack.ok()) return std::move(writer.no_stack);
  if (!written) return error(Code::invalid_argument, "JSON: %s", writer.problem);
  if (writer.out.size() > format.max_bytes) return error(Code::invalid_argument, "JSON: the text is longer than allowed");
  return std::move(writer.out);
}

std::string format_float(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  // The shortest digits and their exponent, written by Python's rule: plain notation for exponents -4 .. 15.
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const char* first = text.data() + e + 1;
  std::from_chars(*first == '+' ? first + 1 : first, text.data() + text.size(), exponent);
  std::string digits;
  const bool negative = text[0] == '-';
  for (char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    out += exponent < 0 ? "e-" : "e+";
    const int magnitude = exponent < 0 ? -exponent : exponent;
    if (magnitude < 10) out += '0';
    return out + std::to_string(magnitude);
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace orrery::text
