// The archive of the emulated build: one image without code, whose kernels are this program's own functions.
#include "cuda/device/archive.h"

#include "tests/emulation/cuda/device.h"

namespace orrery::cuda {

Span<const Image> archive() {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> out;
    for (const Function kernel : emulated::kernels()) out.push_back(kernel->tag);
    out.push_back(nullptr);
    return out;
  }();
  static const Image image = {"emulated", "emulated", 9, names.data()};
  return {&image, 1};
}
int archive_version() { return 12040; }

}  // namespace orrery::cuda
