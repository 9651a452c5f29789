// The CUDA backend: backend.h's operations on one NVIDIA GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend.h"
#include "runtime/base/status.h"

namespace orrery::cuda {

struct Options {
  int32_t device = 0;   // by the driver's numbering
};

struct DeviceDescription {
  std::string name;           // "NVIDIA GeForce RTX 4090"
  int32_t architecture = 0;   // 89: compute capability 8.9
  uint64_t memory_bytes = 0;
};

// The GPUs of this machine that the kernels run on; none where there is no driver, or where this build has no CUDA.
std::vector<DeviceDescription> devices();

// A device that is not there -> unsupported, with the reason.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);

}  // namespace orrery::cuda
