// What a kernel's launches did, in numbers that do not depend on a card's clock.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/ptx/executor/program.h"

namespace orrery::ptx {

class Path;

struct Counters {
  uint64_t launches = 0, blocks = 0, barriers = 0;
  uint64_t instructions[static_cast<int>(Class::kCount)] = {};  // of warps, by class
  uint64_t read_bytes = 0, written_bytes = 0;                   // that lanes asked of global memory
  uint64_t read_sectors = 0, written_sectors = 0;               // of 32 bytes, that a warp's accesses touched
  // Accesses of a warp to shared memory; passes over the banks, of at most 128 bytes each; those of them beyond the fewest that the bytes
  // take.
  uint64_t shared_requests = 0, shared_passes = 0, bank_conflicts = 0;
  uint64_t products = 0;    // multiplications of mma
  uint64_t link_bytes = 0;  // bytes of the sectors in host memory
  bool notes_sectors = false;
  std::vector<uint64_t> sectors;   // the numbers of the sectors that were touched, in any order, if notes_sectors
  std::vector<uint64_t> executed;  // by instruction of the kernel, if the caller has given it that size
  Path* path = nullptr;            // of one block; may be null

  uint64_t all_instructions() const {
    uint64_t n = 0;
    for (const uint64_t x : instructions) n += x;
    return n;
  }
};

}  // namespace orrery::ptx
