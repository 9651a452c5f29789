// What a GPU gives: kernels that do nothing but read or write, or nothing at all. Beside them stands what the backend's reach
// (bench_gpu.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/archive.h"
#include "cuda/device/queue.h"

namespace orrery::cuda {
Span<const Image> gpu_limits();  // the kernels of this file, compiled
}

namespace orrery::bench {

// Reads `bytes` (a multiple of 16) once, 16 at a time, neighbours by neighbours; sums: room for n_processors * 2048 words.
void read_memory(cuda::Queue& queue, int32_t n_processors, const std::byte* from, uint64_t bytes, uint32_t* sums);
// Reads n_pieces pieces of `piece` bytes (a multiple of 8) at random places of `bytes` bytes at `from`, which may be registered host
// memory. A place is a multiple of `piece`; there are at most 2^32. sums: as read_memory().
void gather(cuda::Queue& queue, int32_t n_processors, const std::byte* from, uint64_t bytes, uint32_t piece, uint32_t n_pieces,
            uint32_t* sums);
// Writes them: `piece` is a multiple of 16.
void scatter(cuda::Queue& queue, int32_t n_processors, std::byte* to, uint64_t bytes, uint32_t piece, uint32_t n_pieces);
// A kernel of one block that does nothing.
// Warps of each processor multiply n times 8 tiles by mma.sync: bytes into whole numbers, or halves into floats. Returns the products of
// two numbers. sums: room for n_processors * 512 words.
uint64_t multiply(cuda::Queue& queue, int32_t n_processors, bool whole, int32_t n, uint32_t* sums);
void nothing(cuda::Queue& queue);

}  // namespace orrery::bench
