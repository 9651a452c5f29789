// One file's bytes -> its checked header: keys, values, tensor table.  Private to this room.
//
// Everything in a Header points into the bytes it was parsed from, except the indexes that make array
// elements reachable in constant time, which it owns.  The bytes may be only the first part of the file: what
// lies behind them is checked against `file_bytes` alone, and where the header itself goes on there,
// `starved` asks for more of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"

namespace orrery::gguf {

// Deeper nesting than any writer produces; each level of the parser's recursion is one of the file's.
inline constexpr int kMaxArrayDepth = 8;
// Ten times what the largest vocabularies need.  Everything that parsing allocates is within a small multiple
// of the header's bytes, so this bounds it even where a sparse file promises terabytes.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;
inline constexpr uint64_t kMaxKeyBytes = 65535;
inline constexpr uint64_t kMaxTensorNameBytes = 64;
inline constexpr uint64_t kDefaultAlignment = 32;
// From the widest scalar, so that no tensor lies misaligned for its own type, to what padding could sanely
// be.
inline constexpr uint64_t kMinAlignment = 8, kMaxAlignment = uint64_t{1} << 20;

struct Input {
  Span<const std::byte> bytes;  // the file's first bytes.size() bytes
  uint64_t file_bytes = 0;      // how long the file is
  std::string name;             // for messages
};

struct Header {
  uint32_t version = 0;
  uint64_t alignment = kDefaultAlignment;
  uint64_t header_bytes = 0;                          // to the end of the tensor table
  std::vector<std::string_view> keys;                 // (n_keys), in file order
  std::vector<Value> values;                          // (n_keys)
  std::vector<uint64_t> key_order;                    // (n_keys), indexes into keys, sorted by name
  std::vector<Tensor> tensors;                        // in file order; data is null
  std::vector<std::vector<uint64_t>> string_offsets;  // what Value::string_offsets_ points to
  std::vector<std::vector<Value>> children;           // what Value::children_ points to

  const Value* find(std::string_view key) const;
};

// Checks and indexes the header. When it fails with *starved set, the file is not at fault: parse again with
// more bytes.
Result<Header> parse_header(const Input& input, bool* starved);

// "FILE: byte OFFSET: WHAT" with the offset in the detail as well: how every complaint about a file's bytes
// reads.
Status bad_file(const std::string& file, uint64_t offset, const std::string& what);

// A value in a message: "u32 7", "string 'llama'", "array of 3 f32".
std::string describe(const Value& value);

}  // namespace orrery::gguf
