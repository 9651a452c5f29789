// CAKE (Qin et al., arXiv:2503.12491): layers whose attention is dispersed, or shifts from query to query, prefer a larger budget.
//   score     mean + 200 variance, over the last 32 queries, of each query head's softmax weights; average pooling over 5 keys; mean over
//             the group
//   allocate  over layers in proportion to the preference entropy^(1/tau_1) variance^(1/tau_2), at most everything, the excess evenly over the
//             others; over a layer's heads evenly
//   select    each head keeps its best tokens before the window, the window, and every generated token
//   refresh   never; a full tail or a new prompt selects again from the reservoir
// Paper, code and this build: the page below. Engine: engines/window.
#include "runtime/policy/engines/window.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace cake_method {

constexpr WindowSettings kDefaults = {WindowScore::variance, Pooling::avg, 5, LayerBudgets::preference, HeadBudgets::uniform};
constexpr auto kOptions = window_options(kDefaults);
constexpr char kPage[] =
    "Layers whose attention is dispersed, or shifts from query to query, get more tokens: in proportion to entropy^(1/tau_1)\n"
    "variance^(1/tau_2) over the window's queries and the keys before the window. A layer gets at most everything; the excess\n"
    "is divided evenly over the others. Tokens whose weight varies from query to query score higher.\n"
    "- tau_1 and tau_2 are the code's fallback, 1. Its own values for Llama 3.1 8B at 1,024 tokens are 1.6 and .4.\n"
    "- Budgets of layers are settled after the whole prompt. The paper cascades, layer by layer while the prompt is read, and\n"
    "  ends with the same budgets.\n"
    "- A prompt is kept whole where the budget holds it. The code keeps it whole up to one window more.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_window("cake", kDefaults, shape, budget, options);
}

}  // namespace cake_method

constexpr Method kCake = {{"cake", "CAKE", "arXiv:2503.12491",
                           /* score    */ "mean + 200 variance of the last 32 queries, avg pool 5, mean of the group",
                           /* allocate */ "layers by entropy and variance of their attention; their heads evenly",
                           /* keep     */ "best tokens, the window, all generated tokens",
                           /* refresh  */ kNeverRefreshed,
                           /* device   */ kLastQueries,
                           /* link     */ kSelectionOnLink, all(cake_method::kOptions), cake_method::kPage},
                          {kMaxWindow},
                          cake_method::make};

}  // namespace orrery::policy
