// Python's two kinds of formatting, "%s" % x and "{}".format(x), with the conversions, flags, widths and precisions
// for text, integers and floats.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/jinja/interpreter/strings.h"
#include "runtime/text/unicode/python_characters.h"
#include "runtime/text/json/json.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

constexpr int64_t kMaxPrecision = 400;
constexpr int64_t kMaxWidth = 1'000'000;

// A parsed conversion of either kind.
struct Spec {
  std::string fill = " ";
  Origin fill_origin = Origin::data;
  char align = 0;   // < > ^ =, 0: by type
  char sign = '-';  // + - space
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char grouping = 0;  // , or _
  int64_t precision = -1;
  char type = 0;
};

Text pad(const Spec& spec, const std::string& sign, TextView body, bool number) {
  const auto length = static_cast<int64_t>(code_points(sign) + code_points(body.bytes()));
  const auto missing = static_cast<size_t>(std::max<int64_t>(spec.width - length, 0));
  Text out;
  const auto fill = [&](size_t n) {
    std::string s;
    for (size_t i = 0; i < n; ++i) s += spec.fill;
    out.append(s, spec.fill_origin);
  };
  const char align = spec.align != 0 ? spec.align : (number ? '>' : '<');
  if (align == '>') fill(missing);
  if (align == '^') fill(missing / 2);
  out += sign;
  if (align == '=') fill(missing);
  out.append(body);
  if (align == '<') fill(missing);
  if (align == '^') fill(missing - missing / 2);
  return out;
}
Text pad(const Spec& spec, const std::string& sign, const std::string& body, bool number) {
  return pad(spec, sign, TextView(body, Origin::data), number);
}

