// The paths of files that tests read: the source tree, and the optional third-party data beside it.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <string>

namespace orrery::testing {

// ORRERY_SOURCE_ROOT: where the tests' files are on a machine without the sources.
inline std::string source_path(const std::string& relative) {
  const char* root = std::getenv("ORRERY_SOURCE_ROOT");
  return std::string(root ? root : ORRERY_SOURCE_DIR) + "/" + relative;
}

// The folder of third-party vectors (ORRERY_SHARED, or else ../shared beside the checkout), or "" without such a folder. Then a test that
// needs the vectors calls GTEST_SKIP() << "no shared vectors".
inline std::string shared_path(const std::string& relative) {
  const char* set = std::getenv("ORRERY_SHARED");
  const std::string root = set ? set : std::string(ORRERY_SOURCE_DIR) + "/../shared";
  const std::string path = root + "/" + relative;
  struct stat st;
  return stat(path.c_str(), &st) == 0 ? path : std::string();
}

}  // namespace orrery::testing
