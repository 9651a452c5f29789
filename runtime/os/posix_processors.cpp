// CPU quotas: cpu.max of version 2 ("50000 100000": half a processor), cpu.cfs_quota_us and cpu.cfs_period_us of version 1.
#include <sched.h>

#include <algorithm>
#include <set>

#include "runtime/os/os.h"
#include "runtime/os/posix_groups.h"
#include "runtime/os/processors.h"

namespace orrery::os {

Processors processors(const std::string& root, std::vector<int> allowed) {
  Processors p;
#ifdef __linux__
  if (allowed.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) == 0)
      for (int i = 0; i < CPU_SETSIZE; ++i)
        if (CPU_ISSET(i, &set)) allowed.push_back(i);
  }
#endif
  if (allowed.empty()) {
    p.allowed = p.cores = available_processors();
  } else {
    p.allowed = static_cast<int>(allowed.size());
    std::set<std::string> cores;  // by the list of their threads
    for (const int i : allowed) {
      const std::string name = std::to_string(i), folder = root + "/sys/devices/system/cpu/cpu" + name + "/topology/";
      std::string siblings = read_small_file(folder + "thread_siblings_list");
      if (siblings.empty()) siblings = read_small_file(folder + "core_cpus_list");
      cores.insert(siblings.empty() ? "alone " + name : siblings);
    }
    p.cores = static_cast<int>(cores.size());
  }
  for_each_group(root, "cpu", [&p](const std::string& folder, bool version2) {
    uint64_t quota = kNoNumber, period = kNoNumber;
    if (version2) {
      const std::string limit = read_small_file(folder + "cpu.max");
      quota = number_of(limit);
      period = number_of(std::string_view(limit).substr(std::min(limit.find(' '), limit.size())));
    } else {
      quota = number_of(read_small_file(folder + "cpu.cfs_quota_us"));  // -1: none
      period = number_of(read_small_file(folder + "cpu.cfs_period_us"));
    }
    if (quota != kNoNumber && quota > 0 && period != kNoNumber && period > 0)
      p.quota = std::min(p.quota, static_cast<double>(quota) / static_cast<double>(period));
  });
  return p;
}

}  // namespace orrery::os
