// Directories of POSIX systems.
#include "runtime/os/folder/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <memory>

#include "runtime/os/posix_files.h"

namespace orrery::os {

namespace {

struct Closer {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

bool ends_with(const std::string& name, const std::string& suffix) {
  return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// Calls use(name) -> Status for each name of the directory.
template <class F>
Status each_name(const std::string& path, F use) {
  ORRERY_TRY(check_path(path));
  const int number = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  Handle opened(number);
  if (number < 0) return system_error(Code::io, errno, "cannot list it", path);
  const std::unique_ptr<DIR, Closer> directory(::fdopendir(number));
  if (!directory) return system_error(Code::io, errno, "cannot list it", path);
  opened.release();
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) return errno == 0 ? ok_status() : system_error(Code::io, errno, "cannot list it", path);
    ORRERY_TRY(use(::dirfd(directory.get()), std::string(entry->d_name)));
  }
}

int64_t changed_ns(const struct stat& st) {
#ifdef __APPLE__
  const timespec& at = st.st_mtimespec;
#else
  const timespec& at = st.st_mtim;
#endif
  return static_cast<int64_t>(at.tv_sec) * 1'000'000'000 + at.tv_nsec;
}

}  // namespace

std::string path_in(const std::string& folder, const std::string& name) { return folder + '/' + name; }

Status make_folder(const std::string& path) {
  ORRERY_TRY(check_path(path));
  struct stat st;
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int number = errno;
    if (::stat(path.c_str(), &st) != 0) return system_error(Code::io, number, "cannot make the folder", path);
  }
  if (uninterrupted([&] { return ::stat(path.c_str(), &st); }) != 0) return system_error(Code::io, errno, "cannot open the folder", path);
  if (!S_ISDIR(st.st_mode)) return system_error(Code::io, ENOTDIR, "cannot open the folder", path);
  return ok_status();
}

Result<std::vector<FolderFile>> list_folder(const std::string& path, const std::string& suffix) {
  std::vector<FolderFile> out;
  ORRERY_TRY(each_name(path, [&](int directory, std::string name) -> Status {
    struct stat st;
    if (!ends_with(name, suffix) || ::fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return ok_status();
    if (out.size() == kMostListed) return error(Code::io, "%s: more than %zu files end with %s", path.c_str(), kMostListed, suffix.c_str());
    out.push_back({std::move(name), static_cast<uint64_t>(st.st_size), changed_ns(st), S_ISREG(st.st_mode)});
    return ok_status();
  }));
  return out;
}

Status remove_file(const std::string& path) {
  ORRERY_TRY(check_path(path));
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return ok_status();
  return system_error(Code::io, errno, "cannot remove it", path);
}

// The time is given whole: the system's own "now" is that of its last tick.
bool touch_file(const std::string& path) {
  timespec now;
  if (::clock_gettime(CLOCK_REALTIME, &now) != 0) return false;
  const timespec times[] = {now, now};
  return ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0;
}

void remove_leftovers(const std::string& path) {
  (void)each_name(path, [&](int directory, const std::string& name) -> Status {
    if (is_temporary(name)) clear_leftover(directory, name.c_str());
    return ok_status();
  });
}

}  // namespace orrery::os
