// Shared parts of the files for POSIX systems: error texts, calls that signals interrupt, opening of regular files.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "runtime/base/status.h"
#include "runtime/os/os.h"
#include "runtime/os/shared.h"

namespace orrery::os {

// "PATH: WHAT: the system's words", with the system's error number.
Status system_error(Code code, int number, const char* what, const std::string& path);

// Repeats a call while a signal interrupts it.
template <class F>
auto uninterrupted(const F& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Refuses paths that no system call accepts.
Status check_path(const std::string& path);
// Refuses everything except a regular file. The error names the kind of file.
Status check_regular(const struct stat& st, const std::string& path);

// Opens a regular file for reading and stores its length in `size`.
Result<Handle> open_regular(const std::string& path, uint64_t* size);

// Removes the leftover of a killed writer from a slot (AtomicFile). False: the slot is in use, or the file of this name is not ours.
bool clear_leftover(int directory, const char* name);

}  // namespace orrery::os
