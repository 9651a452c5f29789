// Allocate: full heads hold the whole context; compressed heads hold a selection of the prompt and a tail, the slots for generated tokens.
// TailedBudget says how many slots are left for selections, and how long the tail is.
//
// Generated tokens count like the prompt's. At n tokens with a tail of T, the budget is the share of (n + T) slots a head, at least
// kMinSlots, at most the plan's slots.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/given/budget.h"

namespace orrery::policy {

// The tail's length.
struct Tail {
  uint32_t slots = 0;  // this many; 0: n_tokens / 32, within 16 to 256
  // Or, if not 0: max(n_tokens / 32, 16), but at most 1 / least_part of what a head may hold, and at least `least`. Settling costs as much
  // as there are tokens; with n / 32 its cost per generated token stays constant however long the text is.
  uint32_t least_part = 0, least = 8;
};

class TailedBudget {
 public:
  // n_heads: of layers without window. max_slots: for these heads. extra: further slots' worth that each compressed head takes, such as a
  // compensation token.
  TailedBudget(uint32_t n_heads, uint32_t n_context, const KvShare& share, uint64_t max_slots, Tail tail, Ratio extra = {})
      : n_heads_(n_heads), n_context_(n_context), share_(share), max_slots_(max_slots), tail_(tail), extra_(extra) {}

  struct Division {
    uint32_t tail = 0;      // T
    uint64_t selected = 0;  // slots for prompt tokens, of all compressed heads together; 0: no room
  };
  // For n_full full heads. n_tokens is less than the context.
  Division divide(uint32_t n_tokens, uint32_t n_full) const;
  double least_share(uint32_t n_full) const;  // the smallest share of full KV that fits
  uint64_t least_slots(uint32_t n_full) const;
  // Whether there is room up to the end of the context; where all heads are full, whether the whole context fits.
  bool fits(uint32_t n_full) const;
  bool holds_all() const { return max_slots_ >= uint64_t{n_heads_} * n_context_ && share_.of_tokens() >= 1; }
  // Upper bound on the prompt slots of a compressed head under an even division, with or without full heads.
  uint64_t head_max() const { return n_heads_ == 0 ? 0 : std::min<uint64_t>(max_slots_ / n_heads_ + 1, n_context_); }

 private:
  uint32_t tail_at(uint32_t n_tokens) const;
  // Prompt slots of all compressed heads with a tail of `tail`; less than n_compressed: no room.
  uint64_t selected_with(uint32_t n_tokens, uint32_t n_full, uint32_t tail) const;
  uint64_t extra_slots(uint32_t n_full) const { return ((n_heads_ - n_full) * extra_.num + extra_.den - 1) / extra_.den; }
  uint32_t n_heads_, n_context_;
  KvShare share_;
  uint64_t max_slots_;
  Tail tail_;
  Ratio extra_;
};

}  // namespace orrery::policy
