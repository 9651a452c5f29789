// One interface for everything that differs between operating systems: files and mappings, memory from the system,
// processors. posix*.cpp and windows*.cpp implement it. Paths are UTF-8. Errors carry the system's error number
// (errno, GetLastError) as native_code and name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <utility>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::os {

class InputFile;

// A file, or a part of one, mapped read-only. If another program truncates the file, the next access to the lost bytes kills the
// process (SIGBUS; Windows refuses to truncate a mapped file). The ABI documents this exception. A caller that cannot accept it reads the
// file into a Region instead.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  // Maps the part that `file` has open, at its length when it was opened, even if another file is at its path by now.
  static Result<MappedFile> map(const InputFile& file);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Hints the system to read [offset, offset + bytes) ahead.
  void prefetch(uint64_t offset, uint64_t bytes) const;
  // Releases the memory of [offset, offset + bytes) until the next access. Rounds inward to pages.
  void release_pages(uint64_t offset, uint64_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t before_ = 0;  // bytes of the mapping before data(): mappings begin at a page, parts of files need not
};

// Zeroed, page-aligned memory from the system. The system commits each page on first touch.
class Region {
 public:
  static Result<Region> allocate(uint64_t bytes);
  Region() = default;
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Releases the physical pages of [offset, offset + bytes). Their content is undefined afterwards. Rounds inward to pages.
  void discard(uint64_t offset, uint64_t bytes) const;
  // Locks the physical pages of [offset, offset + bytes) in memory until unlock(); `offset` begins a page. Locked
  // pages are never swapped out, and a device may copy from them without the processor. Error: out_of_pinned_memory
  // if the system refuses, with the bytes requested, the process's limit, and how to raise the limit.
  Status lock(uint64_t offset, uint64_t bytes) const;
  void unlock(uint64_t offset, uint64_t bytes) const;  // takes exactly lock()'s range; comes before discard()

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// The descriptor of an open file or directory. It is closed in the destructor, and when the process executes another
// program.
class Handle {
 public:
  Handle() = default;
  explicit Handle(int number) : number_(number) {}
  Handle(Handle&& other) noexcept : number_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Handle();
  int number() const { return number_; }  // -1: none
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

// A regular file, opened for reads at a position. Other kinds of files are refused without being opened, because
// opening a device can change its state.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);
  // A file that is open for reading already; `descriptor` stays the caller's. Reading moves no position.
  static Result<InputFile> of_descriptor(int descriptor);
  // Keeps bytes [offset, offset + bytes) alone: size() is then theirs, and read_at() counts from the first of them. bytes 0: up to the end.
  // Error: invalid_argument if the file is shorter.
  Status narrow(uint64_t offset, uint64_t bytes);

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Reads exactly `out.size()` bytes at `offset`. A file that ends earlier is an io error.
  Status read_at(uint64_t offset, Span<std::byte> out) const;

 private:
  friend class MappedFile;
  Handle file_;
  uint64_t size_ = 0;
  uint64_t from_ = 0;  // narrow(): where the part begins
  std::string path_;
};

// Writes a file either whole or not at all. The bytes go to a temporary beside the file; commit() flushes the
// temporary and renames it over `path`. Destruction without commit() removes the temporary and leaves `path`
// unchanged.
//
// create() follows symbolic links, even to a file that does not exist yet. It refuses a path that exists and is no
// regular file, and a file that the caller may not write. The new file takes the old file's mode, and its owner if
// the system permits. A new file is readable by its owner alone (mode 0600). Other hard links keep the old content.
// Extended attributes and access control lists are not copied. runtime/os/README.md describes the temporaries.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  ~AtomicFile();

  // A full disk, a quota or a file size limit gives Code::io. The limit's signal (SIGXFSZ) does not reach the
  // process.
  Status write(Span<const std::byte> bytes);
  // Flushes the file, renames it, and flushes the directory. Failing to flush the directory is no error: the file is
  // in place, and after a power cut either the old or the new file is there.
  Status commit();

 private:
  struct Former {  // the file that commit() replaces
    bool exists = false;
    uint32_t mode = 0, user = 0, group = 0;
  };
  AtomicFile() = default;
  Result<bool> find();
  Status take_temporary();
  void take_over_permissions() const;

  std::string path_;  // as the caller gave it, for messages
  Handle directory_;
  std::string name_;       // the file's name in the directory
  std::string temporary_;  // the temporary's name in the directory; empty: no temporary exists
  Handle file_;
  Former former_;
};

// Blocks every signal of the calling thread during its lifetime. Threads that start meanwhile inherit the block, so
// the application's handlers run on the application's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  alignas(16) std::byte before_[128];  // the system's signal mask
  bool changed_ = false;
};

// Lowers the calling thread's priority. False: the system refuses, or has no priorities. A thread inherits the priority of its creator.
// Only a privileged thread can raise it again, so normal threads are started again instead.
bool lower_priority();

// `seconds` since 1970 in the zone of this machine's user.
std::tm local_time(std::time_t seconds);

// The calling process. A child of fork() has another one.
int64_t process_id();
uint64_t page_bytes();
uint64_t physical_memory_bytes();

// The memory that this process may use under all limits: the machine, every control group of the process (version 2
// and 1), RLIMIT_AS and RLIMIT_DATA.
struct MemoryLimits {
  uint64_t total_bytes = UINT64_MAX;       // the smallest limit
  uint64_t available_bytes = UINT64_MAX;   // what may still be taken; pages of files that the system gives back count
  const char* bound_by = "nothing";        // the limit behind available_bytes: "RLIMIT_AS", "the control group's memory limit"
  uint64_t memory_bytes = UINT64_MAX;      // the smallest limit of the machine and its control groups, which count used memory alone
  uint64_t reservable_bytes = UINT64_MAX;  // memory that may still be reserved, used or not: by RLIMIT_AS and RLIMIT_DATA
};
// The default size of an arena or a reservoir, which the system commits lazily: half of the memory of the machine or container, and at most
// a quarter of reservable_bytes. So arena, reservoir and all other memory fit together.
uint64_t default_reservation_bytes(const MemoryLimits& limits);
// Takes a dozen small reads. root: prefix of /proc and /sys, for tests.
MemoryLimits memory_limits(const std::string& root = "");

// Number of processors that this process may run on (its affinity mask, otherwise the online processors); at least 1.
int available_processors();
// Asks the system, for all present and future threads of the process, for permission to use AMX's tile registers.
// Returns whether they may use them. Only threads that use the registers cost memory. Repeated calls are harmless.
bool request_tile_registers();

}  // namespace orrery::os
