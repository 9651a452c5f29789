// Everything that differs between operating systems, behind one interface: files and mappings, memory reserved
// from the system, processors.  posix*.cpp implement it; another system is other files beside them.
// Paths are UTF-8.  Errors carry the system's error number as native_code and name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::os {

class InputFile;

// A whole file, mapped read-only.  Truncating it behind the mapping kills the process on access (SIGBUS): the one
// exception that the ABI documents; callers who cannot accept it read the file into a Region instead.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  // The same file that `file` reads, as long as it was when that was opened: whatever stands at its path by now.
  static Result<MappedFile> map(const InputFile& file);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Asks the system to read [offset, offset + bytes) ahead; a hint.
  void prefetch(uint64_t offset, uint64_t bytes) const;
  // Takes [offset, offset + bytes) out of this process's memory until it is touched again. Rounds inward to pages.
  void release_pages(uint64_t offset, uint64_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Zeroed memory straight from the system, page-aligned, committed lazily on first touch.
class Region {
 public:
  static Result<Region> allocate(uint64_t bytes);
  Region() = default;
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Gives the physical pages of [offset, offset + bytes) back; they read as zero again. Rounds inward to pages.
  void discard(uint64_t offset, uint64_t bytes) const;
  // Takes the physical pages of [offset, offset + bytes), which begins at a page, and keeps them until unlock(): they are
  // never swapped out, and a device may copy from them beside the processor. out_of_pinned_memory where the system refuses:
  // what was asked for, what a process may lock in all, and how that is raised.
  Status lock(uint64_t offset, uint64_t bytes) const;
  void unlock(uint64_t offset, uint64_t bytes) const;   // exactly what lock() took; before discard()

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// The system's number of an open file or directory. Closed when it goes, and when another program is executed.
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
  int number() const { return number_; }   // -1: none
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

// A regular file opened for positioned reads. Anything else is refused without being opened: opening a device can act on it.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);
  // A file that is open for reading already; `descriptor` stays the caller's. Reading moves no position.
  static Result<InputFile> of_descriptor(int descriptor);

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }   // of a descriptor: "descriptor 5"
  // Reads exactly `out.size()` bytes at `offset`; a short file is an io error.
  Status read_at(uint64_t offset, Span<std::byte> out) const;

 private:
  friend class MappedFile;
  Handle file_;
  uint64_t size_ = 0;
  std::string path_;
};

// Writes a file so that it is there whole or not at all: a temporary beside it, flushed, then renamed over `path`
// by commit().  Destroyed without commit(), it removes the temporary and leaves `path` as it was.
//
// create() follows symbolic links, also one to a file that does not exist yet. It refuses what exists and is no regular
// file, and a file that the caller may not write. The new file takes over the old one's mode, and its owner where the
// system permits. A file that did not exist is the owner's alone (mode 0600). Other hard links keep the old content.
// Extended attributes and access control lists are not copied.
//
// The temporary has a fixed name of 42 bytes, made from the name of the file, and is locked (flock) while its writer
// lives. The next save of the same file removes what a killed one has left. (An unnamed file, O_TMPFILE, needs a name in
// the end as well: linkat() replaces nothing. It also needs /proc and a file system that has it.)
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  ~AtomicFile();

  // A full disk, a quota or a limit on file sizes is Code::io. The limit's signal (SIGXFSZ) does not reach the process.
  Status write(Span<const std::byte> bytes);
  // Flushes the file, renames it, and flushes the directory. A directory that cannot be flushed is no error: the file is
  // in place, and a power cut leaves the old one or the new one.
  Status commit();

 private:
  struct Former {   // the file that is replaced
    bool exists = false;
    uint32_t mode = 0, user = 0, group = 0;
  };
  AtomicFile() = default;
  Result<bool> find();
  Status take_temporary();
  void take_over_permissions() const;

  std::string path_;        // as it was given, for messages
  Handle directory_;
  std::string name_;        // the file's, in the directory
  std::string temporary_;   // likewise; empty: there is no temporary
  Handle file_;
  Former former_;
};

// Blocks every signal of the calling thread while it lives. Threads started meanwhile inherit that, so that the
// application's handlers run on its own threads.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  alignas(16) std::byte before_[128];   // the system's signal mask
  bool changed_ = false;
};

// Lowers the calling thread's priority; false where the system refuses, or has no such thing. A thread inherits that of its creator, and
// only privileged ones take it back: threads that are to be normal again are made anew.
bool lower_priority();

// The calling process. A child of fork() has another one.
int64_t process_id();
uint64_t page_bytes();
uint64_t physical_memory_bytes();

// What this process may take of memory, by everything that limits it: the machine, every control group that it is in
// (version 2 and 1), RLIMIT_AS and RLIMIT_DATA.
struct MemoryLimits {
  uint64_t total_bytes = UINT64_MAX;       // the smallest limit
  uint64_t available_bytes = UINT64_MAX;   // what may still be taken; pages of files that the system gives back count
  const char* bound_by = "nothing";        // whose limit leaves that: "RLIMIT_AS", "the control group's memory limit"
  uint64_t memory_bytes = UINT64_MAX;      // the smallest limit of the machine and its control groups, which count used memory alone
  uint64_t reservable_bytes = UINT64_MAX;  // what may still be reserved, used or not: by RLIMIT_AS and RLIMIT_DATA
};
// What a default may reserve that is committed lazily: half of the memory of this machine or container, and no more than a quarter of
// what may be reserved, so that arena, reservoir and everything else fit beside one another.
uint64_t default_reservation_bytes(const MemoryLimits& limits);
// A dozen small reads. `root` stands before /proc and /sys; tests put their own there.
MemoryLimits memory_limits(const std::string& root = "");

// Processors that this process may run on (its affinity mask, then what is online); at least 1.
int available_processors();
// Asks that this process's threads may use the tile registers of AMX, once for all of them, now and later ones;
// whether they may. Costs memory only where threads use them. Asking twice does no harm.
bool request_tile_registers();

}  // namespace orrery::os
