// What papers write down, in the order of their text, with sets and rows of their own: HeteroCache's and SyncKV's budgets, drift, static and
// dynamic tokens, and the scores of a head. The library's policies divide by TailedBudget, count overlaps on the device and stop early; tests
// compare them with these formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/score/score.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

// ---- Scores ----

// Memory that head_scores() reuses from call to call.
struct ScoreScratch {
  std::vector<float> weights, pooled;
};

// The whole rule: logits (n_query_heads, n_keys), scaled and masked -> out (n_keys).
Status head_scores(Span<const float> logits, uint32_t n_query_heads, const ScoreRule& rule, ScoreScratch* scratch, Span<float> out);

// ---- Sets of tokens, in any order ----

// |A n B|. The sets may have any order.
size_t count_common(Span<const uint32_t> a, Span<const uint32_t> b);

// The overlap coefficient |A n B| / |A| (HeteroCache eq. 1 and 9, where A and B have one size). An empty A has lost nothing: 1.
double overlap(Span<const uint32_t> a, Span<const uint32_t> b);

// ---- Budgets as papers print them, with exact totals. A budget of 1 gives every head everything. ----

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

// ---- Drift (HeteroCache): does a pivot still attend to the keys that it attended to, and if not, which tokens do its satellites need? Sets
// are in score order. ----

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

// Whether a block ends with this step, so that a check follows. Decode steps count from 1.
inline bool ends_block(uint64_t step, uint32_t block_steps) { return step > 0 && step % block_steps == 0; }

// ---- Refresh every m steps (SyncKV, eq. 3 to 7): the tokens that the heads of a cluster hold. ----

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

// plan_misses() of the library, for slots from 0 on, with memory of its own.
std::vector<Replacement> planned_misses(const Tokens& held, const Tokens& wanted);

}  // namespace orrery::policy
