// The memory outside a block: what is allocated, which bytes have been written, and who touched them. Addresses are the host's own.
//
// Not thread-safe: who runs kernels on several threads has a lock (device.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "tests/ptx/executor/races.h"

namespace orrery::ptx {

// Windows of generic addresses. No address of the host lies there.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 56, kLocalWindow = uint64_t{2} << 56, kWindowBytes = uint64_t{1} << 32;

// Pages of zeros that take memory when they are touched.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept : at_(other.at_), bytes_(other.bytes_) { other.at_ = nullptr, other.bytes_ = 0; }
  Pages& operator=(Pages&& other) noexcept;
  std::byte* get() const { return at_; }

 private:
  std::byte* at_ = nullptr;
  size_t bytes_ = 0;
};

struct Region {
  uint64_t begin = 0, end = 0;
  bool tracked = false;  // false: the host writes it unseen, so all of it counts as written
  bool host = false;     // memory of the host, over the link
  Pages written;         // a byte for each byte: 1 once it has been written
  Pages cells;           // a Cell for each byte; those of pieces of n bytes are the first of n

  bool contains(uint64_t at, uint64_t bytes) const { return at >= begin && bytes <= end - begin && at <= end - bytes; }
  uint8_t* written_at(uint64_t at) { return reinterpret_cast<uint8_t*>(written.get() + (at - begin)); }
  Cell* cell(uint64_t at, unsigned granule) { return reinterpret_cast<Cell*>(cells.get()) + (at - begin) / granule; }
};

class Memory {
 public:
  // Allocations. tracked: its bytes are unwritten until a copy, mark_written() or a kernel writes them.
  void add(const void* at, size_t bytes, bool tracked, bool host = false);
  void remove(const void* at);
  // The region that holds the address; null if none does.
  Region* find(uint64_t address);
  // The last region that begins at or below the address, for messages.
  const Region* below(uint64_t address) const;
  void mark_written(const void* at, size_t bytes);
  // A copy carries along which bytes have been written.
  void copied(void* to, const void* from, size_t bytes);

 private:
  std::map<uint64_t, Region> regions_;  // by `begin`
};

}  // namespace orrery::ptx
