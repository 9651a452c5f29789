// An arena: one piece of memory, made once, and the list of the regions taken from it. A model takes a region for its weights, a session
// takes the regions of its layout. The memory of the device arena belongs to the backend. The memory of the reservoir is host memory,
// pageable or pinned; the system locks a pinned region while it is taken.
//
// A device that reads the reservoir shares each region (Device::share_host), which takes seconds for many gigabytes. So a large region is
// shared in parts. take() shares the first part, a thread of the arena the others, and wait_shared() waits for the bytes that it names. A
// device that allocates such memory itself (Device::shares_by_allocating) allocates a region as a whole.
//
// A new region goes into the smallest gap that holds it. Giving a region back allocates nothing and cannot fail.
// Thread-safe: models and sessions open and close on any thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/backend/device.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/os/os.h"

namespace orrery::kv {

inline constexpr uint64_t kArenaAlignment = 256;
// Of regions of a reservoir that may be pinned: whole pages, on any system.
inline constexpr uint64_t kHostAlignment = uint64_t{64} << 10;

class Arena {
 public:
  // The arena that the backend has reserved; it has `bytes` bytes.
  Arena(Device* device, uint64_t bytes) : device_(device), base_(device->arena()), bytes_(bytes), full_(Code::out_of_device_memory) {}
  // An arena in host memory. pinned: the system locks each region. sharer: that device locks each region and reads it (or null).
  explicit Arena(os::Region memory, bool pinned = false, Device* sharer = nullptr)
      : sharer_(sharer), pinned_(pinned || sharer != nullptr),
        memory_(std::move(memory)), base_{reinterpret_cast<uintptr_t>(memory_.data())}, bytes_(memory_.size()),
        full_(Code::out_of_host_memory) {}
  ~Arena();

  uint64_t bytes() const { return bytes_; }
  bool pinned() const { return pinned_; }
  // Bytes of host memory that are locked now, for the device or by the system.
  uint64_t pinned_bytes() const;
  // For tests: the size of the parts in which regions are shared, a multiple of the system's page.
  void share_in_parts_of(uint64_t bytes) { part_bytes_ = bytes; }
  uint64_t used() const;
  uint64_t largest_free() const;  // bytes of the largest region that can be taken now; spare regions give way
  // The taken regions with their names, in the order of their offsets.
  struct Taken {
    const char* what;
    uint64_t bytes;
  };
  std::vector<Taken> taken() const;
  // Where a region does not fit, release() is called until it does, or until release() returns false: it gives one spare region back.
  // Set once, before the arena is shared. release() is called on any thread, outside the arena's lock.
  void make_room_with(std::function<bool()> release) { release_ = std::move(release); }

 private:
  friend class ArenaRegion;
  struct Held;
  Result<std::pair<const uint64_t, Held>*> take(uint64_t bytes, const char* whose, const char* what, bool spare);
  Status pin(Held* held, const char* whose);
  void give(uint64_t offset);
  Status wait_shared(Held* held, uint64_t end);
  Status share_part(Held* held, std::unique_lock<std::mutex>* lock);
  void share_parts();
  void unshare(const Held& held, uint64_t part);
  // Calls f(offset, bytes) for every gap between regions. The caller holds the lock.
  template <class F>
  void for_each_gap(F f) const;

  // Two locked regions never share a page of the system.
  uint64_t unit() const { return pinned_ ? std::max(kArenaAlignment, os::page_bytes()) : kArenaAlignment; }

  Device* device_ = nullptr;
  Device* sharer_ = nullptr;
  bool pinned_ = false;
  os::Region memory_;  // of a reservoir; else empty
  Ptr<std::byte> base_;
  uint64_t bytes_;
  std::function<bool()> release_;
  Code full_;  // the error of a region that does not fit
  mutable std::mutex mutex_;
  uint64_t used_ = 0;
  struct Held : Taken {
    bool spare = false;
    Ptr<std::byte> at;
    bool allocated = false;            // by the sharer: `at` lies outside of the arena
    uint64_t pinned = 0;               // its first bytes, which are locked; of a shared region all that the device may use
    bool busy = false, given = false;  // a part is being shared; the region is being given back
    Status refused;                    // the last part was; the next wait_shared() tries again
  };
  std::map<uint64_t, Held> taken_;  // by offset
  uint64_t part_bytes_ = uint64_t{1} << 30;
  std::thread sharing_;              // share_parts(), from the first region of several parts on
  std::condition_variable changed_;  // a part has been shared or refused, or there are more
  bool ends_ = false;
};

// A region of an arena. The destructor gives it back. It must not outlive the arena.
class ArenaRegion {
 public:
  ArenaRegion() = default;
  // what: the region's name, of static storage. Errors name it: out_of_device_memory (out_of_host_memory in a reservoir), with the bytes
  // asked for and the largest free region; out_of_pinned_memory if the system refuses to lock the region, or has less memory than that.
  static Result<ArenaRegion> take(Arena* arena, uint64_t bytes, const char* what) { return take(arena, bytes, "", what); }
  // The device bytes of a region of a session's layout.
  static Result<ArenaRegion> take(Arena* arena, const Region& region) {
    return take(arena, region.device_bytes, "the session's ", region.name);
  }
  // A region that may be given back whenever others need its room: at the arena's high end, never locked, and without asking for room.
  static Result<ArenaRegion> take_spare(Arena* arena, uint64_t bytes, const char* what) { return take(arena, bytes, "", what, true); }
  ArenaRegion(ArenaRegion&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)), held_(other.held_), bytes_(std::exchange(other.bytes_, 0)) {}
  ArenaRegion& operator=(ArenaRegion&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(held_, other.held_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ArenaRegion();

  Ptr<std::byte> data() const { return arena_ ? held_->second.at : Ptr<std::byte>{}; }
  uint64_t bytes() const { return bytes_; }
  // Returns when the device may use the region's first `end` bytes. out_of_pinned_memory: the system has refused a part. The next call
  // waits for another try.
  Status wait_shared(uint64_t end) const { return arena_ ? arena_->wait_shared(&held_->second, end) : ok_status(); }

 private:
  static Result<ArenaRegion> take(Arena* arena, uint64_t bytes, const char* whose, const char* what, bool spare = false);
  Arena* arena_ = nullptr;
  std::pair<const uint64_t, Arena::Held>* held_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace orrery::kv
