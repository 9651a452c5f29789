// SyncKV (paper: SyncKV, section 4 and appendix B): heads of a layer that attend to the same tokens share one selection.
//   score     the last query of a cluster's representative: softmax, maximum over the group, no pooling unless asked for
//   allocate  representatives hold everything; the other heads of a layer k tokens each
//   select    the best k prompt tokens: ceil(rho k) static for good, the rest dynamic; and every generated token
//   refresh   every m = 5 steps the representative's query anticipates: the best dynamic tokens that are not static
// Paper and this build: the page below. Engine: engines/representatives.
#include "runtime/policy/published/engines/representatives.h"
#include "runtime/policy/options.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace synckv_method {

constexpr uint32_t kMaxSteps = 1024;
constexpr OptionRow kOptions[] = {
    {"representatives", "(2 of 8 heads and more, else 1)", "heads of a layer that represent the others"},
    {"rho", ".5", "static share of a selection"},
    {"steps", "5", "steps from an anticipation to the next"},
    {"visible", "1", "steps from an anticipation to its refill, at most `steps`"},
    {"window", "1", "last queries whose mean weights select when the session settles (SnapKV)"},
    {"pool", "1", "neighbouring keys whose scores are averaged; odd. 1: none"},
    kRefreshRow,
    kCalibrationRow,
    kTopKRow,
    kTailRow,
};
constexpr char kPage[] =
    "Heads of a layer that attend to the same tokens share one selection, which their representative makes. Half of it is\n"
    "static; the other half follows the representative, with an anticipation every 5 steps. Clusters come from a head profile;\n"
    "without one the session clusters its heads by the prompt's last queries.\n"
    "- Each cluster has its own set, as in eq. 7 and the text (algorithm 1, line 23 unites the sets of all clusters).\n"
    "- Dynamic tokens are selected among tokens that are not static, so that no token is held twice.\n"
    "- The paper's Mem% has two readings. Here it is all KV on the device, representatives included, layer by layer:\n"
    "  k / L = (share H - N_r) / (H - N_r). So the share must exceed N_r / H. If `representatives` is given, a smaller share is an\n"
    "  error; else N_r is 1 where the share does not hold 2. The other reading is the prefetched KV of the other heads alone:\n"
    "  k / L = s. The paper's rows of 20% with 2 of 8 heads exist in that reading only. A budget of (N_r + (H - N_r) s) / H holds\n"
    "  it: .40 for s = .2 with 2 of 8 heads, .47 with 1 of 3, .60 with 1 of 2.\n"
    "- The paper is silent on pooling (`pool`), and takes one query where it refers to SnapKV's window (`window`). It is silent\n"
    "  on the reduction of a group's scores (the maximum here). Candidates are the prompt's tokens, and the softmax runs over\n"
    "  these. Generated tokens go to every head, and count: their tail is inside the budget.\n"
    "- The paper's `visible` is 1. A later one takes a staging ring for all refills that are asked for at once.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile& profile) {
  RepresentativeSettings s;
  Calibration calibration;
  calibration.rule = {GroupReduce::max, Pooling::none, 1, true};
  OptionReader reader("synckv", options);
  ORRERY_TRY(reader.count("representatives", 1, kMaxKvHeads, &s.representatives));
  ORRERY_TRY(reader.fraction("rho", &s.rho));
  ORRERY_TRY(reader.count("steps", 1, kMaxSteps, &s.steps));
  ORRERY_TRY(reader.count("visible", 1, s.steps, &s.visible));
  ORRERY_TRY(reader.count("window", 1, kMaxWindow, &s.window));
  ORRERY_TRY(reader.odd("pool", kMaxPool, &calibration.rule.pool_width));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.count("calibration", 1, kMaxWindow, &calibration.n_queries));
  ORRERY_TRY(reader.count("top_k", 1, 1u << 20, &calibration.top_k));
  ORRERY_TRY(reader.finish());
  if (calibration.rule.pool_width > 1) calibration.rule.pooling = Pooling::avg;
  if (profile) {
    if (reader.given("representatives"))
      return option_error(Code::invalid_argument, "policy_options", "policy synckv: representatives come from the head profile");
    for (size_t l = 0; l < profile->layers.size(); ++l)
      if (profile->layers[l].clusters.representatives.empty())
        return option_error(Code::invalid_argument, "head_profile", "policy synckv: the head profile has no clusters for layer %zu", l);
  }
  return make_representatives(s, calibration, shape, budget, profile);
}

}  // namespace synckv_method

constexpr Method kSyncKv = {
    {"synckv", "SyncKV", "section 4 and appendix B",
     /* score    */ "the representative's last query, max of the group",
     /* allocate */ "representatives everything; a layer's other heads evenly",
     /* keep     */ "half of the best for good, half as they change; all generated tokens",
     /* refresh  */ "every 5 steps, as the representative attends",
     /* device   */ "the last 64 positions' queries, its scored heads' weights, a staging ring",
     /* link     */ "the selection, when it is made; misses of refills", all(synckv_method::kOptions), synckv_method::kPage},
    {kMaxWindow},
    synckv_method::make};

}  // namespace orrery::policy
