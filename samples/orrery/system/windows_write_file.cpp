// write_file.h for Windows: a temporary that nobody else can open while its writer lives, renamed by its open handle over the file. The
// new file has the access list of the old one.
#include <fcntl.h>
#include <io.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "system/failure.h"
#include "system/files.h"
#include "system/terminal.h"
#include "system/windows_text.h"
#include "system/write_file.h"

namespace orrery::tool {
namespace {

constexpr int kMostTries = 1000;    // other runs may be writing the same file, one after another
constexpr int kMostRefusals = 100;  // another writer, or a scanner, has the file open for a moment
constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

[[noreturn]] void fail(const std::string& path, int error) {
  throw Failure(kExitFailure, path + ": cannot write: " + std::strerror(error));
}

[[noreturn]] void fail_by_system(const std::string& path) {
  set_errno();
  fail(path, errno);
}

struct Closed {
  HANDLE handle;
  explicit Closed(HANDLE h) : handle(h) {}
  Closed(const Closed&) = delete;
  Closed& operator=(const Closed&) = delete;
  ~Closed() {
    if (there()) ::CloseHandle(handle);
  }
  bool there() const { return handle != INVALID_HANDLE_VALUE; }
};

HANDLE open_existing(const std::wstring& name, DWORD access) {
  return ::CreateFileW(name.c_str(), access, kShared, nullptr, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, nullptr);
}

// Calls `done` again while it fails with one of two errors. The last error stays.
template <class F>
bool patiently(DWORD error, DWORD other_error, const F& done) {
  for (int refusals = 0; !done(); ++refusals) {
    const DWORD found = ::GetLastError();
    if ((found != error && found != other_error) || refusals == kMostRefusals) return false;
    ::Sleep(10);
    ::SetLastError(found);
  }
  return true;
}

bool same_file(HANDLE a, HANDLE b) {
  BY_HANDLE_FILE_INFORMATION of_a, of_b;
  return ::GetFileType(a) == FILE_TYPE_DISK && ::GetFileType(b) == FILE_TYPE_DISK && ::GetFileInformationByHandle(a, &of_a) &&
         ::GetFileInformationByHandle(b, &of_b) && of_a.dwVolumeSerialNumber == of_b.dwVolumeSerialNumber &&
         of_a.nFileIndexHigh == of_b.nFileIndexHigh && of_a.nFileIndexLow == of_b.nFileIndexLow;
}

// kStdout or kStderr if that stream is the file or the device at `path`, else -1.
int standard_stream(const std::string& path) {
  const std::wstring name = wide_path(path);
  if (is_device(name)) {
    const bool console = ::_wcsicmp(name.c_str(), L"\\\\.\\CON") == 0 || ::_wcsicmp(name.c_str(), L"\\\\.\\CONOUT$") == 0;
    return console && is_terminal(kStdout) ? kStdout : -1;
  }
  const Closed file(open_existing(name, FILE_READ_ATTRIBUTES));
  if (!file.there()) return -1;
  for (const int fd : {kStdout, kStderr}) {
    if (same_file(handle_of(fd), file.handle)) return fd;
  }
  return -1;
}

// Equal for every run that writes this file, and short for every file name.
std::wstring temporary_of(const std::wstring& target) {
  const size_t name = target.find_last_of(L"\\/") + 1;
  uint64_t hash = 0xcbf29ce484222325u;
  for (const wchar_t c : target.substr(name)) hash = (hash ^ c) * 0x100000001b3u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return target.substr(0, name) + L".orrery-tool-" + wide(digits);
}

// An existing temporary belongs to a running writer, whose end this run waits for, or to a killed one.
HANDLE open_temporary(const std::wstring& name, const std::string& path) {
  for (int tries = 0; tries < kMostTries; ++tries) {
    const HANDLE file =
        ::CreateFileW(name.c_str(), GENERIC_READ | GENERIC_WRITE | DELETE, 0, nullptr, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (file != INVALID_HANDLE_VALUE) return file;
    const DWORD error = ::GetLastError();
    // Access is denied while a removed file still has its name.
    const bool there = ::GetFileAttributesW(name.c_str()) != INVALID_FILE_ATTRIBUTES;
    if (error != ERROR_FILE_EXISTS && error != ERROR_ALREADY_EXISTS && error != ERROR_SHARING_VIOLATION && !there) {
      ::SetLastError(error);
      fail_by_system(path);
    }
    if (!::DeleteFileW(name.c_str())) ::Sleep(10);
  }
  fail(path, EAGAIN);
}

void take_over_access(const std::wstring& target, const std::wstring& temporary) {
  DWORD bytes = 0;
  ::GetFileSecurityW(target.c_str(), DACL_SECURITY_INFORMATION, nullptr, 0, &bytes);
  std::vector<std::byte> list(bytes);
  if (bytes > 0 && ::GetFileSecurityW(target.c_str(), DACL_SECURITY_INFORMATION, list.data(), bytes, &bytes))
    ::SetFileSecurityW(temporary.c_str(), DACL_SECURITY_INFORMATION, list.data());
}

// FILE_RENAME_INFO of the newer call (Windows 10): the flags stand where the older call has a Boolean.
constexpr DWORD kReplace = 1, kPosixSemantics = 2;
constexpr auto kRenameInformationEx = static_cast<FILE_INFO_BY_HANDLE_CLASS>(22);

// The newer call also replaces a file that others have open.
bool rename_over(HANDLE file, const std::wstring& target) {
  const size_t name_bytes = target.size() * sizeof(wchar_t);
  std::vector<std::byte> room(sizeof(FILE_RENAME_INFO) + name_bytes);
  auto* information = new (room.data()) FILE_RENAME_INFO();
  information->FileNameLength = static_cast<DWORD>(name_bytes);
  std::copy(target.begin(), target.end(), information->FileName);
  const DWORD flags = kReplace | kPosixSemantics;
  std::copy_n(reinterpret_cast<const std::byte*>(&flags), sizeof flags, room.data());
  if (::SetFileInformationByHandle(file, kRenameInformationEx, information, static_cast<DWORD>(room.size()))) return true;
  const DWORD error = ::GetLastError();
  if (error == ERROR_ACCESS_DENIED || error == ERROR_SHARING_VIOLATION) return false;
  const DWORD none = 0;
  std::copy_n(reinterpret_cast<const std::byte*>(&none), sizeof none, room.data());
  information->ReplaceIfExists = TRUE;
  return ::SetFileInformationByHandle(file, FileRenameInfo, information, static_cast<DWORD>(room.size())) != 0;
}

bool write_bytes(HANDLE file, std::string_view bytes) {
  while (!bytes.empty()) {
    DWORD n = 0;
    if (!::WriteFile(file, bytes.data(), static_cast<DWORD>(std::min<size_t>(bytes.size(), 1 << 30)), &n, nullptr)) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

void replace_file(const std::string& path, bool exists, std::string_view bytes) {
  std::wstring target = wide_path(path);
  if (exists) {
    // Another writer's temporary has this name, and nobody else may open it, from its renaming to its closing.
    const auto can_write = [&] { return Closed(open_existing(target, GENERIC_WRITE)).there(); };
    if (!patiently(ERROR_SHARING_VIOLATION, ERROR_SHARING_VIOLATION, can_write)) fail_by_system(path);
  }
  const DWORD attributes = exists ? ::GetFileAttributesW(target.c_str()) : 0;
  if (attributes & FILE_ATTRIBUTE_READONLY) fail(path, EACCES);  // a rename would not ask
  if (attributes & FILE_ATTRIBUTE_REPARSE_POINT) {               // the file behind the link
    const Closed former(open_existing(target, FILE_READ_ATTRIBUTES));
    std::vector<wchar_t> name(32768);
    const DWORD n = ::GetFinalPathNameByHandleW(former.handle, name.data(), static_cast<DWORD>(name.size()), FILE_NAME_NORMALIZED);
    if (n == 0 || n >= name.size()) fail_by_system(path);
    target.assign(name.data(), n);
  }
  const std::wstring temporary = temporary_of(target);
  const Closed file(open_temporary(temporary, path));
  if (exists) take_over_access(target, temporary);
  const auto renamed = [&] { return rename_over(file.handle, target); };
  if (write_bytes(file.handle, bytes) && ::FlushFileBuffers(file.handle) &&
      patiently(ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, renamed))
    return;
  set_errno();
  const int error = errno;
  FILE_DISPOSITION_INFO remove = {TRUE};
  ::SetFileInformationByHandle(file.handle, FileDispositionInfo, &remove, sizeof remove);
  fail(path, error);
}

}  // namespace

void write_file(const std::string& path, std::string_view bytes) {
  const bool standard = path == "-";
  const FileKind kind = standard ? FileKind::other : file_kind(path);
  if (kind == FileKind::unknown) fail(path, errno);
  if (kind == FileKind::folder) fail(path, EISDIR);
  const int stream = standard ? kStdout : kind == FileKind::none ? -1 : standard_stream(path);
  if (stream < 0 && kind != FileKind::other) return replace_file(path, kind == FileKind::regular, bytes);
  bool written;
  if (stream >= 0) {
    written = write_all(stream, bytes);
  } else {
    const Closed device(open_existing(wide_path(path), GENERIC_WRITE));
    if (!device.there()) fail_by_system(path);
    written = write_bytes(device.handle, bytes);
    if (!written) set_errno();
  }
  if (!written && errno == EPIPE && stream == kStdout) throw ClosedPipe{};
  if (!written) fail(standard ? "standard output" : path, errno);
}

bool is_stream(const std::string& path) {
  if (path == "-") return true;
  const FileKind kind = file_kind(path);
  return kind == FileKind::other || (kind == FileKind::regular && standard_stream(path) >= 0);
}

bool is_standard_output(const std::string& path) { return path == "-" || standard_stream(path) == kStdout; }

}  // namespace orrery::tool
