// SnapKV (Li et al., arXiv:2404.14469): the prompt's last queries attend to what the answer will need.
//   score     the mean over the last 32 queries, and over the group, of the softmax weights of the keys before the window; average pooling
//             over 5 keys. The softmax includes the window's keys
//   allocate  evenly over layers and heads
//   select    each head keeps its best tokens before the window, the window, and every generated token. Other tokens are evicted
//   refresh   never; a full tail or a new prompt selects again from the reservoir
// Paper, code and this build: the page below. Engine: engines/window.
#include "runtime/policy/engines/window.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace snapkv_method {

constexpr WindowSettings kDefaults = {WindowScore::mean, Pooling::avg, 5, LayerBudgets::uniform, HeadBudgets::uniform};
constexpr auto kOptions = window_options(kDefaults);
constexpr char kPage[] =
    "The prompt's last queries attend to what the answer will need. Their attention, pooled over neighbouring keys, selects\n"
    "tokens once. The window of these last tokens stays too.\n"
    "- The code selects for each query head, on repeated KV. Here the group's mean selects for its KV head, as in Ada-KV's code\n"
    "  and kvpress.\n"
    "- The code adds queries up; their mean orders tokens alike. Its pooling is avg 5; its LongBench runs use max 7.\n"
    "- The window shrinks with small budgets: it takes at most half of what a head keeps, and at most the prompt.\n"
    "- What a head keeps on average includes the window. Generated tokens count: their tail is inside the budget.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_window("snapkv", kDefaults, shape, budget, options);
}

}  // namespace snapkv_method

constexpr Method kSnapKv = {{"snapkv", "SnapKV", "arXiv:2404.14469",
                             /* score    */ "mean of the last 32 queries and the group, avg pool 5",
                             /* allocate */ "evenly",
                             /* keep     */ "best tokens, the window, all generated tokens",
                             /* refresh  */ kNeverRefreshed,
                             /* device   */ kLastQueries,
                             /* link     */ kSelectionOnLink, all(snapkv_method::kOptions), snapkv_method::kPage},
                            {kMaxWindow},
                            snapkv_method::make};

}  // namespace orrery::policy
