// Imports published HeteroCache profiles. Their type names differ from file to file, so ids count. Roles, counts, relations and allocation
// repeat each other, and must agree: a profile that contradicts itself would silently give some head the wrong pivot.
#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/policy/heads/profile.h"
#include "runtime/policy/heads/profile_reader.h"

namespace orrery::policy {
namespace {

// The file's names of the ids 1 to 4, by id.
Result<std::vector<std::string>> read_type_map(const Place& meta) {
  ORRERY_ASSIGN(const Place place, meta.member("type_map"));
  if (!place.value->is_map()) return place.fail("an object");
  std::vector<std::string> names(5);
  size_t found = 0;
  for (const auto& [key, id] : place.value->as_map().entries()) {
    const Place entry{&id, place.name + "." + std::string(key.as_string().substr(0, 64))};
    ORRERY_ASSIGN(const uint32_t type, entry.count(4));
    if (type == 0 || !names[type].empty() || key.as_string().empty()) return entry.fail("an id of 1 to 4 of its own");
    names[type] = std::string(key.as_string());
    ++found;
  }
  if (found != 4) return place.fail("a map to the ids 1 to 4");
  return names;
}

Status check_counts(const Place& meta, const std::vector<std::string>& names, const RoleCounts& counts) {
  ORRERY_ASSIGN(const Place place, meta.member("counts"));
  const uint32_t expected[5] = {0, counts.anchor, counts.volatile_heads, counts.pivot, counts.satellite};
  for (uint32_t type = 1; type <= 4; ++type) {
    ORRERY_ASSIGN(const Place entry, place.member(names[type].c_str()));
    ORRERY_ASSIGN(const uint32_t n, entry.count(UINT32_MAX));
    if (n != expected[type]) {
      return entry.fail(format("%u, the number of such heads in classification_matrix", expected[type]).c_str());
    }
  }
  return ok_status();
}

Result<std::vector<Role>> read_types(const Place& place) {
  ORRERY_ASSIGN(const auto* list, place.items());
  if (list->empty() || list->size() > kMaxKvHeads) {
    return place.fail(format("a list of 1 to %u heads", kMaxKvHeads).c_str());
  }
  std::vector<Role> roles(list->size());
  for (size_t h = 0; h < roles.size(); ++h) {
    ORRERY_ASSIGN(const uint32_t type, place.item(h).count(4));
    if (type == 0) return place.item(h).fail("a type id of 1 to 4");
    roles[h] = static_cast<Role>(type);
  }
  return roles;
}

// A head number as a key: decimal digits without leading zeros.
bool parse_head(std::string_view text, size_t n_heads, uint32_t* head) {
  if (text.empty() || text.size() > 4 || (text.size() > 1 && text[0] == '0')) return false;
  uint32_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  *head = value;
  return value < n_heads;
}

Status read_relations(const Place& place, LayerRoles* roles) {
  const size_t n = roles->roles.size();
  if (!place.value->is_map()) return place.fail("an object of pivots");
  for (const auto& [key, members] : place.value->as_map().entries()) {
    const Place entry{&members, place.name + "." + std::string(key.as_string().substr(0, 64))};
    uint32_t pivot = 0;
    if (!parse_head(key.as_string(), n, &pivot) || roles->roles[pivot] != Role::pivot) {
      return entry.fail("a pivot of this layer");
    }
    ORRERY_ASSIGN(const auto* list, entry.items());
    for (size_t i = 0; i < list->size(); ++i) {
      ORRERY_ASSIGN(const uint32_t head, entry.item(i).count(static_cast<uint32_t>(n - 1)));
      if (roles->roles[head] != Role::satellite || roles->pivot_of[head] != kNoHead) {
        return entry.item(i).fail("a satellite that has no pivot yet");
      }
      roles->pivot_of[head] = pivot;
    }
  }
  return ok_status();
}

Result<std::vector<double>> read_allocation(const Place& place, const std::vector<Role>& roles) {
  ORRERY_ASSIGN(std::vector<double> values, place.numbers());
  if (values.size() != roles.size()) {
    return place.fail(format("%zu numbers, one for each head", roles.size()).c_str());
  }
  for (size_t h = 0; h < values.size(); ++h) {
    if (!is_full(roles[h])) continue;  // check_profile() checks the others
    if (values[h] != -1) return place.item(h).fail("-1, as the head keeps its whole KV");
    values[h] = 0;
  }
  return values;
}

}  // namespace

Result<HeadProfile> import_published_profile(std::string_view json) {
  ORRERY_ASSIGN(const text::Value document, parse_profile_json(json));
  const Place root{&document, "the document"};
  ORRERY_ASSIGN(const Place meta, root.member("meta"));
  ORRERY_ASSIGN(const std::vector<std::string> names, read_type_map(meta));
  ORRERY_ASSIGN(const Place types, root.member("classification_matrix"));
  ORRERY_ASSIGN(const Place relations, root.member("leader_member_relations"));
  ORRERY_ASSIGN(const Place allocation, root.member("allocation_matrix"));
  ORRERY_ASSIGN(const auto* type_rows, types.items());
  const size_t n_layers = type_rows->size();
  if (n_layers == 0 || n_layers > kMaxLayers) {
    return types.fail(format("a list of 1 to %u layers", kMaxLayers).c_str());
  }
  for (const Place* place : {&relations, &allocation}) {
    ORRERY_ASSIGN(const auto* rows, place->items());
    if (rows->size() != n_layers) return place->fail(format("a list of %zu layers", n_layers).c_str());
  }

  HeadProfile profile;
  profile.note = "imported HeteroCache profile";
  double sum = 0;
  for (size_t l = 0; l < n_layers; ++l) {
    ProfileLayer layer;
    ORRERY_ASSIGN(layer.roles.roles, read_types(types.item(l)));
    layer.roles.pivot_of.assign(layer.roles.roles.size(), kNoHead);
    ORRERY_TRY(read_relations(relations.item(l), &layer.roles));
    ORRERY_ASSIGN(layer.allocation, read_allocation(allocation.item(l), layer.roles.roles));
    for (const double x : layer.allocation) sum += x;
    profile.layers.push_back(std::move(layer));
  }
  ORRERY_TRY(check_profile(profile));
  const RoleCounts counts = profile.counts();
  ORRERY_TRY(check_counts(meta, names, counts));
  // Otherwise l_i = L_base * allocation would not use the whole budget. JSON has no NaN.
  if (std::fabs(sum - counts.compressed()) > 1e-3 * std::max(1u, counts.compressed())) {
    return error(Code::invalid_argument,
                 "head profile: allocation_matrix adds up to %g over %u compressed heads: expected "
                 "their number",
                 sum, counts.compressed());
  }
  return profile;
}

Result<HeadProfile> read_any_profile(std::string_view json) {
  ORRERY_ASSIGN(const text::Value document, parse_profile_json(json));
  return document.find("classification_matrix") ? import_published_profile(json) : read_profile(json);
}

}  // namespace orrery::policy
