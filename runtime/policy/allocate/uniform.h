// Every head the same number of slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/policy/budget.h"

namespace orrery::policy {

// Allocate: every head of a layer without window gets the same number of slots; a windowed layer's heads get their
// window, which bounds their KV anyhow.
class UniformAllocation {
 public:
  UniformAllocation(const Shape& shape, const Budget& budget);
  // share of n_tokens each, at least kMinSlots and at most what the budget and the context allow.
  void allocate(uint32_t n_tokens, Span<uint32_t> capacity) const;
  // The most slots that a head without window can have; nothing where every layer has a window.
  bool enough(uint64_t slots) const { return most_ >= slots || n_full_ == 0; }
  uint64_t least_slots(uint64_t slots) const { return windowed_slots_ + slots * n_full_; }   // of all heads together
  bool windowed(uint32_t head) const { return window_[head / n_kv_heads_] > 0; }
  uint32_t most() const { return static_cast<uint32_t>(std::min<uint64_t>(most_, n_context_)); }   // slots of such a head
  // Nothing ever has to make room.
  bool everything() const { return n_full_ == 0 || (share_.of_tokens() >= 1 && most_ >= n_context_); }

 private:
  uint32_t n_kv_heads_, n_context_;
  std::vector<uint32_t> window_;   // (n_layers) 0: none
  KvShare share_;
  uint64_t n_full_ = 0;            // heads without window
  uint64_t windowed_slots_ = 0;    // slots of the others together
  uint64_t most_ = 0;              // slots of one head without window
};

}  // namespace orrery::policy
