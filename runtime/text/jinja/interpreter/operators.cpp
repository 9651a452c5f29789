// Operators and the text of values, with Python's meaning: floor division and modulo follow the divisor's
// sign, `*` repeats text and lists, comparisons of unlike types fail, str() of a list shows the repr() of its
// items. Integers are 64 bits; a result beyond them is an error rather than a wrong number.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/jinja/interpreter/strings.h"
#include "runtime/text/json/json.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

constexpr uint32_t kMaxValueDepth = 150;  // of nested lists when printing or ordering

const char* op_name(Op op) {
  switch (op) {
    case Op::add: return "+";
    case Op::sub: return "-";
    case Op::mul: return "*";
    case Op::div: return "/";
    case Op::floordiv: return "//";
    case Op::mod: return "%";
    case Op::pow: return "**";
    case Op::eq: return "==";
    case Op::ne: return "!=";
    case Op::lt: return "<";
    case Op::le: return "<=";
    case Op::gt: return ">";
    case Op::ge: return ">=";
    case Op::in: return "in";
    case Op::not_in: return "not in";
  }
  return "?";
}

}  // namespace

const char* Interp::type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::undefined: return "undefined";
    case Kind::none: return "none";
    case Kind::boolean: return "a boolean";
    case Kind::integer:
    case Kind::big_integer: return "an integer";
    case Kind::floating: return "a float";
    case Kind::string: return "a string";
    case Kind::list: return "a list";
    case Kind::tuple: return "a tuple";
    case Kind::view: return "a view";
    case Kind::map: return "a mapping";
    case Kind::object: break;
  }
  switch (as_object(v)->type) {
    case ObjectType::name_space: return "a namespace";
    case ObjectType::macro: return "a macro";
    case ObjectType::generator: return "a generator";
    case ObjectType::loop: return "a loop";
    case ObjectType::cycler: return "a cycler";
    case ObjectType::joiner: return "a joiner";
    default: return "a function";
  }
}

bool Interp::not_undefined(const Value& v) {
  if (!v.is_undefined()) return true;
  const std::string_view hint = v.as_string();
  return fail("%s", hint.empty() ? "the value is undefined" : std::string(hint).c_str());
}

bool Interp::truth(const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean: return v.as_bool();
    case Kind::integer: return v.as_int() != 0;
    case Kind::floating: return v.as_float() != 0;
    case Kind::string: return !v.as_string().empty();
    case Kind::list:
    case Kind::tuple:
    case Kind::view: return !v.as_items().empty();
    case Kind::map: return v.as_map().size() != 0;
    case Kind::big_integer:
    case Kind::object: return true;
  }
  return true;
}

bool Interp::pay_for_text(TextView s) {
  const uint64_t origins = uint64_t{s.n_changes()} * 4;
  return charge(s.size() + origins + 64) && step((s.size() + origins) / 16);
}

bool Interp::string_value(Text s, Value* out) {
  TRY(pay_for_text(s));
  *out = Value::text(std::move(s));
  return true;
}

bool Interp::string_value(TextView s, Value* out) {
  TRY(pay_for_text(s));
  *out = Value::text(Text(s));
  return true;
}

bool Interp::list_value(std::vector<Value> items, Value* out) {
  TRY(charge_items(items.size()));
  *out = Value::growing_list(std::move(items));
  return true;
}

// --- text ---

namespace {

void repr_run(std::string_view s, Origin origin, char quote, Text* out) {
  size_t plain = 0;  // bytes from here on stay as they are
  for (size_t i = 0; i < s.size();) {
    const size_t n = unicode::sequence_length(s, i);
    const uint32_t c = unicode::decode(s, i);
    const bool stray = n == 1 && static_cast<unsigned char>(s[i]) >= 0x80;
    std::string escaped;
    if (c == static_cast<uint32_t>(quote) || c == '\\') escaped = {'\\', static_cast<char>(c)};
    else if (c == '\n') escaped = "\\n";
    else if (c == '\r') escaped = "\\r";
    else if (c == '\t') escaped = "\\t";
    else if (stray) escaped = format("\\x%02x", static_cast<unsigned char>(s[i]));
    else if (unicode::is(c, unicode::kUnprintable)) escaped = format(c < 0x100 ? "\\x%02x" : (c < 0x10000 ? "\\u%04x" : "\\U%08x"), c);
    if (!escaped.empty()) {
      out->append(s.substr(plain, i - plain), origin).append(escaped, origin);
      plain = i + n;
    }
    i += n;
  }
  out->append(s.substr(plain), origin);
}

void repr_string(TextView s, Text* out) {
  const bool has_single = s.bytes().find('\'') != std::string_view::npos;
  const char quote = has_single && s.bytes().find('"') == std::string_view::npos ? '"' : '\'';
  *out += quote;
  s.each_run([&](std::string_view run, Origin origin) { return repr_run(run, origin, quote, out), true; });
  *out += quote;
}

}  // namespace

