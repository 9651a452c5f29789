// Filters on text, numbers and JSON, and the table of all filters. Filters on sequences are in sequence_filters.cpp.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/text/jinja/builtins/filters.h"
#include "runtime/text/jinja/interpreter/strings.h"
#include "runtime/text/unicode/python_characters.h"
#include "runtime/text/json/json.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

// str(v) as a value. Text is returned unchanged.
bool as_text(Interp& in, const Value& v, Value* out) {
  if (v.is_string()) {
    *out = v;
    return true;
  }
  Text text;
  TRY(in.text_of(v, &text));
  return in.string_value(std::move(text), out);
}

template <Convert convert>
bool converted(Interp& in, const Value& v, Args& args, Value* out) {
  Value text;
  TRY(in.bind(args, "filter", {}, 0, nullptr) && as_text(in, v, &text));
  const uint64_t bytes = text.as_string().size();
  TRY(in.charge(bytes * 3) && in.step(bytes / 4));
  return in.string_value(convert_text<convert>(in, text.as_text()), out);
}

// The title filter's words begin after white space, '-', and opening brackets.
bool title(Interp& in, const Value& v, Args& args, Value* out) {
  Value text;
  TRY(in.bind(args, "filter", {}, 0, nullptr) && as_text(in, v, &text));
  const TextView source = text.as_text();
  const std::string_view s = source.bytes();
  TRY(in.charge(s.size() * 3) && in.step(s.size() / 4));
  Pace pace(in.limits().cancel);
  Text titled;
  size_t word = 0;
  const auto flush = [&](size_t end) {
    if (end == word) return;
    const size_t n = unicode::sequence_length(s, word);
    titled.append(convert_text<unicode::upper>(in, source.substr(word, n)));
    titled.append(convert_text<unicode::lower>(in, source.substr(word + n, end - word - n)));
  };
  for (size_t i = 0; i < s.size() && !pace.stop();) {
    const uint32_t c = unicode::decode(s, i);
    const size_t n = unicode::sequence_length(s, i);
    if (c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || unicode::is(c, unicode::kSpace)) {
      flush(i);
      // A separator is its own piece; upper case does not change its first character.
      titled.append(source.substr(i, n));
      word = i + n;
    }
    i += n;
  }
  flush(s.size());
  return in.string_value(std::move(titled), out);
}

bool trim(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* chars;
  Value text;
  TRY(in.bind(args, "trim", {"chars"}, 0, &chars) && as_text(in, v, &text));
  if (chars != nullptr && chars->is_none()) chars = nullptr;
  if (chars != nullptr) TRY(in.want_string(*chars, "the characters to trim"));
  std::string_view kept;
  TRY(strip_text(in, text.as_string(), chars, true, true, &kept));
  return in.string_value(text.as_text().part(kept), out);
}

bool string_filter(Interp& in, const Value& v, Args& args, Value* out) {
  return in.bind(args, "string", {}, 0, nullptr) && as_text(in, v, out);
}

bool replace(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[3];
  int64_t count = -1;
  Value text, old, with;
  TRY(in.bind(args, "replace", {"old", "new", "count"}, 2, a));
  TRY(as_text(in, v, &text) && as_text(in, *a[0], &old) && as_text(in, *a[1], &with));
  if (a[2] != nullptr && !a[2]->is_none()) TRY(in.want_int(*a[2], "the count", &count));
  return replace_text(in, text, old.as_string(), with.as_text(), count, out);
}

bool escape(Interp& in, const Value& v, Args& args, Value* out) {
  Value text;
  TRY(in.bind(args, "escape", {}, 0, nullptr) && as_text(in, v, &text));
  if (text.is_markup()) {
    *out = text;
    return true;
  }
  TRY(in.charge(text.as_string().size() * 5));
  *out = Value::markup(escape_html(text.as_text()));
  return true;
}

bool safe(Interp& in, const Value& v, Args& args, Value* out) {
  Value text;
  TRY(in.bind(args, "safe", {}, 0, nullptr) && as_text(in, v, &text) && in.charge(text.as_string().size()));
  *out = Value::markup(Text(text.as_text()));
  return true;
}

