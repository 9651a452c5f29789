// An arena: one piece of memory, made once, from which models take a region for their weights, and sessions take
// theirs. The device arena is the backend's; the reservoir's is host memory, pageable or pinned: then a region is locked in
// memory while it is taken.  Only the bookkeeping lives here, on the host: the regions that are taken; a new one goes
// into the smallest gap that holds it.  Giving a region back allocates nothing, so it cannot fail.
// Thread-safe: models and sessions open and close on any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/backend/device.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/os/os.h"

namespace orrery::kv {

inline constexpr uint64_t kArenaAlignment = 256;

class Arena {
 public:
  // Over the whole arena that the backend has reserved, `bytes` long.
  Arena(Device* device, uint64_t bytes)
      : device_(device), base_(device->arena()), bytes_(bytes), full_(Code::out_of_device_memory) {}
  // Over host memory. Where `sharer` is given, regions are shared with that device, which locks them too.
  explicit Arena(os::Region memory, bool pinned = false, Device* sharer = nullptr)
      : sharer_(sharer),
        pinned_(pinned || sharer != nullptr),
        memory_(std::move(memory)),
        base_{reinterpret_cast<uintptr_t>(memory_.data())},
        bytes_(memory_.size()),
        full_(Code::out_of_host_memory) {}

  uint64_t bytes() const { return bytes_; }
  bool pinned() const { return pinned_; }
  uint64_t used() const;
  uint64_t largest_free() const;   // the biggest region that can be taken now
  // The regions that are taken, by their offset, under the names that they were taken by.
  struct Taken {
    const char* what;
    uint64_t bytes;
  };
  std::vector<Taken> taken() const;

 private:
  friend class ArenaRegion;
  Result<uint64_t> take(uint64_t bytes, const char* whose, const char* what);
  void give(uint64_t offset);
  // Calls f(offset, bytes) for every gap between regions. Under the lock.
  template <class F>
  void for_each_gap(F f) const;

  // Locked regions share no page of the system's.
  uint64_t unit() const { return pinned_ ? std::max(kArenaAlignment, os::page_bytes()) : kArenaAlignment; }

  Device* device_ = nullptr;
  Device* sharer_ = nullptr;
  bool pinned_ = false;
  os::Region memory_;          // of a reservoir
  Ptr<std::byte> base_;
  uint64_t bytes_;
  Code full_;                  // what a region that does not fit is told
  mutable std::mutex mutex_;
  uint64_t used_ = 0;
  std::map<uint64_t, Taken> taken_;      // by offset
};

// A region of the arena, given back when it goes.  Must not outlive the arena.
class ArenaRegion {
 public:
  ArenaRegion() = default;
  // `what` (of static storage) names the region in the error: out_of_device_memory (of a reservoir: out_of_host_memory), with what was
  // asked and the largest free region; out_of_pinned_memory where the system does not lock so much.
  static Result<ArenaRegion> take(Arena* arena, uint64_t bytes, const char* what) { return take(arena, bytes, "", what); }
  // What a session's layout says that the region takes of the device.
  static Result<ArenaRegion> take(Arena* arena, const Region& region) { return take(arena, region.device_bytes, "the session's ", region.name); }
  ArenaRegion(ArenaRegion&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)), offset_(other.offset_), bytes_(std::exchange(other.bytes_, 0)) {}
  ArenaRegion& operator=(ArenaRegion&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(offset_, other.offset_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ArenaRegion();

  Ptr<std::byte> data() const { return arena_ ? arena_->base_ + offset_ : Ptr<std::byte>{}; }
  uint64_t bytes() const { return bytes_; }

 private:
  static Result<ArenaRegion> take(Arena* arena, uint64_t bytes, const char* whose, const char* what);
  Arena* arena_ = nullptr;
  uint64_t offset_ = 0, bytes_ = 0;
};

}  // namespace orrery::kv
