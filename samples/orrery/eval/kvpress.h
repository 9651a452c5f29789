// Results in the files that kvpress's evaluation writes and its leaderboard reads (NVIDIA/kvpress, evaluation/evaluate.py): a
// folder for each length, policy and budget, DATASET__LENGTH__MODEL__POLICY__RATIO[__query_aware], with
//   config.yaml       its EvaluationConfig; press_name is our policy's name
//   metrics.json      {TASK: {METRIC: percent}}; RULER's metric is called string_match, as there
//   predictions.csv   a line per answer, without the text
// The compression ratio is the share of full attention's KV bytes that is not on the device.
#pragma once

#include <string>

#include "eval/results.h"

namespace orrery::tool {

// Writes the folders below `folder`, which exists. A folder of an earlier run gets new files.
void write_kvpress(const std::string& folder, const std::string& model, const EvalResults& results);

}  // namespace orrery::tool
