// The archive of compiled kernels that the library carries. The build makes it (archive.cmake): nvcc compiles each file of kernels to PTX
// once, ptxas makes machine code of that for each GPU of ORRERY_CUDA_ARCHITECTURES, and both become an image in the library's constants.
#pragma once

#include <cstddef>

#include "runtime/base/span.h"

namespace orrery::cuda {

struct Image {
  const char* file;  // "rows": of kernels/rows.cu
  const void* data;  // a fat binary: the driver takes the machine code that fits the device, or compiles the PTX
  size_t bytes;
  const char* const* kernels;  // their symbols; null behind the last
};

Span<const Image> archive();
// The CUDA version of the toolkit that made the archive. 12040: 12.4. A driver for an older major version cannot read it.
int archive_version();

}  // namespace orrery::cuda
