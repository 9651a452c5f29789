// The backends of this build. The list is filled above the runtime (capi/backends): nothing below knows which backends there are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/priority.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery {

struct BackendOptions {
  int32_t device = 0;                    // an index of the backend's devices
  int32_t n_threads = 0;                 // of a backend that computes on the host; 0: its default
  Priority priority = Priority::normal;  // of these threads
  std::string instruction_set = "auto";  // of such a backend
  bool trace = false;                    // measure where the time of decode steps goes (Backend::take_trace())
};

// A device of this machine that a backend could use.
struct DeviceDescription {
  std::string name;          // "NVIDIA GeForce RTX 4090"
  int32_t architecture = 0;  // 89: compute capability 8.9
  uint64_t memory_bytes = 0;
  std::string refused;  // why no backend is made for it; empty: one is
};

// Why no device computes, or that one does. The numbers are those of the public ABI.
enum class DeviceUse : uint32_t {
  used = 0,
  not_wanted = 1,      // the options name the processor
  not_built = 2,       // the library is built without such a backend
  no_driver = 3,       // the machine has none
  driver_too_old = 4,  // the driver lacks a function, or does not know the kernels' version
  none = 5,            // the driver knows no device
  refused = 6,         // no backend is made for the devices that there are
};

// The devices of a backend in the driver's order. Without any: why, in a sentence.
struct DevicesFound {
  std::vector<DeviceDescription> devices;
  DeviceUse use = DeviceUse::used;
  std::string why;
};

struct BackendEntry {
  const char* name;           // "cuda"
  DevicesFound (*devices)();  // null: the backend computes on the host, and always serves
  // Without such a device, or with an instruction set that this machine lacks: unsupported, with the reason. *use is then set.
  Result<std::unique_ptr<Backend>> (*make)(const BackendOptions& options, DeviceUse* use);
};

// Whoever leaves the choice open gets the first one that serves. The last one computes on the host.
Span<const BackendEntry> backends();

}  // namespace orrery
