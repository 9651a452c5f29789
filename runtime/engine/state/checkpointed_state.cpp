#include "runtime/engine/state/checkpointed_state.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/engine/shared/session_options.h"

namespace orrery::engine {

size_t CheckpointedState::most_checkpoints(uint64_t bytes) {
  return std::min(kMostCheckpoints, std::max(kFewestCheckpoints, static_cast<size_t>(kCheckpointBytes / std::max<uint64_t>(bytes, 1))));
}

kv::Region CheckpointedState::layout(const model::Description& d, KvType kv_type) {
  const uint64_t bytes = d.state_bytes() + windows_bytes(d, kv_type);
  const char* name = d.recurrent() ? "recurrent state" : "copies of windows";
  return {name, kv::Holds::kv, align_up(d.state_bytes(), kv::kArenaAlignment), 0, most_checkpoints(bytes) * bytes, 0};
}

kv::Region CheckpointedState::guesses_layout(const model::Description& d) {
  return {"inputs of guessed tokens", kv::Holds::kv, align_up(d.guessed_floats * sizeof(float), kv::kArenaAlignment), 0, 0, 0};
}

CheckpointedState::CheckpointedState(const model::Description& d, KvType kv_type)
    : floats_(d.state_bytes()), windows_(windows_bytes(d, kv_type)) {
  if (floats_.bytes() > 0) kinds_.push_back(&floats_);
  if (windows_.bytes() > 0) kinds_.push_back(&windows_);
}

uint64_t CheckpointedState::bytes() const {
  uint64_t bytes = 0;
  for (const StateKind* kind : kinds_) bytes += kind->bytes();
  return bytes;
}

bool CheckpointedState::changed_in_place() const {
  return std::any_of(kinds_.begin(), kinds_.end(), [](const StateKind* kind) { return kind->changed_in_place(); });
}

void CheckpointedState::begin_step(uint32_t from, int32_t n_final) {
  step_.data = {floats_.data().address}, step_.guessed = {guesses_.data().address};
  step_.n_replayed = static_cast<int32_t>(from - position_);
  step_.n_final = n_final;
  position_ = kUnknown, n_guessed_ = 0;
}

uint32_t CheckpointedState::due_before(uint32_t reach) const {
  const uint32_t page_end = (position_ / kPageTokens + 1) * kPageTokens;
  return page_end <= reach && page_end - last() >= kEvery ? page_end : 0;
}

bool CheckpointedState::reaches(uint32_t n_tokens) const {
  if (position_ == n_tokens || position_ == kUnknown) return position_ == n_tokens;
  return n_tokens <= position_ + n_guessed_ && !changed_in_place() &&
         std::all_of(kinds_.begin(), kinds_.end(), [&](const StateKind* kind) { return kind->holds(n_tokens); });
}

void CheckpointedState::truncate(uint32_t n_tokens) {
  while (!checkpoints_.empty() && checkpoints_.back().n_tokens > n_tokens) checkpoints_.pop_back();
  if (position_ == kUnknown) return;
  if (position_ > n_tokens) position_ = reaches(n_tokens) ? n_tokens : kUnknown, n_guessed_ = 0;
  else n_guessed_ = std::min(n_guessed_, n_tokens - position_);
}

const CheckpointedState::Checkpoint* CheckpointedState::at_or_before(uint32_t n_tokens) const {
  const auto behind = std::find_if(checkpoints_.begin(), checkpoints_.end(), [&](const Checkpoint& c) { return c.n_tokens > n_tokens; });
  return behind == checkpoints_.begin() ? nullptr : &*std::prev(behind);
}

uint32_t CheckpointedState::nearest(uint32_t n_tokens) const {
  if (reaches(n_tokens)) return n_tokens;
  const Checkpoint* found = at_or_before(n_tokens);
  const uint32_t at = found ? found->n_tokens : 0;
  return position_ != kUnknown && position_ <= n_tokens ? std::max(position_, at) : at;
}

uint32_t CheckpointedState::end_of_chunk(uint32_t from, uint32_t most, uint32_t end) {
  constexpr auto kPage = static_cast<uint32_t>(kPageTokens);
  const uint32_t chunk_end = from + std::min(most, end - from), page_end = chunk_end / kPage * kPage;
  prompts_ = (end - std::min(end, kTail)) / kPage * kPage;
  if (prompts_ > std::max(from, last()) && prompts_ <= chunk_end) return prompts_;
  return chunk_end < end && page_end > from ? page_end : chunk_end;
}

Status CheckpointedState::restore(Backend* backend, uint32_t n_tokens) {
  const Checkpoint* found = at_or_before(n_tokens);
  const uint32_t at = nearest(n_tokens);
  if (reaches(at)) {
    if (position_ != at) position_ = at, n_guessed_ = 0;
    return ok_status();
  }
  if (found) return put_back(backend, found->bytes, at);
  position_ = kUnknown;
  for (StateKind* kind : kinds_) ORRERY_TRY(kind->clear(backend));
  ORRERY_TRY(backend->synchronize());
  position_ = 0, n_guessed_ = 0;
  return ok_status();
}

Result<CheckpointedState::Bytes> CheckpointedState::read(Backend* backend) const {
  auto bytes = std::make_shared<std::vector<std::byte>>(this->bytes());
  std::byte* at = bytes->data();
  for (const StateKind* kind : kinds_) {
    ORRERY_TRY(kind->read(backend, position_, at));
    at += kind->bytes();
  }
  ORRERY_TRY(backend->synchronize());
  return Bytes(std::move(bytes));
}

Status CheckpointedState::put_back(Backend* backend, const Bytes& bytes, uint32_t n_tokens) {
  position_ = kUnknown, n_guessed_ = 0;
  const std::byte* at = bytes->data();
  for (StateKind* kind : kinds_) {
    ORRERY_TRY(kind->write(backend, n_tokens, at));
    at += kind->bytes();
  }
  ORRERY_TRY(backend->synchronize());
  position_ = n_tokens;
  return ok_status();
}

Status CheckpointedState::checkpoint(Backend* backend) {
  if (position_ == kUnknown || position_ == 0 || last() == position_) return ok_status();
  ORRERY_ASSIGN(Bytes bytes, read(backend));
  add_checkpoint(position_, std::move(bytes));
  return ok_status();
}

void CheckpointedState::add_checkpoint(uint32_t n_tokens, Bytes bytes) {
  checkpoints_.push_back({n_tokens, std::move(bytes)});
  if (checkpoints_.size() <= most_checkpoints(this->bytes())) return;
  size_t closest = 0;
  uint32_t least = UINT32_MAX, before = 0;
  for (size_t i = 0; i + 1 < checkpoints_.size(); before = checkpoints_[i++].n_tokens)
    if (checkpoints_[i].n_tokens - before < least) least = checkpoints_[i].n_tokens - before, closest = i;
  checkpoints_.erase(checkpoints_.begin() + static_cast<ptrdiff_t>(closest));
}

void CheckpointedState::copy_from(Backend* backend, const CheckpointedState& other) {
  share_checkpoints(other);
  for (size_t i = 0; i < kinds_.size(); ++i) kinds_[i]->copy_from(backend, *other.kinds_[i]);
  position_ = other.position_, n_guessed_ = 0;
}

}  // namespace orrery::engine