bool Interp::text_of(const Value& v, Text* out) {
  if (v.is_undefined()) return true;
  if (v.is_string()) {
    const TextView text = v.as_text();
    TRY(charge(text.size() + text.n_changes() * 4));
    out->append(text);
    return true;
  }
  return text_of_nested(v, out, 0);
}

bool Interp::repr_of(const Value& v, Text* out) { return text_of_nested(v, out, 0); }

bool Interp::text_of_nested(const Value& v, Text* out, uint32_t depth) {
  if (stack_.low()) return elsewhere([&] { return text_of_nested(v, out, depth); });
  if (depth > kMaxValueDepth) return fail("the value is nested too deeply to print");
  TRY(step());
  switch (v.kind()) {
    case Kind::undefined: *out += "Undefined"; return true;
    case Kind::none: *out += "None"; return true;
    case Kind::boolean: *out += v.as_bool() ? "True" : "False"; return true;
    case Kind::integer: *out += std::to_string(v.as_int()); return true;
    case Kind::big_integer: *out += v.as_string(); return true;
    case Kind::floating: *out += format_float(v.as_float()); return true;
    case Kind::string:
      TRY(charge(v.as_string().size() + v.as_text().n_changes() * 4 + 8) && step(v.as_string().size() / 16));
      if (v.is_markup()) *out += "Markup(";
      repr_string(v.as_text(), out);
      if (v.is_markup()) *out += ')';
      return true;
    case Kind::list:
    case Kind::tuple:
    case Kind::view: {
      const char* open = v.is_list() ? "[" : "(";
      const char* close = v.is_list() ? "]" : ")";
      if (v.kind() == Kind::view) {
        if (v.view_type() == Value::ViewType::range) {
          const int64_t* r = v.range_bounds();
          *out += "range(" + std::to_string(r[0]) + ", " + std::to_string(r[1]);
          if (r[2] != 1) *out += ", " + std::to_string(r[2]);
          *out += ')';
          return true;
        }
        open = v.view_type() == Value::ViewType::keys     ? "dict_keys(["
               : v.view_type() == Value::ViewType::values ? "dict_values(["
                                                          : "dict_items([";
        close = "])";
      }
      *out += open;
      const std::vector<Value>& items = v.as_items();
      for (size_t i = 0; i < items.size(); ++i) {
        if (i != 0) *out += ", ";
        TRY(charge(8) && text_of_nested(items[i], out, depth + 1));
      }
      if (v.is_tuple() && items.size() == 1) *out += ',';
      *out += close;
      return true;
    }
    case Kind::map: {
      *out += '{';
      bool first = true;
      for (const Map::Entry& e : v.as_map().entries()) {
        if (!first) *out += ", ";
        first = false;
        TRY(charge(16) && text_of_nested(e.first, out, depth + 1));
        *out += ": ";
        TRY(text_of_nested(e.second, out, depth + 1));
      }
      *out += '}';
      return true;
    }
    case Kind::object: break;
  }
  const Object* object = as_object(v);
  switch (object->type) {
    case ObjectType::name_space:
      *out += "<Namespace ";
      TRY(text_of_nested(Value::map(static_cast<const NamespaceObject*>(object)->attributes), out, depth + 1));
      *out += '>';
      return true;
    case ObjectType::macro: *out += "<Macro '" + static_cast<const MacroObject*>(object)->definition->text + "'>"; return true;
    case ObjectType::method:
      *out += std::string("<built-in method ") + static_cast<const MethodObject*>(object)->method->name + ">";
      return true;
    case ObjectType::builtin: *out += std::string("<function ") + static_cast<const BuiltinObject*>(object)->name + ">"; return true;
    case ObjectType::loop: {
      const auto* loop = static_cast<const LoopObject*>(object);
      int64_t length;
      TRY(loop_length(*static_cast<LoopObject*>(as_mutable_object(v)), &length));
      *out += format("<LoopContext %zu/%lld>", loop->index + 1, static_cast<long long>(length));
      return true;
    }
    case ObjectType::generator: *out += "<generator object>"; return true;
    case ObjectType::cycler: *out += "<Cycler>"; return true;
    case ObjectType::joiner: *out += "<Joiner>"; return true;
  }
  return true;
}

