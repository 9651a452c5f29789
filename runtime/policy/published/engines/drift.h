// Refresh on drift (HeteroCache): does a pivot still attend to the keys that it attended to, and if not, which tokens do its satellites
// need?
//
// Everything is a function of sets in score order: top_k() of one query over the prompt's keys. The caller keeps the state: one base set
// per pivot, stored under the pivot's own head number, and the sets of the current block. A decision at the end of step t is visible from
// step t + 1 on, always.
//
// engines/pivots counts overlaps on the device, and stops early; tests compare it with these functions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

struct DriftRule {
  uint32_t block_steps = 5;  // W: queries of a block; blocks do not overlap
  double tau_drift = .5;     // HeteroCache: tau_stable
};

struct DriftVerdict {
  std::vector<double> overlaps;  // (W) eq. 9: |K_t n K_base| / L_base
  double median = 0;
  bool triggered = false;  // eq. 10: median < tau_drift
};

// The verdict of a block. `sets`: (W) sets of l_base tokens, one per query, oldest first. `base`: K_base, l_base tokens. Where triggered,
// the last set is the new K_base (Algorithm 1, line 40).
Result<DriftVerdict> check_drift(Span<const Tokens> sets, Span<const uint32_t> base, const DriftRule& rule);

// The tokens of a satellite after its pivot's last query: the pivot's first `length` in score order (Algorithm 1, line 37).
// invalid_argument where the pivot ranks fewer.
Result<Tokens> satellite_set(Span<const uint32_t> by_score, uint64_t length);

// The overlap that chance gives to sets of l_base among n_tokens, and the smallest overlap that any two such sets have. Drift cannot
// trigger where the smallest overlap reaches tau_drift.
double chance_overlap(uint64_t l_base, uint64_t n_tokens);
double least_overlap(uint64_t l_base, uint64_t n_tokens);

// Whether a block ends with this step, so that a check follows. Decode steps count from 1.
inline bool ends_block(uint64_t step, uint32_t block_steps) { return step > 0 && step % block_steps == 0; }

}  // namespace orrery::policy