bool format_filter(Interp& in, const Value& v, Args& args, Value* out) {
  Value text;
  TRY(as_text(in, v, &text));
  if (!args.positional.empty() && !args.keywords.empty()) return in.fail("format takes either positional or named arguments");
  if (args.keywords.empty()) return in.percent_format(text, Value::tuple(std::move(args.positional)), out);
  Map named;
  for (auto& keyword : args.keywords) named.set(keyword.first, std::move(keyword.second));
  return in.percent_format(text, Value::map(std::move(named)), out);
}

bool indent(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[3];
  Text margin;
  std::vector<Value> lines;
  TRY(in.bind(args, "indent", {"width", "first", "blank"}, 0, a) && in.want_string(v, "what is indented"));
  if (a[0] != nullptr && a[0]->is_string()) {
    margin = Text(a[0]->as_text());
  } else {
    int64_t width = 4;
    if (a[0] != nullptr) TRY(in.want_int(*a[0], "the width", &width));
    TRY(in.charge(static_cast<uint64_t>(std::max<int64_t>(width, 0))));
    margin = Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), Origin::data);
  }
  const bool first = a[1] != nullptr && Interp::truth(*a[1]), blank = a[2] != nullptr && Interp::truth(*a[2]);
  Text ended(v.as_text());
  ended += '\n';
  TRY(split_lines(in, ended, false, &lines));
  Text text;
  for (size_t i = 0; i < lines.size(); ++i) {
    const TextView line = lines[i].as_text();
    if (i != 0) text += '\n';
    if (i == 0 ? first : blank || !line.empty()) {
      TRY(in.charge(margin.size() + margin.n_changes() * 4));
      text.append(margin);
    }
    text.append(line);
  }
  return in.string_value(std::move(text), out);
}

bool truncate(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[4];
  int64_t length = 255, leeway = 5;
  TRY(in.bind(args, "truncate", {"length", "killwords", "end", "leeway"}, 0, a));
  if (a[0] != nullptr) TRY(in.want_int(*a[0], "the length", &length));
  if (a[2] != nullptr) TRY(in.want_string(*a[2], "the end"));
  if (a[3] != nullptr && !a[3]->is_none()) TRY(in.want_int(*a[3], "the leeway", &leeway));
  const Value end = a[2] != nullptr ? *a[2] : Value::literal("...");
  const auto end_length = static_cast<int64_t>(end.string_length());
  if (length < end_length || leeway < 0) return in.fail("truncate: the length is too small or the leeway negative");
  int64_t present;
  TRY(in.length_of(v, &present));  // a short enough value stays as it is, text or not
  if (present <= length || present - length <= leeway) {
    *out = v;
    return true;
  }
  TRY(in.want_string(v, "what is truncated"));
  std::string_view kept = v.as_string().substr(0, v.string_offset(static_cast<size_t>(length - end_length)));
  if (a[1] == nullptr || !Interp::truth(*a[1])) kept = kept.substr(0, kept.rfind(' '));
  return in.string_value(std::move(Text(v.as_text().part(kept)).append(end.as_text())), out);
}

bool center(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a;
  int64_t width = 80;
  Value text;
  TRY(in.bind(args, "center", {"width"}, 0, &a) && as_text(in, v, &text));
  if (a != nullptr) TRY(in.want_int(*a, "the width", &width));
  return justify_text(in, text, width, TextView(" ", Origin::data), 0, out);
}

bool word_count(Interp& in, const Value& v, Args& args, Value* out) {
  Value text;
  TRY(in.bind(args, "wordcount", {}, 0, nullptr) && as_text(in, v, &text) && in.step(text.as_string().size()));
  const std::string_view s = text.as_string();
  int64_t words = 0;
  bool inside = false;
  for (size_t i = 0; i < s.size(); i += unicode::sequence_length(s, i)) {
    const bool word = unicode::is(unicode::decode(s, i), unicode::kWord);
    words += word && !inside;
    inside = word;
  }
  *out = Value::integer(words);
  return true;
}

