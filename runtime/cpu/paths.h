// The instruction paths of this binary, and which of them this machine can run.
#pragma once

#include <string_view>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/cpu/kernels.h"

namespace orrery::cpu {

// The table of a path by name, or of the best one for "auto".  The machine's own word (CPUID, and that the
// system saves the registers) decides; nothing is remembered.
Result<const Kernels*> find_kernels(std::string_view path);

}  // namespace orrery::cpu
