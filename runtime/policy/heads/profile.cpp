#include "runtime/policy/heads/profile.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/policy/heads/profile_reader.h"
#include "runtime/text/json/json.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::policy {
namespace {

constexpr size_t kMaxNote = 4096;
constexpr const char* kFormat = "orrery-head-profile";

Status wrong(size_t layer, const std::string& what) {
  return error(Code::invalid_argument, "head profile: layer %zu: %s", layer, what.c_str());
}

bool is_utf8(const std::string& text) {
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const text::CodePoint c = text::utf8_decode(p, end);
    if (c.value == text::kInvalidCodePoint) return false;
    p += c.length;
  }
  return true;
}

Status check_roles(const LayerRoles& roles, size_t layer) {
  const size_t n = roles.roles.size();
  if (n == 0 || n > kMaxKvHeads) return wrong(layer, format("%zu heads: expected 1 to %u", n, kMaxKvHeads));
  if (roles.pivot_of.size() != n) {
    return wrong(layer, format("pivot_of has %zu entries for %zu heads", roles.pivot_of.size(), n));
  }
  std::vector<bool> followed(n, false);
  for (size_t h = 0; h < n; ++h) {
    const Role role = roles.roles[h];
    if (role < Role::anchor || role > Role::satellite) return wrong(layer, format("head %zu has no role", h));
    const uint32_t pivot = roles.pivot_of[h];
    if (role != Role::satellite) {
      if (pivot != kNoHead) return wrong(layer, format("head %zu has a pivot and is no satellite", h));
    } else if (pivot >= n || roles.roles[pivot] != Role::pivot) {
      return wrong(layer, format("satellite %zu has no pivot", h));
    } else {
      followed[pivot] = true;
    }
  }
  for (size_t h = 0; h < n; ++h) {
    if (roles.roles[h] == Role::pivot && !followed[h]) return wrong(layer, format("pivot %zu has no satellite", h));
  }
  return ok_status();
}

Status check_weights(const ProfileLayer& layer, size_t index) {
  const size_t n = layer.n_kv_heads();
  if (!layer.stability.empty() + !layer.allocation.empty() + !layer.gates.empty() != 1) {
    return wrong(index, "expected either stability or allocation or gates");
  }
  const std::vector<double>& values = !layer.gates.empty() ? layer.gates : layer.stability.empty() ? layer.allocation : layer.stability;
  const char* name = !layer.gates.empty() ? "gates" : layer.stability.empty() ? "allocation" : "stability";
  if (values.size() != n) return wrong(index, format("%s has %zu entries for %zu heads", name, values.size(), n));
  for (size_t h = 0; h < n; ++h) {
    const Role role = layer.roles.roles[h];
    if (!layer.gates.empty()) {
      if (!is_fraction(values[h])) return wrong(index, format("the gate of head %zu is %g", h, values[h]));
      if (role != Role::anchor && role != Role::volatile_head)
        return wrong(index, format("head %zu is a %s: heads with gates are volatile or anchors", h, role_name(role)));
    } else if (!layer.stability.empty()) {
      if (!is_fraction(values[h])) return wrong(index, format("stability of head %zu is %g", h, values[h]));
    } else if (is_full(role) ? values[h] != 0 : !(values[h] > 0 && values[h] <= 1e9)) {
      return wrong(index, format("allocation of head %zu is %g", h, values[h]));
    }
  }
  return ok_status();
}

Status check_retrieval(const ProfileLayer& layer, size_t index, bool expected) {
  for (const auto& [name, scores] :
       {std::pair<const char*, const std::vector<double>&>{"induction", layer.induction}, {"echo", layer.echo}}) {
    if (scores.size() != (expected ? layer.n_kv_heads() : 0))
      return wrong(index, format("%s has %zu entries for %u heads", name, scores.size(), layer.n_kv_heads()));
    for (size_t h = 0; h < scores.size(); ++h)
      if (!is_fraction(scores[h])) return wrong(index, format("%s of head %zu is %g", name, h, scores[h]));
  }
  return ok_status();
}

