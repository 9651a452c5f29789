// Shared parts of the files for Windows: names in UTF-16, error texts, checks of paths, patience with other writers.
//
// A path is UTF-8 on the outside. The system gets the full path behind "\\?\", which admits 32,767 characters and
// takes no name for a device ("NUL", "COM1.txt").
#pragma once

#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <string>

#include "runtime/base/status.h"
#include "runtime/os/os.h"
#include "runtime/os/shared.h"

namespace orrery::os {

// "PATH: WHAT: the system's words", with the system's error number (GetLastError).
Status system_error(Code code, DWORD number, const char* what, const std::string& path);

// The full path for system calls. Refuses what no system call accepts (empty, a zero byte, no UTF-8) and names of
// devices and pipes.
Result<std::wstring> wide_path(const std::string& path);
// UTF-8 of a text of the system.
std::string utf8(const wchar_t* text, size_t length);

// Handle keeps the system's handle in an int: 32 bits of a handle are significant on 64-bit Windows, too.
inline HANDLE native(const Handle& handle) { return reinterpret_cast<HANDLE>(static_cast<intptr_t>(handle.number())); }
inline Handle owned(HANDLE handle) {
  return handle == INVALID_HANDLE_VALUE || handle == nullptr ? Handle() : Handle(static_cast<int>(reinterpret_cast<intptr_t>(handle)));
}

// Calls `done` again, for a second at most, while it fails with one of two errors: somebody else has the file open and does not share it,
// as a writer does between renaming its temporary and closing it. The last error stays.
template <class F>
bool patiently(DWORD error, DWORD other_error, const F& done) {
  constexpr int kMostRefusals = 100;
  for (int refusals = 0; !done(); ++refusals) {
    const DWORD found = ::GetLastError();
    if ((found != error && found != other_error) || refusals == kMostRefusals) return false;
    ::Sleep(10);
    ::SetLastError(found);
  }
  return true;
}

// Refuses everything except a file on a disk. Stores its length in `size`.
Status check_regular(HANDLE file, const std::string& path, uint64_t* size);

}  // namespace orrery::os
