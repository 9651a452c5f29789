// What the files of POSIX systems share: error texts, calls that signals interrupt, and what is opened at all.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "runtime/base/status.h"
#include "runtime/os/os.h"

namespace orrery::os {

// "PATH: WHAT: the system's words", with the system's number.
Status system_error(Code code, int number, const char* what, const std::string& path);

// Repeats a call that a signal has interrupted.
template <class F>
auto uninterrupted(const F& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Refuses paths that no system call can take.
Status check_path(const std::string& path);
// Refuses everything but regular files, and says what it is.
Status check_regular(const struct stat& st, const std::string& path);

// Opens a regular file for reading and says how long it is.
Result<Handle> open_regular(const std::string& path, uint64_t* size);

}  // namespace orrery::os
