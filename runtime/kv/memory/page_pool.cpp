#include "runtime/kv/memory/page_pool.h"

#include <algorithm>

#include "runtime/base/checked.h"

namespace orrery::kv {

namespace {
constexpr const char* kPagesName = "KV pages";
constexpr const char* kRingName = "window KV pages";
}  // namespace

Region PagePool::layout(const KvFormat& format, uint64_t n_pages, bool in_reservoir, bool ring) {
  const uint64_t bytes = align_up(n_pages * format.page_bytes(), kArenaAlignment);
  if (ring) return {kRingName, Holds::kv, bytes, 0, 0, 0};
  return in_reservoir ? Region{kPagesName, Holds::kv, 0, bytes, 0, 0} : Region{kPagesName, Holds::kv, bytes, 0, 0, bytes};
}

uint32_t PagePool::spare() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<uint32_t>(total_ - reserved_);
}

Status PagePool::reserve(uint32_t n) {
  const AccountScope scope(account_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t spare = total_ - reserved_;
  if (n > spare) {
    const uint64_t missing = align_up(n - spare, kPagesTogether);
    uint64_t bytes = 0;
    if (!checked_mul(missing, format_.page_bytes(), &bytes)) bytes = UINT64_MAX;
    std::list<Slab> fresh(1);  // made apart from slabs_: a failure half-way changes nothing
    Slab& slab = fresh.front();
    ORRERY_ASSIGN(slab.region, ArenaRegion::take(arena_, {ring_ ? kRingName : kPagesName, Holds::kv, bytes, 0, 0, 0}));
    slab.pages.resize(missing);
    for (size_t i = missing; i-- > 0;) {  // so that pages are taken in ascending order
      Page& page = slab.pages[i];
      page.address = slab.region.data().address + format_.page_offset(i);
      page.next_free = free_;
      page.of_slab = static_cast<uint32_t>(i), page.region = &slab.region;
      free_ = &page;
    }
    slabs_.splice(slabs_.end(), fresh);
    total_ += missing;
  }
  reserved_ += n;
  return ok_status();
}

bool PagePool::idle(const Slab& slab) const {
  return std::all_of(slab.pages.begin(), slab.pages.end(), [](const Page& p) { return p.refs == 0; });
}

void PagePool::unreserve(uint32_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reserved_ -= n;
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    const auto next = std::next(slab);
    if (total_ - slab->pages.size() >= reserved_ && idle(*slab)) {
      const Page* first = slab->pages.data();
      const Page* last = first + slab->pages.size();
      for (Page** link = &free_; *link;) {
        if (*link >= first && *link < last) *link = (*link)->next_free;
        else link = &(*link)->next_free;
      }
      total_ -= slab->pages.size();
      slabs_.erase(slab);
    }
    slab = next;
  }
}

Page* PagePool::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Page* page = free_;
  free_ = page->next_free;
  page->next_free = nullptr;
  page->refs = 1;
  return page;
}

// The layers of kPagesTogether pages lie side by side.
Status PagePool::wait(const Page& page) const {
  const uint64_t units = page.of_slab / kPagesTogether + uint64_t{1};
  return page.region->wait_shared(units * kPagesTogether * format_.page_bytes());
}

void PagePool::share(Page* page) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++page->refs;
}

void PagePool::drop(Page* page) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--page->refs == 0) {
    page->next_free = free_;
    free_ = page;
  }
}

bool PagePool::shared(const Page* page) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return page->refs > 1;
}

}  // namespace orrery::kv
