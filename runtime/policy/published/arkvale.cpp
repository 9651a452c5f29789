// ArkVale (NeurIPS 2024): evicted pages can be recalled. Every step asks for the best pages by its own query; other resident pages stay.
//   score     for each page an estimate by its digest, the middle of its keys and the mean deviation; mean over all query heads of the layer
//   allocate  evenly; the first two layers everything, where they are a tenth of the budget or less
//   select    sink pages, window pages, the best of the others; one set for all heads of a layer. The reservoir keeps all pages
//   refresh   every step, by its own query, before each layer attends: half of the pages are asked for, misses replace the lowest scores
// Paper, code and this build: the page below. Engine: engines/pages.
#include "runtime/policy/published/engines/pages.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace arkvale_method {

constexpr PagesSettings kDefaults = {{0, 64, 64, 2, true}, true, 2, true, true, .5};
constexpr auto kOptions = pages_options("auto", "deviation", "64", "64", kTwoFirstLayersRow, "2", "raw", "layer", ".5");
constexpr char kPage[] =
    "Evicted pages are not lost. Every step estimates from digests what its query would find in each page, and asks for the\n"
    "best pages. They are half of a head's pages, sink and window pages included. Misses replace the pages with the lowest\n"
    "scores, so pages that are attended to now and then stay. Attention includes all resident pages.\n"
    "- A digest is the middle of a page's keys in each dimension, and their mean deviation from it: an estimate, not a bound.\n"
    "- All heads of a layer hold the same pages, by the mean over all query heads, as in the code.\n"
    "- The first two layers are whole where they are a tenth of the budget or less. 64 sink and 64 recent tokens are two\n"
    "  pages each, as in the code.\n"
    "- The prompt's last query makes the first selection, after the whole prompt.\n"
    "- A page that leaves the window has no score yet, and stays for a step. Of equal scores the later page is replaced first.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_pages("arkvale", kDefaults, shape, budget, options);
}

}  // namespace arkvale_method

constexpr Method kArkVale = {{"arkvale", "ArkVale", "NeurIPS 2024",
                              /* score    */ "estimates by page digests, mean of all query heads of the layer",
                              /* allocate */ "evenly",
                              /* keep     */ "sink pages, recent pages, the best of the others, one set for the layer",
                              /* refresh  */ "every step, by its own query, before it attends: the better half",
                              /* device   */ "digests of all pages, the last query, a staging ring",
                              /* link     */ kSelectionAndWaitOnLink, all(arkvale_method::kOptions), arkvale_method::kPage},
                             {1},
                             arkvale_method::make};

}  // namespace orrery::policy
