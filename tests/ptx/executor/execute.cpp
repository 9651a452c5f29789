// See execute.h. Of the lanes of a warp those with the lowest instruction run, until they meet others, end, or wait. So lanes that a branch
// has parted meet where their ways meet. An instruction of the whole warp waits for all lanes; if nothing can run, the kernel is wrong.
#include "tests/ptx/executor/execute.h"

#include <algorithm>
#include <numeric>

#include "tests/ptx/executor/machine.h"
#include "tests/ptx/executor/path.h"

namespace orrery::ptx {

std::string Fault::message() const { return kernel + ": " + file + ":" + std::to_string(line) + ": " + what; }

Block::Block(Executor* executor_, const Kernel& kernel_, const Launch& launch_, Counters* counters_)
    : executor(*executor_), kernel(kernel_), launch(launch_), counters(*counters_) {
  const unsigned threads = static_cast<unsigned>(launch.block.product()), n_warps = (threads + kLanes - 1) / kLanes;
  shared.resize(kernel.dynamic_shared_at + launch.dynamic_shared_bytes);
  shared_state.resize(shared.size());
  shared_cells.resize(shared.size() / kernel.granule + 4);
  registers_.assign(size_t{kernel.register_bytes} * n_warps + 64, std::byte{0xFF});  // NaN until something is written, as shared memory
  aligned_registers_ = registers_.data() + (64 - reinterpret_cast<uintptr_t>(registers_.data()) % 64) % 64;
  races_known_ = std::make_unique<bool[]>(kernel.code.size());
  warps_.resize(n_warps);
  order_.resize(n_warps);
  std::iota(order_.begin(), order_.end(), 0u);
  for (unsigned i = 0; i < n_warps; ++i) {
    Warp& w = warps_[i];
    w.block = this;
    w.index = i;
    w.registers = aligned_registers_ + size_t{kernel.register_bytes} * i;
    w.constants = const_cast<std::byte*>(kernel.constants.data());
    w.predicates.resize(kernel.n_predicates + 1);
    w.local.resize(size_t{kernel.local_bytes} * kLanes);
    w.local_written.resize(w.local.size());
  }
  launch_began = began = executor.epoch_ + 1;
}

void Block::run(Dim3 block_index) {
  index = block_index;
  began = ++executor.epoch_;
  ++counters.blocks;
  std::memset(shared.data(), 0xFF, shared.size());
  std::fill(shared_state.begin(), shared_state.end(), static_cast<uint8_t>(kUnwritten));
  const unsigned threads = static_cast<unsigned>(launch.block.product());
  for (Warp& w : warps_) {
    const unsigned lanes = std::min(kLanes, threads - w.index * kLanes);
    w.whole = w.live = lanes == kLanes ? kAll : (1u << lanes) - 1;
    w.groups.assign(1, {w.live, 0, false});
    w.copies.clear();
    std::fill(std::begin(w.open_group), std::end(w.open_group), 0u);
    std::fill(w.local_written.begin(), w.local_written.end(), uint8_t{0});
    w.clock = 0;
    w.recent = nullptr;
    w.state = Warp::State::running;
  }
  for (unsigned n_ended = 0; n_ended < warps_.size();) {
    if (settings().seed) {
      uint64_t random = settings().seed + executor.epoch_ * 0x9E3779B97F4A7C15u;
      for (size_t i = order_.size(); i > 1; --i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        std::swap(order_[i - 1], order_[(random >> 33) % i]);
      }
    }
    for (const unsigned i : order_)
      if (warps_[i].state == Warp::State::running) run_warp(&warps_[i]);
    // Every warp has ended or waits at the barrier. Threads that have ended do not take part in barriers.
    n_ended = 0;
    bool waits = false;
    for (Warp& w : warps_) {
      if (w.state == Warp::State::ended) ++n_ended;
      else w.state = Warp::State::running, waits = true;
    }
    if (waits) {
      ++executor.epoch_, ++counters.barriers;
      if (counters.path) counters.path->meet();
    }
  }
}

// Lanes that go on at `at`, with those that are there.
void Block::place(Warp* w, Group lanes) {
  if (lanes.lanes == 0) return;
  const auto at = std::find_if(w->groups.begin(), w->groups.end(), [&](const Group& g) { return g.at >= lanes.at; });
  if (at == w->groups.end() || at->at != lanes.at) w->groups.insert(at, lanes);
  else at->lanes |= lanes.lanes, at->waits = false;
}

// The lanes that instruction `i` waits for.
uint32_t Block::needed_lanes(const Warp& w, const Instruction& i, uint32_t lanes) {
  if (i.flow != Flow::lanes_named) {
    // .aligned: the manual asks that all threads of the warp execute the instruction.
    if (w.live != w.whole)
      w.fail(static_cast<unsigned>(__builtin_ctz(lanes)), "executes an instruction of the whole warp, of which lanes have ended");
    return w.whole;
  }
  const uint32_t* masks = w.lanes<const uint32_t>(i.operand[i.mask_at]);
  const uint32_t named = masks[__builtin_ctz(lanes)];
  for (; lanes; lanes &= lanes - 1) {
    const unsigned l = static_cast<unsigned>(__builtin_ctz(lanes));
    if (masks[l] != named) w.fail(l, "names other lanes than another lane of the warp does");
    if (!(named >> l & 1)) w.fail(l, "executes an instruction whose mask does not name it");
  }
  if (named & ~w.live) w.fail(static_cast<unsigned>(__builtin_ctz(named & ~w.live)), "is named by a mask, and has ended");
  return named;
}

void Block::run_warp(Warp* warp) {
  Warp& w = *warp;
  const Instruction* code = kernel.code.data();
  uint64_t counted[static_cast<int>(Class::kCount)] = {};
  uint64_t* const executed = counters.executed.empty() ? nullptr : counters.executed.data();
  Path* const path = counters.path;
  const auto settle = [&] {
    for (int c = 0; c < static_cast<int>(Class::kCount); ++c) counters.instructions[c] += counted[c];
  };
  uint32_t at = 0;
  try {
    while (!w.groups.empty()) {
      const auto runs = std::find_if(w.groups.begin(), w.groups.end(), [](const Group& g) { return !g.waits; });
      if (runs == w.groups.end()) {
        at = w.groups[0].at;
        w.fail(static_cast<unsigned>(__builtin_ctz(w.groups[0].lanes)),
               code[at].flow == Flow::barrier ? "waits at a barrier of the block that other lanes of the warp do not reach"
                                              : "waits for lanes of the warp that never come here");
      }
      const uint32_t all = runs->lanes;
      at = runs->at;
      const auto next = w.groups.erase(runs);
      const uint32_t meets = next != w.groups.end() ? next->at : ~0u;
      for (bool parted = false; !parted;) {
        const Instruction& i = code[at];
        uint32_t m = all;
        if (i.guard >= 0) m &= i.guard_negated ? ~w.predicate(i.guard) : w.predicate(i.guard);
        ++counted[static_cast<int>(i.counted)];
        if (executed) ++executed[at];
        if (path && i.flow != Flow::plain) path->executed(w.index, at, m != 0, false);
        if (m == 0) {
          if (path && i.flow == Flow::plain) path->executed(w.index, at, false, false);  // no lane executes the instruction
        } else if (i.flow == Flow::plain) {
          const uint64_t link = counters.link_bytes;
          i.execute(w, i, m);
          if (path) path->executed(w.index, at, true, counters.link_bytes != link);
        } else if (i.flow == Flow::branch) {
          place(&w, {m, i.target, false});
          place(&w, {all & ~m, at + 1, false});
          parted = true;
        } else if (i.flow == Flow::exit) {
          for (const Copy& c : w.copies)
            if (m >> c.lane & 1) w.fail(c.lane, "ends with a copy of cp.async under way");
          w.live &= ~m;
          for (Group& other : w.groups) other.waits = false;  // perhaps for lanes that have ended
          place(&w, {all & ~m, at + 1, false});
          parted = true;
        } else if (needed_lanes(w, i, m) & ~m) {
          place(&w, {all & ~m, at + 1, false});
          place(&w, {m, at, true});
          parted = true;
        } else if (i.flow == Flow::barrier) {
          place(&w, {all, at + 1, false});
          w.state = Warp::State::at_barrier;
          return settle();
        } else {
          i.execute(w, i, m);
        }
        if (!parted && ++at >= meets) {
          place(&w, {all, at, false});
          parted = true;
        }
      }
    }
  } catch (const Failure& failure) {
    settle();
    w.report(code[at], failure.lane, failure.what);
    throw;
  }
  settle();
  w.state = Warp::State::ended;
}

bool Executor::run(const Kernel& kernel, const Launch& launch, Counters* counters) {
  Counters unused;
  Block block(this, kernel, launch, counters ? counters : &unused);
  ++block.counters.launches;
  const Dim3 n = launch.grid;
  const uint64_t n_blocks = n.product();
  try {
    for (uint64_t k = 0; k < n_blocks; ++k) {
      const uint64_t i = settings_.seed & 1 ? n_blocks - 1 - k : k;
      block.run({static_cast<uint32_t>(i % n.x), static_cast<uint32_t>(i / n.x % n.y), static_cast<uint32_t>(i / n.x / n.y)});
    }
  } catch (const Failure&) {
    return false;
  }
  return true;
}

bool Executor::run_block(const Kernel& kernel, const Launch& launch, Dim3 index, Counters* counters) {
  Block block(this, kernel, launch, counters);
  try {
    block.run(index);
  } catch (const Failure&) {
    return false;
  }
  return true;
}

}  // namespace orrery::ptx