// --- iteration ---

bool Interp::items_of(const Value& v, std::vector<Value>* out) {
  switch (v.kind()) {
    case Kind::undefined: return true;
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
      TRY(charge_items(v.as_items().size()));
      *out = v.as_items();
      return true;
    case Kind::map:
      TRY(charge_items(v.as_map().size()));
      out->reserve(v.as_map().size());
      for (const Map::Entry& e : v.as_map().entries()) out->push_back(e.first);
      return true;
    case Kind::string: {
      const TextView text = v.as_text();
      const std::string_view s = text.bytes();
      TRY(charge(v.string_length() * sizeof(Value) + v.string_length() * 144) &&
          step(v.string_length()));  // each character is its own string
      out->reserve(v.string_length());
      for (size_t i = 0; i < s.size();) {
        const size_t n = unicode::sequence_length(s, i);
        out->push_back(Value::text(Text(text.substr(i, n))));
        i += n;
      }
      return true;
    }
    case Kind::object:
      if (as_object(v)->type == ObjectType::generator) {
        auto& generator = *static_cast<GeneratorObject*>(as_mutable_object(v));
        for (size_t i = generator.next; i < generator.items.size(); ++i) out->push_back(generator.items[i]);
        generator.next = generator.items.size();
        return charge_items(out->size()) && generator_end(generator);
      }
      if (as_object(v)->type == ObjectType::cycler) return fail("a cycler cannot be iterated over");
      break;
    default: break;
  }
  return fail("%s cannot be iterated over", type_name(v));
}

bool Interp::length_of(const Value& v, int64_t* out) {
  switch (v.kind()) {
    case Kind::undefined: *out = 0; return true;
    case Kind::string: *out = static_cast<int64_t>(v.string_length()); return true;
    case Kind::list:
    case Kind::tuple:
    case Kind::view: *out = static_cast<int64_t>(v.as_items().size()); return true;
    case Kind::map: *out = static_cast<int64_t>(v.as_map().size()); return true;
    case Kind::object:
      if (as_object(v)->type == ObjectType::loop) return loop_length(*static_cast<LoopObject*>(as_mutable_object(v)), out);
      break;
    default: break;
  }
  return fail("%s has no length", type_name(v));
}

bool Interp::hash_check(const Value& key) { return is_hashable(key) ? pay_for_key(key) : fail("%s cannot be a key", type_name(key)); }

// A look-up compares with a dozen keys or two.
bool Interp::pay_for_key(const Value& key) {
  if (key.is_string()) return step(key.as_string().size() / 8);
  return !key.is_tuple() || step(key_cost(key) * 4);
}

bool Interp::pay_for(const Value& self, const Args& args) {
  uint64_t bytes = self.is_string() ? self.as_string().size() : 0;
  for (const Value& v : args.positional)
    if (v.is_string()) bytes += v.as_string().size();
  for (const auto& keyword : args.keywords)
    if (keyword.second.is_string()) bytes += keyword.second.as_string().size();
  return step((bytes + args.positional.size() + args.keywords.size()) / 16);
}

// --- arithmetic ---

bool Interp::repeat(const Value& v, int64_t count, Value* out) {
  const uint64_t n = count > 0 ? static_cast<uint64_t>(count) : 0;
  const uint64_t unit = v.is_string() ? v.as_string().size() : v.as_items().size() * sizeof(Value);
  if (unit == 0 || n == 0) {
    *out = v.is_string() ? Value::literal("") : (v.is_list() ? Value::list({}) : Value::tuple({}));
    return true;
  }
  if (n > limits_.max_work_bytes / unit) return charge(std::numeric_limits<uint64_t>::max());
  TRY(step(unit * n / 16));
  if (v.is_string()) {
    const TextView text = v.as_text();
    const uint64_t changes = text.n_changes() == 0 ? 0 : text.n_changes() + 1;
    if (changes != 0 && n > limits_.max_work_bytes / (4 * changes)) return charge(std::numeric_limits<uint64_t>::max());
    TRY(charge(unit * n + 4 * changes * n) && step(changes * n / 4));
    Text s;
    s.reserve(unit * n);
    for (uint64_t i = 0; i < n; ++i) s.append(text);
    *out = v.is_markup() ? Value::markup(std::move(s)) : Value::text(std::move(s));
    return true;
  }
  TRY(charge(unit * n));
  std::vector<Value> items;
  items.reserve(v.as_items().size() * n);
  for (uint64_t i = 0; i < n; ++i) items.insert(items.end(), v.as_items().begin(), v.as_items().end());
  *out = v.is_list() ? Value::growing_list(std::move(items)) : Value::tuple(std::move(items));
  return true;
}