// The full heads must be the heads with the largest gates.
Status check_gates(const HeadProfile& profile) {
  double least_full = 1, most_other = 0;
  for (const ProfileLayer& layer : profile.layers)
    for (size_t h = 0; h < layer.n_kv_heads(); ++h) {
      const double gate = layer.gates[h];
      if (is_full(layer.roles.roles[h])) least_full = std::min(least_full, gate);
      else most_other = std::max(most_other, gate);
    }
  if (most_other <= least_full) return ok_status();
  return error(Code::invalid_argument, "head profile: a head with a gate of %g is volatile, and one with %g is not", least_full,
               most_other);
}

Status check_similarity(const std::vector<double>& s, size_t n, const char* name, size_t layer) {
  if (s.empty()) return ok_status();
  if (s.size() != n * n) return wrong(layer, format("%s has %zu values for %zu heads", name, s.size(), n));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i; j < n; ++j) {
      const double x = s[i * n + j];
      if (!is_fraction(x) || x != s[j * n + i] || (i == j && x != 1)) {
        return wrong(layer, format("%s of heads %zu and %zu is %g", name, i, j, x));
      }
    }
  }
  return ok_status();
}

Status check_clusters(const LayerClusters& clusters, size_t n, size_t layer) {
  if (clusters.cluster_of.empty() && clusters.representatives.empty()) return ok_status();
  const size_t n_clusters = clusters.representatives.size();
  if (clusters.cluster_of.size() != n || n_clusters == 0 || n_clusters > n) {
    return wrong(layer,
                 format("%zu heads in %zu clusters: expected %zu heads in at most as many", clusters.cluster_of.size(), n_clusters, n));
  }
  std::vector<bool> used(n_clusters, false);
  for (size_t h = 0; h < n; ++h) {
    if (clusters.cluster_of[h] >= n_clusters) return wrong(layer, format("head %zu is in no cluster", h));
    used[clusters.cluster_of[h]] = true;
  }
  for (size_t c = 0; c < n_clusters; ++c) {
    const uint32_t head = clusters.representatives[c];
    if (used[c] ? head >= n || clusters.cluster_of[head] != c : head != kNoHead) {
      return wrong(layer, format("cluster %zu is not represented by one of its heads", c));
    }
  }
  return ok_status();
}

// ---- Writing ----

text::Value list_of(const std::vector<double>& numbers) {
  std::vector<text::Value> items;
  items.reserve(numbers.size());
  for (const double x : numbers) items.push_back(text::Value::floating(x));
  return text::Value::list(std::move(items));
}

text::Value list_of_heads(const std::vector<uint32_t>& heads) {
  std::vector<text::Value> items;
  for (const uint32_t h : heads) items.push_back(h == kNoHead ? text::Value::none() : text::Value::integer(h));
  return text::Value::list(std::move(items));
}

std::vector<double> upper_triangle(const std::vector<double>& s, size_t n) {
  std::vector<double> out;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) out.push_back(s[i * n + j]);
  }
  return out;
}

text::Value layer_value(const ProfileLayer& layer) {
  text::Map map;
  std::vector<text::Value> roles;
  for (const Role role : layer.roles.roles) roles.push_back(text::Value::string(role_name(role)));
  map.set("roles", text::Value::list(std::move(roles)));
  map.set("pivot_of", list_of_heads(layer.roles.pivot_of));
  if (!layer.stability.empty()) map.set("stability", list_of(layer.stability));
  if (!layer.allocation.empty()) map.set("allocation", list_of(layer.allocation));
  if (!layer.gates.empty()) map.set("gates", list_of(layer.gates));
  if (!layer.induction.empty()) map.set("induction", list_of(layer.induction));
  if (!layer.echo.empty()) map.set("echo", list_of(layer.echo));
  const size_t n = layer.n_kv_heads();
  if (!layer.similarity.empty()) map.set("similarity", list_of(upper_triangle(layer.similarity, n)));
  if (!layer.mean_similarity.empty()) map.set("mean_similarity", list_of(upper_triangle(layer.mean_similarity, n)));
  if (!layer.clusters.cluster_of.empty()) {
    map.set("cluster_of", list_of_heads(layer.clusters.cluster_of));
    map.set("representatives", list_of_heads(layer.clusters.representatives));
  }
  return text::Value::map(std::move(map));
}

