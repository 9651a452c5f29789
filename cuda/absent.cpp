// Replaces this folder's other sources in a build without the CUDA toolkit: no devices, and make_backend() gives an error.
#include "cuda/cuda_backend.h"

namespace orrery::cuda {

std::vector<DeviceDescription> devices() { return {}; }

Result<std::unique_ptr<Backend>> make_backend(const Options&) {
  return error(Code::unsupported, "this build of the library has no CUDA backend");
}

size_t graph_nodes(const Backend&) { return 0; }
bool has_cublas(const Backend&) { return false; }
Waits waits(const Backend&) { return {}; }

}  // namespace orrery::cuda
