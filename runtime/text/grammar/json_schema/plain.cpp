#include "runtime/text/grammar/json_schema/plain.h"

#include <algorithm>
#include <set>
#include <string>

#include "runtime/text/grammar/json_schema/reader.h"
#include "runtime/text/json/json.h"

namespace orrery::text::grammar {
namespace {

using Bytes = std::optional<uint32_t>;

constexpr int kMostDepth = 32;
constexpr int64_t kMostCount = 10000, kMostNumber = 1000000000000000;
constexpr uint32_t kMostBytes = 1u << 20;
constexpr size_t kMostValues = 256;
constexpr int64_t kMostTaggedLength = 500;  // of a string: its automaton has a state for each length and part of a mark

// What the texts of formats that are counted here consist of: none of them holds the end of a raw string.
constexpr std::string_view kInFormats = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-:.@/";
// A text of each format, with its quotes.
constexpr std::pair<std::string_view, uint32_t> kFormats[] = {{"date", 12}, {"time", 11}, {"date-time", 22}, {"email", 5},
                                                              {"ipv4", 9},  {"uuid", 38}, {"uri", 5},        {"hostname", 3}};

bool is_annotation(std::string_view key) {
  for (const std::string_view known : {"title", "description", "default", "examples", "$comment", "readOnly", "writeOnly", "deprecated"})
    if (key == known) return true;
  return false;
}

// A whole number within bounds, or `other` where the schema lacks the keyword.
Bytes whole(const Value& schema, std::string_view key, int64_t least, int64_t most, int64_t other, int64_t* out) {
  const Value* value = schema.find(key);
  if (value != nullptr && (!value->is_int() || value->as_int() < least || value->as_int() > most)) return std::nullopt;
  *out = value == nullptr ? other : value->as_int();
  return 0;
}

uint32_t written(const Value& value) {
  const Result<std::string> text = dump_json(value);
  return text.ok() ? static_cast<uint32_t>(std::min<size_t>(text.value().size(), kMostBytes + 1)) : kMostBytes + 1;
}

class Plain {
 public:
  Bytes bytes(const Value& schema, int depth) {
    if (schema.is_bool() && schema.as_bool()) return 1;
    if (!schema.is_map() || depth > kMostDepth) return std::nullopt;
    for (const auto& entry : schema.as_map().entries()) {
      const std::string_view key = entry.first.as_string();
      if (is_annotation(key)) continue;
      bool known = false;
      for (const std::string_view one : {"type", "enum", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
                                         "minLength", "maxLength", "format", "minimum", "maximum"})
        known = known || key == one;
      if (!known) return std::nullopt;
    }
    const Value* type = schema.find("type");
    if (schema.find("enum") != nullptr) return of_values(schema);
    if (type == nullptr) return std::nullopt;
    const std::vector<Value> types = type->is_list() ? type->as_items() : std::vector<Value>{*type};
    Bytes least;
    for (const Value& name : types) {
      if (!name.is_string()) return std::nullopt;
      const Bytes its = of_type(schema, name.as_string(), depth);
      if (!its || *its > kMostBytes) return std::nullopt;
      least = std::min(least.value_or(*its), *its);
    }
    return least;
  }

  // Arguments with a key and a value of their own. The bytes of the required ones; the others need none.
  Bytes tagged(const Value& schema, const TaggedFormat& format, std::map<std::string, bool, std::less<>>* is_string) {
    const Value *type = schema.find("type"), *properties = schema.find("properties"), *required = schema.find("required");
    const bool object = type != nullptr && type->is_string() && type->as_string() == "object" && schema.find("enum") == nullptr;
    if (!object || !bytes(schema, 0) || format.string_end.find_first_not_of(kInFormats) == std::string::npos) return std::nullopt;
    std::set<std::string_view> names;
    if (required != nullptr)
      for (const Value& name : required->as_items()) names.insert(name.as_string());
    uint64_t all = 0;
    if (properties != nullptr)
      for (const auto& [key, value] : properties->as_map().entries()) {
        const std::string_view name = key.as_string();
        if (name.empty() || name.find(format.key_end()) != std::string_view::npos) return std::nullopt;
        bool raw = false;
        const Bytes its = argument(value, format, &raw);
        if (!its) return std::nullopt;
        (*is_string)[std::string(name)] = raw;
        if (names.count(name) == 0) continue;
        all += (all == 0 ? format.open : format.next_key).size() + name.size() + *its;
        all += format.to_value[raw ? 0 : 1].size() + format.close[raw ? 0 : 1].size();
        if (all > kMostBytes) return std::nullopt;
      }
    return static_cast<uint32_t>(all == 0 ? format.none.size() : all + format.end.size());
  }

