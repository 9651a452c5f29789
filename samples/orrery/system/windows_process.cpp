// process.h for Windows.
#include "system/process.h"

#include <fcntl.h>
#include <io.h>

#include <cstdlib>

#include "system/terminal.h"
#include "system/windows_terminal.h"
#include "system/windows_text.h"

// They need windows.h before them.
#include <psapi.h>
#include <shellapi.h>

namespace orrery::tool {
namespace {

std::string folder_variable(const wchar_t* name) {
  std::wstring value(32768, L'\0');  // no variable is longer
  const DWORD n = ::GetEnvironmentVariableW(name, value.data(), static_cast<DWORD>(value.size()));
  return n < value.size() ? utf8(std::wstring_view(value).substr(0, n)) : "";
}

}  // namespace

void prepare_process() {
  for (int fd = kStdin; fd <= kStderr; ++fd) {
    const HANDLE handle = handle_of(fd);
    if (handle != INVALID_HANDLE_VALUE && handle != nullptr && ::GetFileType(handle) != FILE_TYPE_UNKNOWN) continue;
    const int nothing = ::_wopen(L"NUL", _O_RDONLY | _O_BINARY);  // writing fails as on a closed descriptor
    if (nothing < 0 || nothing == fd) continue;
    ::_dup2(nothing, fd);
    ::_close(nothing);
  }
  prepare_consoles();
}

// The command line in UTF-16: argv has lost the characters that the system's code page lacks.
std::vector<std::string> command_line(int, char**) {
  std::vector<std::string> words;
  int n = 0;
  wchar_t** wide_words = ::CommandLineToArgvW(::GetCommandLineW(), &n);
  for (int i = 1; wide_words && i < n; ++i) words.push_back(utf8(wide_words[i]));
  ::LocalFree(wide_words);
  return words;
}

ResidentMemory resident_memory() {
  ResidentMemory memory;
  PROCESS_MEMORY_COUNTERS counters = {};
  counters.cb = sizeof counters;
  if (::K32GetProcessMemoryInfo(::GetCurrentProcess(), &counters, sizeof counters)) {
    memory.now = counters.WorkingSetSize;
    memory.peak = counters.PeakWorkingSetSize;
  }
  return memory;
}

uint64_t physical_memory_bytes() {
  MEMORYSTATUSEX status = {};
  status.dwLength = sizeof status;
  return ::GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : uint64_t{1} << 32;
}

void FreeSystemMemory::operator()(uint64_t* memory) const { ::VirtualFree(memory, 0, MEM_RELEASE); }

// Huge pages would take a privilege.
SystemMemory system_memory(uint64_t bytes) {
  void* memory = ::VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  return {static_cast<uint64_t*>(memory), FreeSystemMemory{bytes}};
}

std::string program_folder() {
  std::wstring path(32768, L'\0');
  const DWORD n = ::GetModuleFileNameW(nullptr, path.data(), static_cast<DWORD>(path.size()));
  if (n == 0 || n >= path.size()) return "";
  path.resize(n);
  return utf8(path.substr(0, path.find_last_of(L"\\/")));
}

std::string home_folder() { return folder_variable(L"USERPROFILE"); }
std::string state_folder() { return folder_variable(L"LOCALAPPDATA"); }

}  // namespace orrery::tool
