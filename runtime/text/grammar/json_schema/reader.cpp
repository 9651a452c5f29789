// The document: its places, references, and what the keywords of one place say by themselves.
#include "runtime/text/grammar/json_schema/reader.h"

#include <algorithm>
#include <cmath>

#include "runtime/text/unicode/utf8.h"

namespace orrery::text::grammar {
namespace {

// clang-format off
constexpr const char* kConstrains[] = {
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength",
    "pattern", "format", "items", "prefixItems", "additionalItems", "maxItems", "minItems", "uniqueItems", "unevaluatedItems",
    "unevaluatedProperties", "contains", "minContains", "properties", "patternProperties", "additionalProperties", "required",
    "maxProperties", "minProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "allOf", "anyOf",
    "oneOf", "not", "if", "then", "else", "$ref"};
// clang-format on
constexpr const char* kAnnotations[] = {
    "title",           "description",     "default", "examples", "$comment", "readOnly", "writeOnly", "deprecated",  "contentMediaType",
    "contentEncoding", "contentSchema",   "$schema", "$id",      "id",       "$anchor",  "$defs",     "definitions", "$vocabulary",
    "$dynamicAnchor",  "$recursiveAnchor"};
// These would constrain, and are not supported.
constexpr const char* kRefused[] = {"$dynamicRef", "$recursiveRef", "maxContains"};

template <size_t n>
bool is_in(const char* const (&list)[n], std::string_view key) {
  return std::any_of(std::begin(list), std::end(list), [&](const char* k) { return key == k; });
}

std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key.substr(0, 100)) out += c == '~' ? std::string("~0") : c == '/' ? std::string("~1") : std::string(1, c);
  return out;
}

// RFC 3986 as far as schemas use it: a fragment, a path relative to the base's, or a whole URI.
std::string join_uri(const std::string& base, const std::string& reference) {
  if (reference.empty()) return base;
  if (reference.find(':') != std::string::npos && reference.find(':') < reference.find_first_of("/#?")) return reference;
  const std::string whole = base.substr(0, base.find('#'));
  if (reference[0] == '#') return whole + reference;
  const size_t scheme = whole.find("://");
  if (reference[0] == '/') {
    const size_t path = scheme == std::string::npos ? 0 : whole.find('/', scheme + 3);
    return whole.substr(0, path) + reference;
  }
  const size_t slash = whole.rfind('/');
  if (slash == std::string::npos || (scheme != std::string::npos && slash < scheme + 3)) return reference;
  return whole.substr(0, slash + 1) + reference;
}

}  // namespace

std::vector<std::string> without_repeats(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::set<std::string_view> seen;
  std::vector<std::string> out;
  for (const auto* names : {&a, &b})
    for (const std::string& name : *names)
      if (seen.insert(name).second) out.push_back(name);
  return out;
}

uint8_t type_of(const Value& value) {
  if (value.is_none()) return kNull;
  if (value.is_bool()) return value.as_bool() ? kTrue : kFalse;
  if (value.is_number() || value.kind() == Kind::big_integer) return kNumber;
  if (value.is_string()) return kString;
  if (value.is_list()) return kArray;
  return value.is_map() ? kObject : 0;
}

bool json_equal(const Value& a, const Value& b) {
  std::vector<std::pair<Value, Value>> todo = {{a, b}};
  while (!todo.empty()) {
    const auto [x, y] = todo.back();
    todo.pop_back();
    if (type_of(x) != type_of(y)) return false;
    switch (type_of(x)) {
      case kNumber: {
        const auto p = decimal_of(x), q = decimal_of(y);
        if (!p || !q || compare(*p, *q) != 0) return false;
        break;
      }
      case kString:
        if (x.as_string() != y.as_string()) return false;
        break;
      case kArray:
        if (x.as_items().size() != y.as_items().size()) return false;
        for (size_t i = 0; i < x.as_items().size(); ++i) todo.emplace_back(x.as_items()[i], y.as_items()[i]);
        break;
      case kObject:
        if (x.as_map().size() != y.as_map().size()) return false;
        for (const auto& [key, value] : x.as_map().entries()) {
          const Value* other = y.find(key.as_string());
          if (other == nullptr) return false;
          todo.emplace_back(value, *other);
        }
        break;
      default: break;
    }
  }
  return true;
}

