// Ada-KV (Feng et al., arXiv:2407.11550): the heads of a layer compete for its budget. Two methods: Ada-SnapKV and Ada-Pyramid.
//   score     the mean over the last 32 queries, and over the group, of the softmax weights; max pooling over 7 keys
//   allocate  over layers evenly (adakv), or on PyramidKV's line (adapyramid); over a layer's heads by where the layer's best scores are,
//             with a safeguard that no head starves
//   select    each head keeps its best tokens before the window, the window, and every generated token
//   refresh   never; a full tail or a new prompt selects again from the reservoir
// Paper, code and this build: the page below. Engine: engines/window.
#include "runtime/policy/engines/window.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace adakv_method {

constexpr WindowSettings kDefaults = {WindowScore::mean, Pooling::max, 7, LayerBudgets::uniform, HeadBudgets::adaptive};
constexpr WindowSettings kPyramidDefaults = {WindowScore::mean, Pooling::max, 7, LayerBudgets::pyramid, HeadBudgets::adaptive};
constexpr auto kOptions = window_options(kDefaults);
constexpr auto kPyramidOptions = window_options(kPyramidDefaults);
constexpr char kPage[] =
    "As snapkv, but the heads of a layer compete. A head's count is how many of the layer's best scores are its own; it gets\n"
    "that many tokens, softened by a safeguard so that no head starves.\n"
    "- Algorithm 2, line 8 prints the safeguard's two parts exchanged: alpha, .2 as in the paper, is the floor.\n"
    "  safeguard=protect is kvpress's safeguard instead: each head's best int(alpha n) tokens come first. kvpress's n includes\n"
    "  the window, so int(alpha n) often protects nothing but the window.\n"
    "- The code's rounding misses the total. Here the total is exact, by largest remainder.\n"
    "- Scores are the code's: scaled products, a softmax that includes the window, pooling after the means. score=each is\n"
    "  algorithm 2: unscaled products with the keys before the window, softmax and max pooling for each query, then the mean. A\n"
    "  maximum and a mean do not commute, so other tokens are the best.\n"
    "- first_layers exempts layers, as FreeKV's comparisons do for every method (with 1). Their KV counts.\n";

MadePolicy make_ada(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_window("adakv", kDefaults, shape, budget, options);
}
MadePolicy make_pyramid(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_window("adapyramid", kPyramidDefaults, shape, budget, options);
}

}  // namespace adakv_method

constexpr Method kAdaKv = {{"adakv", "Ada-KV (Ada-SnapKV)", "arXiv:2407.11550",
                            /* score    */ "mean of the last 32 queries and the group, max pool 7",
                            /* allocate */ "layers evenly; heads of a layer by the layer's best scores",
                            /* keep     */ "best tokens, the window, all generated tokens",
                            /* refresh  */ kNeverRefreshed,
                            /* device   */ kLastQueries,
                            /* link     */ kSelectionOnLink, all(adakv_method::kOptions), adakv_method::kPage},
                           {kMaxWindow},
                           adakv_method::make_ada};

constexpr Method kAdaPyramid = {
    {"adapyramid", "Ada-KV (Ada-Pyramid)", "arXiv:2407.11550",
     /* score    */ "mean of the last 32 queries and the group, max pool 7",
     /* allocate */ "layers on a falling line; heads of a layer by the layer's best scores",
     /* keep     */ "best tokens, the window, all generated tokens",
     /* refresh  */ kNeverRefreshed,
     /* device   */ kLastQueries,
     /* link     */ kSelectionOnLink, all(adakv_method::kPyramidOptions), "As adakv, with pyramidkv's budgets of layers.\n"},
    {kMaxWindow},
    adakv_method::make_pyramid};

}  // namespace orrery::policy
