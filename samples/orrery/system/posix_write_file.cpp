// write_file.h for POSIX systems.
#include "system/write_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "system/failure.h"
#include "system/files.h"
#include "system/terminal.h"

namespace orrery::tool {
namespace {

constexpr int kMostLinks = 40;
constexpr int kMostTries = 1000;  // other runs may be writing the same file, one after another

[[noreturn]] void fail(const std::string& path, int error) {
  throw Failure(kExitFailure, path + ": cannot write: " + std::strerror(error));
}

// A descriptor that is closed on every return path.
struct Descriptor {
  int number;
  explicit Descriptor(int n) : number(n) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

template <class F>
auto uninterrupted(const F& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// kStdout or kStderr if that descriptor is the file `st`, else -1.
int standard_stream(const struct stat& st) {
  for (const int fd : {kStdout, kStderr}) {
    struct stat own;
    if (fstat(fd, &own) == 0 && same_file(own, st)) return fd;
  }
  return -1;
}

// The target of the links in `path`, even if the target does not exist yet.
std::string followed(const std::string& path) {
  std::string at = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    std::string target(PATH_MAX, '\0');
    const ssize_t n = readlink(at.c_str(), target.data(), target.size());
    if (n < 0 && (errno == EINVAL || errno == ENOENT)) return at;
    if (n < 0) fail(path, errno);
    target.resize(static_cast<size_t>(n));
    at = target[0] == '/' ? target : folder_of(at) + target;
  }
  fail(path, ELOOP);
}

// Equal for every run that writes this file, and short for every file name.
std::string temporary_of(const std::string& target) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : target.substr(folder_of(target).size())) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return folder_of(target) + ".orrery-tool-" + digits;
}

// Applies the replaced file's mode and owner. If the system forbids a change, nobody gets more rights than before.
void take_over(int fd, const struct stat& former) {
  mode_t mode = former.st_mode & 0777;
  struct stat own;
  if (fstat(fd, &own) != 0) return;
  const bool other = own.st_uid != former.st_uid || own.st_gid != former.st_gid;
  if (other && fchown(fd, former.st_uid, former.st_gid) != 0 && own.st_gid != former.st_gid &&
      fchown(fd, static_cast<uid_t>(-1), former.st_gid) != 0) {
    mode &= ~static_cast<mode_t>(070) | static_cast<mode_t>((mode & 07) << 3);
  }
  if (fchmod(fd, mode) != 0) return;  // a file system without modes
}

// Creates the temporary and locks it. An existing temporary belongs to a running writer or to a killed one. This run
// waits for its lock, then removes it.
int open_temporary(const std::string& name, const std::string& path) {
  for (int tries = 0; tries < kMostTries; ++tries) {
    const int fd = uninterrupted([&] { return open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666); });
    if (fd < 0 && errno != EEXIST) fail(path, errno);
    const Descriptor old(fd >= 0 ? -1 : open(name.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const int held = fd >= 0 ? fd : old.number;
    if (held < 0 && errno == ENOENT) continue;
    if (held < 0) fail(path, errno);
    uninterrupted([&] { return flock(held, LOCK_EX); });  // on file systems without locks, only one run at a time is safe
    struct stat opened, named;
    const bool ours = fstat(held, &opened) == 0 && lstat(name.c_str(), &named) == 0 && same_file(opened, named);
    if (fd >= 0 && ours) return fd;
    if (fd >= 0) close(fd);
    if (fd < 0 && ours && (!S_ISREG(opened.st_mode) || opened.st_nlink != 1)) fail(path, EEXIST);
    if (fd < 0 && ours) unlink(name.c_str());
  }
  fail(path, EAGAIN);
}

void replace_file(const std::string& path, const struct stat* former, std::string_view bytes) {
  const std::string target = followed(path);
  if (former && access(target.c_str(), W_OK) != 0) fail(path, errno);
  const std::string temporary = temporary_of(target);
  const Descriptor file(open_temporary(temporary, path));
  if (former) take_over(file.number, *former);
  int error = write_all(file.number, bytes) ? 0 : errno;
  if (error == 0 && uninterrupted([&] { return fsync(file.number); }) != 0 && errno != EINVAL) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    fail(path, error);
  }
  const std::string folder = folder_of(target);
  const Descriptor directory(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.number >= 0) uninterrupted([&] { return fsync(directory.number); });  // errors are ignored
}

}  // namespace

void write_file(const std::string& path, std::string_view bytes) {
  struct stat st;
  const bool standard = path == "-", exists = !standard && stat(path.c_str(), &st) == 0;
  if (!standard && !exists && errno != ENOENT) fail(path, errno);
  if (exists && S_ISDIR(st.st_mode)) fail(path, EISDIR);
  const int stream = standard ? kStdout : exists ? standard_stream(st) : -1;
  if (stream < 0 && (!exists || S_ISREG(st.st_mode))) return replace_file(path, exists ? &st : nullptr, bytes);
  const Descriptor opened(stream >= 0 ? -1 : uninterrupted([&] { return open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC); }));
  if (stream < 0 && opened.number < 0) fail(path, errno);
  const int error = write_all(stream >= 0 ? stream : opened.number, bytes) ? 0 : errno;
  if (error == EPIPE && stream == kStdout) throw ClosedPipe{};
  if (error != 0) fail(standard ? "standard output" : path, error);
}

bool is_stream(const std::string& path) {
  struct stat st;
  if (path == "-") return true;
  if (stat(path.c_str(), &st) != 0 || S_ISDIR(st.st_mode)) return false;
  return !S_ISREG(st.st_mode) || standard_stream(st) >= 0;
}

bool is_standard_output(const std::string& path) {
  struct stat st, own;
  if (path == "-") return true;
  return stat(path.c_str(), &st) == 0 && fstat(kStdout, &own) == 0 && same_file(st, own) &&
         (!S_ISCHR(st.st_mode) || path.compare(0, 9, "/dev/null") != 0);
}

}  // namespace orrery::tool
