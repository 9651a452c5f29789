// PyramidKV (Cai et al., arXiv:2406.02069): SnapKV with a pyramid of budgets, as lower layers spread their attention wider.
//   score     as SnapKV
//   allocate  over layers on a straight line, falling from the first to the last layer, which has mean / 20; over a layer's heads evenly
//   select    as SnapKV
//   refresh   never; a full tail or a new prompt selects again from the reservoir
// Paper, code and this build: the page below. Engine: engines/window.
#include "runtime/policy/engines/window.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace pyramidkv_method {

constexpr WindowSettings kDefaults = {WindowScore::mean, Pooling::avg, 5, LayerBudgets::pyramid, HeadBudgets::uniform};
constexpr auto kOptions = window_options(kDefaults);
constexpr char kPage[] =
    "As snapkv, but the first layers get more tokens and the last layers fewer, on a straight line around the same mean.\n"
    "- The code's whole-number step from layer to layer misses the total (40 tokens, 4 layers: 132 of 128). Here the total is\n"
    "  exact.\n"
    "- A line that asks for more tokens than a prompt has starts at the prompt's length instead. Prompts shorter than twice the\n"
    "  mean are divided evenly.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_window("pyramidkv", kDefaults, shape, budget, options);
}

}  // namespace pyramidkv_method

constexpr Method kPyramidKv = {{"pyramidkv", "PyramidKV", "arXiv:2406.02069",
                                /* score    */ "mean of the last 32 queries and the group, avg pool 5",
                                /* allocate */ "layers on a falling line down to mean / 20; their heads evenly",
                                /* keep     */ "best tokens, the window, all generated tokens",
                                /* refresh  */ kNeverRefreshed,
                                /* device   */ kLastQueries,
                                /* link     */ kSelectionOnLink, all(pyramidkv_method::kOptions), pyramidkv_method::kPage},
                               {kMaxWindow},
                               pyramidkv_method::make};

}  // namespace orrery::policy
