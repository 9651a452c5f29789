// Directories of Windows. A file that somebody has open is removed when the last handle is closed.
#include "runtime/os/folder/folder.h"

#include "runtime/os/windows_text.h"

namespace orrery::os {

namespace {

// Calls use(found) -> Status for each name of the directory.
template <class F>
Status each_name(const std::string& path, F use) {
  ORRERY_ASSIGN(const std::wstring pattern, wide_path(path_in(path, "*")));
  WIN32_FIND_DATAW found;
  const HANDLE search = ::FindFirstFileW(pattern.c_str(), &found);
  if (search == INVALID_HANDLE_VALUE) return system_error(Code::io, ::GetLastError(), "cannot list it", path);
  Status status = ok_status();
  do status = use(found);
  while (status.ok() && ::FindNextFileW(search, &found));
  const DWORD number = ::GetLastError();
  ::FindClose(search);
  if (status.ok() && number != ERROR_NO_MORE_FILES) return system_error(Code::io, number, "cannot list it", path);
  return status;
}

std::string name_of(const WIN32_FIND_DATAW& found) { return utf8(found.cFileName, std::char_traits<wchar_t>::length(found.cFileName)); }

}  // namespace

std::string path_in(const std::string& folder, const std::string& name) { return folder + '\\' + name; }

Status make_folder(const std::string& path) {
  ORRERY_ASSIGN(const std::wstring name, wide_path(path));
  const bool made = ::CreateDirectoryW(name.c_str(), nullptr) != 0;
  const DWORD number = made ? ERROR_SUCCESS : ::GetLastError();
  const DWORD attributes = ::GetFileAttributesW(name.c_str());
  if (attributes == INVALID_FILE_ATTRIBUTES) return system_error(Code::io, number, "cannot make the folder", path);
  if (!(attributes & FILE_ATTRIBUTE_DIRECTORY)) return system_error(Code::io, ERROR_DIRECTORY, "cannot open the folder", path);
  return ok_status();
}

Result<std::vector<FolderFile>> list_folder(const std::string& path, const std::string& suffix) {
  std::vector<FolderFile> out;
  ORRERY_TRY(each_name(path, [&](const WIN32_FIND_DATAW& found) -> Status {
    std::string name = name_of(found);
    if (name.size() <= suffix.size() || name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) return ok_status();
    if (out.size() == kMostListed) return error(Code::io, "%s: more than %zu files end with %s", path.c_str(), kMostListed, suffix.c_str());
    constexpr int64_t kSince1601 = 116'444'736'000'000'000;  // 1970, in units of 100 ns
    const uint64_t changed = (uint64_t{found.ftLastWriteTime.dwHighDateTime} << 32) | found.ftLastWriteTime.dwLowDateTime;
    constexpr DWORD kOther = FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT | FILE_ATTRIBUTE_DEVICE;
    out.push_back({std::move(name), (uint64_t{found.nFileSizeHigh} << 32) | found.nFileSizeLow,
                   (static_cast<int64_t>(changed) - kSince1601) * 100, (found.dwFileAttributes & kOther) == 0});
    return ok_status();
  }));
  return out;
}

Status remove_file(const std::string& path) {
  ORRERY_ASSIGN(const std::wstring name, wide_path(path));
  const auto removes = [&] { return ::DeleteFileW(name.c_str()) != 0; };
  if (patiently(ERROR_SHARING_VIOLATION, ERROR_SHARING_VIOLATION, removes)) return ok_status();
  const DWORD number = ::GetLastError();
  if (number == ERROR_FILE_NOT_FOUND || number == ERROR_PATH_NOT_FOUND) return ok_status();
  return system_error(Code::io, number, "cannot remove it", path);
}

bool touch_file(const std::string& path) {
  const Result<std::wstring> name = wide_path(path);
  if (!name.ok()) return false;
  const Handle file = owned(::CreateFileW(name.value().c_str(), FILE_WRITE_ATTRIBUTES,
                                          FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr, OPEN_EXISTING, 0, nullptr));
  FILETIME now;
  ::GetSystemTimePreciseAsFileTime(&now);
  return file.number() >= 0 && ::SetFileTime(native(file), nullptr, nullptr, &now) != 0;
}

void remove_leftovers(const std::string& path) {
  (void)each_name(path, [&](const WIN32_FIND_DATAW& found) -> Status {
    const std::string name = name_of(found);
    const Result<std::wstring> whole = wide_path(path_in(path, name));
    if (is_temporary(name) && whole.ok()) ::DeleteFileW(whole.value().c_str());  // fails while its writer lives
    return ok_status();
  });
}

}  // namespace orrery::os