// --- numbers ---

// Text without surrounding blanks and without "_" between digits. Empty if the text is no number.
std::string number_text(std::string_view s) {
  s = strip_blanks(s, true, true);
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    const auto digit = [&](size_t at) { return at < s.size() && std::isxdigit(static_cast<unsigned char>(s[at])) != 0; };
    if (s[i] == '_') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return {};
      continue;
    }
    out += s[i];
  }
  return out;
}

bool parse_float(std::string_view text, double* out) {
  std::string s = unicode::lower(number_text(text));
  if (s.empty()) return false;
  const char* first = s.data();
  const char* last = first + s.size();
  const bool negative = *first == '-';
  if (*first == '+' || negative) ++first;
  if (first == last || *first == '-' || *first == '+') return false;
  const std::string_view rest(first, static_cast<size_t>(last - first));
  if (rest == "inf" || rest == "infinity" || rest == "nan") {
    *out = rest == "nan" ? std::nan("") : HUGE_VAL;
  } else {
    if (*first != '.' && (*first < '0' || *first > '9')) return false;
    const auto parsed = std::from_chars(first, last, *out);
    if (parsed.ptr != last) return false;
    if (parsed.ec == std::errc::result_out_of_range) {
      // A number that is too large becomes infinite, too small becomes zero. The range of long double tells the two
      // apart.
      *out = rest.find("e-") != std::string_view::npos || rest[0] == '0' || rest[0] == '.' ? 0.0 : HUGE_VAL;
    } else if (parsed.ec != std::errc()) {
      return false;
    }
  }
  if (negative) *out = -*out;
  return true;
}

// Returns 0 if the text is no integer in this base, 1 if it is, 2 if the integer exceeds 64 bits.
int parse_int(std::string_view text, int64_t base, int64_t* out) {
  std::string s = unicode::lower(number_text(text));
  const bool negative = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.erase(0, 1);
  const auto prefixed = [&s](char mark) { return s.size() > 2 && s[0] == '0' && s[1] == mark; };
  if ((base == 16 || base == 0) && prefixed('x')) s.erase(0, 2), base = 16;
  else if ((base == 8 || base == 0) && prefixed('o')) s.erase(0, 2), base = 8;
  else if ((base == 2 || base == 0) && prefixed('b')) s.erase(0, 2), base = 2;
  else if (base == 0) {
    if (s.size() > 1 && s[0] == '0' && s.find_first_not_of('0') != std::string::npos) return 0;
    base = 10;
  }
  if (s.empty() || s[0] == '-' || s[0] == '+') return 0;
  if (negative) s.insert(0, "-");
  const auto parsed = std::from_chars(s.data(), s.data() + s.size(), *out, static_cast<int>(base));
  if (parsed.ptr != s.data() + s.size()) return 0;
  return parsed.ec == std::errc() ? 1 : (parsed.ec == std::errc::result_out_of_range ? 2 : 0);
}

bool int_filter(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  int64_t base = 10, result = 0;
  TRY(in.bind(args, "int", {"default", "base"}, 0, a));
  if (a[1] != nullptr) TRY(in.want_int(*a[1], "the base", &base));
  const Value fallback = a[0] != nullptr ? *a[0] : Value::integer(0);
  TRY(in.not_undefined(v) && in.step(v.is_string() ? v.as_string().size() : 1));
  if (v.is_intlike()) {
    *out = Value::integer(v.as_int());
    return true;
  }
  double d = 0;
  if (v.is_float()) {
    d = v.as_float();
  } else if (v.kind() == Kind::big_integer) {
    *out = v;
    return true;
  } else if (v.is_string()) {
    const int parsed = base == 0 || (base >= 2 && base <= 36) ? parse_int(v.as_string(), base, &result) : 0;
    if (parsed == 2) return in.fail("the integer is too large");
    if (parsed == 1) {
      *out = Value::integer(result);
      return true;
    }
    if (!parse_float(v.as_string(), &d)) {
      *out = fallback;
      return true;
    }
  } else {
    *out = fallback;
    return true;
  }
  // int(inf) is an overflow, which the filter reports only for floats. int(nan) gives the default.
  if (std::isinf(d) && v.is_float()) return in.fail("an infinite float has no integer");
  if (!std::isfinite(d)) {
    *out = fallback;
    return true;
  }
  if (std::fabs(d) >= 9223372036854775808.0) return in.fail("the integer is too large");
  *out = Value::integer(static_cast<int64_t>(d));
  return true;
}

