// GGUF: from a file (or its split parts) to validated metadata and tensors. Knows nothing of models.
//
// open() copies the header once and never reads the header in the file again. A program that overwrites the file in
// place can therefore change numbers in tensors, but nothing that was checked.
// open() checks everything that can be checked without knowing the architecture: counts against the remaining bytes,
// sizes that wrap, names, types, alignment, ranges inside the file, overlap. Afterwards, every tensor's [data, data +
// bytes) is readable and aligned as alignment() says.
// A header takes less than three times its own bytes of memory.
// Errors name the file, the offset, and the key or tensor, with the value found and the value expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor_type.h"
#include "runtime/os/os.h"

namespace orrery::gguf {

using orrery::TensorType;  // runtime/base/tensor_type.h: types, block sizes, names
using orrery::type_traits;
using orrery::type_traits_by_name;
using orrery::TypeTraits;

struct Tensor {
  std::string_view name;
  TensorType type = TensorType::f32;
  uint32_t n_dims = 0;
  uint64_t dims[4] = {1, 1, 1, 1};  // dims[0] is the contiguous dimension: a matrix is (dims[1] rows, dims[0] columns)
  uint64_t n_elements = 0;
  uint64_t bytes = 0;
  uint32_t part = 0;                // index of the split file
  uint64_t offset = 0;              // from the start of that file
  const std::byte* data = nullptr;  // null when opened header-only
};

enum class ValueType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};
const char* value_type_name(ValueType type);

struct Header;

// One metadata value, decoded from the copy of the header on request. Cheap to copy. Valid as long as its File.
class Value {
 public:
  Value() : at_(0), type_(0), count_(0), element_(0) {}
  ValueType type() const { return static_cast<ValueType>(type_); }
  // Any integer type (or bool) whose value fits. False for every other value.
  bool as_u64(uint64_t* out) const;
  bool as_i64(int64_t* out) const;
  bool as_f64(double* out) const;  // any number
  bool as_bool(bool* out) const;   // bool, or an integer 0/1
  bool as_string(std::string_view* out) const;
  // Arrays: element type, count, and elements by index. at() takes a few steps, however long the array. For an index
  // out of range, or a value that is not an array, at() returns a Value whose as_ functions all return false.
  bool is_array_of(ValueType element) const { return type() == ValueType::array && element_type() == element; }
  ValueType element_type() const { return static_cast<ValueType>(element_); }
  uint64_t size() const { return count_; }
  Value at(uint64_t i) const;

 private:
  friend struct Header;
  friend struct Parser;
  const std::byte* data() const;  // the scalar, the string's first byte, or the array's first element

  const Header* header_ = nullptr;     // null: an empty Value
  uint32_t at_ : 28, type_ : 4;        // where data() lies in the header, which is at most 2^28 bytes long
  uint32_t count_ : 28, element_ : 4;  // string bytes or array elements
};

// Text of a value for messages: "u32 7", "string 'llama'", "array of 3 f32".
std::string describe(const Value& value);
// Text of a file's name for messages: control characters and broken UTF-8 are escaped, long names are cut.
std::string printable(std::string_view text);

enum class Load : uint8_t { map, read };  // read: into our own memory; no SIGBUS if another program truncates the file

// Called between pieces of a long read, with the bytes done and the total. Returning false cancels. `done` never
// falls. `total` is the size of the file; for a split model, the size of all parts that are open by then.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

class File;

struct OpenOptions {
  Load load = Load::map;
  bool header_only = false;                        // metadata and tensor table; no tensor data (Tensor::data is null)
  Progress progress = {};                          // called after each megabyte of a header, then after each piece of the data, with
                                                   // the place in the file. Load::map: `done` is always 0, because mapping reads no
                                                   // data
  std::function<Status(const File&)> accept = {};  // called once all headers are known, before any data is read; open()
                                                   // returns its error
  uint64_t memory_bytes = 0;                       // upper bound on the memory of headers and Load::read; 0: os::memory_limits()
};

class File {
 public:
  // `path` may be any part of a split model (NAME-00001-of-00003.gguf). open() opens all parts, in order.
  static Result<File> open(const std::string& path, const OpenOptions& options = {});
  // The same of an open file, which stays the caller's and whose position does not move; no split model. Bytes [offset, offset + bytes) of it
  // are the file: of an archive, say. bytes 0: up to its end.
  static Result<File> open_descriptor(int32_t descriptor, const OpenOptions& options = {}, uint64_t offset = 0, uint64_t bytes = 0);
  // Whether a file that begins there can be mapped: tensors are aligned from the file's start.
  static Status check_mappable(uint64_t offset);
  // The same of a file in memory. Load::map: as parse(). Load::read: its tensors are copied, and the bytes are the caller's again.
  static Result<File> open_memory(Span<const std::byte> bytes, const std::string& name, const OpenOptions& options = {});
  // A file already in memory (fuzzing, tests, embedded models); `name` is for messages. The bytes must outlive the
  // File and start at a multiple of 8 (else invalid_argument); tensors are then aligned relative to that start.
  static Result<File> parse(Span<const std::byte> bytes, const std::string& name);
  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();

  const std::string& path() const;  // as given
  uint32_t version() const;
  uint64_t alignment() const;   // a power of two, at least 8; the smallest of all parts
  uint64_t file_bytes() const;  // all parts together
  uint32_t n_parts() const;

  // Metadata in file order; for a split model, the first part's metadata.
  uint64_t n_keys() const;
  std::string_view key(uint64_t i) const;
  Value value(uint64_t i) const;
  const Value* find(std::string_view key) const;  // null where absent

  // Typed look-ups. An absent key gives `fallback` (or an error in the required_ forms). A wrong type or range gives
  // an error that names the key, the value found and the value expected.
  Result<uint64_t> get_u64(std::string_view key, uint64_t fallback) const;
  Result<double> get_f64(std::string_view key, double fallback) const;
  Result<bool> get_bool(std::string_view key, bool fallback) const;
  Result<std::string_view> get_string(std::string_view key, std::string_view fallback) const;
  Result<uint64_t> required_u64(std::string_view key) const;
  Result<std::string_view> required_string(std::string_view key) const;

  Span<const Tensor> tensors() const;  // all parts, in file order
  const Tensor* find_tensor(std::string_view name) const;
  // Tells the system that the tensor's bytes are no longer needed in memory. Bytes of a mapped file, or of the
  // caller's memory, are read again when they are next touched. Bytes that Load::read copied are lost.
  void release_pages(const Tensor& tensor) const;
  // Whether the data is a mapping of the file, whose pages come when they are read. prefetch(): a hint that bytes [from, from + bytes) of a
  // tensor will be read soon; nothing if the data is no mapping.
  bool is_mapped() const;
  void prefetch(const Tensor& tensor, uint64_t from, uint64_t bytes) const;
  // XXH3-128 of the metadata, the tensor table and 4 KiB samples of each tensor (its first and last bytes). Takes no
  // noticeable time at any model size. `full` hashes every tensor byte instead of samples and gives a different
  // value. Both need data: for a file opened header-only, the hash covers metadata and tensor table alone and is a
  // third value.
  void fingerprint(bool full, uint8_t out[16]) const;
  // The full fingerprint with progress reports. Returns cancelled when `progress` returns false.
  Status full_fingerprint(const Progress& progress, uint8_t out[16]) const;

 private:
  struct Impl;
  static Result<File> open_one(std::unique_ptr<Impl> impl, const OpenOptions& options, const os::MemoryLimits& memory);
  explicit File(std::unique_ptr<Impl> impl);
  Status wrong(std::string_view key, const Value& value, const char* expected) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orrery::gguf
