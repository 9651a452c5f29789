// Runs a kernel's launch: blocks one after another, a block's warps in turns from barrier to barrier, a warp's 32 lanes by one instruction.
#pragma once

#include <functional>
#include <string>

#include "tests/ptx/executor/counters.h"
#include "tests/ptx/executor/memory.h"
#include "tests/ptx/executor/program.h"

namespace orrery::ptx {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t product() const { return uint64_t{x} * y * z; }
};

struct Launch {
  Dim3 grid, block;
  uint32_t dynamic_shared_bytes = 0;
  std::vector<std::byte> parameters;  // laid out as Kernel::parameters says
};

// What is wrong with a kernel: one line with the kernel, the line of its text, block and thread.
struct Fault {
  std::string kernel, file, what;
  uint32_t line = 0;
  std::string message() const;
};

struct Settings {
  uint64_t seed = 0;  // the order of warps and blocks; 0: ascending
  bool races = true;
  bool approximate = true;  // ex2.approx and its like: off by what the manual allows, in a fixed way; false: rounded correctly
  std::function<void(const Fault&)> report;  // called for each fault
};

// What a store to global memory replaced.
struct Replaced {
  uint64_t at;
  uint8_t bytes;
  std::byte before[16];
};

class Executor {
 public:
  explicit Executor(Settings settings) : settings_(std::move(settings)) {}

  Memory& memory() { return memory_; }
  // Runs the launch. Reports races, one for each instruction, and goes on; any other fault ends the launch. True if the launch has run to
  // its end.
  bool run(const Kernel& kernel, const Launch& launch, Counters* counters);
  // Runs one block of the launch; otherwise as run(). The counters count no launch.
  bool run_block(const Kernel& kernel, const Launch& launch, Dim3 block, Counters* counters);
  const Settings& settings() const { return settings_; }
  // Where not null: every store to global memory is noted there, in order.
  std::vector<Replaced>* replaced = nullptr;

 private:
  friend class Block;
  Settings settings_;
  Memory memory_;
  uint32_t epoch_ = 0;
};

}  // namespace orrery::ptx
