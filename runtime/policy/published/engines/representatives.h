// Engine of SyncKV: clusters of heads that attend to the same tokens share one selection, which the cluster's representative makes.
//   score     the last query of the representative, or its last few queries; softmax, maximum over the group, no pooling unless asked for
//   allocate  representatives hold everything; the other heads of a layer k tokens each
//   select    the best k prompt tokens, a part of them static, the rest dynamic; and every generated token
//   refresh   every `steps` steps the representative's query anticipates: the best dynamic tokens that are not static
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/heads/calibrate.h"
#include "runtime/policy/policy.h"

namespace orrery::policy {

struct RepresentativeSettings {
  uint32_t representatives = 0;  // of a layer; 0: 2 of 8 heads and more, else 1; 1 where the budget does not hold 2
  double rho = .5;               // the static part of a selection
  uint32_t steps = 5;            // m: from an anticipation to the next
  uint32_t visible = 1;          // an anticipation in step t_A serves steps t_A + visible to t_A + visible + m - 1
  uint32_t tail = 0;
  uint32_t window = 1;  // last queries that select when the session settles
  bool refresh = true;
};

// Clusters come from the profile, or, without one, from `calibration` when the session settles.
Result<std::unique_ptr<Policy>> make_representatives(const RepresentativeSettings& settings, const Calibration& calibration,
                                                     const Shape& shape, const Budget& budget, const SharedProfile& profile);

// Anticipation happens in steps m, 2m, ...; decode steps count from 1. The choice of step t_A serves steps t_A + 1 to t_A + m; the prompt's
// choice (t_A = 0) serves steps 1 to m. m = 0: never.
inline bool is_anticipation(uint64_t step, uint32_t m) { return m > 0 && step > 0 && step % m == 0; }

}  // namespace orrery::policy
