// Conjunctions, alternatives and negations of forms, and what a place applies in place: allOf, anyOf, oneOf, not, if, $ref, dependencies.
#include <algorithm>

#include "runtime/text/grammar/json_schema/reader.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::text::grammar {

Result<std::shared_ptr<const CharDfa>> dfa_of(const StringForm& s) {
  CharDfa dfa = s.dfa != nullptr ? *s.dfa : CharDfa::all();
  if (!(s.set == CharSet::all())) {
    CharDfa of_set;
    of_set.states.resize(1);
    of_set.states[0].final = true;
    for (const CharRange& r : s.set.ranges()) of_set.states[0].edges.push_back({r.first, r.last, 0});
    ORRERY_ASSIGN(dfa, CharDfa::combine(dfa, of_set, CharDfa::Combine::both));
  }
  ORRERY_ASSIGN(dfa, dfa.of_length(s.least, s.most));
  return std::make_shared<const CharDfa>(std::move(dfa));
}

// ---- Both of two ----

Status SchemaDocument::Reader::both_objects(const ObjectForm& a, const ObjectForm& b, ObjectForm* out) {
  for (const auto& [name, c] : a.properties) out->properties.emplace_back(name, join(c, b.of(name)));
  std::set<std::string_view> known;
  for (const auto& p : a.properties) known.insert(p.first);
  for (const auto& [name, c] : b.properties)
    if (known.count(name) == 0) out->properties.emplace_back(name, join(c, a.of(name)));
  // Classes of one side split by those of the other; what is left over meets the other's rest.
  const auto split = [&](const ObjectForm& x, const ObjectForm& y, bool commons) -> Status {
    for (const auto& [dfa, c] : x.classes) {
      CharDfa left = *dfa;
      for (const auto& [other, d] : y.classes) {
        if (commons) {
          ORRERY_ASSIGN(CharDfa common, CharDfa::combine(*dfa, *other, CharDfa::Combine::both));
          if (!common.empty()) out->classes.emplace_back(std::make_shared<const CharDfa>(std::move(common)), join(c, d));
        }
        ORRERY_ASSIGN(left, CharDfa::combine(left, *other, CharDfa::Combine::first_only));
      }
      if (!left.empty()) out->classes.emplace_back(std::make_shared<const CharDfa>(std::move(left)), join(c, y.rest));
    }
    return ok_status();
  };
  ORRERY_TRY(split(a, b, true));
  ORRERY_TRY(split(b, a, false));
  if (out->classes.size() > 64) return error(Code::unsupported, "too many patterns of keys overlap");
  out->rest = join(a.rest, b.rest);
  out->required = without_repeats(a.required, b.required);
  out->least = std::max(a.least, b.least);
  out->most = std::min(a.most, b.most);
  out->evaluated.all = a.evaluated.all || b.evaluated.all;
  if (!out->evaluated.all) {
    out->evaluated.names = without_repeats(a.evaluated.names, b.evaluated.names);
    out->evaluated.classes = a.evaluated.classes;
    for (const auto& dfa : b.evaluated.classes)
      if (std::find(a.evaluated.classes.begin(), a.evaluated.classes.end(), dfa) == a.evaluated.classes.end())
        out->evaluated.classes.push_back(dfa);
  }
  return ok_status();
}

