// A grid of CUDA threads on one thread of the processor, block by block.
//
// Each thread of a block is a coroutine with a stack of its own. It runs until it has to wait for others, at a barrier of
// its warp or its block; then the next one runs. Nothing else switches, so a program whose barriers are right gives the same
// results in whatever order the threads run, and one that forgot a barrier gives others: `reversed` lets the last thread
// run first. What cannot happen on a device without being a mistake ends the program with a message that names the
// kernel's block and thread: threads that wait for each other forever, a warp whose lanes are at different barriers, a block
// that is no multiple of a warp.
#pragma once

#include <cstddef>
#include <cstdint>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// What every thread of the running block sees.
extern thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace orrery::emulated {

inline constexpr unsigned kWarp = 32;

std::byte* dynamic_shared();                // of the running block, 128-byte aligned

// Runs body(context) in every thread of every block of the grid.
void run_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, void (*body)(void*), void* context);

void wait_for_block();                      // __syncthreads
// Waits for the whole warp. `value` (up to kMostExchanged bytes) becomes visible to the other lanes: exchange() returns
// where lane 0's lies, the others' behind it, stride kMostExchanged, until the warp's next call but one.
inline constexpr size_t kMostExchanged = 64;
const std::byte* exchange(const void* value, size_t bytes);
unsigned lane();

// Graphs that have been made so far, by the whole process.
size_t graphs_made();

// In what order the threads of a block run.
void set_reversed(bool reversed);

}  // namespace orrery::emulated