Status SchemaDocument::Reader::refuse(uint32_t place, const std::string& keyword, const std::string& why, Code code) const {
  std::string at = places_[place].pointer;
  if (!keyword.empty()) at += "/" + escaped(keyword);
  return error(code, "schema %.300s: %s", at.empty() ? "#" : ("#" + at).c_str(), why.c_str());
}

std::string SchemaDocument::Reader::place_of(Conjunction c) const {
  if (conjunctions_[c].empty()) return "#";
  return "#" + places_[conjunctions_[c][0] / 2].pointer;
}

Status SchemaDocument::Reader::index() {
  places_.push_back({Value::boolean(true), "", ""});
  places_.push_back({Value::boolean(false), "", ""});
  if (const Value* draft = root_.find("$schema"); draft != nullptr && draft->is_string())
    for (const char* old : {"draft-03", "draft-04", "draft-06", "draft-07"})
      legacy_ = legacy_ || draft->as_string().find(old) != std::string_view::npos;
  // Every object is a possible place: references may point anywhere.
  struct Todo {
    Value value;
    std::string pointer, base;
    bool names;  // its keys are names, not keywords
  };
  if (!root_.is_map() && !root_.is_bool()) return error(Code::invalid_argument, "schema #: a schema is an object, true or false");
  std::vector<Todo> todo;
  if (root_.is_map()) todo.push_back({root_, "", "", false});
  if (root_.is_bool()) root_number_ = root_.as_bool() ? kTruePlace : kFalsePlace;
  while (!todo.empty()) {
    if (pace_.stop()) return error(Code::cancelled, "reading a schema was cancelled");
    Todo at = std::move(todo.back());
    todo.pop_back();
    if (at.value.is_list()) {
      const auto& items = at.value.as_items();
      for (size_t i = items.size(); i-- > 0;)
        if (items[i].is_map() || items[i].is_list()) todo.push_back({items[i], at.pointer + "/" + std::to_string(i), at.base, false});
      continue;
    }
    const auto number = static_cast<uint32_t>(places_.size());
    if (at.pointer.empty()) root_number_ = number;
    const auto text = [&](const char* key) {
      const Value* v = at.names ? nullptr : at.value.find(key);
      return v != nullptr && v->is_string() ? std::string(v->as_string()) : std::string();
    };
    const bool is_ref_alone = legacy_ && !at.names && at.value.find("$ref") != nullptr && at.value.find("$ref")->is_string();
    if (!is_ref_alone) {
      std::string id = text("$id");
      if (id.empty() && legacy_) id = text("id");
      if (!id.empty() && id[0] == '#') {
        identifiers_.emplace(join_uri(at.base, id), number);
      } else if (!id.empty()) {
        at.base = join_uri(at.base, id);
        if (at.base.size() > 1 && at.base.back() == '#') at.base.pop_back();
        identifiers_.emplace(at.base, number);
      }
      for (const char* key : {"$anchor", "$dynamicAnchor"})
        if (const std::string anchor = text(key); !anchor.empty())
          identifiers_.emplace(at.base.substr(0, at.base.find('#')) + "#" + anchor, number);
    }
    place_numbers_.emplace(at.value.as_node(), number);
    places_.push_back({at.value, at.pointer, at.base});
    const auto& entries = at.value.as_map().entries();
    for (size_t i = entries.size(); i-- > 0;) {
      const std::string_view key = entries[i].first.as_string();
      if (!at.names && (key == "enum" || key == "const" || key == "default" || key == "examples")) continue;
      const bool names = !at.names && (key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions" ||
                                       key == "dependencies" || key == "dependentSchemas");
      if (entries[i].second.is_map() || entries[i].second.is_list())
        todo.push_back({entries[i].second, at.pointer + "/" + escaped(key), at.base, names});
    }
  }
  return ok_status();
}