std::string hex(const Fingerprint& bytes) {
  std::string out;
  for (const uint8_t b : bytes) out += format("%02x", b);
  return out;
}

// ---- Reading ----

Result<Fingerprint> parse_hex(const Place& place) {
  constexpr const char* kExpected = "32 lower-case hex digits, or empty";
  const std::string_view text = place.value->as_string();
  Fingerprint out{};
  if (text.size() != 2 * out.size()) return place.fail(kExpected);
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = std::string_view("0123456789abcdef").find(text[i]);
    if (digit == std::string_view::npos) return place.fail(kExpected);
    out[i / 2] = static_cast<uint8_t>(static_cast<size_t>(out[i / 2]) << 4 | digit);
  }
  return out;
}

Result<std::string> read_string(const Place& place) {
  if (!place.value->is_string()) return place.fail("a string");
  return std::string(place.value->as_string());
}

Result<std::vector<uint32_t>> read_heads(const Place& place, bool may_be_null) {
  ORRERY_ASSIGN(const auto* list, place.items());
  std::vector<uint32_t> out(list->size(), kNoHead);
  for (size_t i = 0; i < out.size(); ++i) {
    if (may_be_null && (*list)[i].is_none()) continue;
    ORRERY_ASSIGN(out[i], place.item(i).count(kMaxKvHeads - 1));
  }
  return out;
}

Result<std::vector<double>> read_triangle(const Place& place, size_t n) {
  ORRERY_ASSIGN(const std::vector<double> upper, place.numbers());
  if (upper.size() != n * (n - 1) / 2) {
    return place.fail(format("%zu numbers, one for each pair of %zu heads", n * (n - 1) / 2, n).c_str());
  }
  std::vector<double> out(n * n, 1.0);
  auto next = upper.begin();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) out[i * n + j] = out[j * n + i] = *next++;
  }
  return out;
}

Result<LayerRoles> read_roles(const Place& place) {
  LayerRoles roles;
  ORRERY_ASSIGN(const Place names, place.member("roles"));
  ORRERY_ASSIGN(const auto* list, names.items());
  if (list->empty() || list->size() > kMaxKvHeads) {
    return names.fail(format("a list of 1 to %u heads", kMaxKvHeads).c_str());
  }
  for (size_t h = 0; h < list->size(); ++h) {
    ORRERY_ASSIGN(const std::string name, read_string(names.item(h)));
    Role found{};
    for (const Role role : {Role::anchor, Role::volatile_head, Role::pivot, Role::satellite}) {
      if (name == role_name(role)) found = role;
    }
    if (found == Role{}) return names.item(h).fail("a role");
    roles.roles.push_back(found);
  }
  ORRERY_ASSIGN(const Place pivots, place.member("pivot_of"));
  ORRERY_ASSIGN(roles.pivot_of, read_heads(pivots, true));
  return roles;
}

