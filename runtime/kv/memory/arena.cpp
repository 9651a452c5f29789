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
  uint64_t end = 0;  // of the previous region
  for (const auto& [offset, region] : taken_) {
    if (offset > end) f(end, offset - end);
    end = offset + region.bytes;
  }
  if (bytes_ > end) f(end, bytes_ - end);
}

uint64_t Arena::largest_free() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t largest = 0, end = 0;  // end: of the previous region that stays
  for (const auto& [offset, region] : taken_) {
    if (region.spare) continue;
    largest = std::max(largest, offset - std::min(offset, end));
    end = offset + region.bytes;
  }
  return std::max(largest, bytes_ - end);
}

std::vector<Arena::Taken> Arena::taken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Taken> taken;
  for (const auto& [offset, region] : taken_) taken.push_back(region);
  return taken;
}

// Locked memory cannot be swapped out, and systems kill processes for it instead of refusing it: so the free memory is asked first.
Status Arena::pin(Held* held, const char* whose) {
  const os::MemoryLimits limits = os::memory_limits();
  Status refused;
  if (held->bytes > limits.available_bytes) {
    refused = memory_error(
        Code::out_of_pinned_memory, held->bytes, limits.available_bytes,
        "%llu bytes of host memory are to be locked, and %llu are available (by %s): a smaller context, or less KV in the "
        "reservoir, helps",
        static_cast<unsigned long long>(held->bytes), static_cast<unsigned long long>(limits.available_bytes), limits.bound_by);
  } else if (!sharer_) {
    refused = memory_.lock(held->at.address - base_.address, held->bytes);
    if (refused.ok()) held->pinned = held->bytes;
  } else if (sharer_->shares_by_allocating()) {
    Result<std::byte*> made = sharer_->allocate_shared(held->bytes);
    if (made.ok()) held->at = {reinterpret_cast<uintptr_t>(*made)}, held->allocated = true, held->pinned = held->bytes;
    else refused = made.take_status();
  } else {
    refused = share_part(held, nullptr);
  }
  if (refused.ok()) return ok_status();
  Status s = memory_error(refused.code(), held->bytes, refused.detail().bytes_available, "%s%s: %s", whose, held->what, refused.message());
  s.detail().native_code = refused.detail().native_code;
  return s;
}

// The next part. With a lock, others may take and give meanwhile.
Status Arena::share_part(Held* held, std::unique_lock<std::mutex>* lock) {
  const uint64_t bytes = std::min(part_bytes_, held->bytes - held->pinned);
  auto* const at = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(held->at.address + held->pinned));
  held->busy = true;
  if (lock) lock->unlock();
  Status shared = sharer_->share_host(at, bytes);
  if (lock) lock->lock();
  held->busy = false;
  if (shared.ok()) held->pinned += bytes;
  return shared;
}

// Shares the regions' parts, those of one region in their order, until the arena ends.
void Arena::share_parts() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_) {
    Held* next = nullptr;
    for (auto& [offset, held] : taken_)
      if (!next && !held.spare && !held.given && held.refused.ok() && held.pinned < held.bytes) next = &held;
    if (!next) {
      changed_.wait(lock);
      continue;
    }
    Status shared = share_part(next, &lock);
    if (!shared.ok()) next->refused = std::move(shared);
    changed_.notify_all();
  }
}

Status Arena::wait_shared(Held* held, uint64_t end) {
  if (!sharer_ || held->spare) return ok_status();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return held->pinned >= std::min(end, held->bytes) || !held->refused.ok(); });
  if (held->pinned >= std::min(end, held->bytes)) return ok_status();
  Status refused = std::exchange(held->refused, Status());
  changed_.notify_all();  // another try
  return refused;
}

uint64_t Arena::pinned_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [offset, held] : taken_) bytes += held.pinned;
  return bytes;
}

Arena::~Arena() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (sharing_.joinable()) sharing_.join();
}

Result<std::pair<const uint64_t, Arena::Held>*> Arena::take(uint64_t bytes, const char* whose, const char* what, bool spare) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t largest = 0, best = UINT64_MAX, at = 0;
  for_each_gap([&](uint64_t offset, uint64_t gap) {
    largest = std::max(largest, gap);
    if (gap < bytes) return;
    if (spare) best = gap, at = (offset + gap - bytes) / unit() * unit();  // the highest place
    else if (gap < best) best = gap, at = offset;
  });
  if (best == UINT64_MAX)
    return memory_error(full_, bytes, largest,
                        "%s%s needs %llu bytes of %s memory; the arena of %llu has %llu free in one piece (%llu short): %s sets its size",
                        whose, what, static_cast<unsigned long long>(bytes), device_ ? "device" : "host",
                        static_cast<unsigned long long>(bytes_), static_cast<unsigned long long>(largest),
                        static_cast<unsigned long long>(bytes - largest), device_ ? "device_budget_bytes" : "reservoir_bytes");
  const auto made = taken_.try_emplace(at).first;
  Held& held = made->second;
  held.what = what, held.bytes = bytes, held.spare = spare, held.at = base_ + at;
  if (pinned_ && !spare) {
    Status refused = pin(&held, whose);
    try {
      if (refused.ok() && held.pinned < bytes && !sharing_.joinable()) {
        const os::SignalsBlocked blocked;
        sharing_ = std::thread([this] { share_parts(); });
      }
    } catch (...) {  // no thread: all parts now
      while (refused.ok() && held.pinned < bytes) refused = share_part(&held, nullptr);
    }
    if (!refused.ok()) {
      for (uint64_t part = 0; part < held.pinned; part += part_bytes_) unshare(held, part);
      taken_.erase(made);
      return refused;
    }
    changed_.notify_all();
  }
  used_ += bytes;
  return &*made;
}

void Arena::unshare(const Held& held, uint64_t part) {
  sharer_->unshare_host(reinterpret_cast<std::byte*>(static_cast<uintptr_t>(held.at.address + part)));
}

void Arena::give(uint64_t offset) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto it = taken_.find(offset);
  Held& held = it->second;
  held.given = true;
  changed_.wait(lock, [&] { return !held.busy; });
  used_ -= held.bytes;
  if (held.allocated) sharer_->free_shared(reinterpret_cast<std::byte*>(static_cast<uintptr_t>(held.at.address)));
  else if (sharer_)
    for (uint64_t part = 0; part < held.pinned; part += part_bytes_) unshare(held, part);
  else if (pinned_ && !held.spare) memory_.unlock(offset, held.bytes);
  if (device_) device_->discard(base_ + offset, held.bytes);
  else if (!held.allocated) memory_.discard(offset, held.bytes);
  taken_.erase(it);
}

Result<ArenaRegion> ArenaRegion::take(Arena* arena, uint64_t bytes, const char* whose, const char* what, bool spare) {
  ArenaRegion region;
  uint64_t rounded = 0;
  if (bytes == 0) return region;
  if (!checked_align(bytes, arena->unit(), &rounded)) rounded = UINT64_MAX;
  auto held = arena->take(rounded, whose, what, spare);
  while (!held.ok() && !spare && arena->release_ && arena->release_()) held = arena->take(rounded, whose, what, spare);
  if (!held.ok()) return held.take_status();
  region.held_ = *held;
  region.arena_ = arena;
  region.bytes_ = rounded;
  return region;
}

ArenaRegion::~ArenaRegion() {
  if (arena_) arena_->give(held_->first);
}

}  // namespace orrery::kv
