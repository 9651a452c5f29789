// The CUDA backend: backend.h's operations on one NVIDIA GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"

namespace orrery::cuda {

struct Options {
  int32_t device = 0;   // an index of devices()
  // Whose products prompts are computed with: what tuning.h says, our own kernels alone, or cuBLAS wherever it has one.
  enum class Products : uint8_t { tuned, own, cublas };
  Products products = Products::tuned;
};

struct DeviceDescription {
  std::string name;           // "NVIDIA GeForce RTX 4090"
  int32_t architecture = 0;   // 89: compute capability 8.9
  uint64_t memory_bytes = 0;
  std::string refused;        // why make_backend() refuses it; empty: it does not
};

// The GPUs of this machine, in the driver's order; none where there is no driver, or where this build has no CUDA.
std::vector<DeviceDescription> devices();

// A device that is not there -> unsupported, with the reason.
Result<std::unique_ptr<Backend>> make_backend(const Options& options);

// For measurements, of what make_backend() gave: kernels of the last decode step's graph, and whether prompts' products may go through
// cuBLAS.
size_t graph_nodes(const Backend& backend);
bool has_cublas(const Backend& backend);

}  // namespace orrery::cuda