Result<std::optional<Alternative>> SchemaDocument::Reader::both(const Alternative& a, const Alternative& b) {
  Alternative out;
  out.types = a.types & b.types;
  out.may_evaluate_more = a.may_evaluate_more || b.may_evaluate_more;
  if (out.types & kNumber) {
    out.number = a.number;
    out.number.integer = a.number.integer || b.number.integer;
    for (const Decimal& m : b.number.multiples) out.number.multiples.push_back(m);
    NumberForm& n = out.number;
    if (b.number.least) {
      const int c = n.least ? compare(*b.number.least, *n.least) : 1;
      if (c > 0) n.least = b.number.least, n.above_least = b.number.above_least;
      if (c == 0) n.above_least = n.above_least || b.number.above_least;
    }
    if (b.number.most) {
      const int c = n.most ? compare(*b.number.most, *n.most) : -1;
      if (c < 0) n.most = b.number.most, n.below_most = b.number.below_most;
      if (c == 0) n.below_most = n.below_most || b.number.below_most;
    }
    if (n.least && n.most) {
      const int c = compare(*n.least, *n.most);
      if (c > 0 || (c == 0 && (n.above_least || n.below_most))) out.types &= static_cast<uint8_t>(~kNumber);
    }
  }
  if (out.types & kString) {
    out.string.set = a.string.set.intersect(b.string.set);
    out.string.least = std::max(a.string.least, b.string.least);
    out.string.most = std::min(a.string.most, b.string.most);
    out.string.dfa = a.string.dfa != nullptr ? a.string.dfa : b.string.dfa;
    if (a.string.dfa != nullptr && b.string.dfa != nullptr && a.string.dfa != b.string.dfa) {
      ORRERY_ASSIGN(CharDfa dfa, CharDfa::combine(*a.string.dfa, *b.string.dfa, CharDfa::Combine::both));
      out.string.dfa = std::make_shared<const CharDfa>(std::move(dfa));
    }
    if (out.string.least > out.string.most || (out.string.dfa != nullptr && out.string.dfa->empty()) ||
        (out.string.set.empty() && out.string.least > 0))
      out.types &= static_cast<uint8_t>(~kString);
  }
  if (out.types & kArray) {
    const size_t n = std::max(a.array.prefix.size(), b.array.prefix.size());
    for (size_t i = 0; i < n; ++i)
      out.array.prefix.push_back(
          join(i < a.array.prefix.size() ? a.array.prefix[i] : a.array.rest, i < b.array.prefix.size() ? b.array.prefix[i] : b.array.rest));
    out.array.rest = join(a.array.rest, b.array.rest);
    out.array.least = std::max(a.array.least, b.array.least);
    out.array.most = std::min(a.array.most, b.array.most);
    out.array.contains = a.array.contains;
    out.array.contains.insert(out.array.contains.end(), b.array.contains.begin(), b.array.contains.end());
    out.array.unique = a.array.unique || b.array.unique;
    out.array.evaluated = std::max(a.array.evaluated, b.array.evaluated);
    out.array.evaluates_some = a.array.evaluates_some || b.array.evaluates_some;
    if (out.array.least > out.array.most) out.types &= static_cast<uint8_t>(~kArray);
  }
  if (out.types & kObject) {
    ORRERY_TRY(both_objects(a.object, b.object, &out.object));
    if (out.object.least > out.object.most) out.types &= static_cast<uint8_t>(~kObject);
  }
  if (out.types == 0) return std::optional<Alternative>();
  out.values = a.values;
  if (b.values != nullptr) {
    if (a.values != nullptr && uint64_t{a.values->size()} * b.values->size() > 10000000)
      return error(Code::unsupported, "schema: two enumerations of %zu and %zu values at one place", a.values->size(), b.values->size());
    std::vector<Value> kept;
    for (const Value& v : *b.values)
      if (a.values == nullptr || std::any_of(a.values->begin(), a.values->end(), [&](const Value& o) { return json_equal(o, v); }))
        kept.push_back(v);
    out.values = std::make_shared<const std::vector<Value>>(std::move(kept));
  }
  if (out.values != nullptr &&
      std::none_of(out.values->begin(), out.values->end(), [&](const Value& v) { return (type_of(v) & out.types) != 0; }))
    return std::optional<Alternative>();
  return std::optional<Alternative>(std::move(out));
}

