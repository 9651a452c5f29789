// The emulated device, for tests: its properties, its faults, the order of its work, and what it has counted. driver.cpp offers it through
// the driver's table (cuda/device/driver.h), so that the library's host code runs as it ships.
//
// Device memory is host memory. An inaccessible page follows each allocation. New memory is all ones (as floats: NaN). Streams run work at
// once. A stream that captures keeps launches and copies for the graph.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/driver.h"
#include "tests/emulation/cuda/threads.h"

// A kernel: a function of this program (emulated_kernels.h).
struct CUfunc_st {
  std::string name;                          // orrery::cuda::readable_name()
  const char* tag = nullptr;                 // orrery::cuda::kernel_name()
  std::vector<size_t> sizes;                 // of its parameters, in bytes
  void (*body)(void* parameters) = nullptr;  // one thread; void**: the parameters' addresses
  int dynamic_shared_bytes = -1;             // that it was allowed; -1: it has not asked
  std::atomic<uint64_t> n_launches{0};
};

namespace orrery::emulated {

using cuda::DriverError;

// Launches in a stream: as a node of the graph that the stream captures, or by the schedule.
void enqueue(cuda::Stream stream, std::function<void()> work);
// 0: streams run work at once. kLatest: work runs when an event or a wait needs it. Else the seed of a schedule that runs some work sooner
// and some later, as events and waits allow. A missing wait then changes results.
inline constexpr uint64_t kLatest = UINT64_MAX;
void set_schedule(uint64_t seed);
extern std::function<DriverError()> fault;    // called before every call that can fail, and gives its error
extern std::atomic<const char*> failed_call;  // the function that last got an error from it
inline constexpr int kDriverVersion = 13000;  // as new as any toolkit that makes archives for tests
extern int driver_version;                    // 0: the machine has no driver
extern const char* missing_function;          // a symbol that the driver lacks; null: none
extern size_t most_graph_nodes;               // of all graphs; a graph beyond them has no memory
extern int architecture;                      // 86 unless a test changes it
extern int n_devices;                         // 1 unless a test changes it
extern int n_sms;                             // 4
extern size_t cache_bytes, memory_bytes;      // 4 MiB of second-level cache, 8 GiB
// The number of contexts, modules, memory blocks, streams, events and graphs that the process has not released.
size_t n_live();
bool capturing();      // whether any stream captures
int current_device();  // of the calling thread; -1: it has no context
// Bytes that the process has copied so far: from device memory to pinned memory; and from any other memory to device memory.
uint64_t bytes_to_host();
uint64_t bytes_to_device();
// The number of waits for a stream or an event, so far, in the whole process.
uint64_t n_waits();
extern std::atomic<uint64_t> n_launches;          // kernels that were launched so far, by any thread
extern std::atomic<uint64_t> n_early_launches;    // of these, the ones that may start early
uint64_t launches_of(const std::string& kernel);  // "rebuild_keys_kernel"

// Kernels by name. add_kernel() is called before main(), for every kernel that a file of kernels launches.
bool add_kernel(const char* tag, std::vector<size_t> sizes, void (*body)(void* parameters));
cuda::Function find_kernel(const std::string& readable_name);  // null: no such kernel
const std::vector<cuda::Function>& kernels();

// What runs the kernels in place of this program's own functions (tests/ptx), and sees all that happens to memory. Any thread calls these
// functions.
class Device {
 public:
  virtual ~Device() = default;
  // An image of the archive. False: it is none.
  virtual bool load(const void* image) = 0;
  virtual bool has(const std::string& readable_name) = 0;
  // The static shared memory of the kernel.
  virtual size_t shared_bytes(const std::string& readable_name) = 0;
  // parameters: their addresses. `as_source` runs the launch as this program's own function.
  virtual void run(const CUfunc_st& kernel, dim3 grid, dim3 block, size_t dynamic_shared_bytes, void* const* parameters,
                   const std::function<void()>& as_source) = 0;
  virtual bool touches_memory() const { return true; }  // run() does: if not, memory stays hidden meanwhile
  // host: the host may write the memory unseen.
  virtual void allocated(const void* at, size_t bytes, bool host) = 0;
  virtual void released(const void* at) = 0;
  virtual void copied(void* to, const void* from, size_t bytes) = 0;
  virtual void written(const void* at, size_t bytes) = 0;
};
extern Device* device;  // null: none
// Whether the device could launch this, and may allow a kernel this much dynamic shared memory (limits.cpp).
DriverError check_launch(const CUfunc_st& kernel, dim3 grid, dim3 block, size_t dynamic_shared_bytes);
DriverError allow_shared(CUfunc_st* kernel, int bytes);
// Memory of the device, outside of a backend.
void* allocate(size_t bytes);
void release(void* at);
// The driver's function of this name; null: it has none.
void* driver_function(const std::string& name);

}  // namespace orrery::emulated
