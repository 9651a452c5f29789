// Members, items and slices. object.name looks for a member first, then for the item "name". object["name"] looks in
// the reverse order. If neither exists, the result is undefined, and only using the result fails.
#include <algorithm>

#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

Value missing(const Value& object, const std::string& name) {
  return Value::undefined(std::string(Interp::type_name(object)) + " has no member '" + name + "'");
}

// Python's internal names: not accessible, and undefined here.
bool is_internal(std::string_view name) { return name.size() > 4 && name.substr(0, 2) == "__"; }

template <bool previous>
bool cycle_next(Interp& interp, const Value& self, Args& args, Value* out) {
  TRY(interp.bind(args, "cycler method", {}, 0, nullptr));
  auto& cycler = *static_cast<CyclerObject*>(as_mutable_object(self));
  *out = cycler.items[cycler.position];
  if (previous) {  // reset()
    cycler.position = 0;
    *out = Value::none();
  } else {
    cycler.position = (cycler.position + 1) % cycler.items.size();
  }
  return true;
}

bool loop_cycle(Interp& interp, const Value& self, Args& args, Value* out) {
  if (args.positional.empty() || !args.keywords.empty()) return interp.fail("loop.cycle wants items to cycle through");
  *out = args.positional[static_cast<const LoopObject*>(as_object(self))->index % args.positional.size()];
  return true;
}

bool loop_changed(Interp& interp, const Value& self, Args& args, Value* out) {
  if (!args.keywords.empty()) return interp.fail("loop.changed takes no named arguments");
  auto& loop = *static_cast<LoopObject*>(as_mutable_object(self));
  Value now = Value::tuple(std::move(args.positional));
  bool equal;
  TRY(interp.same(now, loop.changed, &equal));
  *out = Value::boolean(!equal);
  loop.changed = std::move(now);
  return true;
}

constexpr Method kCyclerMethods[] = {{"next", cycle_next<false>}, {"reset", cycle_next<true>}};
constexpr Method kLoopMethods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};

bool loop_member(Interp& interp, LoopObject& loop, const std::string& name, Value* out, bool* found) {
  const auto number = [out](size_t v) { *out = Value::integer(static_cast<int64_t>(v)); };
  int64_t length = 0;
  *found = true;
  if (name == "index") number(loop.index + 1);
  else if (name == "index0") number(loop.index);
  else if (name == "first") *out = Value::boolean(loop.index == 0);
  else if (name == "depth") number(loop.depth + 1);
  else if (name == "depth0") number(loop.depth);
  else if (name == "last" || name == "nextitem") {
    bool more;
    TRY(interp.loop_has(loop, loop.index + 1, &more));
    if (name == "last") *out = Value::boolean(!more);
    else *out = more ? Interp::loop_item(loop, loop.index + 1) : Value::undefined("there is no next item");
  } else if (name == "previtem") {
    *out = loop.index > 0 ? Interp::loop_item(loop, loop.index - 1) : Value::undefined("there is no previous item");
  } else if (name == "length" || name == "revindex" || name == "revindex0") {
    TRY(interp.loop_length(loop, &length));
    const auto n = static_cast<size_t>(length);
    number(name == "length" ? n : n - loop.index - (name == "revindex" ? 0 : 1));
  } else {
    *found = false;
  }
  return true;
}

}  // namespace

