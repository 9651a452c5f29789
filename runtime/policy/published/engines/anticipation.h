// Refresh every m steps (SyncKV, eq. 3 to 7): the tokens that the heads of a cluster hold, and the steps in which they change.
#pragma once

#include <cstdint>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

struct SyncSplit {
  uint64_t n_static = 0, n_dynamic = 0;
};
// k_dyn = floor((1 - rho) * k); the rest of k is static.
Result<SyncSplit> sync_split(uint64_t k, Ratio rho);

// The tokens of every head of a cluster except its representative.
struct SyncSets {
  Tokens fixed;    // I_S: static, for the whole conversation turn
  Tokens dynamic;  // I_D: exchanged at every anticipation; never a token of `fixed`
};

// After the prompt (eq. 3, 4): the best n_static + n_dynamic by the representative's scores (n_tokens); the best n_static of them are
// static. Both in score order.
SyncSets sync_initial(Span<const float> scores, const SyncSplit& split);

// At an anticipation (eq. 6): the best n_dynamic that are not static, in score order. (The paper's top-k may repeat static tokens, and so
// hold fewer tokens than it pays for.)
Tokens sync_dynamic(Span<const float> scores, Span<const uint32_t> fixed, uint64_t n_dynamic);

// Anticipation happens in steps m, 2m, ...; decode steps count from 1. The choice of step t_A serves steps t_A + 1 to t_A + m; the prompt's
// choice (t_A = 0) serves steps 1 to m. m = 0: never.
inline bool is_anticipation(uint64_t step, uint32_t m) { return m > 0 && step > 0 && step % m == 0; }
inline uint64_t anticipation_serving(uint64_t step, uint32_t m) { return m > 0 && step > 0 ? (step - 1) / m * m : 0; }

}  // namespace orrery::policy
