// Methods of strings, lists and mappings, with Python's names and meaning. A method that would change its object has
// no function in the table: a template finds the method, and calling it fails with that reason.
#include <algorithm>
#include <cmath>

#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/jinja/interpreter/strings.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

bool none(Interp& in, const Args& args, const char* what) { return in.bind(args, what, {}, 0, nullptr); }

// --- strings: whole text ---

template <Convert convert>
bool convert_self(Interp& in, const Value& self, Args& args, Value* out) {
  const uint64_t bytes = self.as_string().size();
  TRY(none(in, args, "string method") && in.charge(bytes * 3) && in.step(bytes / 4));
  return in.string_value(convert_text<convert>(in, self.as_text()), out);
}

template <bool left, bool right>
bool strip(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* chars;
  TRY(in.bind(args, "strip", {"chars"}, 0, &chars, 1));
  if (chars != nullptr && !chars->is_none()) TRY(in.want_string(*chars, "the characters to strip"));
  const bool blanks = chars == nullptr || chars->is_none();
  std::string_view kept;
  TRY(strip_text(in, self.as_string(), blanks ? nullptr : chars, left, right, &kept));
  return in.string_value(self.as_text().part(kept), out);
}

template <bool prefix>
bool remove_affix(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* affix;
  TRY(in.bind(args, "removeprefix", {"affix"}, 1, &affix, 1) && in.want_string(*affix, "the affix"));
  std::string_view s = self.as_string();
  const std::string_view a = affix->as_string();
  if (s.size() >= a.size() && (prefix ? s.substr(0, a.size()) : s.substr(s.size() - a.size())) == a)
    s = prefix ? s.substr(a.size()) : s.substr(0, s.size() - a.size());
  return in.string_value(self.as_text().part(s), out);
}

bool replace_self(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[3];
  int64_t count = -1;
  TRY(in.bind(args, "replace", {"old", "new", "count"}, 2, v, 3));
  TRY(in.want_string(*v[0], "the text to replace") && in.want_string(*v[1], "the replacement"));
  if (v[2] != nullptr) TRY(in.want_int(*v[2], "the count", &count));
  return replace_text(in, self, v[0]->as_string(), v[1]->as_text(), count, out);
}

bool join(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* iterable;
  std::vector<Value> items;
  TRY(in.bind(args, "join", {"iterable"}, 1, &iterable, 1));
  TRY(in.items_of(*iterable, &items));
  Text text;
  for (size_t i = 0; i < items.size(); ++i) {
    TRY(in.want_string(items[i], "what is joined"));
    if (i != 0) TRY(in.text_of(self, &text));
    TRY(in.text_of(items[i], &text));
  }
  return in.string_value(std::move(text), out);
}

template <int align>  // -1 left, 0 center, 1 right
bool justify(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[2];
  int64_t width;
  TRY(in.bind(args, "justify", {"width", "fillchar"}, 1, v, 2) && in.want_int(*v[0], "the width", &width));
  TextView fill(" ", Origin::data);
  if (v[1] != nullptr) {
    TRY(in.want_string(*v[1], "the fill character"));
    if (v[1]->string_length() != 1) return in.fail("the fill character must be exactly one character long");
    fill = v[1]->as_text();
  }
  return justify_text(in, self, width, fill, align, out);
}

bool zfill(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v;
  int64_t width;
  TRY(in.bind(args, "zfill", {"width"}, 1, &v, 1) && in.want_int(*v, "the width", &width));
  const std::string_view s = self.as_string();
  const bool sign = !s.empty() && (s[0] == '+' || s[0] == '-');
  Value padded;
  const TextView zero("0", Origin::data), text = self.as_text();
  if (!sign) return justify_text(in, self, width, zero, 1, out);
  TRY(justify_text(in, Value::text(Text(text.substr(1))), width - 1, zero, 1, &padded));
  return in.string_value(std::move(Text(text.substr(0, 1)).append(padded.as_text())), out);
}