Result<ProfileLayer> read_layer(const Place& place) {
  ORRERY_TRY(place.only_members({"roles", "pivot_of", "stability", "allocation", "gates", "induction", "echo", "similarity",
                                 "mean_similarity", "cluster_of", "representatives"}));
  ProfileLayer layer;
  ORRERY_ASSIGN(layer.roles, read_roles(place));
  const size_t n = layer.n_kv_heads();
  const auto has = [&](const char* key) { return place.value->find(key) != nullptr; };
  if (has("stability")) {
    ORRERY_ASSIGN(const Place part, place.member("stability"));
    ORRERY_ASSIGN(layer.stability, part.numbers());
  }
  if (has("allocation")) {
    ORRERY_ASSIGN(const Place part, place.member("allocation"));
    ORRERY_ASSIGN(layer.allocation, part.numbers());
  }
  if (has("gates")) {
    ORRERY_ASSIGN(const Place part, place.member("gates"));
    ORRERY_ASSIGN(layer.gates, part.numbers());
  }
  if (has("induction")) {
    ORRERY_ASSIGN(const Place part, place.member("induction"));
    ORRERY_ASSIGN(layer.induction, part.numbers());
  }
  if (has("echo")) {
    ORRERY_ASSIGN(const Place part, place.member("echo"));
    ORRERY_ASSIGN(layer.echo, part.numbers());
  }
  if (has("similarity")) {
    ORRERY_ASSIGN(const Place part, place.member("similarity"));
    ORRERY_ASSIGN(layer.similarity, read_triangle(part, n));
  }
  if (has("mean_similarity")) {
    ORRERY_ASSIGN(const Place part, place.member("mean_similarity"));
    ORRERY_ASSIGN(layer.mean_similarity, read_triangle(part, n));
  }
  if (has("cluster_of") || has("representatives")) {
    ORRERY_ASSIGN(const Place clusters, place.member("cluster_of"));
    ORRERY_ASSIGN(layer.clusters.cluster_of, read_heads(clusters, false));
    ORRERY_ASSIGN(const Place heads, place.member("representatives"));
    ORRERY_ASSIGN(layer.clusters.representatives, read_heads(heads, true));
    if (layer.clusters.cluster_of.empty()) return clusters.fail("a list of every head's cluster");
  }
  return layer;
}

Status read_number(const Place& root, const char* key, double* out) {
  ORRERY_ASSIGN(const Place place, root.member(key));
  ORRERY_ASSIGN(*out, place.number());
  return ok_status();
}

}  // namespace

RoleCounts HeadProfile::counts() const {
  std::vector<LayerRoles> roles;
  for (const ProfileLayer& layer : layers) roles.push_back(layer.roles);
  return count_roles(roles);
}

std::vector<double> HeadProfile::weights() const {
  std::vector<double> out;
  if (has_gates()) return out;
  for (const ProfileLayer& layer : layers) {
    for (size_t h = 0; h < layer.n_kv_heads(); ++h) {
      if (is_full(layer.roles.roles[h])) continue;
      out.push_back(layer.stability.empty() ? layer.allocation[h] : stability_weight(layer.stability[h], top_k));
    }
  }
  return out;
}

Status check_profile(const HeadProfile& profile) {
  if (profile.layers.empty() || profile.layers.size() > kMaxLayers) {
    return error(Code::invalid_argument, "head profile: %zu layers: expected 1 to %u", profile.layers.size(), kMaxLayers);
  }
  if (profile.note.size() > kMaxNote || !is_utf8(profile.note)) {
    return error(Code::invalid_argument, "head profile: the note is not UTF-8 of at most %zu bytes", kMaxNote);
  }
  if (!is_fraction(profile.thresholds.tau_sim) || !is_fraction(profile.thresholds.tau_stable) || !is_fraction(profile.tau_drift)) {
    return error(Code::invalid_argument, "head profile: tau_sim %g, tau_stable %g, tau_drift %g: expected 0 to 1",
                 profile.thresholds.tau_sim, profile.thresholds.tau_stable, profile.tau_drift);
  }
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const ProfileLayer& layer = profile.layers[l];
    ORRERY_TRY(check_roles(layer.roles, l));
    ORRERY_TRY(check_weights(layer, l));
    // All heads have the same kind of weight: eq. 8 divides one budget over all layers.
    if (layer.stability.empty() != profile.layers[0].stability.empty() || layer.gates.empty() == profile.has_gates()) {
      return wrong(l, "has another kind of weight than layer 0");
    }
    if (!layer.stability.empty() && profile.top_k == 0) {
      return error(Code::invalid_argument, "head profile: top_k is 0, and stability was measured with sets of that size");
    }
    ORRERY_TRY(check_retrieval(layer, l, profile.has_retrieval()));
    ORRERY_TRY(check_similarity(layer.similarity, layer.n_kv_heads(), "similarity", l));
    ORRERY_TRY(check_similarity(layer.mean_similarity, layer.n_kv_heads(), "mean_similarity", l));
    ORRERY_TRY(check_clusters(layer.clusters, layer.n_kv_heads(), l));
  }
  return profile.has_gates() ? check_gates(profile) : ok_status();
}

