// What a device refuses to launch: grids, blocks and shared memory beyond its limits. The limits are the least of the GPUs that the library
// is made for (compute capability 8.0 to 12.0), by the CUDA programming guide's table of technical specifications.
#include <cstdio>
#include <mutex>

#include "tests/emulation/cuda/device.h"

namespace orrery::emulated {

namespace {

constexpr unsigned kMostGridX = 2147483647u, kMostGridYZ = 65535, kMostThreads = 1024, kMostBlockZ = 64;
constexpr size_t kShared = 48u << 10, kSharedOnRequest = 99u << 10;  // of a block; the second for sm_86, sm_89 and sm_120

std::mutex mutex;  // guards what kernels were allowed

DriverError refuse(const char* what, size_t value, size_t most) {
  std::fprintf(stderr, "emulated device: %s: %zu, of at most %zu\n", what, value, most);
  return DriverError::invalid_value;
}

}  // namespace

DriverError check_launch(const CUfunc_st& kernel, dim3 grid, dim3 block, size_t dynamic_shared_bytes) {
  if (grid.x > kMostGridX || grid.x == 0) return refuse("grid.x", grid.x, kMostGridX);
  if (grid.y > kMostGridYZ || grid.y == 0) return refuse("grid.y", grid.y, kMostGridYZ);
  if (grid.z > kMostGridYZ || grid.z == 0) return refuse("grid.z", grid.z, kMostGridYZ);
  if (block.z > kMostBlockZ) return refuse("block.z", block.z, kMostBlockZ);
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads > kMostThreads || threads == 0) return refuse("threads of a block", threads, kMostThreads);
  const size_t fixed = device ? device->shared_bytes(kernel.name) : 0;
  const std::lock_guard<std::mutex> lock(mutex);
  const size_t most = kernel.dynamic_shared_bytes < 0 ? kShared - fixed : static_cast<size_t>(kernel.dynamic_shared_bytes);
  if (dynamic_shared_bytes > most) return refuse("dynamic shared memory of a block", dynamic_shared_bytes, most);
  if (dynamic_shared_bytes + fixed > kSharedOnRequest)
    return refuse("shared memory of a block", dynamic_shared_bytes + fixed, kSharedOnRequest);
  return DriverError::none;
}

DriverError allow_shared(CUfunc_st* kernel, int bytes) {
  const size_t fixed = device ? device->shared_bytes(kernel->name) : 0;
  if (bytes < 0 || static_cast<size_t>(bytes) + fixed > kSharedOnRequest) {
    refuse("shared memory that a kernel asks for", static_cast<size_t>(bytes) + fixed, kSharedOnRequest);
    return DriverError::invalid_value;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  kernel->dynamic_shared_bytes = bytes;
  return DriverError::none;
}

}  // namespace orrery::emulated
