// The emulated device's memory, and who may touch it.
//
//   memory                                                     the host   a kernel   a copy
//   of the device                                              no         yes        yes
//   pinned                                                     yes        yes        yes
//   registered, at the host's address                          yes        yes (1)    yes
//   registered, at the device's address, where that differs    no         yes        yes
//
// (1) not with registered_elsewhere.
//
// Kernels and copies run in this process, with the host's pointers. So a thread says when it works for the device (AsDevice). Memory is
// hidden from everybody else in one of two ways. Protection keys of the processor hide it from each thread by itself (x86-64 with `pku`).
// Elsewhere windows do: the pages are inaccessible unless some thread works for the device. Windows let a second thread of the host through
// while they are open, and they do not hide registered memory from kernels.
//
// Pages behind an allocation are inaccessible to all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device/driver.h"

namespace orrery::emulated {

using cuda::DriverError;
inline constexpr int kMostDevices = 4;

// The calling thread works for the device while this lives.
class AsDevice {
 public:
  enum class Work { kernel, copy };
  explicit AsDevice(Work work);
  AsDevice(const AsDevice&) = delete;
  AsDevice& operator=(const AsDevice&) = delete;
  ~AsDevice();

 private:
  int device_before_ = 0, registered_before_ = 0;  // the thread's rights
};
bool hides_by_keys();

// Takes memory that is all ones, at least up to 1 MiB. pinned: it is the host's, too. OUT_OF_MEMORY by the limits of device.h.
DriverError take(void** at, size_t bytes, bool pinned);
DriverError give_back(void* at);
// Shares the host's memory with the device. `there`: the device's address of the first byte.
DriverError register_memory(void* at, size_t bytes);
DriverError unregister_memory(void* at);
DriverError device_address_of(const void* host, uint64_t* there);  // of pinned or registered memory
// Whether the address lies in an allocation of this kind.
bool lies_in(const void* at, bool pinned);
// The address that reports to the Device (device.h) have: the device's.
const void* reported(const void* at);
// All bytes of the allocations, whoever may touch them.
size_t n_allocations();

// What a test may set, and what the driver has counted.
extern size_t pinned_most;  // bytes of pinned and registered memory: more is refused. Any number, unless a test changes it
// As on WSL2 and under WDDM: the device does not reach registered memory at the host's address, but at another one
// (cuMemHostGetDevicePointer). For memory that is registered from now on.
extern bool registered_elsewhere;
// Device memory in use, of at most memory_bytes: by cuMemAlloc, and what the driver takes for itself, as estimated below. The library plans
// the first alone.
struct DeviceBytes {
  size_t allocated = 0, contexts = 0, modules = 0, graphs = 0, libraries = 0;
  size_t outside() const { return contexts + modules + graphs + libraries; }
  size_t total() const { return allocated + outside(); }
};
extern size_t context_bytes, module_bytes;  // 192 MiB, 2 MiB: of each
extern size_t graph_bytes, node_bytes;      // 64 KiB, and 512 bytes for each node: of a graph that has been instantiated
extern size_t cublas_bytes;                 // 32 MiB: of a handle
DeviceBytes device_bytes(int device = 0);
size_t most_outside(bool anew = false);       // the most that outside() has been, on any device; `anew`: counts from now on
size_t pinned_bytes();                        // pinned or registered
int n_modules_with(cuda::Function function);  // that are loaded and have been asked for it
extern thread_local const char* asking;       // within `fault`: the function that was called
// Seeds of schedules for a test that runs under several: ORRERY_SCHEDULES of them (4 by default), from ORRERY_SCHEDULE_SEED (1) on, and
// kLatest.
std::vector<uint64_t> schedules();

// Device memory that the driver takes for itself: part of a device's memory_bytes until it is given back. False: so much is not free.
enum class Taker { context, module, graph, library };
bool charge(int device, Taker taker, size_t bytes);
void discharge(int device, Taker taker, size_t bytes);

// For the driver's functions and cuBLAS's. The error of a call that a test lets fail; CAPTURE_UNSUPPORTED if a capture forbids the call.
DriverError faulty(const char* call);
DriverError refused_in_capture();

}  // namespace orrery::emulated
