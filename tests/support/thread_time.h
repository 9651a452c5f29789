// The processor time of the calling thread, for tests of how time grows. It does not count other work of the machine.
#pragma once

#include <time.h>

namespace orrery::testing {

inline double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace orrery::testing
