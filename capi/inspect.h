// A GGUF file described as JSON, from its header alone.
#pragma once

#include <string>

#include "runtime/base/status.h"

namespace orrery::capi {

// {"path", "version", "file_bytes", "parts", "alignment", "metadata": {...}, "tensors": [...], "types": [...],
//  "architecture", "supported", "n_parameters"}.  Arrays of metadata are cut to their first elements:
// {"type", "count", "first": [...]}.  Text that is not UTF-8 is shown with U+FFFD.
Result<std::string> describe_file(const char* path);

}  // namespace orrery::capi
