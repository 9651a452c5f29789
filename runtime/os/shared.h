// Shared parts of the files for POSIX systems and for Windows: names of temporaries, errors in the same words.
#pragma once

#include <string>

#include "runtime/base/status.h"
#include "runtime/os/os.h"

namespace orrery::os {

// Temporaries of one file, at most: one for each writer, and those that killed writers left.
constexpr int kTemporaries = 32;
// Start of the names of a file's temporaries: ".orrery-" and 32 digits that stand for `name`. "-" and a number follow.
std::string temporaries_name(const std::string& name);
// Whether a file's name is one of a temporary.
bool is_temporary(const std::string& name);

// A file that ends at byte `end`, before a read up to byte `wanted`.
Status ends_early(const std::string& path, uint64_t end, uint64_t wanted);
// The system has refused a region of `bytes`, with its error number.
Status refused_memory(uint64_t bytes, int64_t native_code);
Status too_large_region(uint64_t bytes);

}  // namespace orrery::os
