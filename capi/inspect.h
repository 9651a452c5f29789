// A GGUF file described as JSON, from its header alone.
#pragma once

#include <string>

#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"

namespace orrery::capi {

// {"path", "version", "file_bytes", "parts", "alignment", "metadata": {...}, "tensors": [...], "types": [...],
//  "architecture", "supported", "n_parameters"}. Long arrays of metadata are cut to their first elements:
// {"type", "count", "first": [...]}. U+FFFD replaces bytes that are not UTF-8.
Result<std::string> describe_file(const engine::ModelSource& source);

}  // namespace orrery::capi
