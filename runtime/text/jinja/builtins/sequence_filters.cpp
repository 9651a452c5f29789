// Filters on sequences: choose, map, sort, group. Filters that are lazy in Jinja2 return a generator, which can be
// iterated once. Here the generator's items are computed at once.
#include <algorithm>

#include "runtime/text/jinja/builtins/filters.h"
#include "runtime/text/jinja/interpreter/strings.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::jinja::filters {

#define TRY ORRERY_JINJA_TRY

namespace {

// The key that sorting and grouping compare: text ignores case unless `case_sensitive`.
bool fold_case(Interp& in, bool case_sensitive, Value* v) {
  if (case_sensitive || !v->is_string()) return true;
  TRY(in.charge(v->as_string().size() * 3) && in.step(v->as_string().size() / 4));
  return in.string_value(convert_text<unicode::lower>(in, v->as_text()), v);
}

bool flag(const Value* v) { return v != nullptr && Interp::truth(*v); }

const Value& or_none(const Value* v, const Value& none) { return v != nullptr ? *v : none; }

// Stable order of `keys`, as positions. This is our own merge sort, because a failing comparison must stop it
// cleanly.
bool sorted_order(Interp& in, const std::vector<Value>& keys, bool descending, std::vector<size_t>* order) {
  std::vector<size_t> from(keys.size()), to(keys.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = i;
  for (size_t width = 1; width < keys.size(); width *= 2) {
    for (size_t start = 0; start < keys.size(); start += 2 * width) {
      const size_t middle = std::min(start + width, keys.size()), end = std::min(start + 2 * width, keys.size());
      size_t a = start, b = middle;
      for (size_t i = start; i < end; ++i) {
        bool take_b = a == middle;
        if (!take_b && b < end)
          TRY(descending ? in.less(keys[from[a]], keys[from[b]], &take_b) : in.less(keys[from[b]], keys[from[a]], &take_b));
        to[i] = from[take_b ? b++ : a++];
      }
    }
    std::swap(from, to);
  }
  *order = std::move(from);
  return true;
}

bool sort_by(Interp& in, const std::vector<Value>& values, const std::vector<Value>& keys, bool descending, std::vector<Value>* out) {
  std::vector<size_t> order;
  TRY(in.charge(values.size() * 2 * sizeof(size_t)) && sorted_order(in, keys, descending, &order));
  out->reserve(values.size());
  for (size_t i : order) out->push_back(values[i]);
  return in.charge_items(values.size());
}

// The test or filter named in the arguments of map, select and reject, with its own arguments.
struct Named {
  uint16_t index = kNoFunction;
  Args args;
};

bool take_named(Interp& in, Args& args, size_t at, bool test, Named* out) {
  const Value& name = args.positional[at];
  TRY(in.want_string(name, test ? "the name of a test" : "the name of a filter"));
  out->index = test ? find_test(name.as_string()) : find_filter(name.as_string());
  if (out->index == kNoFunction) return in.fail("there is no %s '%s'", test ? "test" : "filter", std::string(name.as_string()).c_str());
  out->args.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(at) + 1, args.positional.end());
  out->args.keywords = args.keywords;
  return true;
}

bool choose(Interp& in, const Value& v, Args& args, bool wanted, bool by_attribute, Value* out) {
  std::vector<Value> values, chosen;
  if (!Interp::truth(v)) return in.make_generator({}, out);
  if (by_attribute && args.positional.empty()) return in.fail("the name of the attribute is missing");
  const size_t at = by_attribute ? 1 : 0;
  Named test;
  const bool tested = args.positional.size() > at;
  if (tested) TRY(take_named(in, args, at, true, &test));
  TRY(in.items_of(v, &values));
  for (Value& item : values) {
    Value looked_at = item;
    if (by_attribute) TRY(in.path(item, args.positional[0], nullptr, &looked_at));
    bool holds = Interp::truth(looked_at);
    Args test_args = test.args;
    if (tested) TRY(in.call_test(test.index, looked_at, test_args, &holds));
    TRY(in.step(1 + test.args.positional.size() / 16));
    if (holds == wanted) chosen.push_back(std::move(item));
  }
  return in.make_generator(std::move(chosen), out);
}

template <bool largest>
bool extreme(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  std::vector<Value> values;
  TRY(in.bind(args, largest ? "max" : "min", {"case_sensitive", "attribute"}, 0, a) && in.items_of(v, &values));
  if (values.empty()) {
    *out = Value::undefined("the sequence is empty");
    return true;
  }
  const Value none = Value::none();
  Value best_key;
  for (size_t i = 0; i < values.size(); ++i) {
    Value key;
    TRY(in.path(values[i], or_none(a[1], none), nullptr, &key) && fold_case(in, flag(a[0]), &key));
    bool better = i == 0;
    if (!better) TRY(largest ? in.less(best_key, key, &better) : in.less(key, best_key, &better));
    if (!better) continue;
    best_key = std::move(key);
    *out = values[i];
  }
  return true;
}

}  // namespace

