// A grid of CUDA threads on one thread of the processor, block by block.
//
// Each thread of a block is a coroutine with a stack of its own. It runs until it waits at a barrier of its warp or its block; then the
// next thread runs. So a kernel with correct barriers gives the same results in any order of threads, and a kernel with a missing barrier
// does not: `reversed` runs the last thread first.
//
// A mistake of a kernel ends the program with a message that names block and thread: threads that wait for each other forever, a warp whose
// lanes are at different barriers, a block that is no multiple of a warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// The variables that every thread of the running block sees. __thread: constants initialize them, so whoever reads one calls no function.
extern __thread dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace orrery::emulated {

inline constexpr unsigned kWarp = 32;

std::byte* dynamic_shared();                // of the running block, 128-byte aligned

// Runs body(context) in every thread of every block of the grid.
void run_grid(dim3 grid, dim3 block, size_t dynamic_shared_bytes, void (*body)(void*), void* context);

void wait_for_block();                      // __syncthreads
// Waits for the whole warp. `value` (up to kMostExchanged bytes) becomes visible to the other lanes. exchange() returns the address of lane
// 0's value; the other lanes' values follow, kMostExchanged bytes apart. They stay valid until the warp's next call but one.
inline constexpr size_t kMostExchanged = 64;
extern __thread std::byte* next_exchange;   // where the running thread's value goes
const std::byte* exchange_values();
template <size_t kBytes>
inline __attribute__((always_inline)) const std::byte* exchange(const void* value) {
  static_assert(kBytes <= kMostExchanged, "");
  if (kBytes) std::memcpy(next_exchange, value, kBytes);
  return exchange_values();
}
extern __thread unsigned running_thread;    // its number in the block
inline unsigned lane() { return running_thread % kWarp; }

// The number of graphs that have been made so far, in the whole process.
size_t graphs_made();

// The order in which the threads of a block run.
void set_reversed(bool reversed);

}  // namespace orrery::emulated
