#include "runtime/cpu/step_cost.h"

#include <algorithm>

namespace orrery::cpu {

// Weights are read once for all rows; their products, and attention over the KV, are computed for each row.
StepCost step_cost(std::string_view instruction_set, int32_t n_threads) {
  const bool wide = instruction_set.substr(0, 6) == "avx512" || instruction_set == "amx";
  StepCost cost;
  cost.operations_per_us = 6e4 * std::max(n_threads, 1);
  cost.attention = 0.85;
  for (size_t i = 0; i < cost.products.size(); ++i) {
    const auto n = static_cast<double>(i + 1);  // further rows
    cost.products[i] = wide                        ? n * 0.17
                       : instruction_set == "avx2" ? std::max(n * 0.15, (n - 1) * 0.25)  // each of the first three rows; each later row
                       : i == 0                    ? 0.2
                                                   : 0.2 + n * 0.25;
  }
  return cost;
}

}  // namespace orrery::cpu
