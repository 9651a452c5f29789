#include "runtime/policy/heads/profile_reader.h"

#include <algorithm>
#include <string_view>

#include "runtime/text/json/json.h"

namespace orrery::policy {

Status Place::fail(const char* expected) const {
  return error(Code::invalid_argument, "head profile: %s is not %s", name.c_str(), expected);
}

Result<Place> Place::member(const char* key) const {
  if (!value->is_map()) return fail("an object");
  const text::Value* found = value->find(key);
  if (!found) return error(Code::invalid_argument, "head profile: %s has no \"%s\"", name.c_str(), key);
  return Place{found, name + "." + key};
}

Result<const std::vector<text::Value>*> Place::items() const {
  if (!value->is_list()) return fail("a list");
  return &value->as_items();
}

Result<double> Place::number() const {
  if (!value->is_int() && !value->is_float()) return fail("a number");
  return value->as_float();
}

Result<uint32_t> Place::count(uint32_t max) const {
  if (!value->is_int() || value->as_int() < 0 || value->as_int() > int64_t{max}) {
    return fail(format("an integer of 0 to %u", max).c_str());
  }
  return static_cast<uint32_t>(value->as_int());
}

Result<std::vector<double>> Place::numbers() const {
  ORRERY_ASSIGN(const auto* list, items());
  std::vector<double> out(list->size());
  for (size_t i = 0; i < out.size(); ++i) {
    ORRERY_ASSIGN(out[i], item(i).number());
  }
  return out;
}

Status Place::only_members(std::initializer_list<const char*> known) const {
  if (!value->is_map()) return fail("an object");
  for (const auto& [key, ignored] : value->as_map().entries()) {
    const std::string_view text = key.as_string();
    if (std::none_of(known.begin(), known.end(), [&](const char* k) { return text == k; })) {
      return error(Code::invalid_argument, "head profile: %s has an unknown member \"%.*s\"", name.c_str(),
                   static_cast<int>(std::min<size_t>(text.size(), 64)), text.data());
    }
  }
  return ok_status();
}

Result<text::Value> parse_profile_json(std::string_view json) {
  text::JsonLimits limits;
  limits.max_depth = 10;
  limits.max_bytes = 64ull << 20;
  Result<text::Value> value = text::parse_json(json, limits);
  if (!value.ok()) {
    Status status = value.take_status();
    status.detail().message = "head profile: " + status.detail().message;
    return status;
  }
  if (!value->is_map()) return error(Code::invalid_argument, "head profile: the document is not an object");
  return value;
}

}  // namespace orrery::policy
