// A folder of sessions on a disk: a tier below the reservoir. Each entry is one file, NAME.orrery, written whole (os::AtomicFile). When the
// entries have more than max_bytes, the least recently used ones leave, by the time of their last change, which each use sets.
//
// Any threads and processes may share a folder without a lock: renaming and removing are atomic, whoever has an entry open reads it to its
// end, and an entry that vanishes is one that is not there. Other files in the folder are left alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/folder/entry.h"
#include "runtime/os/os.h"

namespace orrery::engine {

class Folder {
 public:
  static constexpr size_t kMostNameBytes = 200;
  static constexpr size_t kMostFound = 4;

  // Makes the folder if it is not there. max_bytes 0: no limit. program: the version of the library (EntryKey::program).
  static Result<std::shared_ptr<Folder>> open(const std::string& path, uint64_t max_bytes, const std::string& program);

  const std::string& path() const { return path_; }
  EntryHash program(const char* backend, const char* instruction_set) const;
  std::string path_of(const std::string& name) const;  // of an entry's file

  // Whether a caller may give an entry this name. Names of unnamed entries, which begin with '~', may be read and removed alone.
  static Status check_name(const std::string& name, bool writes);
  static std::string unnamed(const EntryKey& key, Span<const int32_t> tokens);

  // Entries of the key whose usable pages hold the first tokens of `tokens`, more than `from` of them: the longest first, at most kMostFound.
  // Entries that are damaged, foreign or not readable are passed over.
  struct Found {
    std::string name;
    Entry entry;
    uint32_t n_pages = 0;
  };
  std::vector<Found> find(const EntryKey& key, Span<const int32_t> tokens, uint32_t from) const;
  Result<os::InputFile> open_entry(const std::string& name) const;
  void touch(const std::string& name) const;  // it was used

  // Writes an entry of `bytes` bytes by write(sink). Others leave before it is written, as far as that takes. invalid_argument: more bytes
  // than the folder may have.
  using Sink = std::function<Status(Span<const std::byte>)>;
  Status save(const std::string& name, uint64_t bytes, const std::function<Status(const Sink&)>& write) const;
  // Unnamed entries of which `entry`, in `name`, has all shared tokens leave.
  void replace_shorter(const std::string& name, const Entry& entry) const;
  Status remove(const std::string& name) const;  // error: io if the folder has no such entry
  // As JSON, the last used first.
  Result<std::string> list() const;

 private:
  Folder(std::string path, uint64_t max_bytes, std::string program)
      : path_(std::move(path)), max_bytes_(max_bytes), program_(std::move(program)) {}
  // Entries but `name` leave, the least recently used first, until those that stay have at most max_bytes_ less `bytes`.
  Status make_room(const std::string& name, uint64_t bytes) const;

  std::string path_;
  uint64_t max_bytes_;
  std::string program_;
};

}  // namespace orrery::engine