bool float_filter(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* fallback;
  TRY(in.bind(args, "float", {"default"}, 0, &fallback) && in.not_undefined(v) && in.step(v.is_string() ? v.as_string().size() : 1));
  double d = 0;
  if (v.is_number()) d = v.as_float();
  else if ((!v.is_string() && v.kind() != Kind::big_integer) || !parse_float(v.as_string(), &d)) {
    *out = fallback != nullptr ? *fallback : Value::floating(0.0);
    return true;
  }
  *out = Value::floating(d);
  return true;
}

bool abs_filter(Interp& in, const Value& v, Args& args, Value* out) {
  TRY(in.bind(args, "abs", {}, 0, nullptr) && in.not_undefined(v));
  if (v.is_float()) {
    *out = Value::floating(std::fabs(v.as_float()));
    return true;
  }
  if (!v.is_intlike()) return in.fail("abs wants a number, not %s", Interp::type_name(v));
  if (v.as_int() < 0) return in.binary(Op::sub, Value::integer(0), v, out);
  *out = Value::integer(v.as_int());
  return true;
}

// Rounds half to even on the exact value, as round() does: printing with the precision rounds exactly.
double round_to(double v, int64_t digits) {
  if (!std::isfinite(v) || digits > 300) return v;
  if (digits < -308) return std::copysign(0.0, v);
  double result = v;
  if (digits >= 0) {
    char buffer[700];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::fixed, static_cast<int>(digits)).ptr;
    std::from_chars(buffer, end, result);
    return result;
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(v / scale) * scale;
}

bool round_filter(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  int64_t precision = 0;
  TRY(in.bind(args, "round", {"precision", "method"}, 0, a) && in.not_undefined(v));
  if (a[0] != nullptr) TRY(in.want_int(*a[0], "the precision", &precision));
  const std::string_view method = a[1] != nullptr && a[1]->is_string() ? a[1]->as_string() : (a[1] ? "?" : "common");
  if (method != "common" && method != "ceil" && method != "floor") return in.fail("round: the method must be common, ceil or floor");
  if (!v.is_number()) return in.fail("round wants a number, not %s", Interp::type_name(v));
  if (method == "common") {
    if (v.is_float()) {
      *out = Value::floating(round_to(v.as_float(), precision));
    } else if (precision >= 0) {
      *out = Value::integer(v.as_int());
    } else if (precision < -18) {
      *out = Value::integer(0);
    } else {
      int64_t scale = 1;
      for (int64_t i = precision; i < 0; ++i) scale *= 10;
      Value rest;
      TRY(in.binary(Op::mod, v, Value::integer(scale), &rest));
      const int64_t r = rest.as_int();
      const int64_t down = v.as_int() - r;
      const bool up = r > scale / 2 || (r == scale / 2 && (down / scale) % 2 != 0);
      return in.binary(Op::add, Value::integer(down), Value::integer(up ? scale : 0), out);
    }
    return true;
  }
  Value scale, scaled;
  TRY(in.binary(Op::pow, Value::integer(10), Value::integer(precision), &scale));
  TRY(in.binary(Op::mul, v, scale, &scaled));
  const double whole = method == "ceil" ? std::ceil(scaled.as_float()) : std::floor(scaled.as_float());
  if (!std::isfinite(whole)) return in.fail("round: the number has no whole part");
  return in.binary(Op::div, Value::floating(whole), scale, out);
}

// --- JSON ---

