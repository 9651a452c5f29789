// Head profiles: what calibration found out about a model's KV heads, as JSON that comes and goes with the
// model.
//
// Our own format is bound to a model by its fingerprint and holds what the roles were made from, so that
// other thresholds or cluster counts can be tried without calibrating again:
//   {"format": "orrery-head-profile", "version": 1, "model": 32 hex digits, "note": text, "top_k": N,
//    "tau_sim": x, "tau_stable": x, "tau_drift": x, "layers": [
//     {"roles": ["pivot", "satellite", "anchor", "volatile", ...], "pivot_of": [null, 0, null, null, ...],
//      "stability": [x, ...],                     1 number a head; with it top_k is at least 1
//      "allocation": [x, ...],                    of imported profiles, 0 for full heads
//      "gates": [x, ...],                         of DuoAttention's: no lower one of a full head (volatile) than of
//                                                 others (anchor). One of the three is there
//      "similarity": [x, ...],                    optional: pairs i < j, row by row: medians over steps
//      "mean_similarity": [x, ...],               optional: the same as means, for SyncKV
//      "cluster_of": [0, 1, ...], "representatives": [head or null, ...]}, ...]}   optional, both or neither:
//      SyncKV's
// An imported profile has no fingerprint ("model" is "") and fits every model of its shape.
//
// The published HeteroCache format (head_analysis: meta.type_map, meta.counts, classification_matrix,
// leader_member_relations, allocation_matrix) is read as well. Files are strangers' work: everything is
// checked before a profile exists, and errors name layer and head.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/heads/clusters.h"
#include "runtime/policy/heads/roles.h"

namespace orrery::policy {

struct ProfileLayer {
  LayerRoles roles;
  std::vector<double> stability;        // (n_kv_heads) S, 0 to 1; empty where imported
  std::vector<double> allocation;       // (n_kv_heads) published w / mean(w), 0 for full heads; else empty
  std::vector<double> gates;            // (n_kv_heads) DuoAttention's, 0 to 1 (gates.h); else empty
  std::vector<double> similarity;       // (n_kv_heads, n_kv_heads), or empty
  std::vector<double> mean_similarity;  // (n_kv_heads, n_kv_heads), or empty
  LayerClusters clusters;               // or empty

  uint32_t n_kv_heads() const { return static_cast<uint32_t>(roles.roles.size()); }
};

using Fingerprint = std::array<uint8_t, 16>;

struct HeadProfile {
  bool has_model = false;
  Fingerprint model{};  // of the model's file; zero without has_model
  std::string note;     // the corpus, for people: UTF-8, at most 4096 bytes
  Thresholds thresholds;
  double tau_drift = .5;
  uint32_t top_k = 0;  // of the calibration sets; 0: unknown
  std::vector<ProfileLayer> layers;

  RoleCounts counts() const;
  bool has_gates() const { return !layers.empty() && !layers[0].gates.empty(); }
  // The weights of eq. 8 of the compressed heads, layer by layer, heads ascending: hetero_budget's. From
  // stability, else the published allocation; none of gates.
  std::vector<double> weights() const;
};

// Whether a profile is whole and consistent in itself (sizes, ranges, every satellite with a pivot of its
// layer, every pivot with a satellite, representatives within their clusters). invalid_argument naming layer
// and head.
Status check_profile(const HeadProfile& profile);

// Whether it may serve this model: fingerprint (imported profiles fit any) and shape. kv_heads: (n_layers).
Status check_profile_fits(const HeadProfile& profile, const Fingerprint& model,
                          Span<const uint32_t> kv_heads);

// Our format. Reading is strict: unknown or missing members, and whatever check_profile complains about, are
// invalid_argument. What is written reads back equal, number for number.
Result<HeadProfile> read_profile(std::string_view json);
Result<std::string> write_profile(const HeadProfile& profile);

// The published format, by type ids (names differ between files): 1 anchor, 2 volatile, 3 pivot, 4 satellite.
// Thresholds are not in it and stay at their defaults.
Result<HeadProfile> import_published_profile(std::string_view json);

// Whichever of the two it is.
Result<HeadProfile> read_any_profile(std::string_view json);

}  // namespace orrery::policy
