// The state of a block that runs, and of its warps: what the instructions' functions read and write.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/ptx/executor/execute.h"

namespace orrery::ptx {

class Block;

// Ends a launch; becomes a Fault.
struct Failure {
  unsigned lane;  // kLanes: the warp
  std::string what;
};

// Lanes of a warp that are at the same instruction.
struct Group {
  uint32_t lanes, at;
  bool waits;  // for other lanes of the warp
};

// A copy of cp.async that has not been delivered.
struct Copy {
  uint8_t lane;
  uint8_t bytes;   // that are read; zeros follow, up to 16
  uint32_t group;  // of the lane
  uint32_t to;
  uint64_t from;
};

class Warp {
 public:
  // The 32 lanes of the register, or of the constant, that an operand names.
  template <class T>
  T* lanes(int32_t operand) const {
    return reinterpret_cast<T*>(operand >= 0 ? registers + operand : constants + ~operand);
  }
  uint32_t predicate(int32_t operand) const {
    return operand >= 0 ? predicates[static_cast<size_t>(operand)] : operand == kTrue ? kAll : 0u;
  }
  void set_predicate(int32_t operand, uint32_t bits, uint32_t mask) {
    uint32_t& p = predicates[static_cast<size_t>(operand)];
    p = (p & ~mask) | (bits & mask);
  }

  [[noreturn]] void fail(unsigned lane, std::string what) const { throw Failure{lane, std::move(what)}; }
  // Reports a fault and goes on.
  void report(const Instruction& instruction, unsigned lane, const std::string& what) const;

  // Memory (access.cpp). Each checks a warp's access of `bytes` bytes a lane and gives, for each lane of `mask`, where its bytes lie.
  struct Access {
    bool write = false, atomic = false, every_lane = false, read_only = false;
    bool asynchronous = false;  // cp.async: the bytes are under way from here on
    bool delivers = false;      // cp.async: they arrive
    bool copies = false;        // of a source that need not be written: what is not, is not written in the copy either
    uint32_t used_bytes = ~0u;
    const uint32_t* read_bytes = nullptr;  // cp.async: how many of the bytes each lane reads
  };
  void access(const Instruction& instruction, Space space, uint32_t mask, const uint64_t* address, unsigned bytes, Access how,
              std::byte** at);
  // Delivers the lanes' copies of groups before the last `under_way`; all: also of the group that is open.
  void deliver(const Instruction& instruction, uint32_t mask, uint32_t under_way, bool all);

  Block* block = nullptr;
  std::byte* registers = nullptr;
  std::byte* constants = nullptr;
  std::vector<uint32_t> predicates;
  std::vector<std::byte> local;  // local_bytes for each lane
  std::vector<uint8_t> local_written;
  uint32_t carry = 0;  // condition code, by lane
  uint32_t whole = 0;  // lanes that the block has
  uint32_t live = 0;   // of these, lanes that have not ended
  unsigned index = 0;
  uint16_t clock = 0;
  std::vector<Group> groups;  // ascending by `at`
  std::vector<Copy> copies;
  uint32_t open_group[kLanes] = {};  // of each lane: the number of the group that cp.async joins
  Region* recent = nullptr;          // where the last access to global memory was
  enum class State : uint8_t { running, at_barrier, ended } state = State::running;

 private:
  void access_shared(const Instruction& instruction, uint32_t mask, const uint64_t* address, unsigned bytes, const Access& how,
                     std::byte** at);
  void access_global(const Instruction& instruction, uint32_t mask, const uint64_t* address, unsigned bytes, const Access& how,
                     std::byte** at);
};

class Block {
 public:
  Block(Executor* executor, const Kernel& kernel, const Launch& launch, Counters* counters);
  void run(Dim3 index);
  Moment now(const Warp& warp) const { return {executor.epoch_, began, launch_began, warp.clock, static_cast<uint8_t>(warp.index)}; }
  const Settings& settings() const { return executor.settings_; }
  // Whether the launch has not yet reported a race of this instruction: one for each says enough.
  bool is_new_race(const Instruction& instruction) {
    bool& known = races_known_[static_cast<size_t>(&instruction - kernel.code.data())];
    return !std::exchange(known, true);
  }

  Executor& executor;
  const Kernel& kernel;
  const Launch& launch;
  Counters& counters;
  Dim3 index;
  std::vector<std::byte> shared;
  enum Shared : uint8_t { kUnwritten, kWritten, kUnderWay };
  std::vector<uint8_t> shared_state;  // a Shared for each byte
  std::vector<Cell> shared_cells;     // one for each piece of Kernel::granule bytes
  uint32_t began = 0, launch_began = 0;

 private:
  void run_warp(Warp* warp);
  static void place(Warp* warp, Group lanes);
  static uint32_t needed_lanes(const Warp& warp, const Instruction& instruction, uint32_t lanes);
  std::unique_ptr<bool[]> races_known_;  // by instruction
  std::vector<Warp> warps_;
  std::vector<std::byte> registers_;
  std::byte* aligned_registers_ = nullptr;
  std::vector<unsigned> order_;
};

}  // namespace orrery::ptx
