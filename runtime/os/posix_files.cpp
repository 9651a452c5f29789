// Files of POSIX systems: opens regular files and no others, reads at a position. Descriptors close themselves, and
// close when the process executes another program. Calls are repeated when a signal interrupts them.
#include "runtime/os/posix_files.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstring>

namespace orrery::os {

static_assert(sizeof(off_t) == 8, "files may be longer than 2 GB: compile with _FILE_OFFSET_BITS=64");

Status system_error(Code code, int number, const char* what, const std::string& path) {
  char text[128] = "";
#if defined(_GNU_SOURCE) && defined(__GLIBC__)
  const char* reason = strerror_r(number, text, sizeof text);
#else
  const char* reason = strerror_r(number, text, sizeof text) == 0 ? text : "unknown error";
#endif
  Status s = error(code, "%s: %s: %s", path.c_str(), what, reason);
  s.detail().native_code = number;
  return s;
}

Status check_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return error(Code::invalid_argument, "a file path is empty or holds a zero byte");
  return ok_status();
}

Status check_regular(const struct stat& st, const std::string& path) {
  if (S_ISREG(st.st_mode)) return ok_status();
  const char* kind = S_ISDIR(st.st_mode) ? "a directory" : S_ISFIFO(st.st_mode) ? "a FIFO" : S_ISSOCK(st.st_mode) ? "a socket" : "a device";
  Status s = error(Code::io, "%s: not a regular file but %s", path.c_str(), kind);
  if (S_ISDIR(st.st_mode)) s.detail().native_code = EISDIR;
  return s;
}

// Handle -------------------------------------------------------------------------------------------------

// On Linux, an interrupted close() has closed the descriptor. On other systems one descriptor may stay open, which is
// better than closing another thread's descriptor.
Handle::~Handle() {
  if (number_ >= 0) ::close(number_);
}

Result<Handle> open_regular(const std::string& path, uint64_t* size) {
  ORRERY_TRY(check_path(path));
  // stat() comes before open(): opening a tape rewinds it, opening a watchdog starts it.
  struct stat st;
  if (uninterrupted([&] { return ::stat(path.c_str(), &st); }) != 0) return system_error(Code::io, errno, "cannot open", path);
  ORRERY_TRY(check_regular(st, path));
  // O_NONBLOCK, because another file may have replaced this one: opening a pipe without a writer would wait forever.
  Handle file(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
  if (file.number() < 0) return system_error(Code::io, errno, "cannot open", path);
  if (uninterrupted([&] { return ::fstat(file.number(), &st); }) != 0) return system_error(Code::io, errno, "cannot read its size", path);
  ORRERY_TRY(check_regular(st, path));
  *size = static_cast<uint64_t>(st.st_size);
  return file;
}

// InputFile ----------------------------------------------------------------------------------------------

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile input;
  input.path_ = path;
  ORRERY_ASSIGN(input.file_, open_regular(path, &input.size_));
  return input;
}

Result<InputFile> InputFile::of_descriptor(int descriptor) {
  InputFile input;
  input.path_ = "descriptor " + std::to_string(descriptor);
  if (descriptor < 0) return option_error(Code::invalid_argument, "fd", "fd is %d, expected the number of an open file", descriptor);
  struct stat st;
  if (uninterrupted([&] { return ::fstat(descriptor, &st); }) != 0)
    return system_error(Code::io, errno, "cannot read its size", input.path_);
  ORRERY_TRY(check_regular(st, input.path_));
  input.file_ = Handle(uninterrupted([&] { return ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0); }));
  if (input.file_.number() < 0) return system_error(Code::io, errno, "cannot duplicate it", input.path_);
  input.size_ = static_cast<uint64_t>(st.st_size);
  return input;
}

Status InputFile::read_at(uint64_t offset, Span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = uninterrupted(
        [&] { return ::pread(file_.number(), out.data() + done, out.size() - done, static_cast<off_t>(from_ + offset + done)); });
    if (n < 0) return system_error(Code::io, errno, "cannot read", path_);
    if (n == 0) return ends_early(path_, offset + done, offset + out.size());
    done += static_cast<size_t>(n);
  }
  return ok_status();
}

}  // namespace orrery::os
