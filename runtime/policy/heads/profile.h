// Head profiles: what calibration found out about a model's KV heads, as JSON that is stored beside the model.
//
// Our format is bound to a model by its fingerprint. It holds the statistics that the roles were made from, so that other thresholds or
// cluster counts need no new calibration:
//   {"format": "orrery-head-profile", "version": 1, "model": 32 hex digits, "note": text, "top_k": N,
//    "tau_sim": x, "tau_stable": x, "tau_drift": x, "layers": [
//     {"roles": ["pivot", "satellite", "anchor", "volatile", ...], "pivot_of": [null, 0, null, null, ...],
//      one of: "stability": [x, ...]       a number for each head; top_k is then at least 1
//              "allocation": [x, ...]      of imported HeteroCache profiles; 0 for full heads
//              "gates": [x, ...]           DuoAttention's: no full head (volatile) has a lower gate than another head (anchor)
//      optional: "similarity": [x, ...]       for pairs i < j, row by row: medians over steps
//                "mean_similarity": [x, ...]  means over steps, for SyncKV
//                "induction": [x, ...] and "echo": [x, ...]   attention on repeated random tokens, both in all layers or neither
//                "cluster_of": [0, 1, ...] and "representatives": [head or null, ...]   SyncKV's, both or neither
//     }, ...]}
// An imported profile has no fingerprint ("model" is ""): it fits every model of its shape.
//
// The published HeteroCache format is read as well (head_analysis: meta.type_map, meta.counts, classification_matrix,
// leader_member_relations, allocation_matrix). Files are not trusted: everything is checked before a profile exists, and errors name layer
// and head.
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
  std::vector<double> stability;        // (n_kv_heads) S, 0 to 1; empty in imported profiles
  std::vector<double> allocation;       // (n_kv_heads) published w / mean(w), 0 for full heads; or empty
  std::vector<double> gates;            // (n_kv_heads) DuoAttention's, 0 to 1 (gates.h); or empty
  std::vector<double> induction, echo;  // (n_kv_heads) 0 to 1: attention on what followed an earlier occurrence of the query's token, and
                                        // on that occurrence, in repeated random tokens (RazorAttention, section 3.2); or empty
  std::vector<double> similarity;       // (n_kv_heads, n_kv_heads), or empty
  std::vector<double> mean_similarity;  // (n_kv_heads, n_kv_heads), or empty
  LayerClusters clusters;               // or empty

  uint32_t n_kv_heads() const { return static_cast<uint32_t>(roles.roles.size()); }
};

// The policy that gives each head what its role says.
inline constexpr char kPolicyOfRoles[] = "heterocache";

using Fingerprint = std::array<uint8_t, 16>;

struct HeadProfile {
  bool has_model = false;
  Fingerprint model{};  // of the model's file; zero without has_model
  std::string note;     // a description of the corpus: UTF-8, at most 4096 bytes
  Thresholds thresholds;
  double tau_drift = .5;
  uint32_t top_k = 0;  // of the calibration sets; 0: unknown
  std::vector<ProfileLayer> layers;

  RoleCounts counts() const;
  bool has_gates() const { return !layers.empty() && !layers[0].gates.empty(); }
  bool has_retrieval() const { return !layers.empty() && !layers[0].induction.empty(); }
  // HeteroCache's eq. 8: the weights of the compressed heads, layer by layer, heads ascending. From stability, else the published
  // allocation; empty for gates.
  std::vector<double> weights() const;
};

// Checks that a profile is complete and consistent: sizes, ranges, every satellite with a pivot of its layer, every pivot with a satellite,
// representatives within their clusters. invalid_argument names layer and head.
Status check_profile(const HeadProfile& profile);

// Checks that the profile fits a model: its fingerprint (imported profiles fit any) and its shape. kv_heads: (n_layers).
Status check_profile_fits(const HeadProfile& profile, const Fingerprint& model, Span<const uint32_t> kv_heads);

// Our format. Reading is strict: unknown members, missing members, and any finding of check_profile() are invalid_argument. A written
// profile reads back equal, number for number.
Result<HeadProfile> read_profile(std::string_view json);
Result<std::string> write_profile(const HeadProfile& profile);

// The published HeteroCache format, by type ids, as names differ between files: 1 anchor, 2 volatile, 3 pivot, 4 satellite. It holds no
// thresholds: they stay at their defaults.
Result<HeadProfile> import_published_profile(std::string_view json);

// Either format.
Result<HeadProfile> read_any_profile(std::string_view json);

}  // namespace orrery::policy
