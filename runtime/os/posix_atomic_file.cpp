// Files that are replaced whole: find the target of a path, write a temporary beside the file, rename it at the end.
// Names are looked up in the open directory, so a name may have the full 255 bytes that a directory allows.
//
// Temporaries are slots. A slot's name follows from the file's name. A writer creates its slot (O_EXCL) and keeps it
// locked (flock) until the rename. A slot that another process can lock belongs to a dead writer, and that process
// removes it. A writer may lose its slot between creation and lock. It therefore checks that the name is still its
// own, and otherwise takes the next slot. Two processes that save the same file use two slots; the last rename wins.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <vector>

#include "runtime/os/posix_files.h"

namespace orrery::os {

namespace {

constexpr int kMostLinks = 40;   // Linux's own limit
constexpr int kMostTries = 100;  // attempts to stat a file that other processes keep replacing
#ifdef O_PATH
constexpr int kSearchOnly = O_PATH;
#else
constexpr int kSearchOnly = O_RDONLY;
#endif

bool stat_name(int directory, const char* name, struct stat* st) {
  return uninterrupted([&] { return ::fstatat(directory, name, st, AT_SYMLINK_NOFOLLOW); }) == 0;
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

bool still_named(int directory, const char* name, const struct stat& file) {
  struct stat now;
  return stat_name(directory, name, &now) && same_file(now, file);
}

Result<Handle> open_directory(int base, const std::string& name, const std::string& path) {
  const auto open = [&](int how) { return uninterrupted([&] { return ::openat(base, name.c_str(), how | O_DIRECTORY | O_CLOEXEC); }); };
  Handle directory(open(O_RDONLY));
  if (directory.number() < 0 && errno == EACCES)
    directory = Handle(open(kSearchOnly));  // the directory may be searched but
                                            // not read
  if (directory.number() < 0) return system_error(Code::io, errno, "cannot open its directory", path);
  return directory;
}

struct Place {
  Handle directory;
  std::string name;
};

// Finds the directory and the name that `path` leads to. Follows links if the last part is a link. The name need not
// exist.
Result<Place> find_place(const std::string& path) {
  std::string at = path;
  Place place;
  for (int links = 0; links <= kMostLinks; ++links) {
    const size_t slash = at.rfind('/');
    place.name = slash == std::string::npos ? at : at.substr(slash + 1);
    if (place.name.empty() || place.name == "." || place.name == "..") return system_error(Code::io, EISDIR, "cannot write", path);
    const std::string above = slash == std::string::npos ? "." : at.substr(0, slash + 1);
    const int base = place.directory.number() < 0 ? AT_FDCWD : place.directory.number();  // a relative link starts at its own
                                                                                          // directory
    ORRERY_ASSIGN(place.directory, open_directory(base, above, path));
    std::vector<char> target(PATH_MAX);
    const ssize_t n =
        uninterrupted([&] { return ::readlinkat(place.directory.number(), place.name.c_str(), target.data(), target.size()); });
    if (n < 0 && (errno == EINVAL || errno == ENOENT)) return place;  // no link, or no file
    if (n < 0) return system_error(Code::io, errno, "cannot follow it", path);
    if (static_cast<size_t>(n) == target.size()) return system_error(Code::io, ENAMETOOLONG, "cannot follow it", path);
    at.assign(target.data(), static_cast<size_t>(n));
  }
  return system_error(Code::io, ELOOP, "cannot follow it", path);
}

// Blocks SIGXFSZ, which a write beyond the file size limit raises in the writing thread; by default the signal ends
// the process. A signal raised during the lifetime is consumed. The failed write reports EFBIG anyway.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    sigset_t pending;
    sigemptyset(&only_);
    sigaddset(&only_, SIGXFSZ);
    blocked_ = ::sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0 && ::pthread_sigmask(SIG_BLOCK, &only_, &before_) == 0;
  }
  ~FileSizeSignalBlocked() {
    if (!blocked_) return;
    sigset_t pending;
    int taken;
    if (::sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1) ::sigwait(&only_, &taken);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t only_, before_;
  bool blocked_ = false;
};

}  // namespace

bool clear_leftover(int directory, const char* name) {
  struct stat st, opened;
  if (!stat_name(directory, name, &st)) return errno == ENOENT;
  if (!S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_uid != ::geteuid()) return false;
  const Handle file(uninterrupted([&] { return ::openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY); }));
  if (file.number() < 0 || ::fstat(file.number(), &opened) != 0 || !same_file(opened, st)) return false;
  if (::flock(file.number(), LOCK_EX | LOCK_NB) != 0) return false;
  // The writer may have renamed the slot before we locked it. The locked file is then the saved file itself.
  return still_named(directory, name, opened) && ::unlinkat(directory, name, 0) == 0;
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  ORRERY_TRY(check_path(path));
  AtomicFile out;
  out.path_ = path;
  bool found = false;
  for (int tries = 0; tries < kMostTries && !found; ++tries) {
    ORRERY_ASSIGN(found, out.find());
  }
  if (!found) return system_error(Code::io, ESTALE, "cannot follow it", path);
  ORRERY_TRY(out.take_temporary());
  return out;
}

