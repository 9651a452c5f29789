// The instruction paths of this binary, and which of them this machine can run.
#pragma once

#include <string_view>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

// Names of the instruction sets in this binary that this machine can run, best first; the last is "plain".
Span<const char* const> available_paths();

// The table of a path by name, or of the best one for "auto".  The machine's own word (CPUID, and that the
// system saves the registers) decides; nothing is remembered.
Result<const Kernels*> find_kernels(std::string_view path);

}  // namespace orrery::cpu
