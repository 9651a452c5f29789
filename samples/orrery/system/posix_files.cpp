// files.h for POSIX systems.
#include "system/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "system/terminal.h"

namespace orrery::tool {

int open_file(const std::string& path, Access access) {
  const bool read = access == Access::read;
  // A FIFO must not block the one that appends to its history.
  const int flags = read ? O_RDONLY : O_WRONLY | O_CREAT | O_APPEND | (access == Access::append_private ? O_NONBLOCK : 0);
  const mode_t mode = access == Access::append_private ? 0600 : 0666;
  int fd;
  do fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR && !interrupt_pending());
  return fd;
}

void close_file(int fd) { close(fd); }

ptrdiff_t read_some(int fd, char* to, size_t bytes) { return read(fd, to, bytes); }

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool truncate_file(int fd, uint64_t bytes) { return ftruncate(fd, static_cast<off_t>(bytes)) == 0; }

std::string make_temporary_file() {
  const char* const folder = std::getenv("TMPDIR");
  std::string path = std::string(folder && *folder ? folder : "/tmp") + "/orrery-XXXXXX";
  const int fd = mkstemp(path.data());
  if (fd < 0) return "";
  close_file(fd);
  return path;
}

int64_t file_bytes(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 ? st.st_size : -1;
}

FileKind file_kind(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return errno == ENOENT ? FileKind::none : FileKind::unknown;
  return S_ISREG(st.st_mode) ? FileKind::regular : S_ISDIR(st.st_mode) ? FileKind::folder : FileKind::other;
}

bool make_one_folder(const std::string& path, bool private_to_user) { return mkdir(path.c_str(), private_to_user ? 0700 : 0777) == 0; }

bool can_write_in(const std::string& folder) { return access((folder + "/.").c_str(), W_OK | X_OK) == 0; }

void remove_file(const std::string& path) { unlink(path.c_str()); }

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

}  // namespace orrery::tool
