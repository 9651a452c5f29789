// HeteroCache's taxonomy: a role for every KV head, from how the top-k sets of a layer's heads overlap with each other, and with their own
// sets at the end of the prompt. Volatile and pivot heads keep their whole KV on the device; satellites follow their pivot; anchors keep
// what they select after the prompt.
//
// Data flow: top-k sets of each calibration step -> LayerOverlaps (overlaps.h) -> stability and similarity -> classify() -> where too many
// heads are full: demote_volatile(), or other thresholds by find_thresholds() -> weights of the budget.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

constexpr uint32_t kNoHead = UINT32_MAX;
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxKvHeads = 1024;  // per layer

// The numbers are those of published profiles.
enum class Role : uint8_t { anchor = 1, volatile_head = 2, pivot = 3, satellite = 4 };

inline bool is_full(Role role) { return role == Role::volatile_head || role == Role::pivot; }
const char* role_name(Role role);  // "anchor", "volatile", "pivot", "satellite"

inline bool is_fraction(double x) { return x >= 0 && x <= 1; }  // false for NaN

struct Thresholds {
  double tau_sim = .5;
  double tau_stable = .5;
};

// The result of calibrating one layer.
struct LayerStatistics {
  std::vector<double> stability;   // (n_heads), 0 to 1
  std::vector<double> similarity;  // (n_heads, n_heads), 0 to 1, symmetric
};

struct LayerRoles {
  std::vector<Role> roles;         // (n_heads)
  std::vector<uint32_t> pivot_of;  // (n_heads) a satellite's pivot; kNoHead for other roles
  // The satellites of a pivot, ascending.
  std::vector<uint32_t> satellites_of(uint32_t pivot) const;
};

// Greedy star clustering (section 4.1, C.2). Heads whose similarity reaches tau_sim are neighbours. Repeatedly, the head with most
// unassigned neighbours (tie: lowest index) becomes a pivot, and these neighbours its satellites. Of the remaining heads, those whose
// stability reaches tau_stable are anchors; the others are volatile.
Result<LayerRoles> classify(const LayerStatistics& statistics, const Thresholds& thresholds);

struct RoleCounts {
  uint32_t anchor = 0, volatile_heads = 0, pivot = 0, satellite = 0;
  uint32_t full() const { return volatile_heads + pivot; }
  uint32_t compressed() const { return anchor + satellite; }
  uint32_t all() const { return full() + compressed(); }
};
RoleCounts count_roles(Span<const LayerRoles> layers);

struct HeadId {
  uint32_t layer, head;
  bool operator==(const HeadId& o) const { return layer == o.layer && head == o.head; }
};

// A volatile head that became an anchor, and its stability.
struct Demotion {
  HeadId id;
  double stability;
};

// Makes volatile heads anchors, most stable first (tie: lowest layer, then head), until at most max_full heads are full. Returns the
// demoted heads. `stability`: (n_layers) of (n_heads). invalid_argument, with nothing changed, where the pivots alone exceed max_full:
// their satellites need them.
Result<std::vector<Demotion>> demote_volatile(std::vector<LayerRoles>* layers, Span<const std::vector<double>> stability,
                                              uint32_t max_full);

// Thresholds under which at most max_full heads are full. `preferred`, if it qualifies; else the nearest pair on a grid of .05 (.05 to
// .95), by
// |d tau_sim| + |d tau_stable| (tie: the pair that moves tau_sim less, then the lower pair). invalid_argument where no pair qualifies, naming
// the smallest number of full heads that a pair gives.
Result<Thresholds> find_thresholds(Span<const LayerStatistics> layers, uint32_t max_full, const Thresholds& preferred);

// w = 1 / (S + 1e-6), with S at least max(1 / top_k, .05): a head without overlaps must not starve the other heads.
double stability_weight(double stability, uint32_t top_k);

}  // namespace orrery::policy