std::string sign_of(const Spec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

std::string group(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// |v| in base 2, 8, 10 or 16.
std::string digits_of(int64_t v, int base) {
  const uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  char buffer[72];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr;
  return std::string(buffer, end);
}

std::string upper_ascii(std::string s) {
  for (char& c : s)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  return s;
}

std::string fixed(double magnitude, std::chars_format how, int64_t precision) {
  std::string buffer(static_cast<size_t>(precision) + 340, '\0');
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude, how, static_cast<int>(precision)).ptr;
  buffer.resize(static_cast<size_t>(end - buffer.data()));
  return buffer;
}

// Digits of a finite |v| in style e, f, g or %. '\0': the style of str() with a precision.
std::string float_digits(double magnitude, char type, int64_t precision, bool alternate) {
  if (type == 'e') {
    std::string s = fixed(magnitude, std::chars_format::scientific, precision);
    if (alternate && precision == 0) s.insert(s.find('e'), ".");
    return s;
  }
  if (type == 'f') return fixed(magnitude, std::chars_format::fixed, precision) + (alternate && precision == 0 ? "." : "");
  const int64_t significant = precision == 0 ? 1 : precision;
  std::string e = fixed(magnitude, std::chars_format::scientific, significant - 1);
  const size_t mark = e.find('e');
  int exponent = 0;
  std::from_chars(e.data() + mark + (e[mark + 1] == '+' ? 2 : 1), e.data() + e.size(), exponent);
  const int64_t plain_below = type == 0 ? significant - 1 : significant;
  std::string mantissa, tail;
  if (exponent >= -4 && exponent < std::max<int64_t>(plain_below, type == 0 ? 1 : 0)) {
    mantissa = fixed(magnitude, std::chars_format::fixed, std::max<int64_t>(significant - 1 - exponent, 0));
  } else {
    mantissa = e.substr(0, mark);
    tail = e.substr(mark);
  }
  if (!alternate && mantissa.find('.') != std::string::npos) {
    while (mantissa.back() == '0') mantissa.pop_back();
    if (mantissa.back() == '.') mantissa.pop_back();
  }
  if (type == 0 && tail.empty() && mantissa.find('.') == std::string::npos) mantissa += ".0";
  return mantissa + tail;
}

Text format_double(double v, const Spec& spec) {
  const char lower = static_cast<char>(spec.type | 0x20);
  const bool upper = spec.type >= 'A' && spec.type <= 'Z';
  double magnitude = std::fabs(v);
  std::string body;
  if (spec.type == '%') magnitude *= 100;
  if (!std::isfinite(v)) {
    body = std::isnan(v) ? "nan" : "inf";
  } else if (spec.type == 0 && spec.precision < 0) {
    body = format_float(magnitude);
  } else {
    const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
    const char how = spec.type == 0 ? '\0' : (spec.type == '%' ? 'f' : (lower == 'n' ? 'g' : lower));
    body = float_digits(magnitude, how, precision, spec.alternate);
  }
  if (spec.grouping != 0) {
    const size_t whole = std::min(body.find_first_not_of("0123456789"), body.size());
    body = group(body.substr(0, whole), spec.grouping, 3) + body.substr(whole);
  }
  if (spec.type == '%') body += '%';
  if (upper) body = upper_ascii(body);
  return pad(spec, sign_of(spec, std::signbit(v) && !std::isnan(v)), body, true);
}

bool parse_count(std::string_view s, size_t* at, int64_t* out) {
  bool any = false;
  *out = 0;
  for (; *at < s.size() && s[*at] >= '0' && s[*at] <= '9'; ++*at, any = true)
    *out = std::min<int64_t>(*out * 10 + (s[*at] - '0'), kMaxWidth + 1);
  return any;
}

// [[fill]align][sign][#][0][width][grouping][.precision][type]
bool parse_spec(Interp& in, TextView source, Spec* spec) {
  const std::string_view s = source.bytes();
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '=' || c == '^'; };
  if (!s.empty()) {
    const size_t n = unicode::sequence_length(s, 0);
    if (n < s.size() && is_align(s[n])) {
      spec->fill = std::string(s.substr(0, n));
      source.substr(0, n).each_run([spec](std::string_view, Origin origin) { return spec->fill_origin = origin, true; });
      spec->align = s[n];
      at = n + 1;
    } else if (is_align(s[0])) {
      spec->align = s[0];
      at = 1;
    }
  }
  const auto take = [&](char c) { return at < s.size() && s[at] == c && ++at; };
  if (at < s.size() && (s[at] == '+' || s[at] == '-' || s[at] == ' ')) spec->sign = s[at++];
  spec->alternate = take('#');
  if (at < s.size() && s[at] == '0') {
    ++at;
    spec->zero = true;
    if (spec->align == 0) {
      spec->fill = "0", spec->fill_origin = Origin::data;
      spec->align = '=';
    }
  }
  parse_count(s, &at, &spec->width);
  if (at < s.size() && (s[at] == ',' || s[at] == '_')) spec->grouping = s[at++];
  if (take('.') && !parse_count(s, &at, &spec->precision)) return in.fail("the format lacks its precision");
  if (at < s.size()) spec->type = s[at++];
  if (at != s.size()) return in.fail("the format '%s' is invalid", std::string(s.substr(0, 40)).c_str());
  if (spec->width > kMaxWidth || spec->precision > kMaxPrecision) return in.fail("the format's width or precision is too large");
  return true;
}

bool format_integer(Interp& in, int64_t v, const Spec& spec, Text* out) {
  if (spec.precision >= 0) return in.fail("a precision is not allowed for integers");
  std::string body, prefix;
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n': body = digits_of(v, 10); break;
    case 'b': body = digits_of(v, 2), prefix = "0b"; break;
    case 'o': body = digits_of(v, 8), prefix = "0o"; break;
    case 'x': body = digits_of(v, 16), prefix = "0x"; break;
    case 'X': body = upper_ascii(digits_of(v, 16)), prefix = "0X"; break;
    case 'c':
      if (v < 0 || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) return in.fail("the number is no character");
      unicode::append(static_cast<uint32_t>(v), &body);
      out->append(pad(spec, "", body, true));
      return true;
    default: return in.fail("unknown format '%c' for an integer", spec.type);
  }
  if (spec.grouping != 0) {
    const bool decimal = prefix.empty();
    if (!decimal && spec.grouping == ',') return in.fail("',' is only for decimal numbers");
    // Zero padding is grouped too.
    if (spec.fill == "0" && spec.align == '=') {
      const size_t every = decimal ? 3 : 4;
      const std::string sign = sign_of(spec, v < 0) + (spec.alternate ? prefix : "");
      std::string grouped = group(body, spec.grouping, every);
      while (static_cast<int64_t>(sign.size() + grouped.size()) < spec.width) {
        body.insert(0, "0");
        grouped = group(body, spec.grouping, every);
      }
      *out += sign + grouped;
      return true;
    }
    body = group(body, spec.grouping, decimal ? 3 : 4);
  }
  out->append(pad(spec, sign_of(spec, v < 0) + (spec.alternate ? prefix : ""), body, true));
  return true;
}

}  // namespace

