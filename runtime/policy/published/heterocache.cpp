// HeteroCache (paper: HeteroCache, sections 3 and 4, algorithm 1): heads are not alike.
//   score     the last query: softmax, average pooling over 5 keys, mean over the group
//   allocate  volatile and pivot heads hold everything; anchors and satellites share the rest by 1 / stability (eq. 8)
//   select    the best prompt tokens, and every generated token; the reservoir keeps all tokens
//   refresh   every W = 5 steps a pivot checks the median overlap of its last W queries' best keys with K_base. Below tau_drift, K_base becomes
//             the last query's best keys, and the pivot's satellites get its best tokens, in score order. Anchors never change
// Roles come from a head profile; without one the session calibrates itself with the prompt's last queries.
// Paper, code and this build: the page below. Engine: engines/pivots.
#include "runtime/policy/published/engines/pivots.h"
#include "runtime/policy/options.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace heterocache_method {

constexpr uint32_t kMaxBlock = 64;  // queries that the engine keeps
constexpr OptionRow kOptions[] = {
    {"tau_sim", ".5", "heads that overlap at least this much are of one cluster"},
    {"tau_stable", ".5", "heads outside clusters that overlap with their own past at least this much are anchors, the others volatile"},
    {"tau_drift", "(tau_stable)", "a pivot that overlaps less than this with its base set refills its satellites"},
    {"full_share", "(.2, or half the budget)", "share of the heads that may be whole without a head profile"},
    {"surplus", "demote",
     "where a session that calibrates itself finds more full heads: demote volatile heads, or search thresholds (thresholds)"},
    {"block", "5", "steps between a pivot's checks"},
    {"visible", "1", "steps from a check to its refill, at most `block`"},
    {"stagger", "0", "1: pivots take turns within a block"},
    {"satellites", "triggered",
     "or speculative: every step, by the pivot's query of the step before (FreeKV), without tau_drift, block, visible and stagger"},
    {"tau", ".8", "speculative: satellites whose query has a smaller cosine with the last one wait for the step's own query; 0: none"},
    kRefreshRow,
    {"window", "1", "last queries whose mean weights select when the session settles (SnapKV)"},
    {"heads", "stability", "how compressed heads share: by 1 / stability, or adaptive: by where the best scores are (Ada-KV)"},
    {"floor", ".2", "adaptive: the part that is shared evenly"},
    {"reduce", "mean", "of a group's scores, or max"},
    {"pool", "5", "neighbouring keys whose scores are averaged; odd"},
    kCalibrationRow,
    kTopKRow,
    kTailRow,
};
constexpr char kPage[] =
    "A few heads need the whole context (volatile), or watch for a cluster of heads (pivots): these are whole. The other heads\n"
    "keep their best tokens. When a pivot's attention drifts away from its base set, its satellites fetch the tokens that it\n"
    "attends to now. Anchors, heads outside clusters with stable attention, are never refreshed. Candidates are the prompt's\n"
    "tokens; generated tokens are in every head.\n"
    "- Budgets are eq. 8's (algorithm 1, line 14 lacks N_comp), with exact totals: tokens above the cap of the prompt's length\n"
    "  are divided over the other heads, where the code drops them. Stability is clamped at .05 from below.\n"
    "- Satellites get their pivot's first tokens in score order. The code sorts by position before it cuts, a bug.\n"
    "- K_base is stored under its own head's number. The code reads it in another order than it writes.\n"
    "- Similarity: two heads are neighbours where the median over steps of their overlap reaches tau_sim (paper: the median of\n"
    "  the per-step maximum; code: the overlap at the prompt's last query). Clusters come first; stability splits the other\n"
    "  heads.\n"
    "- Group reduction is one parameter, mean (code: mean in calibration, max at run time). Blocks of queries, not a sliding\n"
    "  median.\n"
    "- Where full heads exceed the budget: an error with a head profile; without one volatile heads become anchors, most stable\n"
    "  first.\n"
    "- Generated tokens count: their tail is inside the budget, and a full tail settles again.\n"
    "- visible=1 is the paper's next step. visible=W hides the transfer behind a block of steps, and takes a staging ring for\n"
    "  its refills.\n"
    "- Parts of other methods, ours: heads=adaptive (Ada-KV's), window=W (SnapKV's), satellites=speculative (FreeKV's, with the\n"
    "  pivots' keys in the role of the digests).\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile& profile) {
  PivotSettings s;
  Calibration calibration;
  if (profile && profile->has_gates())
    return option_error(Code::invalid_argument, "head_profile",
                        "policy heterocache: the head profile has DuoAttention's gates, and no clusters of heads");
  if (profile) s.tau = profile->thresholds;
  calibration.rule = {GroupReduce::mean, Pooling::avg, 5, true};
  OptionReader reader("heterocache", options);
  static constexpr const char* kReduce[] = {"mean", "max"};
  static constexpr const char* kSurplus[] = {"demote", "thresholds"};
  static constexpr const char* kHeads[] = {"stability", "adaptive"};
  static constexpr const char* kSatellites[] = {"triggered", "speculative"};
  uint32_t reduce = 0, surplus = 0, adaptive = 0, speculative = 0;
  ORRERY_TRY(reader.fraction("tau_sim", &s.tau.tau_sim));
  ORRERY_TRY(reader.fraction("tau_stable", &s.tau.tau_stable));
  ORRERY_TRY(reader.fraction("tau_drift", &s.tau_drift));
  ORRERY_TRY(reader.fraction("full_share", &s.full_share));
  ORRERY_TRY(reader.choice("surplus", kSurplus, &surplus));
  ORRERY_TRY(reader.choice("reduce", kReduce, &reduce));
  ORRERY_TRY(reader.count("block", 1, kMaxBlock, &s.block));
  ORRERY_TRY(reader.count("visible", 1, s.block, &s.visible));
  ORRERY_TRY(reader.flag("stagger", &s.stagger));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.count("window", 1, kMaxWindow, &s.window));
  ORRERY_TRY(reader.choice("heads", kHeads, &adaptive));
  ORRERY_TRY(reader.fraction("floor", &s.floor));
  ORRERY_TRY(reader.choice("satellites", kSatellites, &speculative));
  ORRERY_TRY(reader.fraction("tau", &s.tau_query));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.count("calibration", 1, kMaxBlock, &calibration.n_queries));
  ORRERY_TRY(reader.count("top_k", 1, 1u << 20, &calibration.top_k));
  ORRERY_TRY(reader.odd("pool", kMaxPool, &calibration.rule.pool_width));
  ORRERY_TRY(reader.finish());
  calibration.rule.reduce = reduce ? GroupReduce::max : GroupReduce::mean;
  s.demote = surplus == 0;
  s.adaptive = adaptive == 1;
  s.speculative = speculative == 1;
  return make_pivots(s, calibration, shape, budget, profile);
}

}  // namespace heterocache_method

constexpr Method kHeteroCache = {
    {"heterocache", "HeteroCache", "sections 3 and 4, algorithm 1",
     /* score    */ "the last query, avg pool 5, mean of the group",
     /* allocate */ "volatile and pivot heads everything; the others by 1 / stability",
     /* keep     */ "best tokens and all generated tokens",
     /* refresh  */ "every 5 steps, where a pivot has drifted",
     /* device   */ "the last 64 positions' queries, its scored heads' weights, a staging ring",
     /* link     */ "the selection, when it is made; misses of refills", all(heterocache_method::kOptions), heterocache_method::kPage},
    {kMaxWindow},
    heterocache_method::make};

}  // namespace orrery::policy
