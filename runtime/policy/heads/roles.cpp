#include "runtime/policy/heads/roles.h"

#include <algorithm>
#include <cmath>

#include "runtime/policy/select/sets.h"

namespace orrery::policy {

namespace {

Status check_statistics(const LayerStatistics& s) {
  const size_t n = s.stability.size();
  if (n == 0 || n > kMaxKvHeads) {
    return error(Code::invalid_argument, "a layer has %zu KV heads: expected 1 to %u", n, kMaxKvHeads);
  }
  if (s.similarity.size() != n * n) {
    return error(Code::invalid_argument, "similarity has %zu values: expected %zu x %zu", s.similarity.size(), n, n);
  }
  for (size_t i = 0; i < n; ++i) {
    if (!is_fraction(s.stability[i])) {
      return error(Code::invalid_argument, "stability of head %zu is %g: expected 0 to 1", i, s.stability[i]);
    }
    for (size_t j = 0; j < n; ++j) {
      const double x = s.similarity[i * n + j];
      if (!is_fraction(x) || x != s.similarity[j * n + i]) {
        return error(Code::invalid_argument,
                     "similarity of heads %zu and %zu is %g one way and %g the other: expected "
                     "one value of 0 to 1",
                     i, j, x, s.similarity[j * n + i]);
      }
    }
  }
  return ok_status();
}

Status check_thresholds(const Thresholds& t) {
  if (is_fraction(t.tau_sim) && is_fraction(t.tau_stable)) return ok_status();
  return error(Code::invalid_argument, "tau_sim %g and tau_stable %g: expected 0 to 1", t.tau_sim, t.tau_stable);
}

LayerRoles classify_checked(const LayerStatistics& s, const Thresholds& t) {
  const auto n = static_cast<uint32_t>(s.stability.size());
  LayerRoles out;
  out.roles.resize(n);
  out.pivot_of.assign(n, kNoHead);
  std::vector<bool> assigned(n, false);
  const auto adjacent = [&](uint32_t i, uint32_t j) { return i != j && reaches(s.similarity[size_t{i} * n + j], t.tau_sim); };
  std::vector<uint32_t> degree(n, 0);  // unassigned neighbours
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t j = 0; j < n; ++j) degree[i] += adjacent(i, j);
  }
  const auto assign = [&](uint32_t head, Role role) {
    out.roles[head] = role;
    assigned[head] = true;
    for (uint32_t j = 0; j < n; ++j) degree[j] -= adjacent(head, j);
  };
  for (;;) {
    uint32_t pivot = kNoHead;
    for (uint32_t i = 0; i < n; ++i) {
      if (!assigned[i] && degree[i] > 0 && (pivot == kNoHead || degree[i] > degree[pivot])) pivot = i;
    }
    if (pivot == kNoHead) break;
    assign(pivot, Role::pivot);
    for (uint32_t j = 0; j < n; ++j) {
      if (assigned[j] || !adjacent(pivot, j)) continue;
      assign(j, Role::satellite);
      out.pivot_of[j] = pivot;
    }
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (!assigned[i]) out.roles[i] = reaches(s.stability[i], t.tau_stable) ? Role::anchor : Role::volatile_head;
  }
  return out;
}

uint32_t count_full(Span<const LayerStatistics> layers, const Thresholds& t) {
  uint32_t n = 0;
  for (const LayerStatistics& layer : layers) {
    for (const Role role : classify_checked(layer, t).roles) n += is_full(role);
  }
  return n;
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::anchor: return "anchor";
    case Role::volatile_head: return "volatile";
    case Role::pivot: return "pivot";
    case Role::satellite: return "satellite";
  }
  return "unknown";
}

std::vector<uint32_t> LayerRoles::satellites_of(uint32_t pivot) const {
  std::vector<uint32_t> out;
  for (uint32_t h = 0; h < pivot_of.size(); ++h) {
    if (pivot_of[h] == pivot) out.push_back(h);
  }
  return out;
}

