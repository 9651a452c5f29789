// How many threads can compute at once: by affinity, by cores, and by the CPU quotas of containers.
#pragma once

#include <string>
#include <vector>

namespace orrery::os {

struct Processors {
  int allowed = 1;     // processors of the affinity mask; of one core there may be several
  int cores = 1;       // cores that these belong to
  double quota = 1e9;  // processors' worth of time that the process's control groups grant
  // Threads that can run at once: of the cores, within the quota; at least 1.
  int usable() const;
};
// root: prefix of /proc and /sys, for tests. allowed: the numbers of the processors; empty: the affinity mask of this thread.
Processors processors(const std::string& root = "", std::vector<int> allowed = {});

}  // namespace orrery::os