bool tojson(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[4];
  TRY(in.bind(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, a));
  JsonFormat how;
  how.max_bytes = 32 << 20;
  how.ensure_ascii = a[0] != nullptr && Interp::truth(*a[0]);
  if (a[1] != nullptr && !a[1]->is_none()) {
    how.pretty = true;
    if (a[1]->is_string()) {
      how.indent = std::string(a[1]->as_string());
    } else {
      int64_t width;
      TRY(in.want_int(*a[1], "the indent", &width));
      if (width > 1000) return in.fail("the indent is too large");
      how.indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (a[2] != nullptr && !a[2]->is_none()) {
    std::vector<Value> pair;
    TRY(in.items_of(*a[2], &pair));
    if (pair.size() != 2) return in.fail("the separators must be a pair");
    TRY(in.want_string(pair[0], "a separator") && in.want_string(pair[1], "a separator"));
    how.custom_separators = true;
    how.item_separator = std::string(pair[0].as_string());
    how.key_separator = std::string(pair[1].as_string());
  }
  how.sort_keys = a[3] != nullptr && Interp::truth(*a[3]);
  uint64_t written = 0;
  how.bytes_written = &written;
  Origins origins;
  how.origins = &origins;
  how.cancel = in.limits().cancel;
  Result<std::string> text = dump_json(v, how);
  TRY(in.step(written / 4));  // also for what fails in the end
  if (!text.ok()) return in.fail("tojson: %s", text.status().message());
  return in.string_value(Text(std::move(text).value(), std::move(origins)), out);
}

constexpr Filter kFilters[] = {
    {"trim", trim},
    {"tojson", tojson},
    {"length", filters::length},
    {"count", filters::length},
    {"join", filters::join},
    {"first", filters::first},
    {"last", filters::last},
    {"default", filters::fallback},
    {"d", filters::fallback},
    {"list", filters::list},
    {"dictsort", filters::dictsort},
    {"items", filters::items, true},
    {"map", filters::map, true},
    {"select", filters::select, true},
    {"reject", filters::reject, true},
    {"selectattr", filters::selectattr, true},
    {"rejectattr", filters::rejectattr, true},
    {"unique", filters::unique, true},
    {"sort", filters::sort},
    {"reverse", filters::reverse},
    {"sum", filters::sum},
    {"min", filters::min},
    {"max", filters::max},
    {"batch", filters::batch, true},
    {"slice", filters::slice, true},
    {"groupby", filters::groupby},
    {"attr", filters::attr},
    {"upper", converted<unicode::upper>},
    {"lower", converted<unicode::lower>},
    {"title", title},
    {"capitalize", converted<unicode::capitalize>},
    {"replace", replace},
    {"string", string_filter},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
    {"format", format_filter},
    {"indent", indent},
    {"truncate", truncate},
    {"center", center},
    {"wordcount", word_count},
    {"int", int_filter},
    {"float", float_filter},
    {"abs", abs_filter},
    {"round", round_filter},
};

}  // namespace

std::vector<std::string> filter_names() {
  std::vector<std::string> out;
  for (const Filter& f : kFilters) out.push_back(f.name);
  return out;
}

uint16_t find_filter(std::string_view name) {
  for (uint16_t i = 0; i < sizeof kFilters / sizeof kFilters[0]; ++i)
    if (name == kFilters[i].name) return i;
  return kNoFunction;
}

bool Interp::call_filter(uint16_t index, const Value& v, Args& args, Value* out) {
  if (stack_.low()) return elsewhere([&] { return call_filter(index, v, args, out); });
  Deeper deeper(this);
  TRY(deeper.ok() && pay_for(v, args));
  if (kFilters[index].function(*this, v, args, out)) return true;
  if (!kFilters[index].lazy || exhausted_ || status_.code() != Code::unsupported_template) return false;
  auto* generator = new GeneratorObject;
  *out = Value::object(generator);
  generator->failure = std::exchange(status_, Status());
  return true;
}

}  // namespace orrery::text::jinja
