// Pictures of an evaluation: accuracy and KL against budget for each length, and, for each policy and budget, a heat map of
// the scores by needle depth and length.
#pragma once

#include <string>

#include "charts/chart.h"
#include "eval/results.h"

namespace orrery::tool {

// One line per policy over its budgets (share of full attention's KV on the device). Full attention is a dashed line.
// Refused budgets have no point.
LineChart accuracy_chart(const EvalResults& results, uint64_t length);
// The same of KL(full || policy), on a logarithmic axis. A KL of 0 has no point. Full attention has none.
LineChart kl_chart(const EvalResults& results, uint64_t length);

// Mean scores of the questions with a known depth: ten rows of depths, one column per length. A cell without
// questions is missing.
HeatMap depth_map(const EvalResults& results, size_t config);

// Writes accuracy-LENGTH.png and kl-LENGTH.png if a policy other than full attention ran, and depth-NN-POLICY.png if depths are known.
void write_charts(const std::string& folder, const EvalResults& results);

}  // namespace orrery::tool
