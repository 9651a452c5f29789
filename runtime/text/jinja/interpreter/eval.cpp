// Expressions. eval() walks the tree; operators.cpp computes the operators. `at_` always points to the expression
// whose operation runs, so every failure below knows its place.
#include "runtime/text/jinja/interpreter/interpreter.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

void Interp::lookup(NameId id, Value* out) {
  for (const Env* env = env_; env != nullptr; env = env->parent) {
    steps_ += env->vars.size() / 8;  // the next step() looks at the sum
    for (const auto& var : env->vars) {
      if (var.first == id) {
        *out = var.second;
        if (out->is_undefined() && out->as_node() == nullptr) *out = Value::undefined("'" + program_.names[id] + "' is undefined");
        return;
      }
    }
  }
  *out = base_[id];
  if (out->is_undefined()) *out = Value::undefined("'" + program_.names[id] + "' is undefined");
}

bool Interp::eval(const Expr& e, Value* out) {
  if (stack_.low()) return elsewhere([&] { return eval(e, out); });
  Deeper deeper(this);
  at_ = e.at;
  TRY(deeper.ok() && step());
  switch (e.kind) {
    case ExprKind::constant: *out = e.value; return true;
    case ExprKind::name: lookup(e.name, out); return true;
    case ExprKind::list:
    case ExprKind::tuple: {
      TRY(charge_items(e.items.size()));
      std::vector<Value> items(e.items.size());
      for (size_t i = 0; i < items.size(); ++i) TRY(eval(*e.items[i], &items[i]));
      *out = e.kind == ExprKind::list ? Value::growing_list(std::move(items)) : Value::tuple(std::move(items));
      return true;
    }
    case ExprKind::dict: return eval_dict(e, out);
    case ExprKind::attribute: {
      Value object;
      TRY(eval(*e.a, &object));
      at_ = e.at;
      return attribute(object, e.text, out);
    }
    case ExprKind::item: {
      Value object, key;
      TRY(eval(*e.a, &object) && eval(*e.b, &key));
      at_ = e.at;
      return item(object, key, out);
    }
    case ExprKind::slice: {
      Value object, bounds[3] = {Value::none(), Value::none(), Value::none()};
      TRY(eval(*e.a, &object));
      for (size_t i = 0; i < 3; ++i)
        if (e.items[i]) TRY(eval(*e.items[i], &bounds[i]));
      at_ = e.at;
      return slice(object, bounds[0], bounds[1], bounds[2], out);
    }
    case ExprKind::negate:
    case ExprKind::plus: {
      Value v;
      TRY(eval(*e.a, &v));
      at_ = e.at;
      TRY(not_undefined(v));
      if (!v.is_number()) return fail("bad operand for unary %s: %s", e.kind == ExprKind::plus ? "+" : "-", type_name(v));
      if (e.kind == ExprKind::plus) {
        *out = v.is_float() ? v : Value::integer(v.as_int());
        return true;
      }
      if (v.is_float()) {
        *out = Value::floating(-v.as_float());
        return true;
      }
      return binary(Op::sub, Value::integer(0), v, out);
    }
    case ExprKind::not_: {
      Value v;
      TRY(eval(*e.a, &v));
      *out = Value::boolean(!truth(v));
      return true;
    }
    case ExprKind::binary: return eval_chain(e, out);
    case ExprKind::concat: {
      Text text;
      for (const ExprPtr& part : e.items) {
        Value v;
        TRY(eval(*part, &v));
        TRY(text_of(v, &text));
      }
      at_ = e.at;
      return string_value(std::move(text), out);
    }
    case ExprKind::compare: return eval_compare(e, out);
    case ExprKind::and_:
    case ExprKind::or_:
      for (const ExprPtr& part : e.items) {
        TRY(eval(*part, out));
        if (truth(*out) == (e.kind == ExprKind::or_)) break;
      }
      return true;
    case ExprKind::condition: {
      Value condition;
      TRY(eval(*e.a, &condition));
      if (truth(condition)) return eval(*e.b, out);
      if (e.c) return eval(*e.c, out);
      *out = Value::undefined("the inline if has no else branch");
      return true;
    }
    case ExprKind::call: {
      Value callee;
      Args args;
      TRY(eval(*e.a, &callee) && eval_args(e.call, &args));
      at_ = e.at;
      return call(callee, args, out);
    }
    case ExprKind::filter: return eval_filter(e, out);
    case ExprKind::test: {
      Value v;
      Args args;
      TRY(eval(*e.a, &v) && eval_args(e.call, &args));
      at_ = e.at;
      if (e.function == kNoFunction) return fail("there is no test '%s'", e.text.c_str());
      bool result;
      TRY(call_test(e.function, v, args, &result));
      *out = Value::boolean(result);
      return true;
    }
  }
  return true;
}

bool Interp::eval_dict(const Expr& e, Value* out) {
  TRY(charge_items(2 * e.items.size()));
  Map map;
  for (size_t i = 0; i < e.items.size(); i += 2) {
    Value key, v;
    TRY(eval(*e.items[i], &key) && eval(*e.items[i + 1], &v));
    at_ = e.at;
    TRY(hash_check(key));
    map.set(std::move(key), std::move(v));
  }
  *out = Value::map(std::move(map));
  return true;
}

bool Interp::eval_chain(const Expr& e, Value* out) {
  Value left;
  TRY(eval(*e.items[0], &left));
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value right, result;
    TRY(eval(*e.items[i + 1], &right));
    at_ = e.at;
    TRY(step() && binary(e.ops[i], left, right, &result));
    left = std::move(result);
  }
  *out = std::move(left);
  return true;
}

