// The KV pages of one model, in slabs of the arena; kPagesTogether pages lie side by side (KvFormat). Pages are taken in ascending order,
// so a session that runs alone reads each layer in long stretches.
//
// A session reserves the pages of its whole context, so take() cannot fail later: a session's table never has more entries than its
// reservation, the distinct pages in use are at most the sum of all reservations, and the slabs cover that sum. Forks share pages by
// reference count. A fork copies a shared page before it first writes to it.
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
  uint64_t address = 0;  // on the device
  uint32_t refs = 0;     // tables that have the page; 0: free
  uint32_t of_slab = 0;  // its number in the slab, whose region is the next
  const ArenaRegion* region = nullptr;
  Page* next_free = nullptr;
};

class PagePool {
 public:
  // ring: the pages hold a window of the context.
  PagePool(Arena* arena, const KvFormat& format, bool ring = false) : arena_(arena), format_(format), ring_(ring) {}

  const KvFormat& format() const { return format_; }

  // The region of n_pages more pages, in the arena or in the reservoir.
  static Region layout(const KvFormat& format, uint64_t n_pages, bool in_reservoir, bool ring = false);

  // Pages that exist without a reservation: in slabs that a fork's shared pages keep alive, or because slabs hold whole units of
  // kPagesTogether.
  uint32_t spare() const;
  // Reserves n pages, and makes the missing ones in units of kPagesTogether. Error: that of ArenaRegion::take(); then nothing has changed.
  Status reserve(uint32_t n);
  // Gives n reserved pages back. Slabs without pages in use that no reservation needs return to the arena.
  void unreserve(uint32_t n);

  Page* take();  // within a reservation; the page's content is undefined
  // Returns when the device may use the page: ArenaRegion::wait_shared().
  Status wait(const Page& page) const;
  void share(Page* page);               // adds an owner
  void drop(Page* page);                // takes an owner away
  bool shared(const Page* page) const;  // whether it has more than one owner

 private:
  struct Slab {
    ArenaRegion region;
    std::vector<Page> pages;
  };
  bool idle(const Slab& slab) const;

  const AccountRef account_ = AccountRef::current();  // of the model: slabs outlive the session that needs them first
  Arena* arena_;
  KvFormat format_;
  const bool ring_;
  mutable std::mutex mutex_;
  std::list<Slab> slabs_;
  Page* free_ = nullptr;
  uint64_t total_ = 0, reserved_ = 0;  // pages
};

// A number of pages reserved in a pool. The destructor gives them back.
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
