// Files of Windows: opens regular files and no others, reads at a position, maps. A file may be renamed, replaced or
// removed by others while it is open. The system refuses to truncate a mapped file.
#include <io.h>

#include <algorithm>
#include <utility>

#include "runtime/os/windows_text.h"

namespace orrery::os {

// Handle -------------------------------------------------------------------------------------------------

Handle::~Handle() {
  if (number_ >= 0) ::CloseHandle(native(*this));
}

// InputFile ----------------------------------------------------------------------------------------------

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile input;
  input.path_ = path;
  ORRERY_ASSIGN(const std::wstring name, wide_path(path));
  // FILE_FLAG_BACKUP_SEMANTICS opens a directory, too, so that the error can say what it is.
  const auto opens = [&] {
    input.file_ = owned(::CreateFileW(name.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                                      OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, nullptr));
    return input.file_.number() >= 0;
  };
  if (!patiently(ERROR_SHARING_VIOLATION, ERROR_SHARING_VIOLATION, opens))
    return system_error(Code::io, ::GetLastError(), "cannot open", path);
  ORRERY_TRY(check_regular(native(input.file_), path, &input.size_));
  return input;
}

// `descriptor` is one of the C runtime that this library is linked with (_open, _fileno).
Result<InputFile> InputFile::of_descriptor(int descriptor) {
  InputFile input;
  input.path_ = "descriptor " + std::to_string(descriptor);
  if (descriptor < 0) return option_error(Code::invalid_argument, "fd", "fd is %d, expected the number of an open file", descriptor);
  const auto file = reinterpret_cast<HANDLE>(::_get_osfhandle(descriptor));
  if (file == INVALID_HANDLE_VALUE) return system_error(Code::io, ERROR_INVALID_HANDLE, "cannot read its size", input.path_);
  ORRERY_TRY(check_regular(file, input.path_, &input.size_));
  // A duplicate would share the caller's position, which reading moves.
  input.file_ = owned(::ReOpenFile(file, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, 0));
  if (input.file_.number() < 0) return system_error(Code::io, ::GetLastError(), "cannot open it again", input.path_);
  return input;
}

Status InputFile::read_at(uint64_t offset, Span<std::byte> out) const {
  constexpr size_t kMost = size_t{1} << 30;  // a call takes 32 bits
  size_t done = 0;
  while (done < out.size()) {
    OVERLAPPED place = {};
    place.Offset = static_cast<DWORD>(from_ + offset + done);
    place.OffsetHigh = static_cast<DWORD>((from_ + offset + done) >> 32);
    DWORD n = 0;
    const bool read = ::ReadFile(native(file_), out.data() + done, static_cast<DWORD>(std::min(out.size() - done, kMost)), &n, &place);
    const DWORD number = read ? ERROR_SUCCESS : ::GetLastError();
    if (!read && number != ERROR_HANDLE_EOF) return system_error(Code::io, number, "cannot read", path_);
    if (n == 0) return ends_early(path_, offset + done, offset + out.size());
    done += n;
  }
  return ok_status();
}

// MappedFile ---------------------------------------------------------------------------------------------

Result<MappedFile> MappedFile::open(const std::string& path) {
  ORRERY_ASSIGN(const InputFile file, InputFile::open(path));
  return map(file);
}

Result<MappedFile> MappedFile::map(const InputFile& source) {
  MappedFile file;
  if (source.size_ == 0) return file;
  uint64_t now = 0;
  ORRERY_TRY(check_regular(native(source.file_), source.path_, &now));
  const uint64_t end = source.from_ + source.size_;
  if (now < end)
    return error(Code::io, "%s: was truncated to %llu of its %llu bytes while it was opened", source.path_.c_str(),
                 static_cast<unsigned long long>(now), static_cast<unsigned long long>(end));
  const Handle mapping = owned(
      ::CreateFileMappingW(native(source.file_), nullptr, PAGE_READONLY, static_cast<DWORD>(end >> 32), static_cast<DWORD>(end), nullptr));
  SYSTEM_INFO system;
  ::GetSystemInfo(&system);
  const uint64_t before = source.from_ % system.dwAllocationGranularity, at = source.from_ - before;
  void* p = mapping.number() < 0 ? nullptr
                                 : ::MapViewOfFile(native(mapping), FILE_MAP_READ, static_cast<DWORD>(at >> 32), static_cast<DWORD>(at),
                                                   before + source.size_);
  if (!p) {
    const DWORD number = ::GetLastError();
    const bool memory = number == ERROR_NOT_ENOUGH_MEMORY || number == ERROR_COMMITMENT_LIMIT;
    return system_error(memory ? Code::out_of_host_memory : Code::io, number, "cannot map", source.path_);
  }
  file.data_ = static_cast<const std::byte*>(p) + before;  // the view keeps the mapping
  file.size_ = source.size_;
  file.before_ = before;
  return file;
}

MappedFile::~MappedFile() {
  if (data_) ::UnmapViewOfFile(data_ - before_);
}

void MappedFile::prefetch(uint64_t offset, uint64_t bytes) const {
  if (offset >= size_) return;
  WIN32_MEMORY_RANGE_ENTRY range = {const_cast<std::byte*>(data_) + offset, static_cast<SIZE_T>(std::min(bytes, size_ - offset))};
  ::PrefetchVirtualMemory(::GetCurrentProcess(), 1, &range, 0);
}

void MappedFile::release_pages(uint64_t offset, uint64_t bytes) const {
  if (offset >= size_) return;
  const uint64_t page = page_bytes(), from = (before_ + offset + page - 1) & ~(page - 1);
  const uint64_t to = (before_ + std::min(offset + bytes, size_)) & ~(page - 1);
  // Unlocking pages that are not locked removes them from the working set; they stay in the file cache.
  if (from < to) ::VirtualUnlock(const_cast<std::byte*>(data_) - before_ + from, to - from);
}

}  // namespace orrery::os