 private:
  // raw: it is a string. What may be a string is one.
  Bytes argument(const Value& schema, const TaggedFormat& format, bool* raw) {
    if (!schema.is_map()) return std::nullopt;
    Bytes least;
    const auto at_most = [&](size_t n) { least = std::min(least.value_or(kMostBytes), static_cast<uint32_t>(n)); };
    if (const Value* values = schema.find("enum"); values != nullptr) {
      for (const Value& value : values->as_items())
        if (value.as_string().find(format.string_end) == std::string_view::npos) at_most(value.as_string().size());
      *raw = true;
      return least;
    }
    const Value& type = *schema.find("type");
    const std::vector<Value> types = type.is_list() ? type.as_items() : std::vector<Value>{type};
    for (const Value& name : types) *raw = *raw || name.as_string() == "string";
    if (*raw) {
      const Value *shortest = schema.find("minLength"), *longest = schema.find("maxLength");
      for (const Value* length : {shortest, longest})
        if (length != nullptr && length->as_int() > kMostTaggedLength) return std::nullopt;
      const Bytes quoted = string(schema);
      return quoted ? Bytes(*quoted - 2) : quoted;
    }
    for (const Value& name : types) {
      if (name.as_string() == "boolean") {
        at_most(std::min(format.words[0].size(), format.words[1].size()));
      } else if (name.as_string() == "null") {
        at_most(format.words[2].size());
      } else {
        if (name.as_string() == "array" && format.lists != Notation::json) return std::nullopt;
        if (name.as_string() == "object" && format.objects != Notation::json) return std::nullopt;
        at_most(of_type(schema, name.as_string(), 1).value_or(kMostBytes));
      }
    }
    return least;
  }

  Bytes of_type(const Value& schema, std::string_view type, int depth) {
    if (type == "object") return object(schema, depth);
    if (type == "array") return array(schema, depth);
    if (type == "string") return string(schema);
    if (type == "number" || type == "integer") return number(schema);
    if (type == "boolean" || type == "null") return 4;
    return std::nullopt;
  }

  // Strings, with no other keyword that constrains strings.
  Bytes of_values(const Value& schema) {
    const Value &list = *schema.find("enum"), *type = schema.find("type");
    if (type != nullptr && (!type->is_string() || type->as_string() != "string")) return std::nullopt;
    if (!list.is_list() || list.as_items().size() > kMostValues) return std::nullopt;
    for (const char* key : {"minLength", "maxLength", "format"})
      if (schema.find(key) != nullptr) return std::nullopt;
    Bytes least;
    for (const Value& value : list.as_items()) {
      if (!value.is_string()) return std::nullopt;
      least = std::min(least.value_or(kMostBytes), written(value));
    }
    return least;
  }

  Bytes string(const Value& schema) {
    int64_t least = 0, most = 0;
    if (!whole(schema, "minLength", 0, kMostCount, 0, &least) || !whole(schema, "maxLength", 0, kMostCount, kMostCount, &most) ||
        least > most)
      return std::nullopt;
    const Value* format = schema.find("format");
    if (format == nullptr) return static_cast<uint32_t>(2 + least);
    if (!format->is_string() || schema.find("minLength") != nullptr || schema.find("maxLength") != nullptr) return std::nullopt;
    for (const auto& [name, bytes] : kFormats)
      if (format->as_string() == name) return bytes;
    return std::nullopt;
  }

  Bytes number(const Value& schema) {
    int64_t least = 0, most = 0;
    if (!whole(schema, "minimum", -kMostNumber, kMostNumber, -kMostNumber, &least) ||
        !whole(schema, "maximum", -kMostNumber, kMostNumber, kMostNumber, &most) || least > most)
      return std::nullopt;
    return static_cast<uint32_t>(std::to_string(std::max(least, std::min(most, int64_t{0}))).size());
  }

  Bytes array(const Value& schema, int depth) {
    int64_t least = 0, most = 0;
    if (!whole(schema, "minItems", 0, kMostCount, 0, &least) || !whole(schema, "maxItems", 0, kMostCount, kMostCount, &most) ||
        least > most)
      return std::nullopt;
    const Value* items = schema.find("items");
    const Bytes item = items == nullptr ? Bytes(1) : bytes(*items, depth + 1);
    if (!item) return std::nullopt;
    const uint64_t all = 2 + static_cast<uint64_t>(least) * (*item + uint64_t{2});
    return static_cast<uint32_t>(std::min<uint64_t>(all, kMostBytes + 1));
  }

  Bytes object(const Value& schema, int depth) {
    const Value *properties = schema.find("properties"), *required = schema.find("required"), *others = schema.find("additionalProperties");
    if (others != nullptr && !others->is_bool()) return std::nullopt;
    std::set<std::string_view> names;
    if (required != nullptr && !required->is_list()) return std::nullopt;
    if (required != nullptr)
      for (const Value& name : required->as_items()) {
        if (!name.is_string()) return std::nullopt;
        names.insert(name.as_string());
      }
    uint64_t all = 2;
    size_t n_required = 0;
    if (properties != nullptr && !properties->is_map()) return std::nullopt;
    if (properties != nullptr)
      for (const auto& [name, value] : properties->as_map().entries()) {
        const Bytes its = bytes(value, depth + 1);
        if (!its) return std::nullopt;
        if (names.count(name.as_string()) == 0) continue;
        ++n_required;
        all += written(name) + *its + uint64_t{4};  // with a colon, a comma and a space after each
        if (all > kMostBytes) return std::nullopt;
      }
    return n_required == names.size() ? Bytes(static_cast<uint32_t>(all)) : std::nullopt;
  }
};

}  // namespace

std::optional<uint32_t> plain_bytes(const Value& schema) { return Plain().bytes(schema, 0); }

std::optional<uint32_t> plain_tagged_bytes(const Value& schema, const TaggedFormat& format,
                                           std::map<std::string, bool, std::less<>>* is_string) {
  return Plain().tagged(schema, format, is_string);
}

}  // namespace orrery::text::grammar
