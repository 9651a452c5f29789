// Engine of HeteroCache: pivots hold everything and watch for a cluster of satellites; when a pivot's attention drifts, its satellites are
// refilled.
//   score     the last query: softmax, average pooling, mean over the group; or the mean of the last `window` queries
//   allocate  volatile and pivot heads hold everything; anchors and satellites share the rest by 1 / stability (eq. 8), or by where their best
//             scores are (adaptive)
//   select    the best prompt tokens, and every generated token; the reservoir keeps all tokens
//   refresh   every `block` steps on drift; or every step, speculatively, with correction. Anchors never change
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/heads/calibrate.h"
#include "runtime/policy/heads/roles.h"
#include "runtime/policy/policy.h"

namespace orrery::policy {

struct PivotSettings {
  Thresholds tau;
  double tau_drift = -1;   // below 0: the profile's, or tau_stable
  double full_share = -1;  // share of all heads that may be full, without a profile; below 0: .2, or less
  bool demote = true;      // surplus full heads: demote volatile heads; else search thresholds
  uint32_t block = 5;      // W
  uint32_t visible = 1;    // steps from a check to its refill
  uint32_t tail = 0;
  bool stagger = false;  // the pivots' checks are spread over the block's steps
  bool refresh = true;
  uint32_t window = 1;    // queries that select when the session settles
  bool adaptive = false;  // compressed heads share by their best scores, a part `floor` evenly; else by eq. 8
  double floor = .2;
  bool speculative = false;  // satellites follow their pivot's query of the step before, every step
  double tau_query = .8;     // speculative: a satellite whose query has a smaller cosine with the last one is corrected; 0: never
};

// Roles come from the profile, or, without one, from `calibration` when the session settles.
Result<std::unique_ptr<Policy>> make_pivots(const PivotSettings& settings, const Calibration& calibration, const Shape& shape,
                                            const Budget& budget, const SharedProfile& profile);

}  // namespace orrery::policy
