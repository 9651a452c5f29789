// The table of KV policies, as JSON.
#include "capi/handles.h"
#include "runtime/policy/policy.h"
#include "runtime/text/json/json.h"

namespace orrery::capi {
namespace {

using text::Map;
using text::Value;

Map map_of(std::initializer_list<std::pair<const char*, const char*>> members) {
  Map map;
  for (const auto& [key, value] : members) map.set(key, Value::string(value));
  return map;
}

Result<std::string> describe_policies() {
  std::vector<Value> rows;
  for (const policy::PolicyRow& row : policy::policy_rows()) {
    Map map = map_of({{"name", row.name},
                      {"method", row.method},
                      {"paper", row.paper},
                      {"score", row.score},
                      {"allocate", row.allocate},
                      {"keep", row.keep},
                      {"refresh", row.refresh},
                      {"device", row.device},
                      {"link", row.link}});
    std::vector<Value> options;
    for (const policy::OptionRow& o : row.options)
      options.push_back(Value::map(map_of({{"name", o.name}, {"default", o.value}, {"meaning", o.meaning}})));
    map.set("options", Value::list(std::move(options)));
    map.set("page", Value::string(row.page));
    rows.push_back(Value::map(std::move(map)));
  }
  return text::dump_json(Value::list(std::move(rows)));
}

}  // namespace
}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

extern "C" {

orrery_status orrery_policies(char* json, size_t capacity, size_t* json_bytes, orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(json_bytes);
    ORRERY_ASSIGN(const std::string text, describe_policies());
    return copy_out(text.data(), text.size(), json, capacity, json_bytes);
  });
}

}  // extern "C"
