// DuoAttention (Xiao et al., arXiv:2410.10819): a few heads retrieve from the whole context, the others stream.
//   score     heads are ranked once, by learned gates or another head profile
//   allocate  streaming heads get 384 tokens, or a quarter of the budget if that is less; as many heads retrieve as the rest holds
//   select    retrieving heads keep everything; streaming heads their sinks and most recent tokens
//   refresh   never
// Paper, code and this build: the page below. Engine: engines/static_heads.
#include "runtime/policy/published/engines/static_heads.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace duoattention_method {

constexpr StaticHeadSettings kDefaults = {128, false, 1};
constexpr auto kOptions = static_head_options("(by gates, or what the budget leaves)", "128", "0");
constexpr char kPage[] =
    "Retrieving heads keep everything; streaming heads keep their first and most recent tokens. The paper learns a gate for\n"
    "each head and fixes how many retrieve: half of them, or a quarter where every query head has its own KV. Here the budget\n"
    "is fixed: as many heads retrieve as it holds beside streaming heads of 384 tokens, or of a quarter of the budget where\n"
    "that is less. full_share fixes the number.\n"
    "- 128 first and 256 recent tokens are those of the published patterns' configuration; the README says 64 and 256.\n"
    "- `orrery profile --import-gates` makes a head profile of the code's gates. With it, the heads above the gates' quantile\n"
    "  retrieve, or as many of them as the budget holds, largest gates first; the other heads share the rest. `orrery\n"
    "  profile` makes a profile without training: heads are ranked by induction and echo scores, RazorAttention's criterion.\n"
    "  Imported profiles have neither: volatile and pivot heads retrieve first, then those with the larger allocation.\n"
    "- Without a profile the session is refused, unless its budget makes all heads alike. rank=attention ranks heads by the\n"
    "  attention of the prompt's last queries to tokens that a streaming head would not hold. On published models that finds\n"
    "  diffuse heads of early layers, not retrieving ones.\n"
    "- The code trims streaming heads after each forward pass, so chunks of the prompt show. Here they are trimmed once, after\n"
    "  the prompt.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile& profile) {
  return make_static_heads("duoattention", kDefaults, shape, budget, options, profile);
}

}  // namespace duoattention_method

constexpr Method kDuoAttention = {
    {"duoattention", "DuoAttention", "arXiv:2410.10819",
     /* score    */ "a head profile ranks heads",
     /* allocate */ "retrieving heads everything; the others 384 tokens, a quarter of the budget, or what is left",
     /* keep     */ "retrieving heads all; the others sinks and recent tokens",
     /* refresh  */ "never",
     /* device   */ kLastQueries,
     /* link     */ kSelectionOnLink, all(duoattention_method::kOptions), duoattention_method::kPage},
    {kMaxWindow},
    duoattention_method::make};

}  // namespace orrery::policy