bool Interp::attribute(const Value& object, const std::string& name, Value* out) {
  TRY(not_undefined(object));
  if (object.is_object()) {
    Object* o = as_mutable_object(object);
    switch (o->type) {
      case ObjectType::name_space: {
        const Value* v = static_cast<NamespaceObject*>(o)->attributes.find(name);
        *out = v != nullptr ? *v : missing(object, name);
        return true;
      }
      case ObjectType::loop: {
        bool found;
        TRY(loop_member(*this, *static_cast<LoopObject*>(o), name, out, &found));
        if (found) return true;
        break;
      }
      case ObjectType::cycler:
        if (name == "current") {
          *out = static_cast<CyclerObject*>(o)->items[static_cast<CyclerObject*>(o)->position];
          return true;
        }
        break;
      case ObjectType::macro: {
        const Stmt& s = *static_cast<MacroObject*>(o)->definition;
        if (name == "name") *out = s.kind == StmtKind::macro ? Value::literal(s.text) : Value::none();
        else if (name == "caller") *out = Value::boolean(s.uses_caller);
        else if (name == "catch_kwargs") *out = Value::boolean(s.uses_kwargs);
        else if (name == "catch_varargs") *out = Value::boolean(s.uses_varargs);
        else if (name == "arguments") {
          std::vector<Value> names;
          for (const Param& p : s.params) names.push_back(Value::literal(program_.names[p.id]));
          *out = Value::tuple(std::move(names));
        } else {
          *out = missing(object, name);
        }
        return true;
      }
      default: break;
    }
  }
  if (object.is_group() && (name == "grouper" || name == "list")) {
    *out = object.as_items()[name == "list" ? 1 : 0];
    return true;
  }
  if (const Method* method = find_method(object, name)) {
    if (method->function == nullptr) {
      *out = Value::undefined("'" + name + "' would change " + type_name(object) + ", which templates may not do");
      return true;
    }
    TRY(charge(sizeof(MethodObject)));
    *out = Value::object(new MethodObject(object, method));
    return true;
  }
  if (is_internal(name) && !object.is_map()) {
    *out = Value::undefined("access to '" + name + "' is not allowed");
    return true;
  }
  if (object.is_map()) {
    if (const Value* v = object.as_map().find(name)) {
      *out = *v;
      return true;
    }
  }
  *out = missing(object, name);
  return true;
}

const Method* Interp::find_method(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::string: return string_method(name);
    case Kind::object:
      if (as_object(object)->type == ObjectType::loop) return find_in(kLoopMethods, name);
      if (as_object(object)->type == ObjectType::cycler) return find_in(kCyclerMethods, name);
      return nullptr;
    default: return container_method(object, name);
  }
}

bool Interp::item(const Value& object, const Value& key, Value* out) {
  TRY(not_undefined(object));
  if (object.is_map()) {
    if (is_hashable(key)) {
      TRY(pay_for_key(key));
      if (const Value* v = object.as_map().find(key)) {
        *out = *v;
        return true;
      }
    }
  } else if (key.is_intlike() &&
             (object.is_string() || object.is_list() || object.is_tuple() || object.view_type() == Value::ViewType::range)) {
    int64_t length, index = key.as_int();
    TRY(length_of(object, &length));
    if (index < 0) index += length;
    if (index >= 0 && index < length) {
      const auto i = static_cast<size_t>(index);
      if (!object.is_string()) {
        *out = object.as_items()[i];
        return true;
      }
      const size_t from = object.string_offset(i);
      const TextView s = object.as_text();
      return string_value(s.substr(from, unicode::sequence_length(s.bytes(), from)), out);
    }
  }
  if (key.is_string()) {
    // An absent key may still name a member. The items of a mapping were searched above.
    if (!object.is_map() || find_method(object, key.as_string()) != nullptr) return attribute(object, std::string(key.as_string()), out);
    *out = missing(object, std::string(key.as_string()));
    return true;
  }
  Text text;
  TRY(text_of(key, &text));
  *out = missing(object, text.bytes());
  return true;
}

