// How readily the system runs a thread beside the threads of other programs.
#pragma once

#include <cstdint>

namespace orrery {

enum class Priority : uint8_t { normal, low };

}  // namespace orrery
