// The CPU backend: the operations of runtime/backend on host memory, on a thread pool, with kernels chosen at run time.
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
  int32_t n_threads = 0;        // 0: one for each available processor
  std::string path = "auto";    // an instruction set by name (available_paths()), or "auto": the best one that this machine has
};

// An unknown name gives invalid_argument, with a list of the known ones. An instruction set that this machine lacks gives
// unsupported.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);

}  // namespace orrery::cpu
