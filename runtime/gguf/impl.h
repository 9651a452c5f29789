// What a File is made of: its parts, each with the bytes it owns or borrows, and the tables over all of them.
// Private to this room: file.cpp fills it, fingerprint.cpp reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "runtime/gguf/parse.h"
#include "runtime/os/os.h"

namespace orrery::gguf {

// The number in a part's name has five digits in practice; this bounds what a bad file can make us open.
inline constexpr uint64_t kMaxParts = 65535;

struct Part {
  os::MappedFile mapped;  // Load::map
  os::Region region;      // Load::read
  Input input;            // the bytes of either, or the caller's
  Header header;

  uint64_t offset_of(std::string_view text) const {
    return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(text.data()) - input.bytes.data());
  }
  uint64_t offset_of_key(std::string_view key) const;  // where its name stands; 0 where it is absent
};

struct File::Impl {
  std::string path;
  std::vector<Part> parts;
  uint64_t alignment = 0;
  uint64_t file_bytes = 0;
  std::vector<Tensor> tensors;         // all parts, in file order
  std::vector<uint64_t> tensor_order;  // indexes into tensors, sorted by name

  Status assemble();
  Status hash(bool full, const Progress& progress, uint8_t out[16]) const;
};

}  // namespace orrery::gguf