bool Interp::slice(const Value& object, const Value& start, const Value& stop, const Value& step_value, Value* out) {
  TRY(not_undefined(object));
  if (!object.is_string() && !object.is_list() && !object.is_tuple() && object.view_type() != Value::ViewType::range)
    return fail("%s cannot be sliced", type_name(object));
  int64_t by = 1, length;
  if (!step_value.is_none()) TRY(want_int(step_value, "the step of a slice", &by));
  if (by == 0) return fail("the step of a slice must not be zero");
  by = std::clamp<int64_t>(by, -INT64_MAX, INT64_MAX);
  TRY(length_of(object, &length));
  const auto bound = [&](const Value& v, int64_t fallback, int64_t* result) {
    *result = fallback;
    if (v.is_none()) return true;
    TRY(want_int(v, "the bound of a slice", result));
    if (*result < 0) *result = *result < -length ? -1 : *result + length;
    else *result = std::min(*result, length);
    // Below the start: a rising slice begins at the first item, a falling slice before the first item.
    if (by > 0) *result = std::max<int64_t>(*result, 0);
    else *result = std::min(*result, length - 1);
    return true;
  };
  int64_t from, to;
  TRY(bound(start, by > 0 ? 0 : length - 1, &from) && bound(stop, by > 0 ? length : -1, &to));
  uint64_t count = 0;
  if (by > 0 && from < to) count = static_cast<uint64_t>((to - from - 1) / by + 1);
  if (by < 0 && from > to) count = static_cast<uint64_t>((from - to - 1) / -by + 1);

  if (object.is_string()) {
    const TextView source = object.as_text();
    const std::string_view s = source.bytes();
    if (by == 1) {
      if (count == 0) return string_value(TextView(), out);
      const size_t first = object.string_offset(static_cast<size_t>(from));
      const size_t last = object.string_offset(static_cast<size_t>(to));
      return string_value(source.substr(first, last - first), out);
    }
    TRY(step(static_cast<uint64_t>(length)) &&
        charge(static_cast<uint64_t>(length) * sizeof(size_t) + count * (source.n_changes() == 0 ? 4 : 8)));
    std::vector<size_t> offsets;  // offset of every code point
    offsets.reserve(static_cast<size_t>(length));
    for (size_t pos = 0; pos < s.size(); pos += unicode::sequence_length(s, pos)) offsets.push_back(pos);
    Text text;
    int64_t at = from;
    for (uint64_t i = 0; i < count; ++i) {
      const size_t pos = offsets[static_cast<size_t>(at)];
      text.append(source.substr(pos, unicode::sequence_length(s, pos)));
      if (i + 1 < count) at += by;
    }
    return string_value(std::move(text), out);
  }
  TRY(charge_items(count));
  std::vector<Value> items;
  items.reserve(count);
  int64_t at = from;
  for (uint64_t i = 0; i < count; ++i) {
    items.push_back(object.as_items()[static_cast<size_t>(at)]);
    if (i + 1 < count) at += by;
  }
  if (object.is_list()) {
    *out = Value::growing_list(std::move(items));
  } else if (object.is_tuple()) {
    *out = Value::tuple(std::move(items));
  } else {
    const int64_t* r = object.range_bounds();
    *out = Value::view(Value::ViewType::range, std::move(items), r[0] + from * r[2], r[0] + to * r[2], r[2] * by);
  }
  return true;
}

bool Interp::path(const Value& object, const Value& attribute_path, const Value* fallback, Value* out) {
  Value v = object;
  const auto walk = [&](const Value& key) {
    Value found;
    TRY(step() && item(v, key, &found));
    v = fallback != nullptr && found.is_undefined() ? *fallback : std::move(found);
    return true;
  };
  if (attribute_path.is_string()) {
    const std::string_view text = attribute_path.as_string();
    for (size_t from = 0; from <= text.size();) {
      const size_t dot = std::min(text.find('.', from), text.size());
      const std::string part(text.substr(from, dot - from));
      const bool number = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string::npos;
      TRY(walk(number ? Value::integer(std::stoll(part)) : Value::string(part)));
      from = dot + 1;
    }
  } else if (!attribute_path.is_none()) {
    TRY(walk(attribute_path));
  }
  *out = std::move(v);
  return true;
}

}  // namespace orrery::text::jinja
