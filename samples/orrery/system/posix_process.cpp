// process.h for POSIX systems; /proc is Linux's.
#include "system/process.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "system/terminal.h"

namespace orrery::tool {
namespace {

// A variable that holds a full path, or "".
std::string folder_variable(const char* name) {
  const char* value = std::getenv(name);
  return value && value[0] == '/' ? value : "";
}

}  // namespace

void prepare_process() {
  for (int fd = kStdin; fd <= kStderr; ++fd) {
    struct stat st;
    if (fstat(fd, &st) == 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is fd. Read-only, so writing fails as on a closed descriptor.
    if (open("/dev/null", O_RDONLY) < 0) return;
  }
  signal(SIGPIPE, SIG_IGN);
}

std::vector<std::string> command_line(int argc, char** argv) { return std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc); }

uint64_t physical_memory_bytes() { return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

void FreeSystemMemory::operator()(uint64_t* memory) const { munmap(memory, bytes); }

SystemMemory system_memory(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint
  return {static_cast<uint64_t*>(memory), FreeSystemMemory{bytes}};
}

ResidentMemory resident_memory() {
  ResidentMemory memory;
  if (FILE* status = std::fopen("/proc/self/status", "re")) {
    char line[256];
    while (std::fgets(line, sizeof line, status)) {
      unsigned long long kib = 0;
      if (std::sscanf(line, "VmRSS: %llu kB", &kib) == 1) memory.now = kib * 1024;
      if (std::sscanf(line, "VmHWM: %llu kB", &kib) == 1) memory.peak = kib * 1024;
    }
    std::fclose(status);
  }
  return memory;
}

std::string program_folder() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n == static_cast<ssize_t>(sizeof path)) return "";
  std::string whole(path, n > 0 ? static_cast<size_t>(n) : 0);
  if (n <= 0) {  // without /proc: the path that the program was started by, if it is one
    const auto* started = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    if (started && started[0] == '/') whole = started;
  }
  if (whole.empty()) return "";
  return whole.substr(0, whole.rfind('/'));
}

std::string home_folder() {
  const char* home = std::getenv("HOME");
  return home ? home : "";
}

std::string state_folder() {
  const std::string state = folder_variable("XDG_STATE_HOME"), home = folder_variable("HOME");
  if (!state.empty()) return state;
  return home.empty() ? "" : home + "/.local/state";
}

}  // namespace orrery::tool
