#include "runtime/policy/select/rings.h"

#include <algorithm>

namespace orrery::policy {

void sinks_and_recent(uint32_t n_tokens, uint32_t n_sinks, uint32_t n_recent, Tokens* out) {
  out->clear();
  const uint32_t first = std::min(n_sinks, n_tokens), recent = std::min(n_recent, n_tokens - first);
  for (uint32_t p = 0; p < first; ++p) out->push_back(p);
  for (uint32_t p = n_tokens - recent; p < n_tokens; ++p) out->push_back(p);
}

WindowRings::WindowRings(const Shape& shape) : n_kv_heads_(shape.n_kv_heads), next_(size_t{shape.n_layers} * shape.n_kv_heads) {
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    window_.push_back(std::min(static_cast<uint32_t>(shape.window[l]), shape.n_context));
    slots_ += uint64_t{window_.back()} * n_kv_heads_;
    if (window_.back() == 0) n_other_ += n_kv_heads_;
  }
}

uint32_t WindowRings::slot_for(uint32_t head, uint32_t length) {
  const uint32_t window = capacity(head);
  if (length < window) return length;
  const uint32_t slot = next_[head];
  next_[head] = (slot + 1) % window;
  return slot;
}

Status WindowRings::state(StateBytes* s, const kv::SlotTable& slots) {
  for (uint32_t head = 0; head < next_.size(); ++head) {
    if (!has(head)) continue;
    ORRERY_TRY(s->check(slots.capacity[head] == capacity(head), "a window has another number of slots"));
    ORRERY_TRY(s->number(&next_[head], capacity(head), "the oldest slot of a window is outside it"));
  }
  return ok_status();
}

}  // namespace orrery::policy
