#include "runtime/kv/resident/compensation_tokens.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/device_pieces.h"

namespace orrery::kv {

Region CompensationTokens::layout(const KvFormat& format, uint32_t n_compensation_tokens) {
  if (n_compensation_tokens == 0) return {};
  const uint64_t n_heads = static_cast<uint64_t>(format.n_layers) * static_cast<uint64_t>(format.n_kv_heads);
  return {"compensation tokens",
          Holds::summaries,
          align_up(bytes_of(n_compensation_tokens, format.head_dim), kArenaAlignment),
          0,
          n_compensation_tokens * sizeof(CompensationJob) + n_heads * sizeof(Head),
          0};
}

CompensationTokens::CompensationTokens(const KvFormat& format, uint32_t n_compensation_tokens, ArenaRegion region)
    : head_dim_(format.head_dim), region_(std::move(region)),
      heads_(static_cast<size_t>(format.n_layers) * static_cast<size_t>(format.n_kv_heads)) {
  jobs_.reserve(n_compensation_tokens);
}

Result<std::unique_ptr<CompensationTokens>> CompensationTokens::make(Arena* arena, const KvFormat& format, uint32_t n_compensation_tokens) {
  ORRERY_ASSIGN(ArenaRegion region, ArenaRegion::take(arena, layout(format, n_compensation_tokens)));
  return std::unique_ptr<CompensationTokens>(new CompensationTokens(format, n_compensation_tokens, std::move(region)));
}

uint64_t CompensationTokens::used_bytes() const {
  const auto n = std::count_if(heads_.begin(), heads_.end(), [](const Head& head) { return head.n > 0 || head.weight > 0.0f; });
  return bytes_of(static_cast<uint32_t>(n), head_dim_);
}

void CompensationTokens::clear() {
  std::fill(heads_.begin(), heads_.end(), Head{});
  n_wanted_ = 0;
}

void CompensationTokens::want(uint32_t head) { heads_[head].index = n_wanted_++; }

void CompensationTokens::add(Backend* backend, const PageTable& reservoir, uint32_t index, uint32_t first, uint32_t end) {
  Head& head = heads_[index];
  if (end <= first) return;
  if (head.waits) finish(backend, reservoir);  // one stretch of a head at a time
  jobs_.push_back({reservoir.view().pages, reservoir.format().head_offset(index), static_cast<int32_t>(first), static_cast<int32_t>(end),
                   static_cast<int32_t>(head.n), at(head), nullptr});
  head.n += end - first;
  head.waits = true;
}

void CompensationTokens::add_by_shares(const PageTable& reservoir, uint32_t index, Span<const float> shares, float weight) {
  Head& head = heads_[index];
  if (!(weight > 0.0f)) return;
  jobs_.push_back(
      {reservoir.view().pages, reservoir.format().head_offset(index), 0, static_cast<int32_t>(shares.size()), 0, at(head), shares.data()});
  head.weight = weight;
}

void CompensationTokens::finish(Backend* backend, const PageTable& reservoir) {
  if (jobs_.empty()) return;
  backend->summaries()->add_to_compensation_tokens(jobs_, reservoir.format());
  jobs_.clear();
  for (Head& head : heads_) head.waits = false;
}

void CompensationTokens::copy_from(Backend* backend, const CompensationTokens& other) {
  backend->copy(region_.data(), other.region_.data(), region_.bytes());
  heads_ = other.heads_;
  n_wanted_ = other.n_wanted_;
}

Status CompensationTokens::state(Backend* backend, StateBytes* s, uint32_t n_tokens, uint32_t n_heads) {
  std::vector<Head> heads(heads_.size());
  uint32_t n_wanted = 0;
  DevicePieces pieces;
  for (uint32_t i = 0; i < n_heads; ++i) {
    Head& head = heads[i] = heads_[i];
    bool wanted = head.index != kNone;
    ORRERY_TRY(s->flag(&wanted, "whether a head has a compensation token is neither yes nor no"));
    if (!wanted) {
      head = Head{};
      continue;
    }
    if (s->reads()) head = Head{};
    ORRERY_TRY(s->number(&head.n, uint64_t{n_tokens} + 1, "a compensation token stands for more tokens than the session has"));
    ORRERY_TRY(s->value(&head.weight));
    if (s->reads()) head.index = n_wanted;
    ORRERY_TRY(s->check(++n_wanted <= jobs_.capacity(), "more compensation tokens than the session has"));
    pieces.add({at(head).address}, bytes_of(1, head_dim_));
  }
  if (s->takes()) heads_ = std::move(heads), n_wanted_ = n_wanted;
  return pieces.state(backend, s);
}

}  // namespace orrery::kv
