// Builds GGUF files in memory: tiny valid models, and hostile files that differ from a valid one in one field. Add data by key(), array()
// and tensor(), in file order; build() lays it out and returns the bytes. A test can override every number that a writer computes, because
// the loader must survive wrong ones.
//
//   GgufBuilder b;
//   b.key("general.architecture", "llama").key("llama.block_count", uint32_t{2});
//   b.array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
//   b.tensor("token_embd.weight", TensorType::f32, {4, 2}, floats_as_bytes(values));
//   std::vector<std::byte> file = b.build();   // starts at an address that File::parse() accepts
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/tensor_type.h"
#include "runtime/gguf/gguf.h"

namespace orrery::testing {

using Bytes = std::vector<std::byte>;

// Appends scalars, little-endian (as the machines that run this are), and strings with their 64-bit length.
class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    return raw(&value, sizeof value);
  }
  ByteWriter& text(std::string_view s) { return put(uint64_t{s.size()}).raw(s.data(), s.size()); }
  ByteWriter& raw(const void* p, size_t n) {
    const size_t at = bytes.size();
    bytes.resize(at + n);
    if (n > 0) std::memcpy(bytes.data() + at, p, n);
    return *this;
  }
  Bytes bytes;
};

// The bytes of an array of scalars.
template <class T>
Bytes as_bytes(const std::vector<T>& values) {
  ByteWriter w;
  return std::move(w.raw(values.data(), values.size() * sizeof(T)).bytes);
}

// The first offset of `text` in a file, or the file's size if the file does not contain it.
size_t find_bytes(const Bytes& file, std::string_view text);

// Overwrites a scalar in a file.
template <class T>
void poke(Bytes* file, size_t offset, T value) {
  std::memcpy(file->data() + offset, &value, sizeof value);
}

class GgufBuilder {
 public:
  explicit GgufBuilder(uint32_t version = 3) : version_(version) {}

  GgufBuilder& key(std::string_view name, uint8_t v) { return scalar(name, gguf::ValueType::u8, v); }
  GgufBuilder& key(std::string_view name, int8_t v) { return scalar(name, gguf::ValueType::i8, v); }
  GgufBuilder& key(std::string_view name, uint16_t v) { return scalar(name, gguf::ValueType::u16, v); }
  GgufBuilder& key(std::string_view name, int16_t v) { return scalar(name, gguf::ValueType::i16, v); }
  GgufBuilder& key(std::string_view name, uint32_t v) { return scalar(name, gguf::ValueType::u32, v); }
  GgufBuilder& key(std::string_view name, int32_t v) { return scalar(name, gguf::ValueType::i32, v); }
  GgufBuilder& key(std::string_view name, uint64_t v) { return scalar(name, gguf::ValueType::u64, v); }
  GgufBuilder& key(std::string_view name, int64_t v) { return scalar(name, gguf::ValueType::i64, v); }
  GgufBuilder& key(std::string_view name, float v) { return scalar(name, gguf::ValueType::f32, v); }
  GgufBuilder& key(std::string_view name, double v) { return scalar(name, gguf::ValueType::f64, v); }
  GgufBuilder& key(std::string_view name, bool v) { return scalar(name, gguf::ValueType::boolean, static_cast<uint8_t>(v)); }
  GgufBuilder& key(std::string_view name, std::string_view v);
  GgufBuilder& key(std::string_view name, const char* v) { return key(name, std::string_view(v)); }

  GgufBuilder& array(std::string_view name, const std::vector<std::string>& v);
  GgufBuilder& array(std::string_view name, const std::vector<bool>& v);
  GgufBuilder& array(std::string_view name, const std::vector<uint8_t>& v) { return plain(name, gguf::ValueType::u8, v); }
  GgufBuilder& array(std::string_view name, const std::vector<int8_t>& v) { return plain(name, gguf::ValueType::i8, v); }
  GgufBuilder& array(std::string_view name, const std::vector<uint16_t>& v) { return plain(name, gguf::ValueType::u16, v); }
  GgufBuilder& array(std::string_view name, const std::vector<int16_t>& v) { return plain(name, gguf::ValueType::i16, v); }
  GgufBuilder& array(std::string_view name, const std::vector<uint32_t>& v) { return plain(name, gguf::ValueType::u32, v); }
  GgufBuilder& array(std::string_view name, const std::vector<int32_t>& v) { return plain(name, gguf::ValueType::i32, v); }
  GgufBuilder& array(std::string_view name, const std::vector<uint64_t>& v) { return plain(name, gguf::ValueType::u64, v); }
  GgufBuilder& array(std::string_view name, const std::vector<int64_t>& v) { return plain(name, gguf::ValueType::i64, v); }
  GgufBuilder& array(std::string_view name, const std::vector<float>& v) { return plain(name, gguf::ValueType::f32, v); }
  GgufBuilder& array(std::string_view name, const std::vector<double>& v) { return plain(name, gguf::ValueType::f64, v); }
  // A value of any type: the number of the type, and the value's bytes in the file.
  GgufBuilder& raw_key(std::string_view name, uint32_t type, const Bytes& value);

  // Sets general.alignment (as u32) and lays the data out by it.
  GgufBuilder& alignment(uint32_t a);

  // Empty `data`: zero bytes, as the shape implies. dims[0] is the contiguous dimension.
  GgufBuilder& tensor(std::string_view name, TensorType type, std::vector<uint64_t> dims, Bytes data = {});
  // Adds an entry to the tensor table, with any content and without data. n_dims and `dims` are written unchecked.
  GgufBuilder& raw_tensor(std::string_view name, uint32_t n_dims, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset);

  // Counts for the header, in place of the true ones.
  GgufBuilder& claim_keys(uint64_t n) { return claimed_keys_ = n, *this; }
  GgufBuilder& claim_tensors(uint64_t n) { return claimed_tensors_ = n, *this; }

  Bytes build() const;

 private:
  struct Entry {
    std::string name;
    uint32_t n_dims;
    std::vector<uint64_t> dims;
    uint32_t type;
    uint64_t offset;
  };
  template <class T>
  GgufBuilder& scalar(std::string_view name, gguf::ValueType type, T value) {
    return raw_key(name, static_cast<uint32_t>(type), ByteWriter().put(value).bytes);
  }
  template <class T>
  GgufBuilder& plain(std::string_view name, gguf::ValueType type, const std::vector<T>& v) {
    ByteWriter w;
    w.put(type).put(uint64_t{v.size()}).raw(v.data(), v.size() * sizeof(T));
    return raw_key(name, static_cast<uint32_t>(gguf::ValueType::array), w.bytes);
  }

  uint32_t version_;
  uint64_t alignment_ = 32;
  uint64_t n_keys_ = 0;
  std::optional<uint64_t> claimed_keys_, claimed_tensors_;
  ByteWriter keys_;
  std::vector<Entry> tensors_;
  Bytes data_;  // the data section, padded to the alignment
};

}  // namespace orrery::testing