bool length(Interp& in, const Value& v, Args& args, Value* out) {
  int64_t n;
  TRY(in.bind(args, "length", {}, 0, nullptr) && in.length_of(v, &n));
  *out = Value::integer(n);
  return true;
}

bool join(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  std::vector<Value> values;
  Text text, separator;
  TRY(in.bind(args, "join", {"d", "attribute"}, 0, a) && in.items_of(v, &values));
  if (a[0] != nullptr) TRY(in.text_of(*a[0], &separator));
  for (size_t i = 0; i < values.size(); ++i) {
    if (a[1] != nullptr && !a[1]->is_none()) {
      Value found;
      TRY(in.path(values[i], *a[1], nullptr, &found));
      values[i] = std::move(found);
    }
    if (i != 0) {
      TRY(in.charge(separator.size() + separator.n_changes() * 4));
      text.append(separator);
    }
    TRY(in.step() && in.text_of(values[i], &text));
  }
  return in.string_value(std::move(text), out);
}

bool first(Interp& in, const Value& v, Args& args, Value* out) {
  TRY(in.bind(args, "first", {}, 0, nullptr));
  *out = Value::undefined("there is no first item, the sequence is empty");
  if (is_object(v, ObjectType::generator)) {
    auto& generator = *static_cast<GeneratorObject*>(as_mutable_object(v));
    if (generator.next >= generator.items.size()) return in.generator_end(generator);
    *out = generator.items[generator.next++];
    return true;
  }
  if (v.is_string()) return v.string_length() == 0 || in.item(v, Value::integer(0), out);
  if (v.is_sequence()) {
    if (!v.as_items().empty()) *out = v.as_items().front();
    return true;
  }
  if (v.is_map()) {
    if (v.as_map().size() != 0) *out = v.as_map().entries().front().first;
    return true;
  }
  std::vector<Value> values;
  TRY(in.items_of(v, &values));
  if (!values.empty()) *out = values.front();
  return true;
}

bool last(Interp& in, const Value& v, Args& args, Value* out) {
  TRY(in.bind(args, "last", {}, 0, nullptr));
  *out = Value::undefined("there is no last item, the sequence is empty");
  if (v.is_string()) return v.string_length() == 0 || in.item(v, Value::integer(-1), out);
  if (v.is_sequence()) {
    if (!v.as_items().empty()) *out = v.as_items().back();
    return true;
  }
  if (v.is_map()) {
    if (v.as_map().size() != 0) *out = v.as_map().entries().back().first;
    return true;
  }
  if (v.is_undefined()) return true;
  return in.fail("%s cannot be walked from its end", Interp::type_name(v));
}

bool fallback(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  TRY(in.bind(args, "default", {"default_value", "boolean"}, 0, a));
  if (!v.is_undefined() && !(flag(a[1]) && !Interp::truth(v))) *out = v;
  else *out = a[0] != nullptr ? *a[0] : Value::literal("");
  return true;
}

bool list(Interp& in, const Value& v, Args& args, Value* out) {
  std::vector<Value> values;
  TRY(in.bind(args, "list", {}, 0, nullptr) && in.items_of(v, &values));
  *out = Value::growing_list(std::move(values));
  return true;
}

bool dictsort(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[3];
  TRY(in.bind(args, "dictsort", {"case_sensitive", "by", "reverse"}, 0, a) && in.not_undefined(v));
  const std::string_view by = a[1] == nullptr ? "key" : (a[1]->is_string() ? a[1]->as_string() : "");
  if (by != "key" && by != "value") return in.fail("dictsort sorts by \"key\" or \"value\"");
  if (!v.is_map()) return in.fail("dictsort wants a mapping, not %s", Interp::type_name(v));
  std::vector<Value> pairs, keys, sorted;
  TRY(in.charge_items(v.as_map().size() * 5) && in.step(v.as_map().size()));
  for (const Map::Entry& e : v.as_map().entries()) {
    pairs.push_back(Value::tuple({e.first, e.second}));
    keys.push_back(by == "key" ? e.first : e.second);
    TRY(fold_case(in, flag(a[0]), &keys.back()));
  }
  TRY(sort_by(in, pairs, keys, flag(a[2]), &sorted));
  *out = Value::list(std::move(sorted));
  return true;
}