Result<Form> SchemaDocument::Reader::both(const Form& a, const Form& b, uint32_t number) {
  Form out;
  for (const Alternative& x : a) {
    for (const Alternative& y : b) {
      if (pace_.look()) return error(Code::cancelled, "compiling a schema was cancelled");
      ORRERY_ASSIGN(std::optional<Alternative> joined, both(x, y));
      if (joined) out.push_back(std::move(*joined));
      if (out.size() > kMostAlternatives) return refuse(number, "", "its choices have more than 1,024 combinations");
    }
  }
  return out;
}

// ---- Negation ----

Status SchemaDocument::Reader::negate_object(const ObjectForm& object, uint32_t number, Form* out) {
  Alternative any;
  any.types = kObject;
  for (const std::string& name : object.required) {
    Alternative without = any;
    without.object.properties.emplace_back(name, nothing());
    out->push_back(std::move(without));
  }
  if (object.least > 0) {
    Alternative fewer = any;
    fewer.object.most = object.least - 1;
    out->push_back(std::move(fewer));
  }
  if (object.most != kUnbounded) {
    Alternative more = any;
    more.object.least = object.most + 1;
    out->push_back(std::move(more));
  }
  for (const auto& [name, c] : object.properties) {
    for (const uint32_t l : conjunctions_[c]) {
      Alternative other = any;
      other.object.properties.emplace_back(name, literal(l ^ 1));
      other.object.required.push_back(name);
      out->push_back(std::move(other));
    }
  }
  if (object.rest != kAnything ||
      std::any_of(object.classes.begin(), object.classes.end(), [](const auto& c) { return c.second != kAnything; }))
    return refuse(number, "", "the negation of additionalProperties, patternProperties or propertyNames is not supported");
  return ok_status();
}

