// files.h for Windows. A console is read and written in UTF-16, so its code page has no say.
#include "system/files.h"

#include <fcntl.h>
#include <io.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>

#include "system/terminal.h"
#include "system/windows_text.h"

#include <winioctl.h>  // behind windows.h

namespace orrery::tool {
namespace {

constexpr DWORD kMostAtOnce = 1 << 20;
constexpr DWORD kAppends = FILE_APPEND_DATA | FILE_WRITE_DATA | FILE_READ_ATTRIBUTES | SYNCHRONIZE;
constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

bool no_such_file(DWORD error) { return error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND || error == ERROR_INVALID_NAME; }

// Bytes at the end of `text` that begin a character which has not ended: 0 to 3.
size_t begun_character(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t needed = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return needed > back ? back : 0;
  }
  return 0;
}

bool write_to_console(HANDLE console, std::string_view bytes) {
  static std::mutex lock;
  static std::string begun;  // of a character whose end comes with the next bytes
  const std::lock_guard<std::mutex> held(lock);
  begun += bytes;
  const size_t whole = begun.size() - begun_character(begun);
  const std::wstring text = wide(std::string_view(begun).substr(0, whole));
  begun.erase(0, whole);
  for (size_t at = 0; at < text.size();) {
    DWORD units = static_cast<DWORD>(std::min<size_t>(text.size() - at, 8192)), written = 0;
    if (at + units < text.size() && (text[at + units - 1] & 0xFC00) == 0xD800) --units;  // a pair stays together
    if (!::WriteConsoleW(console, text.data() + at, units, &written, nullptr) || written == 0) return false;
    at += written;
  }
  return true;
}

// One line, or as much of it as fits, as the console's own line editing gives it.
ptrdiff_t read_from_console(HANDLE console, char* to, size_t bytes) {
  static std::string unread;
  static wchar_t high = 0;  // the first half of a pair whose second half comes with the next units
  while (unread.empty()) {
    wchar_t units[4096];
    DWORD n = 0;
    ::SetLastError(ERROR_SUCCESS);
    const bool read = ::ReadConsoleW(console, units, sizeof units / sizeof *units, &n, nullptr) != 0;
    if (n == 0) {
      const bool aborted = ::GetLastError() == ERROR_OPERATION_ABORTED;
      if (aborted) {  // by Ctrl-C, which another thread reports
        for (int tries = 0; tries < 100 && !interrupt_pending(); ++tries) ::Sleep(10);
        errno = EINTR;
        return -1;
      }
      if (read) return 0;
      set_errno();
      return -1;
    }
    std::wstring text;
    if (high) text += high;
    high = 0;
    text.append(units, n);
    if ((text.back() & 0xFC00) == 0xD800) high = text.back(), text.pop_back();
    if (!text.empty() && text[0] == 0x1A) return 0;  // Ctrl-Z begins the line
    text.erase(std::remove(text.begin(), text.end(), L'\r'), text.end());
    unread = utf8(text);
  }
  const size_t n = std::min(bytes, unread.size());
  std::copy_n(unread.data(), n, to);
  unread.erase(0, n);
  return static_cast<ptrdiff_t>(n);
}

}  // namespace

int open_file(const std::string& path, Access access) {
  const std::wstring name = wide_path(path);
  const bool read = access == Access::read;
  const HANDLE file = ::CreateFileW(name.c_str(), read ? GENERIC_READ : kAppends, kShared, nullptr, read ? OPEN_EXISTING : OPEN_ALWAYS,
                                    FILE_ATTRIBUTE_NORMAL, nullptr);
  if (file == INVALID_HANDLE_VALUE) {
    set_errno();
    if (name.empty()) errno = ENOENT;
    if (errno == EACCES && file_kind(path) == FileKind::folder) errno = EISDIR;
    return -1;
  }
  const int fd = ::_open_osfhandle(reinterpret_cast<intptr_t>(file), (read ? _O_RDONLY : _O_APPEND) | _O_BINARY | _O_NOINHERIT);
  if (fd < 0) ::CloseHandle(file);
  return fd;
}

void close_file(int fd) { ::_close(fd); }

