#include "runtime/kv/resident/means.h"

#include <algorithm>

#include "runtime/base/checked.h"

namespace orrery::kv {

uint64_t Means::region_bytes(uint32_t n_means, int32_t head_dim) { return align_up(bytes_of(n_means, head_dim), kArenaAlignment); }

Means::Means(const KvFormat& format, uint32_t n_means, ArenaRegion region)
    : head_dim_(format.head_dim), region_(std::move(region)), heads_(static_cast<size_t>(format.n_layers) * static_cast<size_t>(format.n_kv_heads)) {
  jobs_.reserve(n_means);
}

Result<std::unique_ptr<Means>> Means::make(Arena* arena, const KvFormat& format, uint32_t n_means) {
  ORRERY_ASSIGN(ArenaRegion region, ArenaRegion::take(arena, region_bytes(n_means, format.head_dim), "the means of what heads let go"));
  return std::unique_ptr<Means>(new Means(format, n_means, std::move(region)));
}

uint64_t Means::used_bytes() const {
  const auto n = std::count_if(heads_.begin(), heads_.end(), [](const Head& head) { return head.n > 0 || head.weight > 0.0f; });
  return bytes_of(static_cast<uint32_t>(n), head_dim_);
}

void Means::clear() {
  std::fill(heads_.begin(), heads_.end(), Head{});
  n_wanted_ = 0;
}

void Means::want(uint32_t head) { heads_[head].index = n_wanted_++; }

void Means::add(Backend* backend, const PageTable& reservoir, uint32_t index, uint32_t first, uint32_t end) {
  Head& head = heads_[index];
  if (end <= first) return;
  if (head.waits) finish(backend, reservoir);   // one stretch of a head at a time
  jobs_.push_back({reservoir.view().pages, reservoir.format().head_offset(index), static_cast<int32_t>(first), static_cast<int32_t>(end),
                   static_cast<int32_t>(head.n), at(head), nullptr});
  head.n += end - first;
  head.waits = true;
}

void Means::share(const PageTable& reservoir, uint32_t index, Span<const float> shares, float weight) {
  Head& head = heads_[index];
  if (!(weight > 0.0f)) return;
  jobs_.push_back({reservoir.view().pages, reservoir.format().head_offset(index), 0, static_cast<int32_t>(shares.size()), 0, at(head), shares.data()});
  head.weight = weight;
}

void Means::finish(Backend* backend, const PageTable& reservoir) {
  if (jobs_.empty()) return;
  backend->summaries()->add_to_means(jobs_, reservoir.format());
  jobs_.clear();
  for (Head& head : heads_) head.waits = false;
}

void Means::copy_from(Backend* backend, const Means& other) {
  backend->copy(region_.data(), other.region_.data(), region_.bytes());
  heads_ = other.heads_;
  n_wanted_ = other.n_wanted_;
}

}  // namespace orrery::kv