Result<uint32_t> SchemaDocument::Reader::place(const Value& schema, uint32_t parent, const std::string& keyword) {
  if (schema.is_bool()) return schema.as_bool() ? uint32_t{kTruePlace} : uint32_t{kFalsePlace};
  if (!schema.is_map()) return refuse(parent, keyword, "a schema is an object, true or false", Code::invalid_argument);
  const auto at = place_numbers_.find(schema.as_node());
  if (at == place_numbers_.end()) return refuse(parent, keyword, "a schema within a value", Code::invalid_argument);
  return at->second;
}

Conjunction SchemaDocument::Reader::literal(uint32_t number) {
  if (number == kTruePlace * 2 || number == kFalsePlace * 2 + 1) return kAnything;
  if (number == kTruePlace * 2 + 1) number = kFalsePlace * 2;
  const std::vector<uint32_t> set = {number};
  const auto [at, is_new] = conjunction_numbers_.emplace(set, static_cast<uint32_t>(conjunctions_.size()));
  if (is_new) conjunctions_.push_back(set);
  return at->second;
}

Conjunction SchemaDocument::Reader::join(Conjunction a, Conjunction b) {
  if (a == b || b == kAnything) return a;
  if (a == kAnything) return b;
  std::vector<uint32_t> set;
  std::set_union(conjunctions_[a].begin(), conjunctions_[a].end(), conjunctions_[b].begin(), conjunctions_[b].end(),
                 std::back_inserter(set));
  for (size_t i = 0; i < set.size(); ++i)
    if (set[i] == kFalsePlace * 2 || (i + 1 < set.size() && set[i] % 2 == 0 && set[i + 1] == set[i] + 1)) return nothing();
  const auto [at, is_new] = conjunction_numbers_.emplace(set, static_cast<uint32_t>(conjunctions_.size()));
  if (is_new) conjunctions_.push_back(set);
  return at->second;
}

Result<Conjunction> SchemaDocument::Reader::child(const Value& schema, uint32_t parent, const std::string& keyword) {
  ORRERY_ASSIGN(const uint32_t number, place(schema, parent, keyword));
  if (number != kTruePlace && number != kFalsePlace && places_[number].schema.as_map().size() == 0) return kAnything;
  return literal(number * 2);
}

Result<const Value*> SchemaDocument::Reader::pointed(const Value& from, std::string_view pointer) const {
  const Value* at = &from;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view part = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(part.size());
    std::string key;
    for (size_t i = 0; i < part.size(); ++i) {
      if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
        key += part[++i] == '0' ? '~' : '/';
      } else if (part[i] == '%' && i + 2 < part.size()) {
        const auto hex = [](char c) {
          return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 0;
        };
        key += static_cast<char>(hex(part[i + 1]) * 16 + hex(part[i + 2]));
        i += 2;
      } else {
        key += part[i];
      }
    }
    if (at->is_list()) {
      size_t n = 0;
      if (key.empty() || key.size() > 6 || key.find_first_not_of("0123456789") != std::string::npos)
        return static_cast<const Value*>(nullptr);
      for (const char c : key) n = n * 10 + static_cast<size_t>(c - '0');
      if (n >= at->as_items().size()) return static_cast<const Value*>(nullptr);
      at = &at->as_items()[n];
    } else {
      at = at->find(key);
      if (at == nullptr) return at;
    }
  }
  return at;
}

Result<uint32_t> SchemaDocument::Reader::resolve(uint32_t from, const std::string& reference) {
  const std::string uri = join_uri(places_[from].base, reference);
  if (const auto at = identifiers_.find(uri); at != identifiers_.end()) return at->second;
  const size_t mark = uri.find('#');
  const std::string document = uri.substr(0, mark);
  const std::string fragment = mark == std::string::npos ? "" : uri.substr(mark + 1);
  uint32_t within = root_number_;
  if (const auto at = identifiers_.find(document); at != identifiers_.end()) {
    within = at->second;
  } else if (!document.empty()) {
    return refuse(from, "$ref", "\"" + reference.substr(0, 200) + "\" is outside the document");
  }
  if (!fragment.empty() && fragment[0] != '/')
    return refuse(from, "$ref", "the document has no anchor \"" + fragment.substr(0, 200) + "\"", Code::invalid_argument);
  ORRERY_ASSIGN(const Value* target, pointed(places_[within].schema, fragment));
  if (target == nullptr)
    return refuse(from, "$ref", "the document has nothing at \"" + reference.substr(0, 200) + "\"", Code::invalid_argument);
  return place(*target, from, "$ref");
}

