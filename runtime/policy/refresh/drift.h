// HeteroCache while decoding: does a pivot still look where it looked, and if not, which tokens do its
// satellites need, which of them are missing on the device, and which slots do they take.
//
// Everything is a function of sets in score order (score.h's top_k of one query over the prompt's keys).
// State is the caller's: one base set per pivot, kept under the pivot's own head number, and the sets of the
// block at hand. What a check at the end of step t decides is visible from step t + 1 on, in every case.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

struct DriftRule {
  uint32_t block_steps = 5;  // W: queries that are looked at together, without overlap between blocks
  double tau_drift = .5;     // HeteroCache: as tau_stable
};

struct DriftVerdict {
  std::vector<double> overlaps;  // (W) eq. 9: |K_t n K_base| / L_base
  double median = 0;
  bool triggered = false;  // eq. 10: median < tau_drift
};

// The block's verdict. `sets`: (W) sets of l_base tokens, one per query, oldest first; `base`: K_base, l_base
// tokens. Where triggered, the last set is the new K_base (Algorithm 1, line 40).
Result<DriftVerdict> check_drift(Span<const Tokens> sets, Span<const uint32_t> base, const DriftRule& rule);

// What a satellite holds after its pivot's last query: the first `length` of the pivot's tokens in score
// order (Algorithm 1, line 37). Fewer tokens than that is invalid_argument.
Result<Tokens> satellite_set(Span<const uint32_t> by_score, uint64_t length);

// Overlap that chance alone gives (sets of l_base among n_tokens), and the least that any two sets have.
// Drift cannot trigger where the least overlap reaches tau_drift.
double chance_overlap(uint64_t l_base, uint64_t n_tokens);
double least_overlap(uint64_t l_base, uint64_t n_tokens);

// Decode steps count from 1. Whether the block ends with this step, so that a check follows it.
inline bool ends_block(uint64_t step, uint32_t block_steps) { return step > 0 && step % block_steps == 0; }

}  // namespace orrery::policy
