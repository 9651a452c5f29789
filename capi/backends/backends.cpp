// The list of backends (runtime/backend/registry.h). Another backend is one entry here.
#include <algorithm>
#include <iterator>

#include "cuda/cuda_backend.h"
#include "runtime/backend/registry.h"
#include "runtime/cpu/cpu_backend.h"

namespace orrery {
namespace {

Result<std::unique_ptr<Backend>> make_cuda(const BackendOptions& options, DeviceUse* use) {
  cuda::Options gpu;
  gpu.device = options.device;
  auto made = cuda::make_backend(gpu);
  if (made.ok()) return made;
  Status failure = made.take_status();
  *use = cuda::use_after(failure);
  failure.detail().native_code = std::max<int64_t>(failure.detail().native_code, 0);  // the others are our own numbers
  return failure;
}

Result<std::unique_ptr<Backend>> make_cpu(const BackendOptions& options, DeviceUse*) {
  cpu::Options host;
  host.n_threads = options.n_threads;
  host.priority = options.priority;
  host.path = options.instruction_set;
  host.trace = options.trace;
  return cpu::make_backend(host);
}

constexpr BackendEntry kBackends[] = {{"cuda", cuda::devices, make_cuda}, {"cpu", nullptr, make_cpu}};

}  // namespace

Span<const BackendEntry> backends() { return {kBackends, std::size(kBackends)}; }

}  // namespace orrery
