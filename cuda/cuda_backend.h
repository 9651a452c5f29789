// The CUDA backend: the operations of runtime/backend/backend.h on one NVIDIA GPU. Other rooms include this header alone.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/backend/registry.h"
#include "runtime/base/status.h"

namespace orrery::cuda {

struct Options {
  int32_t device = 0;  // an index of devices()
  // The kernels that compute a prompt's products: as device/tuning.h chooses, our own alone, or cuBLAS for every weight type but F32.
  enum class Products : uint8_t { tuned, own, cublas };
  Products products = Products::tuned;
  bool early = true;  // kernels of a decode step may start before the kernels ahead of them end, where the GPU can (sm_90 and newer)
};

// The GPUs of this machine, in the driver's order.
DevicesFound devices();

// Without such a device: unsupported, with the reason.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);
// What a failure of make_backend() says of the device.
DeviceUse use_after(const Status& failure);

// For measurements. `backend` is a result of make_backend(). The number of kernels in the last decode step's graph, and whether cuBLAS may
// compute a prompt's products.
size_t graph_nodes(const Backend& backend);
bool has_cublas(const Backend& backend);
// How often threads that compute steps have waited for the device so far, and how long. Not while a step runs.
struct Waits {
  uint64_t n = 0, ns = 0;
};
Waits waits(const Backend& backend);

}  // namespace orrery::cuda