bool expandtabs(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v;
  int64_t size = 8;
  TRY(in.bind(args, "expandtabs", {"tabsize"}, 0, &v));
  if (v != nullptr) TRY(in.want_int(*v, "the tab size", &size));
  Text text;
  int64_t column = 0;
  TRY(self.as_text().each_run([&](std::string_view s, Origin origin) {
    for (size_t i = 0; i < s.size();) {
      const size_t n = unicode::sequence_length(s, i);
      if (s[i] == '\t') {
        const int64_t pad = size > 0 ? size - column % size : 0;
        TRY(in.charge(static_cast<uint64_t>(pad)));
        text.append(std::string(static_cast<size_t>(pad), ' '), origin);
        column += pad;
      } else {
        text.append(s.substr(i, n), origin);
        column = s[i] == '\n' || s[i] == '\r' ? 0 : column + 1;
      }
      i += n;
    }
    return true;
  }));
  return in.string_value(std::move(text), out);
}

// --- strings: splitting ---

template <bool from_right>
bool split(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[2];
  int64_t limit = -1;
  TRY(in.bind(args, "split", {"sep", "maxsplit"}, 0, v));
  if (v[1] != nullptr) TRY(in.want_int(*v[1], "maxsplit", &limit));
  const bool blanks = v[0] == nullptr || v[0]->is_none();
  if (!blanks) {
    TRY(in.want_string(*v[0], "the separator"));
    if (v[0]->as_string().empty()) return in.fail("the separator is empty");
  }
  std::vector<Value> parts;
  TRY(split_text(in, self.as_text(), blanks ? std::string_view() : v[0]->as_string(), limit, from_right, &parts));
  return in.list_value(std::move(parts), out);
}

bool splitlines(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* keep;
  TRY(in.bind(args, "splitlines", {"keepends"}, 0, &keep));
  std::vector<Value> lines;
  TRY(split_lines(in, self.as_text(), keep != nullptr && Interp::truth(*keep), &lines));
  return in.list_value(std::move(lines), out);
}

template <bool from_right>
bool partition(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* sep;
  TRY(in.bind(args, "partition", {"sep"}, 1, &sep, 1) && in.want_string(*sep, "the separator"));
  const std::string_view s = self.as_string(), p = sep->as_string();
  if (p.empty()) return in.fail("the separator is empty");
  size_t at;
  TRY(find_text<from_right>(in, s, p, &at));
  Value parts[3];
  if (at == std::string_view::npos) {
    TRY(in.string_value(TextView(), &parts[0]) && in.string_value(TextView(), &parts[1]));
    parts[2] = parts[0];
    parts[from_right ? 2 : 0] = self;
  } else {
    TRY(in.string_value(self.as_text().substr(0, at), &parts[0]));
    parts[1] = *sep;
    TRY(in.string_value(self.as_text().substr(at + p.size()), &parts[2]));
  }
  *out = Value::tuple({parts[0], parts[1], parts[2]});
  return true;
}

// --- strings: searching ---

// The bytes of self[start:end].
bool window(Interp& in, const Value& self, const Value* start, const Value* end, size_t* from, size_t* to, bool* valid) {
  const auto length = static_cast<int64_t>(self.string_length());
  const auto bound = [&](const Value* v, int64_t fallback, int64_t* result) {
    *result = fallback;
    if (v == nullptr || v->is_none()) return true;
    TRY(in.want_int(*v, "the bound", result));
    if (*result < 0) *result = *result < -length ? 0 : *result + length;
    return true;
  };
  int64_t a, b;
  TRY(bound(start, 0, &a) && bound(end, length, &b));
  *valid = a <= length && a <= std::min(b, length);
  *from = self.string_offset(static_cast<size_t>(std::min(a, length)));
  *to = self.string_offset(static_cast<size_t>(std::min(b, length)));
  return in.step(self.as_string().size() / 16);
}