Status SchemaDocument::Reader::check_keywords(uint32_t number) {
  for (const auto& entry : places_[number].schema.as_map().entries()) {
    const Value& key = entry.first;
    const std::string_view k = key.as_string();
    const bool is_later = legacy_ && k.substr(0, 11) == "unevaluated";  // unknown to older drafts
    if ((is_in(kConstrains, k) && !is_later) || is_in(kAnnotations, k)) continue;
    if (is_in(kRefused, k)) {
      return refuse(number, std::string(k), "this keyword is not supported");
    }
    const std::string name(k.substr(0, 60));
    if (noticed_.insert(name).second && noticed_.size() <= 100)
      notices_.push_back("schema #" + places_[number].pointer.substr(0, 200) + ": the keyword \"" + name +
                         "\" is unknown and does not constrain");
  }
  return ok_status();
}

Result<uint32_t> SchemaDocument::Reader::count(uint32_t number, const std::string& key, const Value& value) const {
  const auto n = decimal_of(value);
  if (!n || n->negative || !n->is_integer()) return refuse(number, key, "a count is a whole number from 0 on", Code::invalid_argument);
  if (n->whole.size() > 9) return uint32_t{1000000000};
  return static_cast<uint32_t>(*scaled(*n, 0));
}

Status SchemaDocument::Reader::number_keyword(uint32_t number, const std::string& key, const Value& value, NumberForm* out) {
  const auto n = decimal_of(value);
  if (!n) return refuse(number, key, "expected a number", Code::invalid_argument);
  const bool lower = key == "minimum" || key == "exclusiveMinimum", open = key.size() > 9;
  if (key == "multipleOf") {
    if (n->negative || n->is_zero()) return refuse(number, key, "multipleOf is above 0", Code::invalid_argument);
    out->multiples.push_back(*n);
    return ok_status();
  }
  std::optional<Decimal>& bound = lower ? out->least : out->most;
  bool& excluded = lower ? out->above_least : out->below_most;
  const int c = bound ? compare(*n, *bound) * (lower ? 1 : -1) : 1;
  if (c > 0) {
    bound = *n;
    excluded = open;
  } else if (c == 0) {
    excluded = excluded || open;
  }
  return ok_status();
}

Status SchemaDocument::Reader::string_keywords(uint32_t number, StringForm* out) {
  const Value& schema = places_[number].schema;
  const auto form_of = [](Expression e) {
    StringForm more;
    if (e.simple) {
      more.set = e.set;
      more.least = e.least;
      more.most = e.most;
      if (e.most == 0) more.set = CharSet::all();
    } else {
      more.dfa = std::make_shared<const CharDfa>(std::move(e.dfa));
    }
    return more;
  };
  const auto add = [&](const StringForm& more) -> Status {
    Alternative a, b;
    a.types = b.types = kString;
    a.string = *out;
    b.string = more;
    ORRERY_ASSIGN(const std::optional<Alternative> joined, both(a, b));
    if (joined) {
      *out = joined->string;
    } else {
      out->dfa = std::make_shared<const CharDfa>();  // no text
    }
    return ok_status();
  };
  if (const Value* v = schema.find("minLength")) {
    ORRERY_ASSIGN(out->least, count(number, "minLength", *v));
  }
  if (const Value* v = schema.find("maxLength")) {
    ORRERY_ASSIGN(out->most, count(number, "maxLength", *v));
  }
  if (const Value* v = schema.find("pattern")) {
    if (!v->is_string()) return refuse(number, "pattern", "expected a string", Code::invalid_argument);
    auto e = parse_expression(v->as_string(), true, limits_);
    if (!e.ok()) return refuse(number, "pattern", e.status().message(), e.status().code());
    ORRERY_TRY(add(form_of(std::move(*e))));
  }
  if (const Value* v = schema.find("format")) {
    if (!v->is_string()) return refuse(number, "format", "expected a string", Code::invalid_argument);
    if (const char* expression = format_expression(v->as_string())) {
      auto known = formats_.find(expression);
      if (known == formats_.end()) {
        ORRERY_ASSIGN(Expression e, parse_expression(expression, true, limits_));
        known = formats_.emplace(expression, form_of(std::move(e))).first;
      }
      ORRERY_TRY(add(known->second));
    } else {
      const std::string name = "format " + std::string(v->as_string().substr(0, 60));
      if (noticed_.insert(name).second && noticed_.size() <= 100)
        notices_.push_back("schema #" + places_[number].pointer.substr(0, 200) + ": the " + name + " is unknown and does not constrain");
    }
  }
  return ok_status();
}

