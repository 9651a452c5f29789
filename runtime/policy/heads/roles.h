// HeteroCache's taxonomy: from how the top-k sets of a layer's KV heads overlap (with each other, and with
// what they were at the prompt's end) to a role per head. Volatile and pivot heads keep their whole KV on the
// device, satellites follow their pivot, anchors hold what the prompt gave them.
//
// The way of the data: sets of each calibration step -> LayerOverlaps -> stability and similarity -> classify
// -> (too many full heads: demote_volatile, or other thresholds by find_thresholds) -> weights for
// allocate.h.
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

struct Thresholds {
  double tau_sim = .5;
  double tau_stable = .5;
};

// What calibration gives for one layer.
struct LayerStatistics {
  std::vector<double> stability;   // (n_heads), 0 to 1
  std::vector<double> similarity;  // (n_heads, n_heads), 0 to 1, symmetric
};

struct LayerRoles {
  std::vector<Role> roles;         // (n_heads)
  std::vector<uint32_t> pivot_of;  // (n_heads): a satellite's pivot; kNoHead for the others
  // The satellites of a pivot, ascending.
  std::vector<uint32_t> satellites_of(uint32_t pivot) const;
};

// Greedy star clustering (section 4.1, C.2): heads whose similarity reaches tau_sim are neighbours; again and
// again the head with most unassigned neighbours (tie: lowest index) becomes a pivot and those neighbours its
// satellites. Heads that are left are anchors where their stability reaches tau_stable, volatile otherwise.
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

// A head that lost its role, and the stability it was chosen by.
struct Demotion {
  HeadId id;
  double stability;
};

// Turns volatile heads into anchors, most stable first (tie: lowest layer, then head), until at most max_full
// heads are full; says which. `stability`: (n_layers) of (n_heads). invalid_argument, and nothing changed,
// where the pivots alone are too many: their satellites need them.
Result<std::vector<Demotion>> demote_volatile(std::vector<LayerRoles>* layers,
                                              Span<const std::vector<double>> stability, uint32_t max_full);

// Thresholds under which at most max_full heads are full: `preferred` itself where that is so, else the pair
// on a grid of .05 (0.05 .. 0.95) that lies nearest to it by |d tau_sim| + |d tau_stable| (tie: the one that
// moves tau_sim less, then the lower pair). invalid_argument naming the fewest full heads that any pair
// gives.
Result<Thresholds> find_thresholds(Span<const LayerStatistics> layers, uint32_t max_full,
                                   const Thresholds& preferred);

// w = 1 / (S + 1e-6) with S not below max(1 / top_k, .05): a head that never overlaps must not starve the
// rest.
double stability_weight(double stability, uint32_t top_k);

}  // namespace orrery::policy
