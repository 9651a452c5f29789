// The memory that this process may use: the machine's memory, the limits of control groups (version 2 and 1), and
// RLIMIT_AS and RLIMIT_DATA. The system reports each limit in a text file of /proc or /sys, except for the process's
// own two limits.
//
// A control group's limit binds all of its descendants, so the walk reads every level from the process's own group up
// to the root. In a container, the path in /proc/self/cgroup is often not visible. The walk then ends at the root of
// the mount, which is the container's own group.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "runtime/os/os.h"

namespace orrery::os {

namespace {

constexpr uint64_t kNone = UINT64_MAX;   // no limit, or no file that states one

// The content of a small text file. Empty if the file cannot be read: a missing file sets no limit and is no error.
// (The code calls openat() because tests inject errors into open().)
std::string read_text(const std::string& path) {
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

// The number at the start of `text`, after blanks. kNone if the text starts with no number ("max") or the number
// wraps.
uint64_t number_of(std::string_view text) {
  size_t i = 0;
  while (i < text.size() && (text[i] == ' ' || text[i] == '\t')) ++i;
  if (i == text.size() || text[i] < '0' || text[i] > '9') return kNone;
  uint64_t n = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    const auto digit = static_cast<uint64_t>(text[i] - '0');
    if (n > (kNone - digit) / 10) return kNone;
    n = n * 10 + digit;
  }
  return n;
}

// The number after `label` at the start of a line, or `otherwise` if no line starts with the label.
uint64_t number_behind(std::string_view text, std::string_view label, uint64_t otherwise) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.substr(0, label.size()) == label) {
      const uint64_t n = number_of(line.substr(label.size()));
      return n == kNone ? otherwise : n;
    }
    at = end + 1;
  }
  return otherwise;
}

uint64_t number_in(const std::string& path) { return number_of(read_text(path)); }
uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// Keeps the smallest limit, and the least free memory of all limits.
struct Least {
  MemoryLimits limits;
  void see_memory(uint64_t total, uint64_t available, const char* what) {
    limits.memory_bytes = std::min(limits.memory_bytes, total);
    see(total, available, what);
  }
  void see_reservable(uint64_t total, uint64_t available, const char* what) {
    limits.reservable_bytes = std::min(limits.reservable_bytes, available);
    see(total, available, what);
  }
  void see(uint64_t total, uint64_t available, const char* what) {
    limits.total_bytes = std::min(limits.total_bytes, total);
    if (available >= limits.available_bytes) return;
    limits.available_bytes = available;
    limits.bound_by = what;
  }
};

// File names of the two versions of control groups.
struct GroupFiles {
  const char *limit, *usage;
  const char *inactive, *active;   // labels in memory.stat: file pages that the kernel reclaims before an allocation fails
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file ", "active_file "};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "};

void see_groups(const std::string& mount, std::string path, const GroupFiles& files, Least* least) {
  if (path.find("..") != std::string::npos) path.clear();   // the group is outside this process's view
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    const std::string folder = mount + path + "/";
    const uint64_t limit = number_in(folder + files.limit);
    if (limit != kNone) {
      const uint64_t usage = number_in(folder + files.usage);
      const std::string stat = read_text(folder + "memory.stat");
      const uint64_t cache = number_behind(stat, files.inactive, 0) + number_behind(stat, files.active, 0);
      least->see_memory(limit, less(limit, usage == kNone ? 0 : less(usage, cache)), "the control group's memory limit");
    }
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

// /proc/self/cgroup has one line per hierarchy: ID:CONTROLLERS:PATH. Version 2 names no controllers.
void see_control_groups(const std::string& root, Least* least) {
  const std::string text = read_text(root + "/proc/self/cgroup");
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", path = line.substr(second + 1);
    if (controllers == ",,") {
      see_groups(root + "/sys/fs/cgroup", path, kVersion2, least);
      see_groups(root + "/sys/fs/cgroup/unified", path, kVersion2, least);   // version 2 mounted beside version 1
    } else if (controllers.find(",memory,") != std::string::npos) {
      see_groups(root + "/sys/fs/cgroup/memory", path, kVersion1, least);
    }
  }
}

void see_process_limit(int resource, uint64_t used, const char* what, Least* least) {
  struct rlimit limit = {};
  if (::getrlimit(static_cast<decltype(RLIMIT_AS)>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  least->see_reservable(limit.rlim_cur, less(limit.rlim_cur, used), what);
}

}  // namespace

MemoryLimits memory_limits(const std::string& root) {
  Least least;
  const std::string machine = read_text(root + "/proc/meminfo");
  const uint64_t total = number_behind(machine, "MemTotal:", physical_memory_bytes() / 1024) * 1024;
  const uint64_t swap = number_behind(machine, "SwapFree:", 0) * 1024;
  const uint64_t available = number_behind(machine, "MemAvailable:", total / 1024) * 1024 + swap;
  least.see_memory(total, available, "the machine's memory");
  see_control_groups(root, &least);
  // Sizes in pages: the first number is all mapped memory, the sixth is data and stack.
  const std::string mapped = read_text(root + "/proc/self/statm");
  size_t sixth = 0;
  for (int i = 0; i < 5 && sixth < mapped.size(); ++i) sixth = std::min(mapped.find(' ', sixth), mapped.size() - 1) + 1;
  const auto pages = [&](size_t at) {
    const uint64_t n = at < mapped.size() ? number_of(std::string_view(mapped).substr(at)) : kNone;
    return n > kNone / page_bytes() ? 0 : n * page_bytes();
  };
  see_process_limit(RLIMIT_AS, pages(0), "RLIMIT_AS", &least);
  see_process_limit(RLIMIT_DATA, pages(sixth), "RLIMIT_DATA", &least);
  return least.limits;
}

}  // namespace orrery::os
