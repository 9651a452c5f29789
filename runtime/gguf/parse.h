// One file's bytes -> its checked header: keys, values, tensor table. Private to this room.
//
// Everything in a Header points into its own copy of the header's bytes. The header's size bounds the size of all
// tables: 24 bytes for a key (which takes at least 14 in the file), 4 for an array inside an array (12) and 8 more if
// it has an index of its own, 4 for every eighth string of an array (64), 104 for a tensor (whose number is bounded).
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

// Deeper nesting than any writer produces. Each level of nesting costs one level of the parser's recursion.
inline constexpr int kMaxArrayDepth = 8;
// Thousands of times the counts of real models. They bound the time of the sorts.
inline constexpr uint64_t kMaxKeys = uint64_t{1} << 20, kMaxTensors = uint64_t{1} << 16;
inline constexpr uint64_t kMaxKeyBytes = 65535;
inline constexpr uint64_t kMaxTensorNameBytes = 64;
inline constexpr uint64_t kDefaultAlignment = 32;
// The minimum is the widest scalar, so every tensor is aligned for its own type. The maximum is far above any
// sensible padding.
inline constexpr uint64_t kMinAlignment = 8, kMaxAlignment = uint64_t{1} << 20;

struct Header {
  HeaderBytes bytes;  // bytes up to the end of the tensor table, header_bytes of them
  uint32_t version = 0;
  uint64_t alignment = kDefaultAlignment;
  uint64_t header_bytes = 0;
  std::deque<uint32_t> key_at;      // (n_keys), offset of each key's name, in file order. A deque grows without
  std::deque<Value> values;         // (n_keys)  copying its elements.
  uint64_t keys_end = 0;            // offset of the end of the last key's value
  std::vector<uint32_t> key_order;  // (n_keys), indexes into keys, sorted by name
  std::vector<Tensor> tensors;      // in file order; data is null

  // Offsets of array elements that cannot be computed: every kStride-th string, or every array, from the second entry
  // on.
  static constexpr uint64_t kStride = 8;
  struct Index {
    uint32_t array;  // Value::at_
    uint32_t first;  // in element_at
  };
  std::deque<Index> indexes;  // sorted by array, each at most once
  std::deque<uint32_t> element_at;

  uint64_t n_keys() const { return key_at.size(); }
  std::string_view key(uint64_t i) const;
  std::string_view key_bytes(uint64_t i) const;   // the key's name, type and value as the file holds them
  uint64_t index_of(std::string_view key) const;  // n_keys() if the key is absent
  const Value* find(std::string_view key) const;
  uint64_t offset_of(std::string_view text) const {  // offset of a name or a string
    return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(text.data()) - bytes.data());
  }
  uint64_t offset_of_key(std::string_view key) const;  // offset of the key's name; 0 if the key is absent
  uint64_t offset_of(const Value& value) const { return value.at_; }
  Value element(const Value& array, uint64_t i) const;  // i < size
};

// Reads, checks and indexes the header. Errors: bad_model, unsupported_quantization, out_of_host_memory, and the
// errors of in.read and in.between_pieces.
Result<std::unique_ptr<Header>> parse_header(const Input& in);

// The form of every error about a file's bytes: "FILE: byte OFFSET: WHAT". The error's detail holds the offset too.
Status bad_file(const std::string& file, uint64_t offset, const std::string& what);

}  // namespace orrery::gguf