bool Interp::format_value(const Value& v, TextView text, Text* out) {
  if (text.empty()) return text_of(v, out);
  if (v.is_undefined()) return fail("an undefined value takes no format");
  Spec spec;
  TRY(parse_spec(*this, text, &spec));
  TRY(charge(static_cast<uint64_t>(spec.width) * spec.fill.size()) && step(static_cast<uint64_t>(spec.width) / 16));
  if (v.is_string()) {
    if ((spec.type != 0 && spec.type != 's') || spec.align == '=' || spec.sign != '-' || spec.alternate || spec.grouping != 0) {
      if (!(spec.zero && spec.align == '=' && (spec.type == 0 || spec.type == 's'))) return fail("the format does not apply to text");
      if (spec.sign != '-' || spec.alternate || spec.grouping != 0) return fail("the format does not apply to text");
      spec.align = '<';
    }
    TextView s = v.as_text();
    if (spec.precision >= 0) s = s.substr(0, v.string_offset(std::min(static_cast<size_t>(spec.precision), v.string_length())));
    TRY(charge(s.size() + s.n_changes() * 4));
    out->append(pad(spec, "", s, false));
    return true;
  }
  const char lower = static_cast<char>(spec.type | 0x20);
  const bool float_type = spec.type == '%' || (spec.type != 0 && (lower == 'e' || lower == 'f' || lower == 'g'));
  if (v.is_float() || (v.is_intlike() && float_type)) {
    if (spec.type != 0 && !float_type && spec.type != 'n') return fail("unknown format '%c' for a float", spec.type);
    out->append(format_double(v.as_float(), spec));
    return true;
  }
  if (v.is_bool() && spec.type == 0) {
    // bool formats as an integer if the format is not empty.
    return format_integer(*this, v.as_int(), spec, out);
  }
  if (v.is_intlike()) return format_integer(*this, v.as_int(), spec, out);
  return fail("%s takes no format", type_name(v));
}

// --- "%s" % x ---