Status SchemaDocument::Reader::array_keywords(uint32_t number, ArrayForm* out) {
  const Value& schema = places_[number].schema;
  const Value* items = schema.find("items");
  const Value* prefix = schema.find("prefixItems");
  const char* rest_key = "items";
  const Value* rest = items;
  if (items != nullptr && items->is_list()) {
    prefix = items;
    rest_key = "additionalItems";
    rest = schema.find("additionalItems");
  }
  if (prefix != nullptr) {
    if (!prefix->is_list()) return refuse(number, "prefixItems", "expected a list", Code::invalid_argument);
    for (const Value& item : prefix->as_items()) {
      ORRERY_ASSIGN(const Conjunction c, child(item, number, "prefixItems"));
      out->prefix.push_back(c);
    }
  }
  if (rest != nullptr) {
    ORRERY_ASSIGN(out->rest, child(*rest, number, rest_key));
  }
  if (const Value* v = schema.find("minItems")) {
    ORRERY_ASSIGN(out->least, count(number, "minItems", *v));
  }
  if (const Value* v = schema.find("maxItems")) {
    ORRERY_ASSIGN(out->most, count(number, "maxItems", *v));
  }
  if (const Value* v = schema.find("uniqueItems")) {
    if (!v->is_bool()) return refuse(number, "uniqueItems", "expected true or false", Code::invalid_argument);
    out->unique = v->as_bool();
  }
  out->evaluated = rest != nullptr ? kUnbounded : static_cast<uint32_t>(out->prefix.size());
  out->evaluates_some = schema.find("contains") != nullptr;
  if (const Value* v = schema.find("contains")) {
    uint32_t least = 1;
    if (const Value* n = schema.find("minContains")) {
      ORRERY_ASSIGN(least, count(number, "minContains", *n));
    }
    ORRERY_ASSIGN(const Conjunction what, child(*v, number, "contains"));
    if (least > 0) {
      out->contains.push_back({what, least});
      out->least = std::max(out->least, least);
    }
  }
  return ok_status();
}

Conjunction ObjectForm::of(const std::string& key) const {
  for (const auto& [name, c] : properties)
    if (name == key) return c;
  for (const auto& [dfa, c] : classes)
    if (dfa->matches(key)) return c;
  return rest;
}