template <bool from_right, bool must_exist>
bool find(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[3];
  size_t from, to;
  bool valid;
  TRY(in.bind(args, "find", {"sub", "start", "end"}, 1, v, 3) && in.want_string(*v[0], "what is searched for"));
  TRY(window(in, self, v[1], v[2], &from, &to, &valid));
  const std::string_view s = valid ? self.as_string().substr(from, to - from) : std::string_view();
  size_t at = std::string_view::npos;
  if (valid) TRY(find_text<from_right>(in, s, v[0]->as_string(), &at));
  if (at == std::string_view::npos) {
    if (must_exist) return in.fail("the text was not found");
    *out = Value::integer(-1);
    return true;
  }
  *out = Value::integer(static_cast<int64_t>(code_points(self.as_string().substr(0, from + at))));
  return true;
}

bool count(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[3];
  size_t from, to;
  bool valid;
  TRY(in.bind(args, "count", {"sub", "start", "end"}, 1, v, 3) && in.want_string(*v[0], "what is counted"));
  TRY(window(in, self, v[1], v[2], &from, &to, &valid));
  const std::string_view sub = v[0]->as_string();
  int64_t n = 0;
  if (valid) {
    const std::string_view s = self.as_string().substr(from, to - from);
    if (sub.empty()) {
      n = static_cast<int64_t>(code_points(s)) + 1;
    } else if (sub.size() <= s.size()) {
      Finder<false> finder;
      TRY(finder.prepare(in, sub));
      for (size_t at = 0;; at += sub.size(), ++n) {
        TRY(finder.find(in, s, at, &at) && in.step());
        if (at == std::string_view::npos) break;
      }
    }
  }
  *out = Value::integer(n);
  return true;
}

template <bool prefix>
bool affixed(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[3];
  size_t from, to;
  bool valid;
  TRY(in.bind(args, prefix ? "startswith" : "endswith", {"affix", "start", "end"}, 1, v, 3));
  TRY(window(in, self, v[1], v[2], &from, &to, &valid) && in.not_undefined(*v[0]));
  const std::string_view s = valid ? self.as_string().substr(from, to - from) : std::string_view();
  const auto matches = [&](const Value& affix) {
    const std::string_view a = affix.as_string();
    return valid && s.size() >= a.size() && (prefix ? s.substr(0, a.size()) : s.substr(s.size() - a.size())) == a;
  };
  bool found = false;
  if (v[0]->is_tuple()) {
    for (const Value& affix : v[0]->as_items()) {
      TRY(in.want_string(affix, "an affix") && in.step(1 + affix.as_string().size() / 16));
      found = found || matches(affix);
      if (found) break;
    }
  } else {
    TRY(in.want_string(*v[0], "the affix"));
    found = matches(*v[0]);
  }
  *out = Value::boolean(found);
  return true;
}

// --- strings: classes ---

template <uint32_t all_of>
bool every(Interp& in, const Value& self, Args& args, Value* out) {
  TRY(none(in, args, "string method") && in.step(self.string_length()));
  const std::string_view s = self.as_string();
  bool holds = !s.empty();
  for (size_t i = 0; holds && i < s.size(); i += unicode::sequence_length(s, i)) holds = unicode::is(unicode::decode(s, i), all_of);
  *out = Value::boolean(holds);
  return true;
}

template <bool (*test)(std::string_view)>
bool tested(Interp& in, const Value& self, Args& args, Value* out) {
  TRY(none(in, args, "string method") && in.step(self.string_length()));
  *out = Value::boolean(test(self.as_string()));
  return true;
}

bool format_method(Interp& in, const Value& self, Args& args, Value* out) { return in.brace_format(self.as_text(), args, out); }

bool format_map(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* mapping;
  TRY(in.bind(args, "format_map", {"mapping"}, 1, &mapping, 1));
  if (!mapping->is_map()) return in.fail("format_map wants a mapping");
  Args named;
  TRY(in.charge_items(mapping->as_map().size() * 4) && in.step(mapping->as_map().size() * 2));
  for (const Map::Entry& e : mapping->as_map().entries())
    if (e.first.is_string()) named.keywords.emplace_back(std::string(e.first.as_string()), e.second);
  return in.brace_format(self.as_text(), named, out);
}

