// Directories as places for files that a program writes, lists and removes. posix_folder.cpp and windows_folder.cpp implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace orrery::os {

struct FolderFile {
  std::string name;  // without the directory
  uint64_t bytes = 0;
  int64_t changed_ns = 0;  // time of the last change, since 1970
  bool regular = true;     // false: a directory, link, device, FIFO or socket
};

// The path of a file in a directory, with the system's own separator.
std::string path_in(const std::string& folder, const std::string& name);
// Makes a directory for its owner alone (mode 0700), unless one is there. The directory above must be there.
Status make_folder(const std::string& path);
// The files whose names end with `suffix`, in no order. A file that vanishes meanwhile is left out. More than kMostListed files are an error.
constexpr size_t kMostListed = size_t{1} << 16;
Result<std::vector<FolderFile>> list_folder(const std::string& path, const std::string& suffix);
// Removes a file, or a link itself. A file that is not there is no error.
Status remove_file(const std::string& path);
// Sets the time of the last change to now. False: the system refuses.
bool touch_file(const std::string& path);
// Removes the temporaries (AtomicFile) of killed writers, as far as the system allows.
void remove_leftovers(const std::string& path);

}  // namespace orrery::os