Status SchemaDocument::Reader::object_keywords(uint32_t number, ObjectForm* out) {
  const Value& schema = places_[number].schema;
  const auto map_of = [&](const char* key, const Value** value) -> Status {
    *value = schema.find(key);
    if (*value != nullptr && !(*value)->is_map()) return refuse(number, key, "expected an object", Code::invalid_argument);
    return ok_status();
  };
  const Value *properties, *patterns;
  ORRERY_TRY(map_of("properties", &properties));
  ORRERY_TRY(map_of("patternProperties", &patterns));
  if (const Value* v = schema.find("additionalProperties")) {
    ORRERY_ASSIGN(out->rest, child(*v, number, "additionalProperties"));
    out->evaluated.all = true;
  }
  if (patterns != nullptr) {
    for (const auto& [key, value] : patterns->as_map().entries()) {
      ORRERY_ASSIGN(const Conjunction c, child(value, number, "patternProperties"));
      auto e = parse_expression(key.as_string(), true, limits_);
      if (!e.ok()) return refuse(number, "patternProperties", e.status().message(), e.status().code());
      StringForm text;
      if (e->simple) {
        text.set = e->set;
        text.least = e->least;
        text.most = e->most;
      } else {
        text.dfa = std::make_shared<const CharDfa>(e->dfa);
      }
      ORRERY_ASSIGN(const std::shared_ptr<const CharDfa> dfa, dfa_of(text));
      out->evaluated.classes.push_back(dfa);
      // What earlier patterns also match holds for both; the rest is a class of its own.
      CharDfa left = *dfa;
      decltype(out->classes) classes;
      for (const auto& [other, d] : out->classes) {
        ORRERY_ASSIGN(CharDfa common, CharDfa::combine(*other, *dfa, CharDfa::Combine::both));
        ORRERY_ASSIGN(CharDfa apart, CharDfa::combine(*other, *dfa, CharDfa::Combine::first_only));
        ORRERY_ASSIGN(left, CharDfa::combine(left, *other, CharDfa::Combine::first_only));
        if (!common.empty()) classes.emplace_back(std::make_shared<const CharDfa>(std::move(common)), join(c, d));
        if (!apart.empty()) classes.emplace_back(std::make_shared<const CharDfa>(std::move(apart)), d);
      }
      if (!left.empty()) classes.emplace_back(std::make_shared<const CharDfa>(std::move(left)), c);
      if (classes.size() > 64) return refuse(number, "patternProperties", "too many patterns overlap");
      out->classes = std::move(classes);
    }
  }
  if (properties != nullptr) {
    for (const auto& [key, value] : properties->as_map().entries()) {
      ORRERY_ASSIGN(Conjunction c, child(value, number, "properties"));
      const std::string name(key.as_string());
      for (const auto& [dfa, d] : out->classes)
        if (dfa->matches(name)) c = join(c, d);
      out->properties.emplace_back(name, c);
      out->evaluated.names.push_back(name);
    }
  }
  if (const Value* v = schema.find("required"); v != nullptr && !v->is_bool()) {
    if (!v->is_list()) return refuse(number, "required", "expected a list of names", Code::invalid_argument);
    for (const Value& name : v->as_items()) {
      if (!name.is_string()) return refuse(number, "required", "expected a list of names", Code::invalid_argument);
      out->required.emplace_back(name.as_string());
    }
    out->required = without_repeats(out->required, {});
  } else if (v != nullptr) {
    return refuse(number, "required", "expected a list of names", Code::invalid_argument);
  }
  if (const Value* v = schema.find("minProperties")) {
    ORRERY_ASSIGN(out->least, count(number, "minProperties", *v));
  }
  if (const Value* v = schema.find("maxProperties")) {
    ORRERY_ASSIGN(out->most, count(number, "maxProperties", *v));
  }
  if (const Value* v = schema.find("propertyNames")) {
    ORRERY_ASSIGN(const Conjunction names, child(*v, number, "propertyNames"));
    ORRERY_ASSIGN(const Form* form, this->form(names));
    CharDfa allowed;
    for (const Alternative& a : *form) {
      if (!(a.types & kString)) continue;
      std::shared_ptr<const CharDfa> dfa;
      ORRERY_ASSIGN(dfa, dfa_of(a.string));
      if (a.values != nullptr) {
        std::vector<std::string> texts;
        for (const Value& text : *a.values)
          if (text.is_string() && dfa->matches(text.as_string())) texts.emplace_back(text.as_string());
        dfa = std::make_shared<const CharDfa>(CharDfa::of_texts(texts));
      }
      ORRERY_ASSIGN(allowed, CharDfa::combine(allowed, *dfa, CharDfa::Combine::either));
    }
    ObjectForm only;
    only.rest = nothing();
    if (!allowed.empty()) only.classes.emplace_back(std::make_shared<const CharDfa>(std::move(allowed)), kAnything);
    ObjectForm joined;
    ORRERY_TRY(both_objects(*out, only, &joined));
    *out = std::move(joined);
  }
  return ok_status();
}

