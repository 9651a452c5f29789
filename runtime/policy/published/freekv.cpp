// FreeKV (arXiv:2505.13109): speculative retrieval. A step's query selects the pages of the next step, whose query is much alike.
//   score     for each page the bound sum_d max(q * min, q * max), by its digest; softmax over the candidates, mean over the group
//   allocate  evenly
//   select    sink pages, window pages, the best of the others; the reservoir keeps all pages
//   refresh   every step: its query selects for the next step, and transfers run while layers are computed. Where the query of a head has
//             changed (tau), the layer corrects: it selects again with this step's query
// Paper, code and this build: the page below. Engine: engines/pages.
#include "runtime/policy/published/engines/pages.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace freekv_method {

constexpr PagesSettings kDefaults = {{0, 512, 512, 1}, true, .8};
constexpr auto kOptions = pages_options("auto", "range", "512", "512", kFirstLayersRow, ".8", "softmax", "head", "1");
constexpr char kPage[] =
    "Nothing is evicted for good: a head holds pages that change. A digest of every page, the largest and the smallest key\n"
    "value of each dimension, stays on the device and bounds what a query can find in the page. This step's query selects the\n"
    "best pages for the next step, whose query is much alike. Each layer waits for its own pages, which arrive while earlier\n"
    "layers are computed. Where the query of a head has changed (tau), its whole layer selects again with this step's query:\n"
    "that head waits for its pages, the other heads get theirs in the next step.\n"
    "- Digests are the paper's. The published fast path has middle and mean deviation, and means of bounds (digest=deviation,\n"
    "  score=raw).\n"
    "- Bounds are not divided by sqrt(head_dim), as in the code; the paper is silent.\n"
    "- A page that leaves the window is a candidate one step earlier, so that it can stay in its slots.\n"
    "- The prompt's last query makes the first selection. In the paper the first step selects by its own query, and waits.\n"
    "- The paper's 512 sink and 512 recent tokens of 2,048 are each a quarter of a head's slots here. The budget counts the\n"
    "  digests.\n"
    "- The first layer is whole where it is a tenth of the budget or less.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_pages("freekv", kDefaults, shape, budget, options);
}

}  // namespace freekv_method

constexpr Method kFreeKv = {{"freekv", "FreeKV", "arXiv:2505.13109",
                             /* score    */ "bounds by page digests, softmax, mean of the group",
                             /* allocate */ "evenly",
                             /* keep     */ "sink pages, recent pages, the best of the others",
                             /* refresh  */ "every step, by its query for the next one",
                             /* device   */ "digests of all pages, the last query, a staging ring",
                             /* link     */ kSelectionAndMissesOnLink, all(freekv_method::kOptions), freekv_method::kPage},
                            {1},
                            freekv_method::make};

}  // namespace orrery::policy