Result<LayerRoles> classify(const LayerStatistics& statistics, const Thresholds& thresholds) {
  ORRERY_TRY(check_statistics(statistics));
  ORRERY_TRY(check_thresholds(thresholds));
  return classify_checked(statistics, thresholds);
}

RoleCounts count_roles(Span<const LayerRoles> layers) {
  RoleCounts counts;
  for (const LayerRoles& layer : layers) {
    for (const Role role : layer.roles) {
      counts.anchor += role == Role::anchor;
      counts.volatile_heads += role == Role::volatile_head;
      counts.pivot += role == Role::pivot;
      counts.satellite += role == Role::satellite;
    }
  }
  return counts;
}

Result<std::vector<Demotion>> demote_volatile(std::vector<LayerRoles>* layers, Span<const std::vector<double>> stability,
                                              uint32_t max_full) {
  if (stability.size() != layers->size()) {
    return error(Code::invalid_argument, "stability of %zu layers for roles of %zu", stability.size(), layers->size());
  }
  std::vector<Demotion> candidates;
  for (uint32_t l = 0; l < layers->size(); ++l) {
    const std::vector<Role>& roles = (*layers)[l].roles;
    if (stability[l].size() != roles.size()) {
      return error(Code::invalid_argument, "layer %u: stability of %zu heads for roles of %zu", l, stability[l].size(), roles.size());
    }
    for (uint32_t h = 0; h < roles.size(); ++h) {
      if (roles[h] != Role::volatile_head) continue;
      if (!is_fraction(stability[l][h])) {
        return error(Code::invalid_argument, "layer %u: stability of head %u is %g: expected 0 to 1", l, h, stability[l][h]);
      }
      candidates.push_back({{l, h}, stability[l][h]});
    }
  }
  const RoleCounts counts = count_roles(*layers);
  if (counts.pivot > max_full) {
    return error(Code::invalid_argument,
                 "%u pivot heads need their whole KV, and only %u heads may keep it: raise the "
                 "budget or lower tau_sim",
                 counts.pivot, max_full);
  }
  const size_t surplus = counts.full() > max_full ? counts.full() - max_full : 0;
  std::stable_sort(candidates.begin(), candidates.end(), [](const Demotion& a, const Demotion& b) { return a.stability > b.stability; });
  candidates.resize(surplus);
  for (const Demotion& d : candidates) (*layers)[d.id.layer].roles[d.id.head] = Role::anchor;
  return candidates;
}

Result<Thresholds> find_thresholds(Span<const LayerStatistics> layers, uint32_t max_full, const Thresholds& preferred) {
  ORRERY_TRY(check_thresholds(preferred));
  for (const LayerStatistics& layer : layers) ORRERY_TRY(check_statistics(layer));
  uint32_t fewest = count_full(layers, preferred);
  if (fewest <= max_full) return preferred;

  struct Candidate {
    Thresholds thresholds;
    double distance, sim_distance;
  };
  std::vector<Candidate> candidates;
  constexpr int kGrid = 20;
  for (int i = 1; i < kGrid; ++i) {
    for (int j = 1; j < kGrid; ++j) {
      const Thresholds t{static_cast<double>(i) / kGrid, static_cast<double>(j) / kGrid};
      // Rounded, so that equal distances are equal.
      const auto distance = [](double a, double b) { return std::round(std::fabs(a - b) * 1e9) / 1e9; };
      const double sim = distance(t.tau_sim, preferred.tau_sim);
      candidates.push_back({t, std::round((sim + distance(t.tau_stable, preferred.tau_stable)) * 1e9), sim});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.sim_distance < b.sim_distance);
  });
  for (const Candidate& c : candidates) {
    const uint32_t n = count_full(layers, c.thresholds);
    if (n <= max_full) return c.thresholds;
    fewest = std::min(fewest, n);
  }
  return error(Code::invalid_argument, "no thresholds leave %u heads or fewer with their whole KV: the fewest are %u", max_full, fewest);
}

double stability_weight(double stability, uint32_t top_k) {
  const double floor = std::max(top_k > 0 ? 1.0 / top_k : 1.0, .05);
  return 1 / (std::max(stability, floor) + 1e-6);
}

}  // namespace orrery::policy