Result<Form> SchemaDocument::Reader::negate(const Alternative& a, uint32_t number) {
  Form out;
  Alternative others;  // the types that `a` excludes
  others.types = static_cast<uint8_t>(kAllTypes & ~a.types);
  if (a.values != nullptr) {
    Alternative strings;
    strings.types = kString;
    std::vector<std::string> texts;
    std::vector<Decimal> numbers;
    others.types = kAllTypes & ~kString & ~kNumber;
    Alternative rest = a;  // the values are its own
    rest.values = nullptr;
    for (const Value& v : *a.values) {
      ORRERY_ASSIGN(const bool counts, satisfies(v, rest, 0));
      if (!counts) continue;
      const uint8_t type = type_of(v);
      if (type & (kArray | kObject)) {
        const bool empty = v.is_list() ? v.as_items().empty() : v.as_map().size() == 0;
        if (!empty) return refuse(number, "", "the negation of an enumerated list or object is not supported");
        Alternative longer;
        longer.types = type;
        longer.array.least = longer.object.least = 1;
        others.types &= static_cast<uint8_t>(~type);
        out.push_back(std::move(longer));
      } else if (type == kString) {
        texts.emplace_back(v.as_string());
      } else if (type == kNumber) {
        if (const auto d = decimal_of(v)) numbers.push_back(*d);
      } else {
        others.types &= static_cast<uint8_t>(~type);
      }
    }
    if (!texts.empty()) {
      ORRERY_ASSIGN(CharDfa dfa, CharDfa::of_texts(texts).complement());
      strings.string.dfa = std::make_shared<const CharDfa>(std::move(dfa));
    }
    out.push_back(std::move(strings));
    std::sort(numbers.begin(), numbers.end(), [](const Decimal& x, const Decimal& y) { return compare(x, y) < 0; });
    for (size_t i = 0; i <= numbers.size(); ++i) {
      Alternative between;
      between.types = kNumber;
      if (i > 0) between.number.least = numbers[i - 1], between.number.above_least = true;
      if (i < numbers.size()) between.number.most = numbers[i], between.number.below_most = true;
      out.push_back(std::move(between));
    }
    if (others.types != 0) out.push_back(std::move(others));
    return out;
  }
  if (others.types != 0) out.push_back(others);
  if ((a.types & kNumber) && !a.number.free()) {
    if (a.number.integer || !a.number.multiples.empty())
      return refuse(number, "", "the negation of integer and multipleOf is not supported");
    Alternative n;
    n.types = kNumber;
    if (a.number.least) {
      n.number.most = a.number.least;
      n.number.below_most = !a.number.above_least;
      out.push_back(n);
    }
    n.number = NumberForm();
    if (a.number.most) {
      n.number.least = a.number.most;
      n.number.above_least = !a.number.below_most;
      out.push_back(n);
    }
  }
  if (a.types & kString) {
    ORRERY_ASSIGN(const std::shared_ptr<const CharDfa> dfa, dfa_of(a.string));
    ORRERY_ASSIGN(CharDfa complement, dfa->complement());
    if (!complement.empty()) {
      Alternative s;
      s.types = kString;
      s.string.dfa = std::make_shared<const CharDfa>(std::move(complement));
      out.push_back(std::move(s));
    }
  }
  if ((a.types & kArray) && !a.array.free()) {
    Alternative n;
    n.types = kArray;
    for (size_t i = 0; i < a.array.prefix.size(); ++i) {  // an item that is there and wrong
      for (const uint32_t l : conjunctions_[a.array.prefix[i]]) {
        Alternative wrong = n;
        wrong.array.prefix.assign(i, kAnything);
        wrong.array.prefix.push_back(literal(l ^ 1));
        wrong.array.least = static_cast<uint32_t>(i) + 1;
        out.push_back(std::move(wrong));
      }
    }
    if (a.array.unique) return refuse(number, "", "the negation of uniqueItems is not supported");
    if (!a.array.contains.empty()) return refuse(number, "", "the negation of contains is not supported");
    if (a.array.rest != kAnything) {
      if (!a.array.prefix.empty() && a.array.rest != nothing())
        return refuse(number, "", "the negation of items behind prefixItems is not supported");
      for (const uint32_t l : conjunctions_[a.array.rest]) {
        Alternative wrong = n;
        if (a.array.prefix.empty()) wrong.array.contains.push_back({literal(l ^ 1), 1});
        wrong.array.least = static_cast<uint32_t>(a.array.prefix.size()) + 1;
        out.push_back(std::move(wrong));
      }
    }
    if (a.array.least > 0) {
      n.array.most = a.array.least - 1;
      out.push_back(n);
    }
    n.array = ArrayForm();
    if (a.array.most != kUnbounded) {
      n.array.least = a.array.most + 1;
      out.push_back(n);
    }
  }
  if ((a.types & kObject) && !a.object.free()) ORRERY_TRY(negate_object(a.object, number, &out));
  return out;
}

Result<Form> SchemaDocument::Reader::negative(uint32_t number, int depth) {
  ORRERY_ASSIGN(const Form form, literal_form(number * 2, depth + 1));
  Form out(1);
  for (const Alternative& a : form) {
    ORRERY_ASSIGN(const Form not_a, negate(a, number));
    ORRERY_ASSIGN(out, both(out, not_a, number));
  }
  return out;
}

// ---- In place ----

Result<Form> SchemaDocument::Reader::literal_form(uint32_t number, int depth) {
  if (number / 2 == kTruePlace || number / 2 == kFalsePlace)
    return number == kTruePlace * 2 || number == kFalsePlace * 2 + 1 ? Form(1) : Form();
  if (const auto known = literal_forms_.find(number); known != literal_forms_.end()) return known->second;
  if (depth > kMostDepth) return refuse(number / 2, "", "references and combinations are nested more than 64 deep");
  if (!in_progress_.insert(number).second)
    return refuse(number / 2, "", "the schema refers to itself without an end", Code::invalid_argument);
  auto form = number % 2 == 0 ? positive(number / 2, depth) : negative(number / 2, depth);
  in_progress_.erase(number);
  if (form.ok()) literal_forms_[number] = *form;
  return form;
}

