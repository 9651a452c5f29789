// os.h for POSIX systems: mappings and memory, signals, the machine. Files are in posix_files.cpp.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/os/os.h"
#include "runtime/os/posix_files.h"

namespace orrery::os {

namespace {

// Releases the memory of the whole pages in [offset, offset + bytes) of `size` bytes.
void discard_pages(std::byte* data, uint64_t size, uint64_t offset, uint64_t bytes) {
  if (offset >= size) return;
  const uint64_t page = page_bytes();
  const uint64_t from = align_up(offset, page);
  const uint64_t to = std::min(offset + bytes, size) & ~(page - 1);
  if (from < to) ::madvise(data + from, to - from, MADV_DONTNEED);
}

// Hints the system to use huge pages. Small ranges are not worth the call.
void ask_for_huge_pages(void* data, uint64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes >= (uint64_t{4} << 20)) ::madvise(data, bytes, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

}  // namespace

// MappedFile ---------------------------------------------------------------------------------------------

Result<MappedFile> MappedFile::open(const std::string& path) {
  ORRERY_ASSIGN(const InputFile file, InputFile::open(path));
  return map(file);
}

Result<MappedFile> MappedFile::map(const InputFile& source) {
  MappedFile file;
  if (source.size_ == 0) return file;
  struct stat now;
  if (::fstat(source.file_.number(), &now) != 0) return system_error(Code::io, errno, "cannot read its size", source.path_);
  if (static_cast<uint64_t>(now.st_size) < source.from_ + source.size_)
    return error(Code::io, "%s: was truncated to %llu of its %llu bytes while it was opened", source.path_.c_str(),
                 static_cast<unsigned long long>(now.st_size), static_cast<unsigned long long>(source.from_ + source.size_));
  const uint64_t before = source.from_ % page_bytes(), bytes = before + source.size_;
  void* p = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, source.file_.number(), static_cast<off_t>(source.from_ - before));
  if (p == MAP_FAILED) {
    const int number = errno;
    return system_error(number == ENOMEM ? Code::out_of_host_memory : Code::io, number, "cannot map", source.path_);
  }
  // The system may read the parts of the file that are not yet in memory into huge pages, and map them as huge pages.
  ask_for_huge_pages(p, bytes);
  file.data_ = static_cast<const std::byte*>(p) + before;
  file.size_ = source.size_;
  file.before_ = before;
  return file;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_) - before_, before_ + size_);
}

void MappedFile::prefetch(uint64_t offset, uint64_t bytes) const {
  if (offset >= size_) return;
  const uint64_t from = (before_ + offset) & ~(page_bytes() - 1);
  bytes = std::min(bytes + (before_ + offset - from), before_ + size_ - from);
  ::madvise(const_cast<std::byte*>(data_) - before_ + from, bytes, MADV_WILLNEED);
}

void MappedFile::release_pages(uint64_t offset, uint64_t bytes) const {
  discard_pages(const_cast<std::byte*>(data_) - before_, before_ + size_, before_ + offset, bytes);
}

// Region -------------------------------------------------------------------------------------------------

Result<Region> Region::allocate(uint64_t bytes) {
  Region region;
  if (bytes == 0) return region;
  uint64_t rounded;
  if (!checked_align(bytes, page_bytes(), &rounded) || rounded > SIZE_MAX / 2) return too_large_region(bytes);
  void* p = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return refused_memory(bytes, errno);
  ask_for_huge_pages(p, rounded);
  region.data_ = static_cast<std::byte*>(p);
  region.size_ = rounded;
  return region;
}

Region::~Region() {
  if (data_) ::munmap(data_, size_);
}

void Region::discard(uint64_t offset, uint64_t bytes) const { discard_pages(data_, size_, offset, bytes); }

Status Region::lock(uint64_t offset, uint64_t bytes) const {
  if (::mlock(data_ + offset, bytes) == 0) return ok_status();
  const int number = errno;
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const uint64_t most = std::min<uint64_t>(limit.rlim_cur, physical_memory_bytes());  // RLIM_INFINITY is the largest number
  Status s = memory_error(Code::out_of_pinned_memory, bytes, most,
                          "the system does not lock %llu bytes in memory: this process may lock %llu in all "
                          "(RLIMIT_MEMLOCK, of %llu there are; raise it with `ulimit -l`, LimitMEMLOCK= of a service, or "
                          "memlock in limits.conf)",
                          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(most),
                          static_cast<unsigned long long>(physical_memory_bytes()));
  s.detail().native_code = number;
  return s;
}

void Region::unlock(uint64_t offset, uint64_t bytes) const { ::munlock(data_ + offset, bytes); }

// Threads ------------------------------------------------------------------------------------------------

static_assert(sizeof(sigset_t) <= 128 && alignof(sigset_t) <= 16, "SignalsBlocked holds the mask in place");

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  changed_ = ::pthread_sigmask(SIG_SETMASK, &all, new (before_) sigset_t) == 0;
}
SignalsBlocked::~SignalsBlocked() {
  if (changed_) ::pthread_sigmask(SIG_SETMASK, reinterpret_cast<const sigset_t*>(before_), nullptr);
}

bool lower_priority() {
#ifdef __linux__
  constexpr int kNice = 10;  // of 19; Linux has it for each thread
  const auto self = static_cast<id_t>(::syscall(SYS_gettid));
  return ::getpriority(PRIO_PROCESS, self) >= kNice || ::setpriority(PRIO_PROCESS, self, kNice) == 0;
#else
  return false;
#endif
}

// Machine ------------------------------------------------------------------------------------------------

std::tm local_time(std::time_t seconds) {
  std::tm time{};
  ::localtime_r(&seconds, &time);
  return time;
}

int64_t process_id() { return ::getpid(); }

uint64_t page_bytes() {
  const long n = ::sysconf(_SC_PAGESIZE);
  return n > 0 ? static_cast<uint64_t>(n) : 4096;
}

uint64_t physical_memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<uint64_t>(pages) * page_bytes() : uint64_t{1} << 32;
}

int available_processors() {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  const long n = ::sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? static_cast<int>(n) : 1;
}

bool request_tile_registers() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: Linux 5.16
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace orrery::os
