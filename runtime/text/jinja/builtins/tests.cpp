// Tests: the names that may follow `is`.
#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/jinja/interpreter/strings.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

using TestFunction = bool (*)(Interp& in, const Value& v, Args& args, bool* out);
struct Test {
  const char* name;
  TestFunction function;
};

// A test that only reads the value and cannot fail.
template <bool (*test)(const Value&)>
bool simple(Interp& in, const Value& v, Args& args, bool* out) {
  *out = test(v);
  return in.bind(args, "test", {}, 0, nullptr);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is_bool(); }
bool is_true(const Value& v) { return v.is_bool() && v.as_bool(); }
bool is_false(const Value& v) { return v.is_bool() && !v.as_bool(); }
bool is_integer(const Value& v) { return v.is_int() || v.kind() == Kind::big_integer; }
bool is_float(const Value& v) { return v.is_float(); }
bool is_number(const Value& v) { return v.is_number() || v.kind() == Kind::big_integer; }
bool is_string(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.is_map(); }
bool is_escaped(const Value& v) { return v.is_markup(); }
bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_list() || v.is_tuple() || v.is_map() || v.view_type() == Value::ViewType::range;
}
bool is_iterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is_map() || is_object(v, ObjectType::generator) ||
         is_object(v, ObjectType::loop);
}
bool is_callable(const Value& v) {
  if (v.is_undefined()) return true;  // Jinja2's undefined counts as callable; calling it fails
  if (!v.is_object()) return false;
  const ObjectType type = as_object(v)->type;
  return type != ObjectType::name_space && type != ObjectType::generator && type != ObjectType::cycler;
}

template <bool upper>
bool cased(Interp& in, const Value& v, Args& args, bool* out) {
  Text text;
  TRY(in.bind(args, "test", {}, 0, nullptr) && in.text_of(v, &text) && in.step(text.size() / 2));
  *out = upper ? is_upper_text(text.bytes()) : is_lower_text(text.bytes());
  return true;
}

bool remainder(Interp& in, const Value& v, const Value& by, int64_t expected, bool* out) {
  Value rest;
  TRY(in.binary(Op::mod, v, by, &rest));
  return in.same(rest, Value::integer(expected), out);
}
bool even(Interp& in, const Value& v, Args& args, bool* out) {
  return in.bind(args, "even", {}, 0, nullptr) && remainder(in, v, Value::integer(2), 0, out);
}
bool odd(Interp& in, const Value& v, Args& args, bool* out) {
  return in.bind(args, "odd", {}, 0, nullptr) && remainder(in, v, Value::integer(2), 1, out);
}
bool divisible_by(Interp& in, const Value& v, Args& args, bool* out) {
  const Value* by;
  return in.bind(args, "divisibleby", {"num"}, 1, &by) && remainder(in, v, *by, 0, out);
}

template <Op op>
bool compared(Interp& in, const Value& v, Args& args, bool* out) {
  const Value* other;
  return in.bind(args, "comparison", {"other"}, 1, &other, 1) && in.compare(op, v, *other, out);
}

bool in_container(Interp& in, const Value& v, Args& args, bool* out) {
  const Value* container;
  return in.bind(args, "in", {"seq"}, 1, &container) && in.contains(*container, v, out);
}

bool same_as(Interp& in, const Value& v, Args& args, bool* out) {
  const Value* other;
  TRY(in.bind(args, "sameas", {"other"}, 1, &other));
  if (v.kind() != other->kind()) *out = false;
  else if (v.is_none()) *out = true;
  else if (v.is_number()) return in.same(v, *other, out);
  else *out = v.as_node() == other->as_node() || (v.is_string() && v.as_string() == other->as_string());
  return true;
}

bool is_filter(Interp& in, const Value& v, Args& args, bool* out) {
  *out = v.is_string() && find_filter(v.as_string()) != kNoFunction;
  return in.bind(args, "filter", {}, 0, nullptr);
}
bool is_test(Interp& in, const Value& v, Args& args, bool* out) {
  *out = v.is_string() && find_test(v.as_string()) != kNoFunction;
  return in.bind(args, "test", {}, 0, nullptr);
}

constexpr Test kTests[] = {
    {"defined", simple<is_defined>},
    {"undefined", simple<is_undefined>},
    {"none", simple<is_none>},
    {"boolean", simple<is_boolean>},
    {"true", simple<is_true>},
    {"false", simple<is_false>},
    {"integer", simple<is_integer>},
    {"float", simple<is_float>},
    {"number", simple<is_number>},
    {"string", simple<is_string>},
    {"mapping", simple<is_mapping>},
    {"sequence", simple<is_sequence>},
    {"iterable", simple<is_iterable>},
    {"callable", simple<is_callable>},
    {"escaped", simple<is_escaped>},
    {"lower", cased<false>},
    {"upper", cased<true>},
    {"even", even},
    {"odd", odd},
    {"divisibleby", divisible_by},
    {"in", in_container},
    {"sameas", same_as},
    {"filter", is_filter},
    {"test", is_test},
    {"eq", compared<Op::eq>},
    {"equalto", compared<Op::eq>},
    {"==", compared<Op::eq>},
    {"ne", compared<Op::ne>},
    {"!=", compared<Op::ne>},
    {"lt", compared<Op::lt>},
    {"lessthan", compared<Op::lt>},
    {"<", compared<Op::lt>},
    {"le", compared<Op::le>},
    {"<=", compared<Op::le>},
    {"gt", compared<Op::gt>},
    {"greaterthan", compared<Op::gt>},
    {">", compared<Op::gt>},
    {"ge", compared<Op::ge>},
    {">=", compared<Op::ge>},
};

}  // namespace

std::vector<std::string> test_names() {
  std::vector<std::string> out;
  for (const Test& t : kTests) out.push_back(t.name);
  return out;
}

uint16_t find_test(std::string_view name) {
  for (uint16_t i = 0; i < sizeof kTests / sizeof kTests[0]; ++i)
    if (name == kTests[i].name) return i;
  return kNoFunction;
}

bool Interp::call_test(uint16_t index, const Value& v, Args& args, bool* out) {
  return pay_for(v, args) && kTests[index].function(*this, v, args, out);
}

}  // namespace orrery::text::jinja