Result<Form> SchemaDocument::Reader::positive(uint32_t number, int depth) {
  const Value schema = places_[number].schema;
  const Value* reference = schema.find("$ref");
  if (reference != nullptr && !reference->is_string()) return refuse(number, "$ref", "expected a string", Code::invalid_argument);
  if (reference != nullptr && legacy_) {
    ORRERY_ASSIGN(const uint32_t target, resolve(number, std::string(reference->as_string())));
    return literal_form(target * 2, depth + 1);
  }
  ORRERY_TRY(check_keywords(number));
  Form form(1);
  ORRERY_TRY(simple_keywords(number, &form[0]));
  if (form[0].types == 0) form.clear();
  Form any(1);
  ORRERY_ASSIGN(form, both(form, any, number));  // drops types whose bounds contradict each other
  if (reference != nullptr) {
    ORRERY_ASSIGN(const uint32_t target, resolve(number, std::string(reference->as_string())));
    ORRERY_ASSIGN(const Form other, literal_form(target * 2, depth + 1));
    ORRERY_ASSIGN(form, both(form, other, number));
  }
  ORRERY_TRY(applicators(number, depth, &form));
  ORRERY_TRY(unevaluated(number, &form));
  return form;
}

// unevaluatedProperties and unevaluatedItems constrain the keys and items that neither a keyword of this schema nor a subschema it applies
// has evaluated. Each alternative of the normal form lists the keys and items evaluated on its way. The list is complete, unless the
// alternative leaves open which other branches of a choice hold.
Status SchemaDocument::Reader::unevaluated(uint32_t number, Form* form) {
  const Value& schema = places_[number].schema;
  for (const char* key : {"unevaluatedProperties", "unevaluatedItems"}) {
    const Value* v = schema.find(key);
    if (v == nullptr || legacy_) continue;
    ORRERY_ASSIGN(const Conjunction c, child(*v, number, key));
    const bool objects = std::string_view(key) == "unevaluatedProperties";
    Form out;
    for (Alternative& a : *form) {
      Alternative more;
      if (c != kAnything && (a.types & (objects ? kObject : kArray))) {
        if (a.may_evaluate_more)
          return refuse(number, key, "what a choice of anyOf, or an if without then and else, looks at is not known");
        if (!objects && a.array.evaluates_some && a.array.evaluated != kUnbounded)
          return refuse(number, key, "beside contains, it is not supported");
        if (objects && !a.object.evaluated.all) {
          for (const std::string& name : a.object.evaluated.names) more.object.properties.emplace_back(name, kAnything);
          CharDfa any;
          for (const auto& dfa : a.object.evaluated.classes) {
            ORRERY_ASSIGN(any, CharDfa::combine(any, *dfa, CharDfa::Combine::either));
          }
          if (!any.empty()) more.object.classes.emplace_back(std::make_shared<const CharDfa>(std::move(any)), kAnything);
          more.object.rest = c;
        }
        if (!objects && a.array.evaluated != kUnbounded) {
          more.array.prefix.assign(a.array.evaluated, kAnything);
          more.array.rest = c;
        }
      }
      ORRERY_ASSIGN(std::optional<Alternative> joined, both(a, more));
      if (!joined) continue;
      if (objects) joined->object.evaluated.all = true;
      else joined->array.evaluated = kUnbounded;
      out.push_back(std::move(*joined));
    }
    *form = std::move(out);
  }
  return ok_status();
}