bool Interp::eval_compare(const Expr& e, Value* out) {
  Value left;
  TRY(eval(*e.items[0], &left));
  bool holds = true;
  for (size_t i = 0; holds && i < e.ops.size(); ++i) {
    Value right;
    TRY(eval(*e.items[i + 1], &right));
    at_ = e.at;
    if (e.ops[i] == Op::in || e.ops[i] == Op::not_in) {
      TRY(contains(right, left, &holds));
      if (e.ops[i] == Op::not_in) holds = !holds;
    } else {
      TRY(compare(e.ops[i], left, right, &holds));
    }
    left = std::move(right);
  }
  *out = Value::boolean(holds);
  return true;
}

bool Interp::eval_filter(const Expr& e, Value* out) {
  Value v;
  if (e.a) TRY(eval(*e.a, &v));
  else if (block_input_ != nullptr) v = *block_input_;
  Args args;
  TRY(eval_args(e.call, &args));
  at_ = e.at;
  if (e.function == kNoFunction) return fail("there is no filter '%s'", e.text.c_str());
  return call_filter(e.function, v, args, out);
}

bool Interp::eval_args(const CallSyntax& syntax, Args* out) {
  out->positional.resize(syntax.positional.size());
  for (size_t i = 0; i < syntax.positional.size(); ++i) TRY(eval(*syntax.positional[i], &out->positional[i]));
  for (const auto& keyword : syntax.keywords) {
    out->keywords.emplace_back(keyword.first, Value());
    TRY(eval(*keyword.second, &out->keywords.back().second));
  }
  if (syntax.star) {
    Value more;
    std::vector<Value> items;
    TRY(eval(*syntax.star, &more) && items_of(more, &items));
    for (Value& v : items) out->positional.push_back(std::move(v));
  }
  if (syntax.double_star) {
    Value more;
    TRY(eval(*syntax.double_star, &more));
    if (!more.is_map()) return fail("the argument after ** must be a mapping, not %s", type_name(more));
    for (const Map::Entry& entry : more.as_map().entries()) {
      if (!entry.first.is_string()) return fail("keywords must be strings");
      for (const auto& other : out->keywords)
        if (other.first == entry.first.as_string()) return fail("the argument '%s' is given twice", other.first.c_str());
      TRY(step(1 + out->keywords.size() / 16));
      out->keywords.emplace_back(std::string(entry.first.as_string()), entry.second);
    }
  }
  return true;
}

bool Interp::call(const Value& callee, Args& args, Value* out) {
  if (stack_.low()) return elsewhere([&] { return call(callee, args, out); });
  Deeper deeper(this);
  TRY(deeper.ok());
  TRY(not_undefined(callee));
  if (!callee.is_object()) return fail("%s cannot be called", type_name(callee));
  const Value alive = callee;  // a macro may rebind its own name
  switch (as_object(alive)->type) {
    case ObjectType::macro: return call_macro(*static_cast<const MacroObject*>(as_object(alive)), args, out);
    case ObjectType::builtin: return static_cast<const BuiltinObject*>(as_object(alive))->function(*this, args, out);
    case ObjectType::method: {
      const auto& method = *static_cast<const MethodObject*>(as_object(alive));
      return pay_for(method.self, args) && method.method->function(*this, method.self, args, out);
    }
    case ObjectType::loop: return call_loop(alive, args, out);
    case ObjectType::joiner: {
      auto& joiner = *static_cast<JoinerObject*>(as_mutable_object(alive));
      if (!args.positional.empty() || !args.keywords.empty()) return fail("a joiner takes no arguments");
      *out = joiner.used ? joiner.separator : Value::literal("");
      joiner.used = true;
      return true;
    }
    default: return fail("%s cannot be called", type_name(callee));
  }
}

bool Interp::bind(const Args& args, const char* what, std::initializer_list<const char*> names, size_t required, const Value** out,
                  size_t positional_only) {
  if (args.positional.size() > names.size())
    return fail("%s takes at most %zu arguments, %zu were given", what, names.size(), args.positional.size());
  for (size_t i = 0; i < names.size(); ++i) out[i] = i < args.positional.size() ? &args.positional[i] : nullptr;
  for (const auto& keyword : args.keywords) {
    size_t i = 0;
    while (i < names.size() && keyword.first != names.begin()[i]) ++i;
    if (i == names.size() || i < positional_only) return fail("%s takes no argument named '%s'", what, keyword.first.c_str());
    if (out[i] != nullptr) return fail("%s: the argument '%s' is given twice", what, names.begin()[i]);
    out[i] = &keyword.second;
  }
  for (size_t i = 0; i < required; ++i)
    if (out[i] == nullptr) return fail("%s: the argument '%s' is missing", what, names.begin()[i]);
  return true;
}

bool Interp::want_int(const Value& v, const char* what, int64_t* out) {
  TRY(not_undefined(v));
  if (!v.is_intlike()) return fail("%s must be an integer, not %s", what, type_name(v));
  *out = v.as_int();
  return true;
}

bool Interp::want_string(const Value& v, const char* what) {
  TRY(not_undefined(v));
  return v.is_string() || fail("%s must be a string, not %s", what, type_name(v));
}

bool Interp::generator_end(GeneratorObject& generator) {
  if (generator.failure.ok()) return true;
  status_ = std::move(generator.failure);
  return false;
}

bool Interp::make_generator(std::vector<Value> items, Value* out) {
  TRY(charge_items(items.size()));
  auto* generator = new GeneratorObject;
  *out = Value::object(generator);
  generator->items = std::move(items);
  return true;
}

}  // namespace orrery::text::jinja
