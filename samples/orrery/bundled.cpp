// See bundled.h. The files stand beside the program, wherever that is: in share/orrery of the build folder and of a Windows package,
// in ORRERY_DEMO_FOLDER (../share/orrery, unless the build has other folders) of an installation. So no place is compiled in.
#include "bundled.h"

#include "system/failure.h"
#include "system/files.h"
#include "system/process.h"

#ifndef ORRERY_DEMO_FOLDER
#define ORRERY_DEMO_FOLDER "../share/orrery"
#endif

namespace orrery::tool {

std::string bundled(const char* file) {
  const std::string here = program_folder();
  std::string looked;
  for (const char* folder : {"share/orrery", ORRERY_DEMO_FOLDER}) {
    const std::string path = here + "/" + folder + "/" + file;
    if (file_kind(path) == FileKind::regular) return path;
    looked += (looked.empty() ? "" : ", ") + here + "/" + folder;
  }
  throw Failure(kExitFailure, std::string("cannot find ") + file + " in " + looked);
}

}  // namespace orrery::tool
