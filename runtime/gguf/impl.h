// The parts of a File, each with the bytes it owns or borrows, and the tables over all parts. Private to this room:
// file.cpp fills it, fingerprint.cpp reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "runtime/gguf/parse.h"
#include "runtime/os/os.h"

namespace orrery::gguf {

// The part number in a file name has five digits in practice. This bounds the number of files that a bad file can
// make us open.
inline constexpr uint64_t kMaxParts = 65535;

struct Part {
  std::string name;
  uint64_t file_bytes = 0;
  std::unique_ptr<Header> header;
  os::InputFile source;          // Load::read: open until its tensors are read
  Span<const std::byte> memory;  // in its place, where the file is in memory
  Span<const std::byte> data;    // where its tensors lie: a mapping, a region, or the caller's memory; empty without data
  os::MappedFile mapped;         // Load::map: the whole file
  os::Region region;             // Load::read: the tensors alone, in file order
};

struct File::Impl {
  std::string path;
  std::vector<Part> parts;
  uint64_t alignment = 0;
  uint64_t file_bytes = 0;
  std::vector<Tensor> tensors;         // all parts, in file order
  std::vector<uint32_t> tensor_order;  // indexes into tensors, sorted by name

  Status assemble();
  Status read_tensors(const os::MemoryLimits& memory, const Progress& progress);
  Status hash(bool full, const Progress& progress, uint8_t out[16]) const;
};

}  // namespace orrery::gguf