Result<Form> SchemaDocument::Reader::one_of(uint32_t number, const Value& list, int depth) {
  std::vector<uint32_t> parts;
  for (const Value& v : list.as_items()) {
    ORRERY_ASSIGN(const uint32_t p, place(v, number, "oneOf"));
    parts.push_back(p * 2);
  }
  if (parts.size() > 200) return refuse(number, "oneOf", "more than 200 choices");
  Form out;
  std::vector<Form> forms;
  for (const uint32_t p : parts) {
    ORRERY_ASSIGN(Form f, literal_form(p, depth + 1));
    forms.push_back(std::move(f));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    Form form = forms[i];
    for (size_t j = 0; j < parts.size(); ++j) {
      if (i == j) continue;
      ORRERY_ASSIGN(const Form common, both(forms[i], forms[j], number));
      bool disjoint = true;
      for (const Alternative& a : common) {
        ORRERY_ASSIGN(const bool empty, empty_alternative(a, 0));
        disjoint = disjoint && empty;
      }
      if (disjoint) continue;
      auto others = literal_form(parts[j] ^ 1, depth + 1);
      if (!others.ok())
        return refuse(number, "oneOf", "two choices overlap, and " + std::string(others.status().message()), others.status().code());
      ORRERY_ASSIGN(form, both(form, *others, number));
    }
    out.insert(out.end(), form.begin(), form.end());
    if (out.size() > kMostAlternatives) return refuse(number, "oneOf", "more than 1,024 combinations");
  }
  return out;
}

// Whether an alternative looks at keys or items.
static bool evaluates(const Form& form) {
  return std::any_of(form.begin(), form.end(), [](const Alternative& a) {
    const ObjectForm::Evaluated& e = a.object.evaluated;
    return ((a.types & kObject) && (e.all || !e.names.empty() || !e.classes.empty())) ||
           ((a.types & kArray) && (a.array.evaluated > 0 || a.array.evaluates_some));
  });
}

Status SchemaDocument::Reader::applicators(uint32_t number, int depth, Form* form) {
  const Value schema = places_[number].schema;
  const auto also = [&](const Form& other) -> Status {
    ORRERY_ASSIGN(*form, both(*form, other, number));
    return ok_status();
  };
  const auto form_at = [&](const Value& v, const char* key, bool negated) -> Result<Form> {
    ORRERY_ASSIGN(const uint32_t p, place(v, number, key));
    return literal_form(p * 2 + negated, depth + 1);
  };
  for (const char* key : {"allOf", "anyOf", "oneOf"}) {
    const Value* list = schema.find(key);
    if (list == nullptr) continue;
    if (!list->is_list()) return refuse(number, key, "expected a list of schemas", Code::invalid_argument);
    if (std::string_view(key) == "oneOf") {
      ORRERY_ASSIGN(const Form f, one_of(number, *list, depth));
      ORRERY_TRY(also(f));
      continue;
    }
    Form any_of;
    const bool may_differ = std::string_view(key) == "anyOf" && list->as_items().size() > 1;
    for (const Value& v : list->as_items()) {
      ORRERY_ASSIGN(const Form f, form_at(v, key, false));
      if (std::string_view(key) == "allOf") {
        ORRERY_TRY(also(f));
      } else {
        any_of.insert(any_of.end(), f.begin(), f.end());
      }
    }
    for (Alternative& a : any_of) a.may_evaluate_more = a.may_evaluate_more || (may_differ && evaluates(any_of));
    if (std::string_view(key) == "anyOf") ORRERY_TRY(also(any_of));
  }
  if (const Value* v = schema.find("not")) {
    ORRERY_ASSIGN(const Form f, form_at(*v, "not", true));
    ORRERY_TRY(also(f));
  }
  if (const Value* v = schema.find("if"); v != nullptr && (schema.find("then") != nullptr || schema.find("else") != nullptr)) {
    Form either;
    for (const bool negated : {false, true}) {
      const char* key = negated ? "else" : "then";
      const Value* branch = schema.find(key);
      if (branch != nullptr && branch->is_bool() && !branch->as_bool()) continue;
      ORRERY_ASSIGN(Form f, form_at(*v, "if", negated));
      if (branch != nullptr) {
        ORRERY_ASSIGN(const Form b, form_at(*branch, key, false));
        ORRERY_ASSIGN(f, both(f, b, number));
      }
      either.insert(either.end(), f.begin(), f.end());
    }
    ORRERY_TRY(also(either));
  }
  if (schema.find("if") != nullptr && schema.find("then") == nullptr && schema.find("else") == nullptr)
    for (Alternative& a : *form) a.may_evaluate_more = true;
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Value* map = schema.find(key);
    if (map == nullptr) continue;
    if (!map->is_map()) return refuse(number, key, "expected an object", Code::invalid_argument);
    for (const auto& [name, needs] : map->as_map().entries()) {
      // Without the key, or with it and all that it needs.
      Form either(2);
      either[0].object.properties.emplace_back(std::string(name.as_string()), nothing());
      either[1].types = kObject;
      either[1].object.required.emplace_back(name.as_string());
      std::vector<Value> names;
      if (needs.is_list()) names = needs.as_items();
      if (needs.is_string()) names.push_back(needs);
      for (const Value& n : names) {
        if (!n.is_string()) return refuse(number, key, "expected names", Code::invalid_argument);
        either[1].object.required.emplace_back(n.as_string());
      }
      either[1].object.required = without_repeats(either[1].object.required, {});
      if (needs.is_map() || needs.is_bool()) {
        ORRERY_ASSIGN(const Form f, form_at(needs, key, false));
        ORRERY_ASSIGN(Form with, both({either[1]}, f, number));
        either.resize(1);
        either.insert(either.end(), with.begin(), with.end());
      } else if (!needs.is_list() && !needs.is_string()) {
        return refuse(number, key, "expected names or a schema", Code::invalid_argument);
      }
      ORRERY_TRY(also(either));
    }
  }
  return ok_status();
}

