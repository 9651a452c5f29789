// The list of backends (runtime/backend/registry.h). Another backend is one entry here.
#include <iterator>
#include <utility>
#include <vector>

#include "cuda/cuda_backend.h"
#include "runtime/backend/registry.h"
#include "runtime/cpu/cpu_backend.h"

namespace orrery {
namespace {

std::vector<DeviceDescription> cuda_devices() {
  std::vector<DeviceDescription> found;
  for (cuda::DeviceDescription& gpu : cuda::devices())
    found.push_back({std::move(gpu.name), gpu.architecture, gpu.memory_bytes, std::move(gpu.refused)});
  return found;
}

Result<std::unique_ptr<Backend>> make_cuda(const BackendOptions& options) {
  cuda::Options gpu;
  gpu.device = options.device;
  return cuda::make_backend(gpu);
}

Result<std::unique_ptr<Backend>> make_cpu(const BackendOptions& options) {
  cpu::Options host;
  host.n_threads = options.n_threads;
  host.priority = options.priority;
  host.path = options.instruction_set;
  host.trace = options.trace;
  return cpu::make_backend(host);
}

constexpr BackendEntry kBackends[] = {{"cuda", cuda_devices, make_cuda}, {"cpu", nullptr, make_cpu}};

}  // namespace

Span<const BackendEntry> backends() { return {kBackends, std::size(kBackends)}; }

}  // namespace orrery
