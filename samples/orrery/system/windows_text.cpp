// See windows_text.h.
#include "system/windows_text.h"

#include <io.h>

#include <cerrno>

namespace orrery::tool {

std::wstring wide(std::string_view text) {
  const int bytes = static_cast<int>(text.size());
  const int units = bytes == 0 ? 0 : ::MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, nullptr, 0);
  std::wstring out(static_cast<size_t>(units), L'\0');
  if (units > 0) ::MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, out.data(), units);
  return out;
}

std::string utf8(std::wstring_view text) {
  const int units = static_cast<int>(text.size());
  const int bytes = units == 0 ? 0 : ::WideCharToMultiByte(CP_UTF8, 0, text.data(), units, nullptr, 0, nullptr, nullptr);
  std::string out(static_cast<size_t>(bytes), '\0');
  if (bytes > 0) ::WideCharToMultiByte(CP_UTF8, 0, text.data(), units, out.data(), bytes, nullptr, nullptr);
  return out;
}

std::wstring wide_path(const std::string& path) {
  const std::wstring given = wide(path);
  if (given.compare(0, 4, L"\\\\?\\") == 0) return given;  // the user's own full path
  std::wstring full(static_cast<size_t>(::GetFullPathNameW(given.c_str(), 0, nullptr, nullptr)), L'\0');
  if (full.empty()) return full;
  full.resize(::GetFullPathNameW(given.c_str(), static_cast<DWORD>(full.size()), full.data(), nullptr));
  if (is_device(full)) return full;
  if (full.compare(0, 2, L"\\\\") == 0) return L"\\\\?\\UNC" + full.substr(1);
  return L"\\\\?\\" + full;
}

bool is_device(const std::wstring& full) { return full.compare(0, 4, L"\\\\.\\") == 0; }

void set_errno() {
  switch (::GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_NAME:
    case ERROR_INVALID_DRIVE:
    case ERROR_BAD_NETPATH:
    case ERROR_BAD_NET_NAME: errno = ENOENT; break;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
    case ERROR_LOCK_VIOLATION: errno = EACCES; break;
    case ERROR_WRITE_PROTECT: errno = EROFS; break;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: errno = EEXIST; break;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL: errno = ENOSPC; break;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY: errno = ENOMEM; break;
    case ERROR_TOO_MANY_OPEN_FILES: errno = EMFILE; break;
    case ERROR_BROKEN_PIPE:
    case ERROR_PIPE_NOT_CONNECTED:
    case ERROR_NO_DATA: errno = EPIPE; break;
    case ERROR_INVALID_HANDLE: errno = EBADF; break;
    case ERROR_FILENAME_EXCED_RANGE: errno = ENAMETOOLONG; break;
    case ERROR_DIRECTORY: errno = ENOTDIR; break;
    case ERROR_OPERATION_ABORTED: errno = EINTR; break;
    default: errno = EIO; break;
  }
}

HANDLE handle_of(int fd) {
  const intptr_t handle = ::_get_osfhandle(fd);
  return handle == -2 ? INVALID_HANDLE_VALUE : reinterpret_cast<HANDLE>(handle);  // -2: a program without a console has no stream
}

bool is_console(HANDLE handle) {
  DWORD mode;
  return ::GetConsoleMode(handle, &mode) != 0;
}

}  // namespace orrery::tool
