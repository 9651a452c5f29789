// Everything that differs between operating systems, behind one interface: files and mappings, memory reserved
// from the system, processors.  posix.cpp implements it; another system is another file beside it.
// Paths are UTF-8.  Errors carry the system's error number as native_code and name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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
  void let_go(uint64_t offset, uint64_t bytes) const;

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

// A file opened for positioned reads.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);
  InputFile() = default;
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Reads exactly `out.size()` bytes at `offset`; a short file is an io error.
  Status read_at(uint64_t offset, Span<std::byte> out) const;

 private:
  friend class MappedFile;
  int handle_ = -1;
  uint64_t size_ = 0;
  std::string path_;
};

// Writes a file so that it is there whole or not at all: a temporary beside it, flushed, then renamed over `path`
// by commit().  Destroyed without commit(), it removes the temporary and leaves `path` as it was.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  ~AtomicFile();

  Status write(Span<const std::byte> bytes);
  Status commit();

 private:
  AtomicFile() = default;
  int handle_ = -1;
  std::string path_, temporary_;
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

uint64_t page_bytes();
uint64_t physical_memory_bytes();

// What this process may take of memory, by everything that limits it: the machine, every control group that it is in
// (version 2 and 1), RLIMIT_AS and RLIMIT_DATA.
struct MemoryLimits {
  uint64_t total_bytes = UINT64_MAX;       // the smallest limit
  uint64_t available_bytes = UINT64_MAX;   // what may still be taken; pages of files that the system gives back count
  const char* bound_by = "nothing";        // whose limit leaves that: "RLIMIT_AS", "the control group's memory limit"
};
// A dozen small reads. `root` stands before /proc and /sys; tests put their own there.
MemoryLimits memory_limits(const std::string& root = "");

// Processors that this process may run on (its affinity mask, then what is online); at least 1.
int available_processors();
// Asks that this process's threads may use the tile registers of AMX, once for all of them, now and later ones;
// whether they may. Costs memory only where threads use them. Asking twice does no harm.
bool request_tile_registers();

}  // namespace orrery::os
