// Small files of /proc and /sys, and the control groups that this process is in.
//
// A control group's limit binds all of its descendants, so the walk visits every level from the process's own group up to the root. In a
// container, the path in /proc/self/cgroup is often not visible. The walk then ends at the root of the mount, which is the container's own
// group.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace orrery::os {

constexpr uint64_t kNoNumber = UINT64_MAX;

// The content of a small text file. Empty if the file cannot be read: a missing file sets no limit and is no error.
std::string read_small_file(const std::string& path);
// The number at the start of `text`, after blanks. kNoNumber if the text starts with no number ("max") or the number wraps.
uint64_t number_of(std::string_view text);

// Calls visit(folder of the group, with "/" at its end; whether it is of version 2) for each group that binds the process by `controller`.
void for_each_group(const std::string& root, const std::string& controller, const std::function<void(const std::string&, bool)>& visit);

}  // namespace orrery::os
