// Time for statistics: microseconds of a clock that never goes back.
#pragma once

#include <chrono>
#include <cstdint>

namespace orrery {

inline uint64_t now_us() {
  using std::chrono::microseconds;
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<microseconds>(since).count());
}

}  // namespace orrery
