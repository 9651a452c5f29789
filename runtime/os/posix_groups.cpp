#include "runtime/os/posix_groups.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace orrery::os {

// (The code calls openat() because tests inject errors into open().)
std::string read_small_file(const std::string& path) {
  int fd;
  do {
    fd = ::openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  std::string text;
  if (fd < 0) return text;
  char piece[4096];
  while (text.size() < 64 * sizeof piece) {
    const ssize_t n = ::read(fd, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(piece, static_cast<size_t>(n));
  }
  ::close(fd);
  return text;
}

uint64_t number_of(std::string_view text) {
  size_t i = 0;
  while (i < text.size() && (text[i] == ' ' || text[i] == '\t')) ++i;
  if (i == text.size() || text[i] < '0' || text[i] > '9') return kNoNumber;
  uint64_t n = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    const auto digit = static_cast<uint64_t>(text[i] - '0');
    if (n > (kNoNumber - digit) / 10) return kNoNumber;
    n = n * 10 + digit;
  }
  return n;
}

// /proc/self/cgroup has one line per hierarchy: ID:CONTROLLERS:PATH. Version 2 names no controllers.
void for_each_group(const std::string& root, const std::string& controller, const std::function<void(const std::string&, bool)>& visit) {
  const auto walk = [&](const std::string& mount, std::string path, bool version2) {
    if (path.find("..") != std::string::npos) path.clear();  // the group is outside this process's view
    for (;;) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      visit(mount + path + "/", version2);
      if (path.empty()) return;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  };
  const std::string text = read_small_file(root + "/proc/self/cgroup");
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", path = line.substr(second + 1);
    if (controllers == ",,") {
      walk(root + "/sys/fs/cgroup", path, true);
      walk(root + "/sys/fs/cgroup/unified", path, true);  // version 2 mounted beside version 1
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      walk(root + "/sys/fs/cgroup/" + controller, path, false);
    }
  }
}

}  // namespace orrery::os
