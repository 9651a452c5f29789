// The parts of os.h that are the same on every system: moves of what owns memory or files, defaults, error texts.
#include "runtime/os/shared.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/base/hash.h"
#include "runtime/os/processors.h"

namespace orrery::os {

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), before_(std::exchange(other.before_, 0)) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(before_, other.before_);
  return *this;
}

Status InputFile::narrow(uint64_t offset, uint64_t bytes) {
  using ull = unsigned long long;
  if (offset > size_)
    return option_error(Code::invalid_argument, "fd_offset", "%s: its file has %llu bytes, and byte %llu is wanted", path_.c_str(),
                        static_cast<ull>(size_), static_cast<ull>(offset));
  if (bytes > size_ - offset)
    return option_error(Code::invalid_argument, "fd_bytes", "%s: its file has %llu bytes from byte %llu on, and %llu are wanted",
                        path_.c_str(), static_cast<ull>(size_ - offset), static_cast<ull>(offset), static_cast<ull>(bytes));
  size_ = bytes > 0 ? bytes : size_ - offset;
  from_ += offset;
  return ok_status();
}

Region::Region(Region&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)), directory_(std::move(other.directory_)), name_(std::move(other.name_)),
      temporary_(std::exchange(other.temporary_, std::string())), file_(std::move(other.file_)), former_(other.former_) {}

int Processors::usable() const { return std::max(1, static_cast<int>(std::min<double>(cores, quota))); }

uint64_t default_reservation_bytes(const MemoryLimits& limits) {
  return std::min(std::min(limits.memory_bytes, physical_memory_bytes()) / 2, limits.reservable_bytes / 4);
}

std::string temporaries_name(const std::string& name) {
  Hash128 hash;
  hash.update(name.data(), name.size());
  uint8_t digest[16];
  hash.digest(digest);
  std::string out = ".orrery-";
  for (const uint8_t byte : digest) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    out += digits;
  }
  return out;
}

bool is_temporary(const std::string& name) {
  constexpr size_t kDigits = 32;
  const size_t start = temporaries_name("").size() - kDigits, dash = start + kDigits;
  return name.size() > dash + 1 && name.compare(0, start, temporaries_name(""), 0, start) == 0 && name[dash] == '-';
}

Status ends_early(const std::string& path, uint64_t end, uint64_t wanted) {
  return error(Code::io, "%s: ends at byte %llu, before byte %llu", path.c_str(), static_cast<unsigned long long>(end),
               static_cast<unsigned long long>(wanted));
}

Status refused_memory(uint64_t bytes, int64_t native_code) {
  Status s = memory_error(Code::out_of_host_memory, bytes, physical_memory_bytes(), "the system refused %llu bytes of memory",
                          static_cast<unsigned long long>(bytes));
  s.detail().native_code = native_code;
  return s;
}

Status too_large_region(uint64_t bytes) {
  return memory_error(Code::out_of_host_memory, bytes, physical_memory_bytes(),
                      "a region of %llu bytes is more than this system can address", static_cast<unsigned long long>(bytes));
}

}  // namespace orrery::os