Result<const Form*> SchemaDocument::Reader::form(Conjunction c) {
  if (const auto known = forms_.find(c); known != forms_.end()) return static_cast<const Form*>(known->second.get());
  Form out(1);
  const std::vector<uint32_t> literals = conjunctions_[c];
  for (const uint32_t l : literals) {
    if (pace_.look()) return error(Code::cancelled, "compiling a schema was cancelled");
    ORRERY_ASSIGN(const Form f, literal_form(l, 0));
    ORRERY_ASSIGN(out, both(out, f, l / 2));
  }
  auto& kept = forms_[c];
  kept = std::make_unique<Form>(std::move(out));
  return static_cast<const Form*>(kept.get());
}

// ---- What has no value, and whether a value satisfies ----

Result<bool> SchemaDocument::Reader::empty_alternative(const Alternative& a, int depth) {
  if (a.values != nullptr) {
    Alternative rest = a;
    rest.values = nullptr;
    for (const Value& v : *a.values) {
      ORRERY_ASSIGN(const bool ok, satisfies(v, rest, 0));
      if (ok) return false;
    }
    return true;
  }
  if (a.types & (kNull | kFalse | kTrue | kNumber)) return false;
  if (a.types & kString) {
    if (a.string.dfa == nullptr) return false;
    ORRERY_ASSIGN(const std::shared_ptr<const CharDfa> dfa, dfa_of(a.string));
    if (!dfa->empty()) return false;
  }
  if (a.types & kArray) {
    bool impossible = false;
    for (size_t i = 0; i < a.array.least && i <= a.array.prefix.size() && depth < 4; ++i) {
      const Conjunction c = i < a.array.prefix.size() ? a.array.prefix[i] : a.array.rest;
      if (c == nothing()) impossible = true;
    }
    if (!impossible) return false;
  }
  if (a.types & kObject) {
    bool impossible = false;
    for (const std::string& name : a.object.required) {
      const Conjunction c = a.object.of(name);
      if (c == kAnything) continue;
      ORRERY_ASSIGN(const bool none, is_nothing(c));
      impossible = impossible || none;
    }
    if (!impossible) return false;
  }
  return true;
}