ptrdiff_t read_some(int fd, char* to, size_t bytes) {
  const HANDLE file = handle_of(fd);
  if (is_console(file)) return read_from_console(file, to, bytes);
  DWORD n = 0;
  if (::ReadFile(file, to, static_cast<DWORD>(std::min<size_t>(bytes, kMostAtOnce)), &n, nullptr)) return static_cast<ptrdiff_t>(n);
  const DWORD error = ::GetLastError();
  if (error == ERROR_BROKEN_PIPE || error == ERROR_HANDLE_EOF) return 0;  // the writer has closed its end
  set_errno();
  return -1;
}

bool write_all(int fd, std::string_view bytes) {
  const HANDLE file = handle_of(fd);
  if (is_console(file)) {
    if (write_to_console(file, bytes)) return true;
    set_errno();
    return false;
  }
  const bool at_end = fd > kStderr && ::GetFileType(file) == FILE_TYPE_DISK;  // ours: opened to append
  while (!bytes.empty()) {
    OVERLAPPED end = {};
    end.Offset = end.OffsetHigh = 0xFFFFFFFF;
    DWORD n = 0;
    if (!::WriteFile(file, bytes.data(), static_cast<DWORD>(std::min<size_t>(bytes.size(), kMostAtOnce)), &n, at_end ? &end : nullptr)) {
      set_errno();
      return false;
    }
    bytes.remove_prefix(n);
  }
  return true;
}

bool truncate_file(int fd, uint64_t bytes) {
  FILE_END_OF_FILE_INFO end = {};
  end.EndOfFile.QuadPart = static_cast<LONGLONG>(bytes);
  if (::SetFileInformationByHandle(handle_of(fd), FileEndOfFileInfo, &end, sizeof end)) return true;
  set_errno();
  return false;
}

std::string make_temporary_file() {
  wchar_t folder[MAX_PATH + 1], name[MAX_PATH + 1];
  if (::GetTempPathW(MAX_PATH + 1, folder) == 0 || ::GetTempFileNameW(folder, L"orr", 0, name) == 0) return set_errno(), "";
  const std::string path = utf8(name);
  const int fd = open_file(path, Access::append);
  if (fd < 0) return "";
  DWORD returned;
  ::DeviceIoControl(handle_of(fd), FSCTL_SET_SPARSE, nullptr, 0, nullptr, 0, &returned, nullptr);  // without it, holes take room
  close_file(fd);
  return path;
}

int64_t file_bytes(int fd) {
  LARGE_INTEGER size;
  if (::GetFileSizeEx(handle_of(fd), &size)) return size.QuadPart;
  set_errno();
  return -1;
}

FileKind file_kind(const std::string& path) {
  const std::wstring name = wide_path(path);
  if (name.empty()) return FileKind::none;
  if (is_device(name)) return FileKind::other;
  const DWORD attributes = ::GetFileAttributesW(name.c_str());
  if (attributes == INVALID_FILE_ATTRIBUTES) {
    const DWORD error = ::GetLastError();
    set_errno();
    return no_such_file(error) ? FileKind::none : FileKind::unknown;
  }
  return attributes & FILE_ATTRIBUTE_DIRECTORY ? FileKind::folder : FileKind::regular;
}

// A new folder has the access list of the folder that it is in: the user's own folders are private.
bool make_one_folder(const std::string& path, bool) {
  if (::CreateDirectoryW(wide_path(path).c_str(), nullptr)) return true;
  set_errno();
  return false;
}

bool can_write_in(const std::string& folder) {
  const HANDLE opened =
      ::CreateFileW(wide_path(folder).c_str(), FILE_ADD_FILE, kShared, nullptr, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, nullptr);
  if (opened == INVALID_HANDLE_VALUE) {
    set_errno();
    return false;
  }
  BY_HANDLE_FILE_INFORMATION information;
  const bool is_folder = ::GetFileInformationByHandle(opened, &information) && information.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY;
  ::CloseHandle(opened);
  if (!is_folder) errno = ENOTDIR;
  return is_folder;
}

void remove_file(const std::string& path) { ::DeleteFileW(wide_path(path).c_str()); }

std::string folder_of(const std::string& path) {
  const size_t separator = path.find_last_of("/\\:");
  return separator == std::string::npos ? "" : path.substr(0, separator + 1);
}

}  // namespace orrery::tool