bool Interp::arithmetic(Op op, const Value& a, const Value& b, Value* out) {
  const auto too_large = [this] { return fail("the integer result is too large"); };
  if (a.is_intlike() && b.is_intlike() && op != Op::div) {
    const int64_t x = a.as_int(), y = b.as_int();
    int64_t r = 0;
    switch (op) {
      case Op::add:
        if (__builtin_add_overflow(x, y, &r)) return too_large();
        break;
      case Op::sub:
        if (__builtin_sub_overflow(x, y, &r)) return too_large();
        break;
      case Op::mul:
        if (__builtin_mul_overflow(x, y, &r)) return too_large();
        break;
      case Op::floordiv:
      case Op::mod: {
        if (y == 0) return fail("division by zero");
        if (y == -1) {  // the one quotient that may not fit 64 bits
          if (op == Op::floordiv && __builtin_sub_overflow(int64_t{0}, x, &r)) return too_large();
          break;
        }
        int64_t quotient = x / y, rest = x % y;
        if (rest != 0 && (rest < 0) != (y < 0)) {
          --quotient;
          rest += y;
        }
        r = op == Op::floordiv ? quotient : rest;
        break;
      }
      default: {  // pow
        if (y < 0) {
          if (x == 0) return fail("zero cannot be raised to a negative power");
          *out = Value::floating(std::pow(static_cast<double>(x), static_cast<double>(y)));
          return true;
        }
        int64_t base = x;
        r = 1;
        for (int64_t e = y; e > 0; e >>= 1) {
          if ((e & 1) != 0 && __builtin_mul_overflow(r, base, &r)) return too_large();
          if (e > 1 && __builtin_mul_overflow(base, base, &base)) return too_large();
        }
      }
    }
    *out = Value::integer(r);
    return true;
  }
  const double x = a.as_float(), y = b.as_float();
  double r = 0;
  switch (op) {
    case Op::add: r = x + y; break;
    case Op::sub: r = x - y; break;
    case Op::mul: r = x * y; break;
    case Op::div:
      if (y == 0) return fail("division by zero");
      r = x / y;
      break;
    case Op::floordiv:
    case Op::mod: {
      if (y == 0) return fail("division by zero");
      double rest = std::fmod(x, y);
      double quotient = (x - rest) / y;
      if (rest != 0) {
        if ((y < 0) != (rest < 0)) {
          rest += y;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, y);
      }
      if (quotient != 0) {
        const double whole = std::floor(quotient);
        quotient = quotient - whole > 0.5 ? whole + 1 : whole;
      } else {
        quotient = std::copysign(0.0, x / y);
      }
      r = op == Op::mod ? rest : quotient;
      break;
    }
    default:
      if (x == 0 && y < 0) return fail("zero cannot be raised to a negative power");
      if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y)) return fail("the result would be a complex number");
      r = std::pow(x, y);
      if (std::isinf(r) && std::isfinite(x) && std::isfinite(y)) return fail("the result is too large");
  }
  *out = Value::floating(r);
  return true;
}

