// Replaces this folder's other sources in a build without the CUDA toolkit: no devices, and make_backend() gives an error.
#include "cuda/cuda_backend.h"

namespace orrery::cuda {

namespace {
constexpr const char* kNone = "this build of the library has no CUDA backend";
}

DevicesFound devices() { return {{}, DeviceUse::not_built, kNone}; }

Result<std::unique_ptr<Backend>> make_backend(const Options&) { return error(Code::unsupported, "%s", kNone); }
DeviceUse use_after(const Status&) { return DeviceUse::not_built; }

size_t graph_nodes(const Backend&) { return 0; }
bool has_cublas(const Backend&) { return false; }
Waits waits(const Backend&) { return {}; }

}  // namespace orrery::cuda
