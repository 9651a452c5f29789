// The CPU backend: backend.h's operations on host memory, by a thread pool, with kernels chosen at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/backend/backend.h"
#include "runtime/base/priority.h"
#include "runtime/base/status.h"
#include "runtime/cpu/paths/paths.h"

namespace orrery::cpu {

// Threads where nobody says how many: one for each processor, but from four processors on one less, so that the programs that a
// person looks at meanwhile find one free.
constexpr int32_t default_threads(int32_t n_processors) { return n_processors >= 4 ? n_processors - 1 : n_processors; }

struct Options {
  int32_t n_threads = 0;        // 0: default_threads()
  Priority priority = Priority::normal;
  std::string path = "auto";    // instruction path by name (see available_paths), or "auto": the best this machine has
};

// Unknown path -> invalid_argument that lists the known ones; one this machine lacks -> unsupported.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);

}  // namespace orrery::cpu
