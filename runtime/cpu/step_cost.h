// What steps cost with each instruction set (StepCost): measured, in tests/bench/results/guesses.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/backend/device.h"

namespace orrery::cpu {

// instruction_set: Kernels::name.
StepCost step_cost(std::string_view instruction_set, int32_t n_threads);

}  // namespace orrery::cpu
