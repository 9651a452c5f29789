// Quest (Tang et al., arXiv:2406.10774): every step selects pages by its own query.
//   score     for each page the bound sum_d max(q * min, q * max), by its digest; softmax over the candidates, mean over the group
//   allocate  evenly; the first two layers everything, where they are a tenth of the budget or less
//   select    window pages, the best of the others; the reservoir keeps all pages
//   refresh   every step, by its own query, before each layer attends
// Paper, code and this build: the page below. Engine: engines/pages.
#include "runtime/policy/published/engines/pages.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace quest_method {

constexpr PagesSettings kDefaults = {{16, 0, 32, 2}, true, 2};
constexpr auto kOptions = pages_options("16", "range", "0", "32", kTwoFirstLayersRow, "2", "softmax", "head", "1");
constexpr char kPage[] =
    "As freekv, but every step selects for itself and waits: each query finds the pages that it selects.\n"
    "- Published for heads without groups. The mean of a group's softmaxes orders pages as one head's bounds do.\n"
    "- The paper keeps all KV on the device and reads less of it. Here unselected pages stay in host memory, and misses are\n"
    "  fetched within the step.\n"
    "- The first two layers are whole where they are a tenth of the budget or less. The last whole page always stays, beside\n"
    "  the page that is being written.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_pages("quest", kDefaults, shape, budget, options);
}

}  // namespace quest_method

constexpr Method kQuest = {{"quest", "Quest", "arXiv:2406.10774",
                            /* score    */ "bounds by page digests, softmax, mean of the group",
                            /* allocate */ "evenly",
                            /* keep     */ "the last pages, the best of the others",
                            /* refresh  */ "every step, by its own query, before it attends",
                            /* device   */ "digests of all pages, the last query, a staging ring",
                            /* link     */ kSelectionAndWaitOnLink, all(quest_method::kOptions), quest_method::kPage},
                           {1},
                           quest_method::make};

}  // namespace orrery::policy
