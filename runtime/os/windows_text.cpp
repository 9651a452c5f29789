// See windows_text.h.
#include "runtime/os/windows_text.h"

#include <climits>

namespace orrery::os {

std::string utf8(const wchar_t* text, size_t length) {
  const int n = static_cast<int>(length);
  const int bytes = ::WideCharToMultiByte(CP_UTF8, 0, text, n, nullptr, 0, nullptr, nullptr);
  std::string out(bytes > 0 ? static_cast<size_t>(bytes) : 0, '\0');
  if (bytes > 0) ::WideCharToMultiByte(CP_UTF8, 0, text, n, out.data(), bytes, nullptr, nullptr);
  return out;
}

Status system_error(Code code, DWORD number, const char* what, const std::string& path) {
  wchar_t text[256];
  DWORD n = ::FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, number, 0, text,
                             sizeof text / sizeof *text, nullptr);
  while (n > 0 && (text[n - 1] == L'\n' || text[n - 1] == L'\r' || text[n - 1] == L'.' || text[n - 1] == L' ')) --n;
  const std::string reason = n > 0 ? utf8(text, n) : "system error " + std::to_string(number);
  Status s = error(code, "%s: %s: %s", path.c_str(), what, reason.c_str());
  s.detail().native_code = static_cast<int64_t>(number);
  return s;
}

Result<std::wstring> wide_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return error(Code::invalid_argument, "a file path is empty or holds a zero byte");
  if (path.size() > SHRT_MAX) return system_error(Code::io, ERROR_FILENAME_EXCED_RANGE, "cannot open", path.substr(0, 200) + "...");
  const int bytes = static_cast<int>(path.size());
  const int units = ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, nullptr, 0);
  if (units <= 0) return error(Code::invalid_argument, "%s: the file path is not UTF-8", path.c_str());
  std::wstring given(static_cast<size_t>(units), L'\0');
  ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, given.data(), units);
  if (given.compare(0, 4, L"\\\\?\\") == 0) return given;  // the caller's own full path

  std::wstring full(static_cast<size_t>(::GetFullPathNameW(given.c_str(), 0, nullptr, nullptr)), L'\0');
  const DWORD n = full.empty() ? 0 : ::GetFullPathNameW(given.c_str(), static_cast<DWORD>(full.size()), full.data(), nullptr);
  if (n == 0 || n >= full.size())
    return system_error(Code::io, n == 0 ? ::GetLastError() : ERROR_FILENAME_EXCED_RANGE, "cannot open", path);
  full.resize(n);
  if (full.compare(0, 4, L"\\\\.\\") == 0) return error(Code::io, "%s: not a regular file but a device", path.c_str());
  if (full.compare(0, 2, L"\\\\") == 0) return L"\\\\?\\UNC" + full.substr(1);
  return L"\\\\?\\" + full;
}

Status check_regular(HANDLE file, const std::string& path, uint64_t* size) {
  const DWORD type = ::GetFileType(file);
  if (type != FILE_TYPE_DISK)
    return error(Code::io, "%s: not a regular file but a %s", path.c_str(), type == FILE_TYPE_PIPE ? "pipe or socket" : "device");
  BY_HANDLE_FILE_INFORMATION information;
  if (!::GetFileInformationByHandle(file, &information)) return system_error(Code::io, ::GetLastError(), "cannot read its size", path);
  if (information.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY)
    return error(Code::io, "%s: not a regular file but a directory", path.c_str());
  *size = uint64_t{information.nFileSizeHigh} << 32 | information.nFileSizeLow;
  return ok_status();
}

}  // namespace orrery::os