constexpr Method kStringMethods[] = {
    {"strip", strip<true, true>},
    {"lstrip", strip<true, false>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", splitlines},
    {"startswith", affixed<true>},
    {"endswith", affixed<false>},
    {"replace", replace_self},
    {"join", join},
    {"upper", convert_self<unicode::upper>},
    {"lower", convert_self<unicode::lower>},
    {"title", convert_self<unicode::title>},
    {"capitalize", convert_self<unicode::capitalize>},
    {"swapcase", convert_self<unicode::swapcase>},
    {"find", find<false, false>},
    {"rfind", find<true, false>},
    {"index", find<false, true>},
    {"rindex", find<true, true>},
    {"count", count},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"center", justify<0>},
    {"ljust", justify<-1>},
    {"rjust", justify<1>},
    {"zfill", zfill},
    {"expandtabs", expandtabs},
    {"isalpha", every<unicode::kAlpha>},
    {"isdecimal", every<unicode::kDecimal>},
    {"isdigit", every<unicode::kDigit>},
    {"isnumeric", every<unicode::kNumeric>},
    {"isalnum", every<unicode::kAlpha | unicode::kDecimal | unicode::kDigit | unicode::kNumeric>},
    {"isspace", every<unicode::kSpace>},
    {"isupper", tested<is_upper_text>},
    {"islower", tested<is_lower_text>},
    {"istitle", tested<is_title_text>},
    {"isascii", tested<is_ascii_text>},
    {"isprintable", tested<is_printable_text>},
    {"isidentifier", tested<is_identifier_text>},
    {"format", format_method},
    {"format_map", format_map},
};

// --- lists, tuples, ranges ---

bool list_count(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v;
  TRY(in.bind(args, "count", {"value"}, 1, &v, 1));
  int64_t n = 0;
  for (const Value& item : self.as_items()) {
    bool equal;
    TRY(in.step() && in.same(item, *v, &equal));
    n += equal;
  }
  *out = Value::integer(n);
  return true;
}

bool list_index(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[3];
  TRY(in.bind(args, "index", {"value", "start", "stop"}, 1, v, 3));
  const auto length = static_cast<int64_t>(self.as_items().size());
  int64_t bounds[2] = {0, length};
  for (size_t i = 0; i < 2; ++i) {
    if (v[i + 1] == nullptr) continue;
    TRY(in.want_int(*v[i + 1], "the bound", &bounds[i]));
    if (bounds[i] < 0) bounds[i] = bounds[i] < -length ? 0 : bounds[i] + length;
  }
  for (int64_t i = bounds[0]; i < std::min(bounds[1], length); ++i) {
    bool equal;
    TRY(in.step() && in.same(self.as_items()[static_cast<size_t>(i)], *v[0], &equal));
    if (!equal) continue;
    *out = Value::integer(i);
    return true;
  }
  return in.fail("the value is not in the list");
}

bool copy(Interp& in, const Value& self, Args& args, Value* out) {
  TRY(none(in, args, "copy"));
  if (self.is_list()) return in.list_value(self.as_items(), out);
  *out = self;  // the others never change, so the copy may share the body
  return true;
}

bool list_append(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v;
  TRY(in.bind(args, "append", {"object"}, 1, &v, 1) && in.charge_items(4));
  in.track(self);
  self.append(*v);
  *out = Value::none();
  return true;
}

constexpr Method kListMethods[] = {
    {"index", list_index}, {"count", list_count}, {"copy", copy},      {"append", nullptr},  {"clear", nullptr}, {"extend", nullptr},
    {"insert", nullptr},   {"pop", nullptr},      {"remove", nullptr}, {"reverse", nullptr}, {"sort", nullptr},
};
// Of lists that the template has made. (Jinja2's sandbox refuses this, but engines that publishers test with do not.)
constexpr Method kGrowingListMethods[] = {{"append", list_append}};
constexpr Method kTupleMethods[] = {{"index", list_index}, {"count", list_count}};

// --- mappings ---

