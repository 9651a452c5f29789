// Allocate: every head of a layer without window gets the same number of slots. A windowed layer's heads get their window, which bounds
// their KV anyway.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/policy/given/budget.h"

namespace orrery::policy {

class UniformAllocation {
 public:
  UniformAllocation(const Shape& shape, const Budget& budget);
  // The share of n_tokens each, at least kMinSlots, at most what budget and context allow.
  void allocate(uint32_t n_tokens, Span<uint32_t> capacity) const;
  // Whether a head without window can have this many slots; true where all layers have windows.
  bool fits(uint64_t slots) const { return head_max_ >= slots || n_full_ == 0; }
  uint64_t total_slots(uint64_t slots) const { return windowed_slots_ + slots * n_full_; }  // of all heads, at this many a head
  bool windowed(uint32_t head) const { return window_[head / n_kv_heads_] > 0; }
  uint32_t head_max() const { return static_cast<uint32_t>(std::min<uint64_t>(head_max_, n_context_)); }  // slots of a head without window
  // The budget holds the whole context: no token is ever replaced.
  bool holds_all() const { return n_full_ == 0 || (share_.of_tokens() >= 1 && head_max_ >= n_context_); }

 private:
  uint32_t n_kv_heads_, n_context_;
  std::vector<uint32_t> window_;  // (n_layers) 0: none
  KvShare share_;
  uint64_t n_full_ = 0;          // heads without window
  uint64_t windowed_slots_ = 0;  // slots of the other heads together
  uint64_t head_max_ = 0;        // slots of one head without window
};

}  // namespace orrery::policy
