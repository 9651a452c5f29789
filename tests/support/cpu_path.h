// The instruction set of tests that compute: ORRERY_TEST_CPU_PATH, or the best one. `make test-paths` runs them under every one that the
// machine has.
#pragma once

#include <cstdlib>

namespace orrery::testing {

inline const char* test_cpu_path() {
  const char* path = std::getenv("ORRERY_TEST_CPU_PATH");
  return path != nullptr && *path != '\0' ? path : "auto";
}

}  // namespace orrery::testing
