// One file's bytes -> its checked header: keys, values, tensor table.  Private to this room.
//
// Everything in a Header points into the copy of the header's bytes that it owns.  Beside it stand tables, whose
// bytes are bounded by those of the header: 24 for a key (which takes 14 at least), 4 for an array inside an array (12)
// and 8 more where it has an index of its own, 4 for every eighth string of an array (64), 104 for a tensor, whose
// number is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/gguf/header_bytes.h"

namespace orrery::gguf {

// Deeper nesting than any writer produces; each level of the parser's recursion is one of the file's.
inline constexpr int kMaxArrayDepth = 8;
// Thousands of times what models have; they bound the time that sorting takes.
inline constexpr uint64_t kMaxKeys = uint64_t{1} << 20, kMaxTensors = uint64_t{1} << 16;
inline constexpr uint64_t kMaxKeyBytes = 65535;
inline constexpr uint64_t kMaxTensorNameBytes = 64;
inline constexpr uint64_t kDefaultAlignment = 32;
// From the widest scalar, so that no tensor lies misaligned for its own type, to what padding could sanely
// be.
inline constexpr uint64_t kMinAlignment = 8, kMaxAlignment = uint64_t{1} << 20;

struct Header {
  HeaderBytes bytes;                      // to the end of the tensor table, header_bytes of them
  uint32_t version = 0;
  uint64_t alignment = kDefaultAlignment;
  uint64_t header_bytes = 0;
  std::deque<uint32_t> key_at;            // (n_keys), where each key's name stands, in file order. Deques grow without
  std::deque<Value> values;               // (n_keys)  copying what they hold.
  uint64_t keys_end = 0;                  // where the last key's value ends
  std::vector<uint32_t> key_order;        // (n_keys), indexes into keys, sorted by name
  std::vector<Tensor> tensors;            // in file order; data is null

  // Where elements of arrays lie that cannot be computed: of strings every kStride-th, of arrays each, from the second on.
  static constexpr uint64_t kStride = 8;
  struct Index {
    uint32_t array;                       // Value::at_
    uint32_t first;                       // in element_at
  };
  std::deque<Index> indexes;              // sorted by array, each at most once
  std::deque<uint32_t> element_at;

  uint64_t n_keys() const { return key_at.size(); }
  std::string_view key(uint64_t i) const;
  std::string_view key_bytes(uint64_t i) const;         // its name, type and value as they stand in the file
  uint64_t index_of(std::string_view key) const;        // n_keys() where it is absent
  const Value* find(std::string_view key) const;
  uint64_t offset_of(std::string_view text) const {   // of a name or a string
    return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(text.data()) - bytes.data());
  }
  uint64_t offset_of_key(std::string_view key) const;   // where its name stands; 0 where it is absent
  uint64_t offset_of(const Value& value) const { return value.at_; }
  Value element(const Value& array, uint64_t i) const;  // i < size
};

// Reads, checks and indexes the header. Errors: bad_model, unsupported_quantization, out_of_host_memory, and what
// in.read and in.between_pieces say.
Result<std::unique_ptr<Header>> parse_header(const Input& in);

// "FILE: byte OFFSET: WHAT" with the offset in the detail as well: how every complaint about a file's bytes
// reads.
Status bad_file(const std::string& file, uint64_t offset, const std::string& what);

}  // namespace orrery::gguf