// What one place says by itself, without what it applies in place.
Status SchemaDocument::Reader::simple_keywords(uint32_t number, Alternative* out) {
  const Value& schema = places_[number].schema;
  if (const Value* v = schema.find("type")) {
    std::vector<Value> names;
    if (v->is_string()) {
      names.push_back(*v);
    } else if (v->is_list()) {
      names = v->as_items();
    } else {
      return refuse(number, "type", "expected a name or a list of names", Code::invalid_argument);
    }
    out->types = 0;
    bool any_number = false;
    for (const Value& name : names) {
      const std::string_view t = name.is_string() ? name.as_string() : std::string_view();
      if (t == "null") out->types |= kNull;
      else if (t == "boolean") out->types |= kFalse | kTrue;
      else if (t == "number") out->types |= kNumber, any_number = true;
      else if (t == "integer") out->types |= kNumber, out->number.integer = true;
      else if (t == "string") out->types |= kString;
      else if (t == "array") out->types |= kArray;
      else if (t == "object") out->types |= kObject;
      else if (t == "any" && legacy_) out->types = kAllTypes;
      else return refuse(number, "type", "there is no type \"" + std::string(t.substr(0, 60)) + "\"", Code::invalid_argument);
    }
    if (any_number) out->number.integer = false;
  }
  for (const char* key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    const Value* v = schema.find(key);
    if (v == nullptr) continue;
    if (v->is_bool() && std::string_view(key).substr(0, 9) == "exclusive") {  // draft 4: of the bound beside it
      if (v->as_bool()) (std::string_view(key) == "exclusiveMinimum" ? out->number.above_least : out->number.below_most) = true;
      continue;
    }
    ORRERY_TRY(number_keyword(number, key, *v, &out->number));
  }
  ORRERY_TRY(string_keywords(number, &out->string));
  ORRERY_TRY(array_keywords(number, &out->array));
  ORRERY_TRY(object_keywords(number, &out->object));
  const auto enumerate = [&](std::vector<Value> values) {
    std::vector<Value> kept;
    for (const Value& v : values)
      if (out->values == nullptr || std::any_of(out->values->begin(), out->values->end(), [&](const Value& o) { return json_equal(o, v); }))
        kept.push_back(v);
    out->values = std::make_shared<const std::vector<Value>>(std::move(kept));
  };
  if (const Value* v = schema.find("enum")) {
    if (!v->is_list()) return refuse(number, "enum", "expected a list of values", Code::invalid_argument);
    enumerate(v->as_items());
  }
  if (const Value* v = schema.find("const")) enumerate({*v});
  return ok_status();
}

// ---- The door ----

SchemaDocument::SchemaDocument(Value root, const CompileLimits& limits, std::vector<std::string>* notices, FormatTexts* formats)
    : reader_(std::make_unique<Reader>(std::move(root), limits, notices, formats)) {}
SchemaDocument::~SchemaDocument() = default;
Status SchemaDocument::index() { return reader_->index(); }
Result<const Form*> SchemaDocument::form(Conjunction c) { return reader_->form(c); }
Conjunction SchemaDocument::root() { return reader_->literal(reader_->root_place() * 2); }
Conjunction SchemaDocument::join(Conjunction a, Conjunction b) { return reader_->join(a, b); }
Conjunction SchemaDocument::nothing() { return reader_->nothing(); }
Result<bool> SchemaDocument::is_nothing(Conjunction c) { return reader_->is_nothing(c); }
Result<bool> SchemaDocument::satisfies(const Value& value, Conjunction c) { return reader_->satisfies(value, c, 0); }
Result<bool> SchemaDocument::satisfies(const Value& value, const Alternative& a) { return reader_->satisfies(value, a, 0); }
std::string SchemaDocument::place_of(Conjunction c) const { return reader_->place_of(c); }

}  // namespace orrery::text::grammar