bool Interp::binary(Op op, const Value& a, const Value& b, Value* out) {
  if (op == Op::mod && a.is_string()) return percent_format(a, b, out);
  TRY(not_undefined(a) && not_undefined(b));
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b, out);
  if (op == Op::add && a.is_string() && b.is_string()) {
    const TextView x = a.as_text(), y = b.as_text();
    const uint64_t bytes = x.size() + y.size() + 4 * (x.n_changes() + y.n_changes() + 1);
    TRY(charge(bytes + 64) && step(bytes / 16));
    if (a.is_markup() || b.is_markup()) {
      Text text = a.is_markup() ? Text(x) : escape_html(x);
      text.append(b.is_markup() ? Text(y) : escape_html(y));
      *out = Value::markup(std::move(text));
      return true;
    }
    Text text;
    text.reserve(x.size() + y.size());
    text.append(x).append(y);
    *out = Value::text(std::move(text));
    return true;
  }
  if (op == Op::add && ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple()))) {
    TRY(charge_items(a.as_items().size() + b.as_items().size()));
    std::vector<Value> items = a.as_items();
    items.insert(items.end(), b.as_items().begin(), b.as_items().end());
    *out = a.is_list() ? Value::growing_list(std::move(items)) : Value::tuple(std::move(items));
    return true;
  }
  if (op == Op::mul) {
    const auto repeatable = [](const Value& v) { return v.is_string() || v.is_list() || v.is_tuple(); };
    if (repeatable(a) && b.is_intlike()) return repeat(a, b.as_int(), out);
    if (repeatable(b) && a.is_intlike()) return repeat(b, a.as_int(), out);
  }
  if (a.kind() == Kind::big_integer || b.kind() == Kind::big_integer) return fail("integers beyond 64 bits cannot be calculated with");
  return fail("unsupported operands for %s: %s and %s", op_name(op), type_name(a), type_name(b));
}

// --- comparison ---

bool Interp::same(const Value& a, const Value& b, bool* out) {
  const uint64_t before = limits_.max_steps - steps_;
  uint64_t left = before;
  *out = a.equals(b, &left);
  return step(before - left + (left == 0 ? 1 : 0));
}

bool Interp::less(const Value& a, const Value& b, bool* out) { return less_nested(a, b, out, 0); }

bool Interp::less_nested(const Value& a, const Value& b, bool* out, uint32_t depth) {
  if (stack_.low()) return elsewhere([&] { return less_nested(a, b, out, depth); });
  TRY(not_undefined(a) && not_undefined(b) && step());
  if (depth > kMaxValueDepth) return fail("the values are nested too deeply to compare");
  if (a.is_number() && b.is_number()) {
    *out = compare_numbers(a, b) == -1;
    return true;
  }
  if (a.is_string() && b.is_string()) {
    TRY(step(std::min(a.as_string().size(), b.as_string().size()) / 16));
    *out = a.as_string() < b.as_string();
    return true;
  }
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const std::vector<Value>&x = a.as_items(), &y = b.as_items();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      bool equal;
      TRY(same(x[i], y[i], &equal));
      if (!equal) return less_nested(x[i], y[i], out, depth + 1);
    }
    *out = x.size() < y.size();
    return true;
  }
  return fail("%s and %s cannot be ordered", type_name(a), type_name(b));
}

bool Interp::compare(Op op, const Value& a, const Value& b, bool* out) {
  switch (op) {
    case Op::eq: return same(a, b, out);
    case Op::ne:
      TRY(same(a, b, out));
      *out = !*out;
      return true;
    case Op::lt: return less(a, b, out);
    case Op::gt: return less(b, a, out);
    default: break;
  }
  if (a.is_number() && b.is_number()) {
    const int order = compare_numbers(a, b);
    *out = order != 2 && (op == Op::le ? order <= 0 : order >= 0);
    return true;
  }
  TRY(op == Op::le ? less(b, a, out) : less(a, b, out));
  *out = !*out;
  return true;
}

bool Interp::contains(const Value& container, const Value& value, bool* out) {
  size_t at = 0;
  switch (container.kind()) {
    case Kind::undefined: *out = false; return true;
    case Kind::string:
      TRY(want_string(value, "what is searched for in a string"));
      TRY(find_text<false>(*this, container.as_string(), value.as_string(), &at));
      *out = at != std::string_view::npos;
      return true;
    case Kind::map:
      TRY(hash_check(value));
      *out = container.as_map().find(value) != nullptr;
      return true;
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
      if (container.view_type() == Value::ViewType::keys) TRY(hash_check(value));
      if (container.view_type() == Value::ViewType::items && value.is_tuple() && value.as_items().size() == 2)
        TRY(hash_check(value.as_items()[0]));
      *out = false;
      for (const Value& v : container.as_items()) {
        TRY(step() && same(v, value, out));
        if (*out) break;
      }
      return true;
    case Kind::object:
      if (as_object(container)->type == ObjectType::generator) {
        auto& generator = *static_cast<GeneratorObject*>(as_mutable_object(container));
        *out = false;
        while (!*out && generator.next < generator.items.size()) {
          TRY(step() && same(generator.items[generator.next++], value, out));
        }
        return true;
      }
      break;
    default: break;
  }
  return fail("'in' wants a container, not %s", type_name(container));
}

}  // namespace orrery::text::jinja
