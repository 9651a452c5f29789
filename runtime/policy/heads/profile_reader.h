// Typed reading of a JSON tree, for profile.cpp and profile_import.cpp. Each step checks the value, and its error names the place
// ("layers[3].stability[2]").
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/json/value.h"

namespace orrery::policy {

// A value in the tree, not owned, and its name.
struct Place {
  const text::Value* value;
  std::string name;

  Status fail(const char* expected) const;
  Result<Place> member(const char* key) const;  // this must be an object with this key
  Result<const std::vector<text::Value>*> items() const;
  Place item(size_t i) const { return {&value->as_items()[i], name + format("[%zu]", i)}; }
  Result<double> number() const;
  Result<uint32_t> count(uint32_t max) const;   // an integer of 0 to max
  Result<std::vector<double>> numbers() const;  // a list
  Status only_members(std::initializer_list<const char*> known) const;
};

// A document whose root is an object, of at most 64 MiB and ten levels.
Result<text::Value> parse_profile_json(std::string_view json);

}  // namespace orrery::policy
