// How long a block takes that has an SM to itself: the longest chain of its instructions, each of which begins when its operands are there.
//
// A warp's instructions between two branches begin in the order that suits them best, as a compiler would put them, and one a turn; beyond
// a branch none begins before all those in front of it have begun. A load in flight so delays who reads its value, and what comes behind
// the next branch. Warps meet at barriers. What the memory, the banks and other blocks add is no part of it: counts say that.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/ptx/executor/program.h"

namespace orrery::ptx {

// Cycles from an instruction's begin until its result can be used.
struct Latencies {
  uint32_t arithmetic = 4, convert = 14, exchange = 24, product = 33;
  uint32_t shared = 29, global = 273, link = 3000;  // of loads; global: from the second-level cache
  uint32_t branch = 8, barrier = 30;
};

class Path {
 public:
  explicit Path(const Kernel& kernel);
  void begin(const Latencies& latencies, unsigned n_warps);  // a block
  // Warp `warp` comes to instruction `at`. acts: some lane executes it; link: it reads host memory.
  void executed(unsigned warp, uint32_t at, bool acts, bool link);
  void meet();  // of all warps, at a barrier
  // The whole block: cycles, and how many loads from global memory follow one another on the way.
  struct Length {
    uint64_t cycles = 0, rounds = 0;
    bool operator<(const Length& o) const { return cycles < o.cycles; }
  };
  Length length() const;

 private:
  struct Stretch {               // of a warp: since its last branch
    Length begin, last;          // when it began; when the last of its instructions began
    uint64_t n = 0;              // instructions
    Length copies;               // when the last copy of cp.async of the open group is there
    std::vector<Length> groups;  // the same of the groups that no wait has seen
    std::vector<Length> ready;   // registers, then predicates
  };
  struct Use {  // of an instruction: registers in ready
    std::vector<uint32_t> reads, writes;
  };
  Length end(const Stretch& s) const;
  void part(Stretch* s, uint64_t cycles) const;

  const Kernel& kernel_;
  Latencies latencies_;
  uint64_t turn_ = 1;  // cycles between two instructions of a warp while the others have theirs
  std::vector<Use> uses_;
  std::vector<Stretch> warps_;
};

}  // namespace orrery::ptx