bool Interp::percent_format(const Value& format_text, const Value& args, Value* out) {
  const TextView source = format_text.as_text();
  const std::string_view s = source.bytes();
  const bool mapping = args.is_map();
  size_t next_arg = 0;
  bool named_used = false;
  Text text;
  const auto take = [&](Value* v) {
    if (args.is_tuple()) {
      if (next_arg >= args.as_items().size()) return fail("not enough arguments for the format");
      *v = args.as_items()[next_arg++];
      return true;
    }
    if (next_arg++ > 0) return fail("not enough arguments for the format");
    *v = args;
    return true;
  };
  for (size_t i = 0; i < s.size();) {
    if (s[i] != '%') {
      const size_t end = std::min(s.find('%', i), s.size());
      text.append(source.substr(i, end - i));
      i = end;
      continue;
    }
    ++i;
    Value v;
    bool named = false;
    if (i < s.size() && s[i] == '(') {
      if (!mapping) return fail("the format requires a mapping");
      size_t end = i + 1;
      for (int depth = 1; end < s.size(); ++end) {
        if (s[end] == '(') ++depth;
        if (s[end] == ')' && --depth == 0) break;
      }
      if (end >= s.size()) return fail("the format's key does not end");
      const std::string key(s.substr(i + 1, end - i - 1));
      const Value* found = args.as_map().find(key);
      if (found == nullptr) return fail("the format's key '%s' is missing", key.c_str());
      v = *found;
      named = named_used = true;
      i = end + 1;
    }
    Spec spec;
    bool left = false, zero = false;
    for (; i < s.size(); ++i) {
      if (s[i] == '-') left = true;
      else if (s[i] == '+') spec.sign = '+';
      else if (s[i] == ' ') spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (s[i] == '#') spec.alternate = true;
      else if (s[i] == '0') zero = true;
      else break;
    }
    const auto count = [&](int64_t* result) {
      if (i < s.size() && s[i] == '*') {
        ++i;
        Value n;
        TRY(take(&n));
        return want_int(n, "a format's width", result);
      }
      parse_count(s, &i, result);
      return true;
    };
    TRY(count(&spec.width));
    if (spec.width < 0) {
      left = true;
      spec.width = spec.width < -kMaxWidth ? kMaxWidth + 1 : -spec.width;
    }
    if (i < s.size() && s[i] == '.') {
      ++i;
      spec.precision = 0;
      TRY(count(&spec.precision));
      spec.precision = std::max<int64_t>(spec.precision, 0);
    }
    while (i < s.size() && (s[i] == 'h' || s[i] == 'l' || s[i] == 'L')) ++i;
    if (i >= s.size()) return fail("the format is incomplete");
    if (spec.width > kMaxWidth) return fail("the format's width is too large");
    TRY(charge(static_cast<uint64_t>(spec.width)) && step(static_cast<uint64_t>(spec.width) / 16 + 1));
    const char type = s[i++];
    if (type == '%') {
      text.append(source.substr(i - 1, 1));
      continue;
    }
    if (!named) TRY(take(&v));
    if (left) spec.align = '<';
    else spec.align = '>';
    std::string body;
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        Text shown;
        TRY(type == 's' ? text_of(v, &shown) : repr_of(v, &shown));
        size_t end = shown.size();
        if (spec.precision >= 0) {
          end = 0;
          for (int64_t n = 0; n < spec.precision && end < shown.size(); ++n) end += unicode::sequence_length(shown.bytes(), end);
        }
        text.append(pad(spec, "", shown.view().substr(0, end), false));
        TRY(charge(end));
        break;
      }
      case 'c':
        if (v.is_string() && v.string_length() == 1) {
          text.append(pad(spec, "", v.as_text(), false));
          break;
        }
        if (v.is_intlike() && v.as_int() >= 0 && v.as_int() <= 0x10FFFF && (v.as_int() & ~0x7FF) != 0xD800)
          unicode::append(static_cast<uint32_t>(v.as_int()), &body);
        else return fail("%%c wants a character");
        text.append(pad(spec, "", body, false));
        break;
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        const bool decimal = type == 'd' || type == 'i' || type == 'u';
        if (spec.precision > kMaxPrecision) return fail("the format's precision is too large");
        if (!v.is_intlike() && !(decimal && v.is_float())) return fail("%%%c wants a number, not %s", type, type_name(v));
        int64_t n;
        if (v.is_float()) {
          if (!(std::fabs(v.as_float()) < 9.2e18)) return fail("the number is too large for %%%c", type);
          n = static_cast<int64_t>(v.as_float());
        } else {
          n = v.as_int();
        }
        body = digits_of(n, decimal ? 10 : (type == 'o' ? 8 : 16));
        if (type == 'X') body = upper_ascii(body);
        if (static_cast<int64_t>(body.size()) < spec.precision)
          body.insert(0, std::string(static_cast<size_t>(spec.precision) - body.size(), '0'));
        std::string sign = sign_of(spec, n < 0);
        if (spec.alternate && !decimal) sign += std::string("0") + type;
        if (zero && !left) spec.fill = "0", spec.align = '=';
        text.append(pad(spec, sign, body, true));
        break;
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        TRY(not_undefined(v));
        if (!v.is_number()) return fail("%%%c wants a number, not %s", type, type_name(v));
        if (spec.precision > kMaxPrecision) return fail("the format's precision is too large");
        if (zero && !left) spec.fill = "0", spec.align = '=';
        spec.type = type;
        text.append(format_double(v.as_float(), spec));
        break;
      default: return fail("unknown conversion '%%%c' in a format", type);
    }
    TRY(charge(body.size()));
  }
  const bool all_used = args.is_tuple() ? next_arg >= args.as_items().size()
                                        : next_arg > 0 || mapping || named_used || args.is_undefined() || args.is_list() ||
                                              args.view_type() == Value::ViewType::range;
  if (!all_used) return fail("not all arguments are used by the format");
  return string_value(std::move(text), out);
}

// --- "{}".format(x) ---

namespace {

class BraceFormatter {
 public:
  BraceFormatter(Interp& in, const Args& args) : in_(in), args_(args) {}