template <Value::ViewType type>
bool view(Interp& in, const Value& self, Args& args, Value* out) {
  TRY(none(in, args, "mapping method") && in.charge_items(self.as_map().size() * 4) && in.step(self.as_map().size()));
  std::vector<Value> items;
  items.reserve(self.as_map().size());
  for (const Map::Entry& e : self.as_map().entries()) {
    if (type == Value::ViewType::items) items.push_back(Value::tuple({e.first, e.second}));
    else items.push_back(type == Value::ViewType::keys ? e.first : e.second);
  }
  *out = Value::view(type, std::move(items));
  return true;
}

bool get(Interp& in, const Value& self, Args& args, Value* out) {
  const Value* v[2];
  TRY(in.bind(args, "get", {"key", "default"}, 1, v, 2) && in.hash_check(*v[0]));
  const Value* found = self.as_map().find(*v[0]);
  *out = found != nullptr ? *found : (v[1] != nullptr ? *v[1] : Value::none());
  return true;
}

bool fromkeys(Interp& in, const Value& self, Args& args, Value* out) {
  (void)self;
  const Value* v[2];
  std::vector<Value> keys;
  TRY(in.bind(args, "fromkeys", {"iterable", "value"}, 1, v, 2) && in.items_of(*v[0], &keys));
  Map map;
  for (Value& key : keys) {
    TRY(in.hash_check(key) && in.charge(64) && in.step(8));
    map.set(std::move(key), v[1] != nullptr ? *v[1] : Value::none());
  }
  *out = Value::map(std::move(map));
  return true;
}

constexpr Method kMapMethods[] = {
    {"items", view<Value::ViewType::items>},
    {"keys", view<Value::ViewType::keys>},
    {"values", view<Value::ViewType::values>},
    {"get", get},
    {"copy", copy},
    {"fromkeys", fromkeys},
    {"clear", nullptr},
    {"pop", nullptr},
    {"popitem", nullptr},
    {"setdefault", nullptr},
    {"update", nullptr},
};

// --- numbers ---

bool is_integer(Interp& in, const Value& self, Args& args, Value* out) {
  *out = Value::boolean(std::isfinite(self.as_float()) && std::floor(self.as_float()) == self.as_float());
  return none(in, args, "is_integer");
}

bool bit_length(Interp& in, const Value& self, Args& args, Value* out) {
  const int64_t v = self.as_int();
  uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  int64_t bits = 0;
  for (; magnitude != 0; magnitude >>= 1) ++bits;
  *out = Value::integer(bits);
  return none(in, args, "bit_length");
}

constexpr Method kFloatMethods[] = {{"is_integer", is_integer}};
constexpr Method kIntegerMethods[] = {{"bit_length", bit_length}};

template <size_t N>
void add_names(const Method (&table)[N], const char* kind, std::vector<std::string>* out) {
  for (const Method& m : table)
    if (m.function != nullptr) out->push_back(std::string(kind) + "." + m.name);
}

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> out;
  add_names(kStringMethods, "string", &out);
  add_names(kListMethods, "list", &out);
  add_names(kGrowingListMethods, "list", &out);
  add_names(kTupleMethods, "tuple", &out);
  add_names(kMapMethods, "map", &out);
  add_names(kFloatMethods, "float", &out);
  add_names(kIntegerMethods, "integer", &out);
  return out;
}

const Method* string_method(std::string_view name) { return find_in(kStringMethods, name); }

const Method* container_method(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::list:
      if (object.is_growing())
        if (const Method* method = find_in(kGrowingListMethods, name)) return method;
      return find_in(kListMethods, name);
    case Kind::tuple: return find_in(kTupleMethods, name);
    case Kind::view: return object.view_type() == Value::ViewType::range ? find_in(kTupleMethods, name) : nullptr;
    case Kind::map: return find_in(kMapMethods, name);
    case Kind::floating: return find_in(kFloatMethods, name);
    case Kind::boolean:
    case Kind::integer: return find_in(kIntegerMethods, name);
    default: return nullptr;
  }
}

}  // namespace orrery::text::jinja
