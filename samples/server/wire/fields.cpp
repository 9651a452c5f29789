// See fields.h.
#include "wire/fields.h"

#include <cmath>
#include <utility>
#include <vector>

namespace orrery::server {
namespace {

constexpr int kMostLevels = 64;
constexpr size_t kMostMembers = 4096;

}  // namespace

Json parse_body(const std::string& body) {
  std::vector<size_t> members(kMostLevels + 2, 0);  // of the open object of each level
  const auto watch = [&](int depth, Json::parse_event_t event, Json&) {
    if (depth > kMostLevels) throw Refusal{400, "the body is more than 64 levels deep", "", ""};
    const size_t level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) members[level + 1] = 0;
    if (event == Json::parse_event_t::key && ++members[level] > kMostMembers)
      throw Refusal{400, "an object of the body has more than 4096 members", "", ""};
    return true;
  };
  try {
    Json json = Json::parse(body, watch);
    if (!json.is_object()) throw Refusal{400, "the body is not a JSON object", "", ""};
    return json;
  } catch (const Json::exception& error) {
    throw Refusal{400, std::string("the body is not JSON: ") + error.what(), "", ""};
  }
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) refuse_field(path_, "expected an object");
}

const Json* Fields::take(const char* name) {
  known_.insert(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<double> Fields::number(const char* name, double least, double most) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= least && number <= most) return number;
  }
  refuse_field(place(name), "expected a number from " + Json(least).dump() + " to " + Json(most).dump());
}

std::optional<int64_t> Fields::integer(const char* name, int64_t least, int64_t most) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  const bool fits =
      value->is_number_integer() && (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (fits && value->get<int64_t>() >= least && value->get<int64_t>() <= most) return value->get<int64_t>();
  refuse_field(place(name), "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) refuse_field(place(name), "expected true or false");
  return value->get<bool>();
}

std::optional<std::string> Fields::text(const char* name) {
  const Json* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse_field(place(name), "expected a string");
  std::string text = value->get<std::string>();
  if (text.find('\0') != std::string::npos) refuse_field(place(name), "a NUL character is not text");
  return text;
}

void Fields::accept(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

void Fields::only(const char* name, const Json& value, const char* why) {
  const Json* given = take(name);
  if (given && *given != value) refuse_field(place(name), why);
}

void Fields::finish() const {
  for (const auto& item : object_.items())
    if (!item.value().is_null() && known_.count(item.key()) == 0)
      refuse_field(place(item.key().substr(0, 100)), "this server does not know the field, which may change the answer");
}

}  // namespace orrery::server
