// auto: the default under a KV budget. CAKE's scores and Ada-KV's selection over heads, and five things of our own: layers compete like heads,
// a wide max pooling, a short tail, a compensation token, settling in parts. tests/bench has the results.
//   score     mean + 200 variance, over the last 32 queries, of each query head's softmax weights; max pooling over 15 keys; mean over the
//             group
//   allocate  over layers by the best scores of all layers, each times the root of its layer's preference; over a layer's heads by the
//             layer's best scores, with kvpress's safeguard
//   select    each head keeps its best tokens before the window, the window, and every generated token; evicted tokens become one compensation
//             token
//   refresh   never; a full tail, or a new prompt, selects again from the reservoir, in parts beside the next 8 steps
// Engine: engines/window.
#include "runtime/policy/engines/window.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace {

constexpr WindowSettings kDefaults = {WindowScore::variance, Pooling::max, 15, LayerBudgets::adaptive, HeadBudgets::adaptive, 32,
                                      Safeguard::protect, .2, 20, 2, 2, 200, 0, 0, 16, 1, 8};
constexpr auto kOptions = window_options(kDefaults);
constexpr char kPage[] =
    "The policy of a KV budget without a named policy. Short answers over several turns: at 10% of the KV no other measured\n"
    "policy comes near it, up to 4,096 tokens; at 20% and more the best of the others keeps at most one answer in thirty more.\n"
    "It moves half of what quest moves, and no step waits for the link. It repeats long lists as well as quest at half of the\n"
    "KV, and better with less.\n"
    "- A layer's heads compete as Ada-KV's do, with kvpress's safeguard. Layers compete too: a score counts times the root of\n"
    "  its layer's entropy and variance (CAKE's preference). With CAKE's division by preference alone, from 30% of the KV on,\n"
    "  one layer holds all its tokens, though it hardly attends to most of them, and the others lack tokens that they attend\n"
    "  to. Whether a list goes on is said by many keys of all layers, each a little; it was answered worse at 30 and 40% than\n"
    "  at 20%.\n"
    "- A wide maximum, 15 keys: a token that is attended to stays with the sentence around it, which an answer reads next,\n"
    "  token by token. With 5 or 7 keys the middle of a passage is kept and its end is lost.\n"
    "- A short tail, a sixteenth of what a head may hold: at 10% of 1,024 tokens a tail of n / 32 would take a third. A full\n"
    "  tail selects again by the answer's own last queries, so tokens that the answer has come to need come back.\n"
    "- The evicted tokens of a head become one compensation token: their mean by the last query's weights p. It weighs as many\n"
    "  tokens as p is spread out over, e^entropy, times the share of kept tokens. RazorAttention's plain mean of all evicted\n"
    "  tokens weighs too much. The token takes 8 head_dim bytes a head, two tokens of F16. It removes a fifth to more than half\n"
    "  of the divergence from full attention at 20 to 50%.\n"
    "- Behind a long prompt, and when a tail is full, the first 8 steps attend to everything. Beside each runs a part of the\n"
    "  selection. So no step waits for all of it. Where a tail has less than 16 slots (below about 1,400 tokens at 10%, 700 at\n"
    "  20%), the selection is short, and runs at once. It also runs at once on a GPU, and in models with sliding windows.\n"
    "- KV on the device is Q8_0, unless device_kv_type says otherwise: where KV is kept in F16 the same bytes hold 1.88 times\n"
    "  the tokens. A head's second-best keys are worth more than the last bits of its best keys. From 53.2% of the KV on all of\n"
    "  it fits, and nothing is evicted. KV that is kept in Q8_0 or Q4_0, and heads whose dimension is no multiple of 32, keep\n"
    "  their type.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_window("auto", kDefaults, shape, budget, options);
}

}  // namespace

constexpr Method kAuto = {
    {"auto", "CAKE's scores, Ada-KV's selection over layers and heads, a compensation token", "",
     /* score    */ "mean + 200 variance of the last 32 queries, max pool 15, mean of the group",
     /* allocate */ "layers by the best scores of all, weighted by entropy and variance; heads of a layer by the layer's best scores",
     /* keep     */ "best tokens, the window, all generated tokens, a compensation token",
     /* refresh  */ "when as many tokens have been generated as a sixteenth of what a head may hold",
     /* device   */ "in Q8_0, where KV is kept in more; the last 64 positions' queries, a token of floats a head",
     /* link     */ kSelectionOnLink, all(kOptions), kPage},
    {kMaxWindow, KvType::q8_0},
    make};

}  // namespace orrery::policy
