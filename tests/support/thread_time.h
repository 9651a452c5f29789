// Processor time of the calling thread: for tests about how time grows, on machines that have other work too.
#pragma once

#include <time.h>

namespace orrery::testing {

inline double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace orrery::testing