// Finds the target of the path and its state. False: the system and our own walk over links disagree, because another
// save has replaced the file meanwhile, or because a link of /proc leads to no name.
Result<bool> AtomicFile::find() {
  // The system follows the links first, so its rules about other users' links apply to us too.
  struct stat st;
  const bool exists = uninterrupted([&] { return ::stat(path_.c_str(), &st); }) == 0;
  if (!exists && errno != ENOENT) return system_error(Code::io, errno, "cannot write", path_);
  if (exists) ORRERY_TRY(check_regular(st, path_));

  ORRERY_ASSIGN(Place place, find_place(path_));
  directory_ = std::move(place.directory);
  name_ = std::move(place.name);
  struct stat there;
  const bool is_there = stat_name(directory_.number(), name_.c_str(), &there);
  if (!is_there && errno != ENOENT) return system_error(Code::io, errno, "cannot write", path_);
  if (is_there != exists || (exists && !same_file(there, st))) return false;
  former_ = {};
  if (!exists) return true;
  if (::faccessat(directory_.number(), name_.c_str(), W_OK, AT_EACCESS) != 0) return system_error(Code::io, errno, "cannot write", path_);
  former_ = {true, st.st_mode & 07777u, st.st_uid, st.st_gid};
  return true;
}

Status AtomicFile::take_temporary() {
  const std::string slots = temporaries_name(name_);
  for (int slot = 0; slot < kTemporaries; ++slot) {
    std::string name = slots + "-" + std::to_string(slot);
    if (!clear_leftover(directory_.number(), name.c_str()) || file_.number() >= 0) continue;  // a later slot: only removed if stale
    Handle file(uninterrupted(
        [&] { return ::openat(directory_.number(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600); }));
    if (file.number() < 0) {
      if (errno == EEXIST) continue;
      return system_error(Code::io, errno, "cannot create a file beside it", path_);
    }
    // On a file system without locks, a killed writer's slot cannot be recognised. The slot stays, and O_EXCL alone
    // keeps the name ours.
    struct stat st;
    if ((::flock(file.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) || ::fstat(file.number(), &st) != 0 ||
        !still_named(directory_.number(), name.c_str(), st))
      continue;
    file_ = std::move(file);
    temporary_ = std::move(name);
  }
  if (file_.number() >= 0) return ok_status();
  Status s = error(Code::io, "%s: cannot create a file beside it: %d files %s-... are there or in use", path_.c_str(), kTemporaries,
                   slots.c_str());
  s.detail().native_code = EEXIST;
  return s;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlinkat(directory_.number(), temporary_.c_str(), 0);
}

Status AtomicFile::write(Span<const std::byte> bytes) {
  const FileSizeSignalBlocked blocked;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = uninterrupted([&] { return ::write(file_.number(), bytes.data() + done, bytes.size() - done); });
    if (n <= 0) return system_error(Code::io, n < 0 ? errno : EIO, "cannot write", path_);
    done += static_cast<size_t>(n);
  }
  return ok_status();
}

// If the system forbids a change, the new file gets fewer rights, never rights that the old file did not grant.
void AtomicFile::take_over_permissions() const {
  struct stat own;
  if (!former_.exists || ::fstat(file_.number(), &own) != 0) return;
  mode_t mode = former_.mode;
  if ((own.st_uid != former_.user || own.st_gid != former_.group) && ::fchown(file_.number(), former_.user, former_.group) != 0) {
    mode &= ~static_cast<mode_t>(S_ISUID | S_ISGID);
    constexpr auto kNoUser = static_cast<uid_t>(-1);
    if (own.st_gid != former_.group && ::fchown(file_.number(), kNoUser, former_.group) != 0) {
      const mode_t others = mode & S_IRWXO;  // the old file granted nothing to our group
      mode &= ~static_cast<mode_t>(S_IRWXG) | (others << 3);
    }
  }
  if (::fchmod(file_.number(), mode) != 0) return;  // a file system without modes
}

Status AtomicFile::commit() {
  take_over_permissions();
  if (uninterrupted([&] { return ::fsync(file_.number()); }) != 0) return system_error(Code::io, errno, "cannot flush", path_);
  struct stat st;  // another file may have this name by now
  if (stat_name(directory_.number(), name_.c_str(), &st)) ORRERY_TRY(check_regular(st, path_));
  if (uninterrupted([&] { return ::renameat(directory_.number(), temporary_.c_str(), directory_.number(), name_.c_str()); }) != 0)
    return system_error(Code::io, errno, "cannot put the new file in place", path_);
  temporary_.clear();
  uninterrupted([&] { return ::fsync(directory_.number()); });
  return ok_status();
}

}  // namespace orrery::os
