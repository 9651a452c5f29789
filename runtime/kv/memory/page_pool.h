// The KV pages of one model, in slabs of the arena, kPagesTogether side by side (KvFormat). They are taken in ascending order, so that
// a session that is alone reads its layers in long stretches.  A session reserves as many pages as its context may need, so that
// taking one later cannot fail; forks share pages by reference count and copy one when they first write to it.
//
// Why taking cannot fail: a session's table never has more entries than its reservation, so the distinct pages in use
// are at most the sum of reservations, which the slabs always cover.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/backend/kv.h"
#include "runtime/base/allocation/account.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"

namespace orrery::kv {

struct Page {
  uint64_t address = 0;      // device
  uint32_t refs = 0;         // sessions whose table has it; 0: free
  Page* next_free = nullptr;
};

class PagePool {
 public:
  PagePool(Arena* arena, const KvFormat& format) : arena_(arena), format_(format) {}

  const KvFormat& format() const { return format_; }

  // What n more pages take, in the arena or in the reservoir.
  static Region layout(const KvFormat& format, uint64_t n_pages, bool in_reservoir);

  // Pages that exist and that nobody has reserved: in slabs that a fork's shared pages keep from going, or what is left of
  // kPagesTogether.
  uint32_t spare() const;
  // Makes sure that `n` more pages exist, and as many as kPagesTogether makes of them; out_of_device_memory otherwise.
  Status reserve(uint32_t n);
  // Gives a reservation back; slabs that nobody needs go back to the arena.
  void unreserve(uint32_t n);

  Page* take();                        // within a reservation; its content is undefined
  void share(Page* page);              // one more owner
  void drop(Page* page);               // one owner less
  bool shared(const Page* page) const; // more than one owner

 private:
  struct Slab {
    ArenaRegion region;
    std::vector<Page> pages;
  };
  bool idle(const Slab& slab) const;

  const AccountRef account_ = AccountRef::current();   // of the model: slabs outlive the session that needs them first
  Arena* arena_;
  KvFormat format_;
  mutable std::mutex mutex_;
  std::list<Slab> slabs_;
  Page* free_ = nullptr;
  uint64_t total_ = 0, reserved_ = 0;  // pages
};

// A number of pages reserved in a pool, given back when it goes.
class PageReservation {
 public:
  PageReservation() = default;
  static Result<PageReservation> make(std::shared_ptr<PagePool> pool, uint32_t n) {
    ORRERY_TRY(pool->reserve(n));
    PageReservation r;
    r.pool_ = std::move(pool);
    r.n_ = n;
    return r;
  }
  PageReservation(PageReservation&& other) noexcept : pool_(std::move(other.pool_)), n_(std::exchange(other.n_, 0)) {}
  PageReservation& operator=(PageReservation&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(n_, other.n_);
    return *this;
  }
  ~PageReservation() {
    if (pool_) pool_->unreserve(n_);
  }
  explicit operator bool() const { return pool_ != nullptr; }
  uint32_t pages() const { return n_; }

 private:
  std::shared_ptr<PagePool> pool_;
  uint32_t n_ = 0;
};

}  // namespace orrery::kv
