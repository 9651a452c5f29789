// RazorAttention (Tang et al., arXiv:2407.15891): a few heads retrieve; the others stream, and compensate for evicted tokens by their mean.
//   score     heads are ranked once, by a head profile
//   allocate  15% of the heads retrieve, or as many as take half of the budget; streaming heads share the rest
//   select    retrieving heads keep everything; streaming heads 4 sinks, the most recent tokens, and one compensation token
//   refresh   never
// Paper, code and this build: the page below. Engine: engines/static_heads.
#include "runtime/policy/published/engines/static_heads.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace razorattention_method {

constexpr StaticHeadSettings kDefaults = {4, true, .15, 1.0 / 15};
constexpr auto kOptions = static_head_options("(.15, or half the budget)", "4", "1");
constexpr char kPage[] =
    "As duoattention, but a streaming head's evicted tokens become one compensation token: the mean of their keys and of their\n"
    "values. It weighs in the softmax as many equal tokens. Where the evicted keys are equal, the result is exact.\n"
    "- The paper's retrieving heads are induction heads (they attend to what followed an earlier occurrence of a token, 14% of\n"
    "  the query heads) and echo heads (to that occurrence, 1%), found in random tokens that are repeated. `orrery profile`\n"
    "  measures both. A KV head has the largest score of its query heads. 15% of the KV heads retrieve, or as many as take\n"
    "  half of the budget, 14 of 15 of them by induction and the others by echo. Other profiles, and sessions without one: as\n"
    "  duoattention.\n"
    "- The paper's buffer of the other heads is 4 sinks and the last max(4000, N / 5) of N tokens. Here it is what the budget\n"
    "  leaves. There is no published code.\n"
    "- The paper compresses the prompt alone. Here a token that an answer pushes out of the buffer joins the token in the same\n"
    "  step: the head always attends to everything, to some of it as one token. A later prompt, or a retrieving head's full\n"
    "  tail, makes buffers and compensation tokens again from all tokens.\n"
    "- Compensation tokens are floats, whatever the KV type, and count: 8 head_dim bytes of each head are not slots.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile& profile) {
  return make_static_heads("razorattention", kDefaults, shape, budget, options, profile);
}

}  // namespace razorattention_method

constexpr Method kRazorAttention = {{"razorattention", "RazorAttention", "arXiv:2407.15891",
                                     /* score    */ "a head profile ranks heads",
                                     /* allocate */ "15% of the heads everything; the others what that leaves",
                                     /* keep     */ "retrieving heads all; the others sinks, recent tokens, and a compensation token",
                                     /* refresh  */ "never",
                                     /* device   */ "the last 64 positions' queries, a token of floats a head",
                                     /* link     */ kSelectionOnLink, all(razorattention_method::kOptions), razorattention_method::kPage},
                                    {kMaxWindow},
                                    razorattention_method::make};

}  // namespace orrery::policy