Status check_profile_fits(const HeadProfile& profile, const Fingerprint& model, Span<const uint32_t> kv_heads) {
  if (profile.has_model && profile.model != model) {
    return error(Code::invalid_argument, "head profile: made for the model with fingerprint %s, this one has %s",
                 hex(profile.model).c_str(), hex(model).c_str());
  }
  if (profile.layers.size() != kv_heads.size()) {
    return error(Code::invalid_argument, "head profile: %zu layers, the model has %zu", profile.layers.size(), kv_heads.size());
  }
  for (size_t l = 0; l < kv_heads.size(); ++l) {
    if (profile.layers[l].n_kv_heads() == kv_heads[l]) continue;
    return wrong(l, format("%u KV heads, the model's has %u", profile.layers[l].n_kv_heads(), kv_heads[l]));
  }
  return ok_status();
}

Result<HeadProfile> read_profile(std::string_view json) {
  ORRERY_ASSIGN(const text::Value document, parse_profile_json(json));
  const Place root{&document, "the document"};
  ORRERY_TRY(root.only_members({"format", "version", "model", "note", "top_k", "tau_sim", "tau_stable", "tau_drift", "layers"}));
  ORRERY_ASSIGN(const Place format_place, root.member("format"));
  ORRERY_ASSIGN(const std::string format_name, read_string(format_place));
  ORRERY_ASSIGN(const Place version_place, root.member("version"));
  ORRERY_ASSIGN(const uint32_t version, version_place.count(UINT32_MAX));
  if (format_name != kFormat) return format_place.fail(format("\"%s\"", kFormat).c_str());
  if (version != 1) {
    return error(Code::unsupported, "head profile: version %u: this build reads version 1", version);
  }

  HeadProfile profile;
  ORRERY_ASSIGN(const Place model, root.member("model"));
  ORRERY_ASSIGN(const std::string digits, read_string(model));
  if (!digits.empty()) {
    profile.has_model = true;
    ORRERY_ASSIGN(profile.model, parse_hex(model));
  }
  ORRERY_ASSIGN(const Place note, root.member("note"));
  ORRERY_ASSIGN(profile.note, read_string(note));
  ORRERY_ASSIGN(const Place top_k_place, root.member("top_k"));
  ORRERY_ASSIGN(profile.top_k, top_k_place.count(UINT32_MAX));
  ORRERY_TRY(read_number(root, "tau_sim", &profile.thresholds.tau_sim));
  ORRERY_TRY(read_number(root, "tau_stable", &profile.thresholds.tau_stable));
  ORRERY_TRY(read_number(root, "tau_drift", &profile.tau_drift));
  ORRERY_ASSIGN(const Place layers, root.member("layers"));
  ORRERY_ASSIGN(const auto* list, layers.items());
  for (size_t l = 0; l < std::min<size_t>(list->size(), kMaxLayers + 1); ++l) {
    ORRERY_ASSIGN(ProfileLayer layer, read_layer(layers.item(l)));
    profile.layers.push_back(std::move(layer));
  }
  ORRERY_TRY(check_profile(profile));
  return profile;
}

Result<std::string> write_profile(const HeadProfile& profile) {
  ORRERY_TRY(check_profile(profile));
  text::Map map;
  map.set("format", text::Value::string(kFormat));
  map.set("version", text::Value::integer(1));
  map.set("model", text::Value::string(profile.has_model ? hex(profile.model) : std::string()));
  map.set("note", text::Value::string(profile.note));
  map.set("top_k", text::Value::integer(profile.top_k));
  map.set("tau_sim", text::Value::floating(profile.thresholds.tau_sim));
  map.set("tau_stable", text::Value::floating(profile.thresholds.tau_stable));
  map.set("tau_drift", text::Value::floating(profile.tau_drift));
  std::vector<text::Value> layers;
  for (const ProfileLayer& layer : profile.layers) layers.push_back(layer_value(layer));
  map.set("layers", text::Value::list(std::move(layers)));
  return text::dump_json(text::Value::map(std::move(map)));
}

}  // namespace orrery::policy
