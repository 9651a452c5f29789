// The copy of a file's header: read once, from the front, as far as the parser asks.
//
// The parser sees these bytes and no others, so checked bytes never change afterwards. The bytes move when they grow,
// so the parser keeps offsets, not pointers. malloc() holds the bytes for two reasons: realloc() moves large blocks
// without copying, and sanitizers see where the bytes end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::gguf {

// Ten times the largest vocabulary's header. All memory that parsing allocates is within a small multiple of the
// header's bytes. The bound therefore holds even when a sparse file promises terabytes. The fields of a Value hold
// offsets and counts up to this bound.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;

// The file, as the parser sees it.
struct Input {
  std::string name;         // for messages
  uint64_t file_bytes = 0;  // length of the file
  std::function<Status(uint64_t offset, Span<std::byte> out)> read;
  std::function<Status(uint64_t done)> between_pieces = {};  // an error ends the parsing; may be empty
  uint64_t memory_bytes = UINT64_MAX;                        // upper bound on the memory of the header
  const char* memory_bound_by = "";                          // the source of that bound
};

class HeaderBytes {
 public:
  // Memory that a header may take per byte of its own: the byte itself, and at most two bytes of tables.
  static constexpr uint64_t kCost = 3;

  HeaderBytes() = default;
  HeaderBytes(const HeaderBytes&) = delete;
  HeaderBytes& operator=(const HeaderBytes&) = delete;
  ~HeaderBytes() { std::free(data_); }

  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

  // Reads until the first `n` bytes (at most file_bytes) are present. Reads a megabyte at a time, and at most one
  // megabyte beyond `n`.
  Status read_until(const Input& in, uint64_t n) {
    while (size_ < n) {
      const uint64_t piece = std::min(kPiece, in.file_bytes - size_);
      ORRERY_TRY(make_room(in, size_ + piece));
      ORRERY_TRY(in.read(size_, {data_ + size_, static_cast<size_t>(piece)}));
      size_ += piece;
      if (in.between_pieces) ORRERY_TRY(in.between_pieces(size_));
    }
    return ok_status();
  }
  // Frees the bytes after the first `n`.
  void trim(uint64_t n) {
    size_ = std::min(size_, n);
    if (void* less = std::realloc(data_, std::max<size_t>(1, size_))) data_ = static_cast<std::byte*>(less);
    capacity_ = size_;
  }

 private:
  static constexpr uint64_t kPiece = uint64_t{1} << 20;

  Status make_room(const Input& in, uint64_t n) {
    if (n * kCost > in.memory_bytes)
      return memory_error(Code::out_of_host_memory, n * kCost, in.memory_bytes,
                          "%s: reading on in its header, of %llu bytes so far, may take %llu bytes of memory, %llu are free (%s)",
                          in.name.c_str(), static_cast<unsigned long long>(size_), static_cast<unsigned long long>(n * kCost),
                          static_cast<unsigned long long>(in.memory_bytes), in.memory_bound_by);
    if (n <= capacity_) return ok_status();
    const uint64_t room = std::min(std::min(in.file_bytes, kMaxHeaderBytes + kPiece), std::max(n, capacity_ + capacity_ / 2));
    void* more = std::realloc(data_, room);
    if (more == nullptr)
      return memory_error(Code::out_of_host_memory, room, in.memory_bytes, "%s: the system refused %llu bytes for its header",
                          in.name.c_str(), static_cast<unsigned long long>(room));
    data_ = static_cast<std::byte*>(more);
    capacity_ = room;
    return ok_status();
  }

  std::byte* data_ = nullptr;
  uint64_t size_ = 0, capacity_ = 0;
};

}  // namespace orrery::gguf