  bool run(TextView source, int depth, Text* out) {
    const std::string_view s = source.bytes();
    if (depth < 0) return in_.fail("the format is nested too deeply");
    for (size_t i = 0; i < s.size();) {
      const char c = s[i];
      if (c != '{' && c != '}') {
        const size_t end = std::min(s.find_first_of("{}", i), s.size());
        TRY(in_.charge(end - i));
        out->append(source.substr(i, end - i));
        i = end;
        continue;
      }
      if (i + 1 < s.size() && s[i + 1] == c) {
        out->append(source.substr(i, 1));
        i += 2;
        continue;
      }
      if (c == '}') return in_.fail("single '}' in a format");
      size_t end = i + 1;
      for (int open = 1; end < s.size(); ++end) {
        if (s[end] == '{') ++open;
        if (s[end] == '}' && --open == 0) break;
      }
      if (end >= s.size()) return in_.fail("'{' is never closed in a format");
      TRY(field(source.substr(i + 1, end - i - 1), depth, out));
      i = end + 1;
    }
    return true;
  }

 private:
  bool field(TextView source, int depth, Text* out) {
    const std::string_view s = source.bytes();
    size_t name_end = 0;
    for (bool bracket = false; name_end < s.size(); ++name_end) {
      if (s[name_end] == '[') bracket = true;
      if (s[name_end] == ']') bracket = false;
      if (!bracket && (s[name_end] == '!' || s[name_end] == ':')) break;
    }
    Value v;
    TRY(lookup(s.substr(0, name_end), &v));
    std::string_view rest = s.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) return in_.fail("the format's conversion is incomplete");
      Text text;
      if (rest[1] == 's') TRY(in_.text_of(v, &text));
      else if (rest[1] == 'r') TRY(in_.repr_of(v, &text));
      else return in_.fail("unknown conversion '!%c' in a format", rest[1]);
      TRY(in_.string_value(std::move(text), &v));
      rest = rest.substr(2);
    }
    Text spec;
    if (!rest.empty()) TRY(run(source.part(rest.substr(1)), depth - 1, &spec));
    return in_.format_value(v, spec, out);
  }

  bool lookup(std::string_view name, Value* out) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    const std::string first(name.substr(0, first_end));
    const bool number = first.find_first_not_of("0123456789") == std::string::npos;
    if (number) {
      size_t index = next_;
      if (first.empty()) {
        if (manual_) return in_.fail("a format numbers either all fields or none");
        ++next_;
        automatic_ = true;
      } else {
        if (automatic_) return in_.fail("a format numbers either all fields or none");
        manual_ = true;
        index = first.size() < 9 ? static_cast<size_t>(std::stoul(first)) : SIZE_MAX;
      }
      if (index >= args_.positional.size()) return in_.fail("the format refers to an argument that is not there");
      *out = args_.positional[index];
    } else {
      bool found = false;
      TRY(in_.step(1 + args_.keywords.size() / 8));
      for (const auto& keyword : args_.keywords) {
        if (keyword.first != first) continue;
        *out = keyword.second;
        found = true;
      }
      if (!found) return in_.fail("the format's argument '%s' is missing", first.c_str());
    }
    for (size_t i = first_end; i < name.size();) {
      Value next;
      if (name[i] == '.') {
        const size_t end = std::min(name.find_first_of(".[", i + 1), name.size());
        if (end == i + 1) return in_.fail("empty attribute in a format");
        TRY(in_.attribute(*out, std::string(name.substr(i + 1, end - i - 1)), &next));
        i = end;
      } else if (name[i] == '[') {
        const size_t end = name.find(']', i);
        if (end == std::string_view::npos || end == i + 1) return in_.fail("missing index in a format");
        const std::string key(name.substr(i + 1, end - i - 1));
        const bool digits = key.size() < 18 && key.find_first_not_of("0123456789") == std::string::npos;
        TRY(in_.item(*out, digits ? Value::integer(std::stoll(key)) : Value::string(key), &next));
        i = end + 1;
      } else {
        return in_.fail("only '.' or '[' may follow ']' in a format");
      }
      *out = std::move(next);
    }
    return true;
  }

  Interp& in_;
  const Args& args_;
  size_t next_ = 0;
  bool automatic_ = false, manual_ = false;
};

}  // namespace

bool Interp::brace_format(TextView s, const Args& args, Value* out) {
  Text text;
  TRY(BraceFormatter(*this, args).run(s, 2, &text));
  return string_value(std::move(text), out);
}

}  // namespace orrery::text::jinja
