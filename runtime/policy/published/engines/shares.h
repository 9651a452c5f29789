// Allocate: budgets as papers print them, with exact totals. HeteroCache's eq. 7 and 8, SyncKV's k.
//
// Engines divide by TailedBudget, which also counts generated tokens; tests compare it with these formulas. A budget of 1 gives every head
// everything.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate/apportion.h"

namespace orrery::policy {

struct HeteroBudget {
  uint64_t l_base = 0;            // tokens (eq. 7)
  std::vector<uint64_t> lengths;  // (n_compressed) l_i in tokens (eq. 8); their sum is n_compressed * l_base
};

// Eq. 7 and 8: n_full heads keep all n_tokens; each compressed head keeps 1 to n_tokens. `weights` (n_compressed): 1 / S, or a published
// allocation. invalid_argument where L_base would be 0, naming the smallest ratio that works. All heads full takes a ratio of 1.
Result<HeteroBudget> hetero_budget(Ratio ratio, uint64_t n_full, Span<const double> weights, uint64_t n_tokens);

// The share of all KV that the full heads alone take: a budget must exceed it.
inline Ratio full_share(uint64_t n_full, uint64_t n_heads) { return {n_full, n_heads}; }

// SyncKV: k/L = (Mem*H - N_r)/(H - N_r), floored. The tokens that each of a layer's n_heads - n_representatives other heads keeps, so that
// the layer takes `memory` of its full KV. All heads representatives: n_tokens. invalid_argument where k would be 0, naming the smallest
// share, and how many representatives would fit.
Result<uint64_t> sync_budget(Ratio memory, uint64_t n_heads, uint64_t n_representatives, uint64_t n_tokens);

}  // namespace orrery::policy
