// What planners know of a step: its rows; or those of several steps, which have a row each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/step.h"
#include "runtime/base/span.h"

namespace orrery::cpu {

// Rows of one sequence at consecutive positions.
struct RowRun {
  int32_t first_row = 0, n_rows = 0;
};

struct StepRows {
  Span<const Step> steps;
  int64_t n = 0;  // of all steps

  size_t step_number(int64_t row) const { return steps.size() > 1 ? static_cast<size_t>(row) : 0; }
  const Step& step(int64_t row) const { return steps[step_number(row)]; }
  const Row& row(int64_t i) const { return step(i).rows[steps.size() > 1 ? 0 : static_cast<size_t>(i)]; }
  // The resident part of a head in a row's step, if that has one; else null.
  const HeadView* head_view(int64_t row, KvLayer layer, int32_t head) const {
    const Step& its = step(row);
    return its.heads.empty() || layer.group != 0 ? nullptr : &its.heads[static_cast<size_t>(layer.layer * its.kv.n_kv_heads + head)];
  }
};

}  // namespace orrery::cpu