bool items(Interp& in, const Value& v, Args& args, Value* out) {
  TRY(in.bind(args, "items", {}, 0, nullptr));
  std::vector<Value> pairs;
  if (!v.is_undefined()) {
    if (!v.is_map()) return in.fail("items wants a mapping, not %s", Interp::type_name(v));
    TRY(in.charge_items(v.as_map().size() * 4) && in.step(v.as_map().size()));
    for (const Map::Entry& e : v.as_map().entries()) pairs.push_back(Value::tuple({e.first, e.second}));
  }
  return in.make_generator(std::move(pairs), out);
}

bool map(Interp& in, const Value& v, Args& args, Value* out) {
  std::vector<Value> values, mapped;
  if (!Interp::truth(v)) return in.make_generator({}, out);
  Named filter;
  const Value *attribute = nullptr, *missing = nullptr;
  if (args.positional.empty()) {
    for (const auto& keyword : args.keywords) {
      if (keyword.first == "attribute") attribute = &keyword.second;
      else if (keyword.first == "default") missing = &keyword.second;
      else return in.fail("map takes no argument named '%s'", keyword.first.c_str());
    }
    if (attribute == nullptr) return in.fail("map wants a filter or an attribute");
    if (missing != nullptr && missing->is_none()) missing = nullptr;
  } else {
    TRY(take_named(in, args, 0, false, &filter));
  }
  TRY(in.items_of(v, &values));
  mapped.reserve(values.size());
  for (const Value& item : values) {
    Value result;
    Args filter_args = filter.args;
    TRY(in.step(1 + filter.args.positional.size() / 16));
    TRY(attribute != nullptr ? in.path(item, *attribute, missing, &result) : in.call_filter(filter.index, item, filter_args, &result));
    mapped.push_back(std::move(result));
  }
  return in.make_generator(std::move(mapped), out);
}

bool select(Interp& in, const Value& v, Args& args, Value* out) { return choose(in, v, args, true, false, out); }
bool reject(Interp& in, const Value& v, Args& args, Value* out) { return choose(in, v, args, false, false, out); }
bool selectattr(Interp& in, const Value& v, Args& args, Value* out) { return choose(in, v, args, true, true, out); }
bool rejectattr(Interp& in, const Value& v, Args& args, Value* out) { return choose(in, v, args, false, true, out); }

bool unique(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  std::vector<Value> values, kept;
  TRY(in.bind(args, "unique", {"case_sensitive", "attribute"}, 0, a) && in.items_of(v, &values));
  const Value none = Value::none();
  Map seen;
  for (Value& item : values) {
    Value key;
    TRY(in.path(item, or_none(a[1], none), nullptr, &key) && fold_case(in, flag(a[0]), &key) && in.hash_check(key));
    TRY(in.charge(128) && in.step(8));
    if (seen.find(key) != nullptr) continue;
    seen.set(std::move(key), Value::none());
    kept.push_back(std::move(item));
  }
  return in.make_generator(std::move(kept), out);
}

