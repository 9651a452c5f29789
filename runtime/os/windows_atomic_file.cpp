// Files that are replaced whole, on Windows: write a temporary beside the file, rename its open handle over the file.
//
// Temporaries are slots, as on POSIX systems. A writer opens its slot without sharing, so that nobody else can open or
// remove the file while the writer lives. A slot that can be removed belongs to a dead writer.
#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "runtime/os/windows_text.h"

namespace orrery::os {

namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of("\\/:");
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// The path behind links, of a file that is open.
std::string final_path(HANDLE file) {
  std::vector<wchar_t> path(32768);
  const DWORD n = ::GetFinalPathNameByHandleW(file, path.data(), static_cast<DWORD>(path.size()), FILE_NAME_NORMALIZED);
  return n == 0 || n >= path.size() ? "" : utf8(path.data(), n);
}

// FILE_RENAME_INFO of the newer call (Windows 10): the flags stand where the older call has a Boolean.
constexpr DWORD kReplace = 1, kPosixSemantics = 2;
constexpr auto kRenameInformationEx = static_cast<FILE_INFO_BY_HANDLE_CLASS>(22);

// Renames an open file over `target`. The newer call also replaces a file that others have open.
bool rename_over(HANDLE file, const std::wstring& target) {
  const size_t name_bytes = target.size() * sizeof(wchar_t);
  std::vector<std::byte> room(sizeof(FILE_RENAME_INFO) + name_bytes);
  auto* information = new (room.data()) FILE_RENAME_INFO();
  information->FileNameLength = static_cast<DWORD>(name_bytes);
  std::copy(target.begin(), target.end(), information->FileName);
  const DWORD flags = kReplace | kPosixSemantics;
  std::copy_n(reinterpret_cast<const std::byte*>(&flags), sizeof flags, room.data());
  if (::SetFileInformationByHandle(file, kRenameInformationEx, information, static_cast<DWORD>(room.size()))) return true;
  const DWORD number = ::GetLastError();
  if (number == ERROR_ACCESS_DENIED || number == ERROR_SHARING_VIOLATION) return false;
  const DWORD none = 0;
  std::copy_n(reinterpret_cast<const std::byte*>(&none), sizeof none, room.data());
  information->ReplaceIfExists = TRUE;
  return ::SetFileInformationByHandle(file, FileRenameInfo, information, static_cast<DWORD>(room.size())) != 0;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  AtomicFile out;
  out.path_ = path;
  ORRERY_ASSIGN(const bool found, out.find());
  (void)found;
  ORRERY_TRY(out.take_temporary());
  return out;
}

// Finds the file that the path leads to. True: a file is there.
Result<bool> AtomicFile::find() {
  ORRERY_ASSIGN(const std::wstring given, wide_path(path_));
  Handle there;
  const auto opens = [&] {
    there = owned(::CreateFileW(given.c_str(), GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                                OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, nullptr));
    return there.number() >= 0;
  };
  patiently(ERROR_SHARING_VIOLATION, ERROR_SHARING_VIOLATION, opens);
  const DWORD number = ::GetLastError();
  const DWORD attributes = ::GetFileAttributesW(given.c_str());
  const bool exists = attributes != INVALID_FILE_ATTRIBUTES;
  former_ = {};
  if (there.number() >= 0) {
    if (exists && attributes & FILE_ATTRIBUTE_READONLY) return system_error(Code::io, ERROR_ACCESS_DENIED, "cannot write", path_);
    uint64_t size = 0;
    ORRERY_TRY(check_regular(native(there), path_, &size));
    name_ = final_path(native(there));
    if (name_.empty()) return system_error(Code::io, ::GetLastError(), "cannot follow it", path_);
    former_.exists = true;
    return true;
  }
  if (exists && attributes & FILE_ATTRIBUTE_DIRECTORY) return error(Code::io, "%s: not a regular file but a directory", path_.c_str());
  if (number != ERROR_FILE_NOT_FOUND || exists)  // a link that leads to no file, too
    return system_error(Code::io, number, "cannot write", path_);
  name_ = utf8(given.c_str(), given.size());
  return false;
}

Status AtomicFile::take_temporary() {
  const std::string folder = folder_of(name_), slots = temporaries_name(name_.substr(folder.size()));
  for (int slot = 0; slot < kTemporaries; ++slot) {
    std::string name = folder + slots + "-" + std::to_string(slot);
    ORRERY_ASSIGN(const std::wstring wide, wide_path(name));
    ::DeleteFileW(wide.c_str());        // fails while its writer lives
    if (file_.number() >= 0) continue;  // a later slot: only removed if stale
    Handle file =
        owned(::CreateFileW(wide.c_str(), GENERIC_READ | GENERIC_WRITE | DELETE, 0, nullptr, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr));
    if (file.number() < 0) {
      const DWORD number = ::GetLastError();
      if (number == ERROR_FILE_EXISTS || number == ERROR_SHARING_VIOLATION || number == ERROR_ACCESS_DENIED) {
        if (slot + 1 < kTemporaries) continue;
      }
      return system_error(Code::io, number, "cannot create a file beside it", path_);
    }
    file_ = std::move(file);
    temporary_ = std::move(name);
  }
  return ok_status();
}

AtomicFile::~AtomicFile() {
  if (temporary_.empty()) return;
  FILE_DISPOSITION_INFO remove = {TRUE};
  ::SetFileInformationByHandle(native(file_), FileDispositionInfo, &remove, sizeof remove);
}

Status AtomicFile::write(Span<const std::byte> bytes) {
  constexpr size_t kMost = size_t{1} << 30;
  size_t done = 0;
  while (done < bytes.size()) {
    DWORD n = 0;
    if (!::WriteFile(native(file_), bytes.data() + done, static_cast<DWORD>(std::min(bytes.size() - done, kMost)), &n, nullptr) || n == 0)
      return system_error(Code::io, ::GetLastError(), "cannot write", path_);
    done += n;
  }
  return ok_status();
}

// The access list of the file that is replaced. Without it, the new file has what its folder gives.
void AtomicFile::take_over_permissions() const {
  const Result<std::wstring> target = wide_path(name_), temporary = wide_path(temporary_);
  if (!former_.exists || !target.ok() || !temporary.ok()) return;
  DWORD bytes = 0;
  ::GetFileSecurityW(target.value().c_str(), DACL_SECURITY_INFORMATION, nullptr, 0, &bytes);
  if (bytes == 0) return;
  std::vector<std::byte> list(bytes);
  if (::GetFileSecurityW(target.value().c_str(), DACL_SECURITY_INFORMATION, list.data(), bytes, &bytes))
    ::SetFileSecurityW(temporary.value().c_str(), DACL_SECURITY_INFORMATION, list.data());
}

Status AtomicFile::commit() {
  take_over_permissions();
  if (!::FlushFileBuffers(native(file_))) return system_error(Code::io, ::GetLastError(), "cannot flush", path_);
  ORRERY_ASSIGN(const std::wstring target, wide_path(name_));
  const DWORD attributes = ::GetFileAttributesW(target.c_str());  // another file may have this name by now
  if (attributes != INVALID_FILE_ATTRIBUTES && attributes & FILE_ATTRIBUTE_DIRECTORY)
    return error(Code::io, "%s: not a regular file but a directory", path_.c_str());
  const auto renamed = [&] { return rename_over(native(file_), target); };
  if (!patiently(ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, renamed))
    return system_error(Code::io, ::GetLastError(), "cannot put the new file in place", path_);
  temporary_.clear();
  const Handle closed = std::move(file_);  // nobody else can open the file before
  return ok_status();
}

}  // namespace orrery::os
