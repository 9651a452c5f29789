// The memory that this process may use: the machine's memory, the limits of control groups (version 2 and 1), and
// RLIMIT_AS and RLIMIT_DATA. The system reports each limit in a text file of /proc or /sys, except for the process's
// own two limits.
#include <sys/resource.h>

#include <algorithm>
#include <string_view>

#include "runtime/os/os.h"
#include "runtime/os/posix_groups.h"

namespace orrery::os {

namespace {

constexpr uint64_t kNone = kNoNumber;  // no limit, or no file that states one

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

uint64_t number_in(const std::string& path) { return number_of(read_small_file(path)); }
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
  const char *inactive, *active;  // labels in memory.stat: file pages that the kernel reclaims before an allocation fails
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file ", "active_file "};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "};

void see_control_groups(const std::string& root, Least* least) {
  for_each_group(root, "memory", [least](const std::string& folder, bool version2) {
    const GroupFiles& files = version2 ? kVersion2 : kVersion1;
    const uint64_t limit = number_in(folder + files.limit);
    if (limit == kNone) return;
    const uint64_t usage = number_in(folder + files.usage);
    const std::string stat = read_small_file(folder + "memory.stat");
    const uint64_t cache = number_behind(stat, files.inactive, 0) + number_behind(stat, files.active, 0);
    least->see_memory(limit, less(limit, usage == kNone ? 0 : less(usage, cache)), "the control group's memory limit");
  });
}

void see_process_limit(int resource, uint64_t used, const char* what, Least* least) {
  struct rlimit limit = {};
  if (::getrlimit(static_cast<decltype(RLIMIT_AS)>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  least->see_reservable(limit.rlim_cur, less(limit.rlim_cur, used), what);
}

}  // namespace

MemoryLimits memory_limits(const std::string& root) {
  Least least;
  const std::string machine = read_small_file(root + "/proc/meminfo");
  const uint64_t total = number_behind(machine, "MemTotal:", physical_memory_bytes() / 1024) * 1024;
  const uint64_t swap = number_behind(machine, "SwapFree:", 0) * 1024;
  const uint64_t available = number_behind(machine, "MemAvailable:", total / 1024) * 1024 + swap;
  least.see_memory(total, available, "the machine's memory");
  see_control_groups(root, &least);
  // Sizes in pages: the first number is all mapped memory, the sixth is data and stack.
  const std::string mapped = read_small_file(root + "/proc/self/statm");
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
