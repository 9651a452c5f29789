// The CPU backend: the operations of runtime/backend on host memory, on a thread pool, with kernels chosen at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/backend/backend.h"
#include "runtime/base/priority.h"
#include "runtime/base/status.h"
#include "runtime/os/processors.h"
#include "runtime/cpu/paths/paths.h"

namespace orrery::cpu {

// Threads where nobody says how many: one for each processor, but from four processors on one less, so that the programs that a
// person looks at meanwhile find one free.
constexpr int32_t default_threads(int32_t n_cores) { return n_cores >= 4 ? n_cores - 1 : n_cores; }
// Where a container's quota is less than the cores, all that it grants.
inline int32_t default_threads(const os::Processors& p) { return p.quota < p.cores ? p.usable() : default_threads(p.cores); }

struct Options {
  int32_t n_threads = 0;                 // 0: default_threads()
  std::string path = "auto";             // an instruction set by name (available_paths()), or "auto": the best one that this machine has
  Priority priority = Priority::normal;  // of the backend's own threads
  bool trace = false;                    // measure where the time of decode steps goes (Backend::take_trace())
};

// An unknown name gives invalid_argument, with a list of the known ones. An instruction set that this machine lacks gives
// unsupported.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);

}  // namespace orrery::cpu
