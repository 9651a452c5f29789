// The instruction sets of this binary, and the ones that this machine can run.
#pragma once

#include <string_view>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

// Names of the instruction sets in this binary that this machine can run, best first; the last is "plain".
Span<const char* const> available_paths();

// The table of an instruction set by name; "auto": the best one. Asks the processor (CPUID) and whether the system saves the
// registers, each time.
Result<const Kernels*> find_kernels(std::string_view path);

}  // namespace orrery::cpu