bool sort(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[3];
  std::vector<Value> values, keys, sorted;
  TRY(in.bind(args, "sort", {"reverse", "case_sensitive", "attribute"}, 0, a) && in.items_of(v, &values));
  // "a,b" sorts by a, then by b.
  std::vector<Value> parts;
  if (a[2] != nullptr && a[2]->is_string()) {
    const std::string_view text = a[2]->as_string();
    for (size_t from = 0; from <= text.size();) {
      const size_t comma = std::min(text.find(',', from), text.size());
      parts.push_back(Value::string(std::string(text.substr(from, comma - from))));
      from = comma + 1;
    }
  } else {
    parts.push_back(a[2] != nullptr ? *a[2] : Value::none());
  }
  keys.reserve(values.size());
  for (const Value& item : values) {
    std::vector<Value> key(parts.size());
    TRY(in.charge_items(parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) TRY(in.path(item, parts[i], nullptr, &key[i]) && fold_case(in, flag(a[1]), &key[i]));
    keys.push_back(Value::list(std::move(key)));
  }
  TRY(sort_by(in, values, keys, flag(a[0]), &sorted));
  *out = Value::growing_list(std::move(sorted));
  return true;
}

bool reverse(Interp& in, const Value& v, Args& args, Value* out) {
  TRY(in.bind(args, "reverse", {}, 0, nullptr));
  if (v.is_string()) return in.slice(v, Value::none(), Value::none(), Value::integer(-1), out);
  std::vector<Value> values;
  TRY(in.not_undefined(v) && in.items_of(v, &values));
  std::reverse(values.begin(), values.end());
  if (is_object(v, ObjectType::generator)) return in.list_value(std::move(values), out);
  return in.make_generator(std::move(values), out);
}

bool sum(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  std::vector<Value> values;
  TRY(in.bind(args, "sum", {"attribute", "start"}, 0, a) && in.items_of(v, &values));
  Value total = a[1] != nullptr ? *a[1] : Value::integer(0);
  if (total.is_string()) return in.fail("sum cannot add up text");
  const Value none = Value::none();
  for (const Value& item : values) {
    Value part, next;
    TRY(in.step() && in.path(item, or_none(a[0], none), nullptr, &part) && in.binary(Op::add, total, part, &next));
    total = std::move(next);
  }
  *out = std::move(total);
  return true;
}

bool min(Interp& in, const Value& v, Args& args, Value* out) { return extreme<false>(in, v, args, out); }
bool max(Interp& in, const Value& v, Args& args, Value* out) { return extreme<true>(in, v, args, out); }

bool batch(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  int64_t count;
  std::vector<Value> values, rows, row;
  TRY(in.bind(args, "batch", {"linecount", "fill_with"}, 1, a) && in.want_int(*a[0], "the line count", &count));
  TRY(in.items_of(v, &values));
  for (Value& item : values) {
    if (static_cast<int64_t>(row.size()) == count) {
      rows.push_back(Value::list(std::move(row)));
      row = {};
    }
    TRY(in.charge(2 * sizeof(Value)) && in.step());
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (a[1] != nullptr && !a[1]->is_none() && static_cast<int64_t>(row.size()) < count) {
      TRY(in.charge_items(static_cast<uint64_t>(count)));
      row.resize(static_cast<size_t>(count), *a[1]);
    }
    rows.push_back(Value::list(std::move(row)));
  }
  return in.make_generator(std::move(rows), out);
}

bool slice(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[2];
  int64_t count;
  std::vector<Value> values, columns;
  TRY(in.bind(args, "slice", {"slices", "fill_with"}, 1, a) && in.want_int(*a[0], "the number of slices", &count));
  TRY(in.items_of(v, &values));
  if (count == 0) return in.fail("division by zero");
  const uint64_t n = count > 0 ? static_cast<uint64_t>(count) : 0;
  TRY(n < (1u << 30) ? in.charge_items(n * 6) && in.step(n) : in.charge(UINT64_MAX));
  const size_t each = n == 0 ? 0 : values.size() / n, extra = n == 0 ? 0 : values.size() % n;
  size_t start = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t end = start + each + (i < extra ? 1 : 0);
    std::vector<Value> column(values.begin() + static_cast<std::ptrdiff_t>(start), values.begin() + static_cast<std::ptrdiff_t>(end));
    if (a[1] != nullptr && !a[1]->is_none() && i >= extra) column.push_back(*a[1]);
    columns.push_back(Value::list(std::move(column)));
    start = end;
  }
  return in.make_generator(std::move(columns), out);
}

bool groupby(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* a[3];
  std::vector<Value> values, plain, keys, groups;
  TRY(in.bind(args, "groupby", {"attribute", "default", "case_sensitive"}, 1, a) && in.items_of(v, &values));
  const Value* missing = a[1] != nullptr && !a[1]->is_none() ? a[1] : nullptr;
  for (const Value& item : values) {
    Value key;
    TRY(in.path(item, *a[0], missing, &key));
    plain.push_back(key);
    TRY(fold_case(in, flag(a[2]), &key));
    keys.push_back(std::move(key));
  }
  std::vector<size_t> order;
  TRY(in.charge_items(values.size() * 4) && sorted_order(in, keys, false, &order));
  for (size_t i = 0; i < order.size();) {
    std::vector<Value> members;
    const size_t start = i;
    for (bool equal = true; i < order.size(); ++i) {
      TRY(in.same(keys[order[start]], keys[order[i]], &equal));
      if (!equal) break;
      members.push_back(values[order[i]]);
    }
    TRY(in.charge(256) && in.step(4));
    if (members.empty()) members.push_back(values[order[i++]]);  // a key that does not equal itself
    groups.push_back(Value::group(plain[order[start]], Value::list(std::move(members))));
  }
  *out = Value::list(std::move(groups));
  return true;
}

bool attr(Interp& in, const Value& v, Args& args, Value* out) {
  const Value* name;
  TRY(in.bind(args, "attr", {"name"}, 1, &name) && in.want_string(*name, "the name"));
  if (v.is_map() && in.find_method(v, name->as_string()) == nullptr) {  // members only, no items
    *out = Value::undefined("the mapping has no member '" + std::string(name->as_string()) + "'");
    return true;
  }
  return in.attribute(v, std::string(name->as_string()), out);
}

}  // namespace orrery::text::jinja::filters
