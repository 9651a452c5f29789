// Every file that the tool writes goes through write_file(): profiles, results, pictures, conversations for a pipe.
//
// A regular file, or one that does not exist yet, is written whole or not at all: a temporary beside it is written, flushed
// and renamed. Symbolic links are followed, and a file that is replaced keeps its mode. What a killed run leaves is removed
// by the next one that writes the same file. Devices, pipes and standard output ("-", /dev/stdout) are written through.
#pragma once

#include <string>
#include <string_view>

namespace orrery::tool {

// Throws Failure, which names the path and the reason.
void write_file(const std::string& path, std::string_view bytes);

// Whether `path` is written through: nothing can stand beside it, or be replaced.
bool is_stream(const std::string& path);
// Whether `path` is standard output, by whichever name: words for people belong elsewhere then.
bool is_standard_output(const std::string& path);

}  // namespace orrery::tool
