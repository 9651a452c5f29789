// Pictures of an evaluation: accuracy against budget for each length, and for each policy and budget a heat map of the
// scores by needle depth and length.
#pragma once

#include <string>

#include "charts/chart.h"
#include "eval/results.h"

namespace orrery::tool {

// One line per policy over its budgets (share of full attention's KV on the device), full attention dashed. Refused
// budgets have no point.
LineChart accuracy_chart(const EvalResults& results, uint64_t length);

// Mean scores of the questions whose depth is known: ten rows of depths, a column for each length. Where nothing was
// asked the cell is missing.
HeatMap depth_map(const EvalResults& results, size_t config);

// accuracy-LENGTH.png where there is a policy beside full attention, depth-NN-POLICY.png where depths are known.
void write_charts(const std::string& folder, const EvalResults& results);

}  // namespace orrery::tool
