#include "runtime/kv/memory/arena.h"

#include <algorithm>

#include "runtime/base/checked.h"

namespace orrery::kv {

uint64_t Arena::used() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

template <class F>
void Arena::for_each_gap(F f) const {
  uint64_t end = 0;   // of the previous region
  for (const auto& [offset, region] : taken_) {
    if (offset > end) f(end, offset - end);
    end = offset + region.bytes;
  }
  if (bytes_ > end) f(end, bytes_ - end);
}

uint64_t Arena::largest_free() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t largest = 0;
  for_each_gap([&](uint64_t, uint64_t bytes) { largest = std::max(largest, bytes); });
  return largest;
}

std::vector<Arena::Taken> Arena::taken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Taken> taken;
  for (const auto& [offset, region] : taken_) taken.push_back(region);
  return taken;
}

Result<uint64_t> Arena::take(uint64_t bytes, const char* whose, const char* what, bool spare) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t largest = 0, best = UINT64_MAX, at = 0;
  for_each_gap([&](uint64_t offset, uint64_t gap) {
    largest = std::max(largest, gap);
    if (gap < bytes) return;
    if (spare)
      best = gap, at = (offset + gap - bytes) / unit() * unit();   // the highest place
    else if (gap < best)
      best = gap, at = offset;
  });
  if (best == UINT64_MAX)
    return memory_error(full_, bytes, largest,
                        "%s%s needs %llu bytes of %s memory; the arena of %llu has %llu free in one piece (%llu short): %s sets its size",
                        whose, what, static_cast<unsigned long long>(bytes), device_ ? "device" : "host",
                        static_cast<unsigned long long>(bytes_), static_cast<unsigned long long>(largest),
                        static_cast<unsigned long long>(bytes - largest), device_ ? "device_budget_bytes" : "reservoir_bytes");
  if (pinned_ && !spare) {
    const Status locked = sharer_ ? sharer_->share_host(memory_.data() + at, bytes) : memory_.lock(at, bytes);
    if (!locked.ok()) {
      Status s = memory_error(locked.code(), bytes, locked.detail().bytes_available, "%s%s: %s", whose, what, locked.message());
      s.detail().native_code = locked.detail().native_code;
      return s;
    }
  }
  taken_.emplace(at, Held{{what, bytes}, spare});
  used_ += bytes;
  return at;
}

void Arena::give(uint64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = taken_.find(offset);
  used_ -= it->second.bytes;
  const bool locked = !it->second.spare;
  if (sharer_ && locked)
    sharer_->unshare_host(memory_.data() + it->first);
  else if (pinned_ && locked)
    memory_.unlock(it->first, it->second.bytes);
  if (device_)
    device_->discard(base_ + it->first, it->second.bytes);
  else
    memory_.discard(it->first, it->second.bytes);
  taken_.erase(it);
}

Result<ArenaRegion> ArenaRegion::take(Arena* arena, uint64_t bytes, const char* whose, const char* what, bool spare) {
  ArenaRegion region;
  uint64_t rounded = 0;
  if (bytes == 0) return region;
  if (!checked_align(bytes, arena->unit(), &rounded)) rounded = UINT64_MAX;
  auto offset = arena->take(rounded, whose, what, spare);
  while (!offset.ok() && !spare && arena->release_ && arena->release_()) offset = arena->take(rounded, whose, what, spare);
  if (!offset.ok()) return offset.take_status();
  region.offset_ = *offset;
  region.arena_ = arena;
  region.bytes_ = rounded;
  return region;
}

ArenaRegion::~ArenaRegion() {
  if (arena_) arena_->give(offset_);
}

}  // namespace orrery::kv
