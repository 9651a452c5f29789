// See bundled.h. The build names the two folders (samples/CMakeLists.txt).
#include "bundled.h"

#include <unistd.h>

#include "terminal/failure.h"
#include "terminal/terminal.h"

#ifndef ORRERY_DEMO_SOURCE_DIR
#define ORRERY_DEMO_SOURCE_DIR ""
#endif
#ifndef ORRERY_DEMO_INSTALLED_DIR
#define ORRERY_DEMO_INSTALLED_DIR ""
#endif

namespace orrery::tool {

std::string bundled(const char* file) {
  const std::string here = program_folder();
  std::string looked;
  for (const std::string& folder :
       {here.empty() ? std::string() : here + "/../share/orrery", std::string(ORRERY_DEMO_INSTALLED_DIR),
        std::string(ORRERY_DEMO_SOURCE_DIR)}) {
    if (folder.empty()) continue;
    const std::string path = folder + "/" + file;
    if (access(path.c_str(), R_OK) == 0) return path;
    looked += (looked.empty() ? "" : ", ") + folder;
  }
  throw Failure(kExitFailure, std::string("cannot find ") + file + " in " + looked);
}

}  // namespace orrery::tool
