// Engine of the methods whose pages change with the query: FreeKV, Quest, ArkVale. Every head has room for a number of pages; the query
// decides which pages fill it, by the digests of all pages on the device.
//   score     bounds of the last query's products with a page's keys; softmax over the candidates, mean over the group. Or the mean of the
//             bounds (score=raw), of all query heads of the layer (set=layer)
//   allocate  evenly; or by what each head's last queries attend to (heads=adaptive)
//   select    sink pages, window pages with the page that is being written, and the best of the others; the reservoir keeps all
//   refresh   every step, by its own query for the next one; or, where the query has changed, for itself. Misses alone are fetched. A step may
//             ask for a part of the pages only (asked): misses then replace the lowest scores
//
// heads=adaptive is ours. For each of the last 16 queries, the best pages of all heads are counted by head, by the softmax weights that
// fall on them. A head gets room in proportion to its count, at least `floor` of the average: a head that attends to one place does not
// need as many pages as a head that attends everywhere. At small budgets this keeps more than any other setting here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/engines/paged.h"

namespace orrery::policy {

struct PagesSettings : PagedSettings {
  bool refresh = true;
  double tau = 0;          // FreeKV: a query with a smaller cosine with the last one has changed; 0: never
  bool raw = false;        // scores are means of bounds, without softmax
  bool layer_set = false;  // a layer's heads hold the same pages
  double asked = 1;        // share of a head's pages that a step asks for
  bool adaptive = false;   // heads get room by what their queries attend to
  double floor = .2;       // adaptive: of the average, at least
  bool selects_by_scores() const { return raw || layer_set || asked < 1; }  // else the backend selects
};

// The methods' option rows; the arguments are defaults.
constexpr std::array<OptionRow, 12> pages_options(const char* page, const char* digest, const char* sinks, const char* window,
                                                  OptionRow first_layers, const char* tau, const char* score, const char* set,
                                                  const char* asked) {
  return {{with(kPageRow, page),
           with(kDigestRow, digest),
           with(kSinksRow, sinks),
           with(kWindowRow, window),
           first_layers,
           kRefreshRow,
           {"tau", tau, "a step whose query has a smaller cosine with the last one selects by its own query, and waits; 0: none, 2: all"},
           {"score", score, "of a page: the mean of its query heads' softmaxes, or of the bounds themselves (raw)"},
           {"set", set, "each head selects its own pages (head), or all heads of the layer the same ones (layer)"},
           {"asked", asked, "share of a head's pages that a step asks for; misses replace the lowest scores, other pages stay"},
           {"heads", "uniform", "room for pages: the same for all heads, or by what their last 16 queries attend to (adaptive)"},
           {"floor", ".2", "of adaptive heads: at least this part of the average"}}};
}

Result<std::unique_ptr<Policy>> make_pages(const char* name, const PagesSettings& defaults, const Shape& shape, const Budget& budget,
                                           const Options& options);

}  // namespace orrery::policy
