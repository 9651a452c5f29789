// The process and its machine: arguments, standard streams, folders, memory. posix_process.cpp and windows_process.cpp implement it.
// Paths and arguments are UTF-8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace orrery::tool {

// Call this first. It opens a substitute for a closed stdin, stdout or stderr, so that no later file takes its
// number. Reading the substitute gives an empty input, and writing to it fails. Writing to a closed pipe becomes an
// error instead of a signal. On Windows, it also prepares the console; the end of the process restores the console.
void prepare_process();

// The words behind the program's name.
std::vector<std::string> command_line(int argc, char** argv);

// Resident memory of this process, now and at its peak, in bytes. 0 if the system does not report it.
struct ResidentMemory {
  unsigned long long now = 0, peak = 0;
};
ResidentMemory resident_memory();

uint64_t physical_memory_bytes();

// Memory from the system, in huge pages if the system has them to give. nullptr: refused.
struct FreeSystemMemory {
  uint64_t bytes = 0;
  void operator()(uint64_t* memory) const;
};
using SystemMemory = std::unique_ptr<uint64_t[], FreeSystemMemory>;
SystemMemory system_memory(uint64_t bytes);

// The folder of the running program, without a final slash; "" if unknown.
std::string program_folder();
// The user's folder, and the folder in which programs keep the user's state ($XDG_STATE_HOME or ~/.local/state; %LOCALAPPDATA% on
// Windows). "" if unknown.
std::string home_folder();
std::string state_folder();

}  // namespace orrery::tool
