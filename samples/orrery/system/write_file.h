// write_file() writes every file of the tool: profiles, results, pictures, conversations for a pipe.
//
// A regular file, existing or new, is written whole or not at all: the tool writes a temporary beside it, flushes it
// and renames it. Symbolic links are followed, and a replaced file keeps its mode. The next run that writes the same
// file removes the temporary of a killed run. Devices, pipes and standard output ("-", /dev/stdout) are written
// directly.
#pragma once

#include <string>
#include <string_view>

namespace orrery::tool {

// Throws Failure with the path and the reason.
void write_file(const std::string& path, std::string_view bytes);

// Whether `path` is written directly: a device, a pipe or standard output.
bool is_stream(const std::string& path);
// Whether `path` is standard output under any name. Text for people must then go elsewhere.
bool is_standard_output(const std::string& path);

}  // namespace orrery::tool
