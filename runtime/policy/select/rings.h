// Select: sink and recent tokens; and the rings of layers with a sliding window, whose heads hold the window under every policy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/state_bytes.h"
#include "runtime/kv/resident/slot_table.h"
#include "runtime/policy/given/budget.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

// StreamingLLM: the first n_sinks and the last n_recent of n_tokens, ascending; all tokens where the two meet. Clears `out` first, and does
// not reallocate it if its capacity is enough.
void sinks_and_recent(uint32_t n_tokens, uint32_t n_sinks, uint32_t n_recent, Tokens* out);

class WindowRings {
 public:
  explicit WindowRings(const Shape& shape);
  bool has(uint32_t head) const { return window_[head / n_kv_heads_] > 0; }  // the head's layer has a sliding window
  uint32_t n_other_heads() const { return n_other_; }
  uint64_t slots() const { return slots_; }  // of all windows together
  uint32_t capacity(uint32_t head) const { return window_[head / n_kv_heads_]; }
  void settle() { std::fill(next_.begin(), next_.end(), 0); }
  void select(uint32_t head, uint32_t n_tokens, Tokens* out) const { sinks_and_recent(n_tokens, 0, capacity(head), out); }
  uint32_t slot_for(uint32_t head, uint32_t length);
  // slots: of a saved session, whose windows have as many slots.
  Status state(StateBytes* s, const kv::SlotTable& slots);

 private:
  uint32_t n_kv_heads_, n_other_ = 0;
  std::vector<uint32_t> window_;  // (n_layers) at most the context; 0: none
  std::vector<uint32_t> next_;    // (n_layers * n_kv_heads) the oldest token's slot
  uint64_t slots_ = 0;
};

}  // namespace orrery::policy
