// The CPU backend: backend.h's operations on host memory, by a thread pool, with kernels chosen at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/cpu/paths/paths.h"

namespace orrery::cpu {

struct Options {
  int32_t n_threads = 0;        // 0: one per available processor
  std::string path = "auto";    // instruction path by name (see available_paths), or "auto": the best this machine has
};

// Unknown path -> invalid_argument that lists the known ones; one this machine lacks -> unsupported.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);

}  // namespace orrery::cpu