Result<bool> SchemaDocument::Reader::is_nothing(Conjunction c) {
  if (c == kAnything) return false;
  if (const auto known = nothing_.find(c); known != nothing_.end()) return known->second;
  nothing_[c] = false;  // while it is found out: recursion is taken to have an end
  bool none = true;
  for (const uint32_t l : conjunctions_[c])
    if (in_progress_.count(l) != 0) return nothing_.erase(c), false;
  ORRERY_ASSIGN(const Form* f, form(c));
  for (const Alternative& a : *f) {
    ORRERY_ASSIGN(const bool empty, empty_alternative(a, 0));
    none = none && empty;
  }
  nothing_[c] = none;
  return none;
}

Result<bool> SchemaDocument::Reader::satisfies(const Value& value, Conjunction c, int depth) {
  if (c == kAnything) return true;
  ORRERY_ASSIGN(const Form* f, form(c));
  for (const Alternative& a : *f) {
    ORRERY_ASSIGN(const bool ok, satisfies(value, a, depth));
    if (ok) return true;
  }
  return false;
}

Result<bool> SchemaDocument::Reader::satisfies(const Value& value, const Alternative& a, int depth) {
  if (depth > 200) return error(Code::unsupported, "an enumerated value is nested too deeply");
  const uint8_t type = type_of(value);
  if (!(type & a.types)) return false;
  if (a.values != nullptr && std::none_of(a.values->begin(), a.values->end(), [&](const Value& v) { return json_equal(v, value); }))
    return false;
  if (type == kNumber) {
    const auto d = decimal_of(value);
    if (!d || (a.number.integer && !d->is_integer())) return false;
    if (a.number.least && (compare(*d, *a.number.least) < (a.number.above_least ? 1 : 0))) return false;
    if (a.number.most && (compare(*d, *a.number.most) > (a.number.below_most ? -1 : 0))) return false;
    return std::all_of(a.number.multiples.begin(), a.number.multiples.end(), [&](const Decimal& m) { return is_multiple(*d, m); });
  }
  if (type == kString) {
    const std::string_view text = value.as_string();
    uint64_t n = 0;
    for (const char *p = text.data(), *end = p + text.size(); p < end; ++n) {
      const CodePoint c = utf8_decode(p, end);
      if (!a.string.set.contains(c.value)) return false;
      p += c.length;
    }
    return n >= a.string.least && n <= a.string.most && (a.string.dfa == nullptr || a.string.dfa->matches(text));
  }
  if (type == kArray) {
    const auto& items = value.as_items();
    if (items.size() < a.array.least || items.size() > a.array.most) return false;
    for (size_t i = 0; i < items.size(); ++i) {
      ORRERY_ASSIGN(const bool ok, satisfies(items[i], i < a.array.prefix.size() ? a.array.prefix[i] : a.array.rest, depth + 1));
      if (!ok) return false;
    }
    if (a.array.unique && items.size() > 2000)
      return error(Code::unsupported, "an enumerated list of %zu items under uniqueItems", items.size());
    for (size_t i = 0; a.array.unique && i < items.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (json_equal(items[i], items[j])) return false;
    for (const ArrayForm::Contains& contains : a.array.contains) {
      uint32_t n = 0;
      for (const Value& item : items) {
        ORRERY_ASSIGN(const bool ok, satisfies(item, contains.what, depth + 1));
        n += ok;
      }
      if (n < contains.least) return false;
    }
    return true;
  }
  if (type == kObject) {
    const auto& entries = value.as_map().entries();
    if (entries.size() < a.object.least || entries.size() > a.object.most) return false;
    for (const std::string& name : a.object.required)
      if (value.find(name) == nullptr) return false;
    for (const auto& [key, v] : entries) {
      ORRERY_ASSIGN(const bool ok, satisfies(v, a.object.of(std::string(key.as_string())), depth + 1));
      if (!ok) return false;
    }
  }
  return true;
}

}  // namespace orrery::text::grammar
