// Budgets of heads that hold a selection of the prompt and a tail for generated tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/policy/allocate/apportion.h"
#include "runtime/policy/budget.h"

namespace orrery::policy {

// How many slots a compressed head has for generated tokens: so many, or by what there is.
struct Tail {
  uint32_t slots = 0;       // 0: n_tokens / 32, 16 to 256
  // Or n_tokens / 32, but at most 1 / least_part of what a head may hold, and at least 8: choosing anew costs as much as there are tokens,
  // so that a token's part of it stays what it is however long the text is. 0: not so.
  uint32_t least_part = 0;
};

// Slots that some heads with the whole context leave to the others, which all hold a selection of the prompt and a tail
// for generated tokens; generated tokens count like the prompt's. At n tokens with a tail of T the budget is the share's
// part of (n + T) slots a head, at least kMinSlots, at most what the plan has.
class TailedBudget {
 public:
  // n_heads: without window; max_slots: for these; beside: slots' worth that each compressed head has besides.
  TailedBudget(uint32_t n_heads, uint32_t n_context, const KvShare& share, uint64_t max_slots, Tail tail, Ratio beside = {})
      : n_heads_(n_heads), n_context_(n_context), share_(share), max_slots_(max_slots), tail_(tail), beside_(beside) {}

  struct Division {
    uint32_t tail = 0;      // T
    uint64_t selected = 0;  // slots for prompt tokens, all compressed heads together; 0: there is no room
  };
  // For n_full full heads. n_tokens is less than the context.
  Division divide(uint32_t n_tokens, uint32_t n_full) const;
  double least_share(uint32_t n_full) const;   // of full KV, that fits
  uint64_t least_slots(uint32_t n_full) const;
  // Whether there is room however long the context gets; where all heads are full, for all of it.
  bool fits(uint32_t n_full) const;
  bool everything() const { return max_slots_ >= uint64_t{n_heads_} * n_context_ && share_.of_tokens() >= 1; }
  // The most prompt slots of a compressed head, where they are dealt evenly: there are none more where full heads take theirs of more tokens.
  uint64_t most_of_head() const { return n_heads_ == 0 ? 0 : std::min<uint64_t>(max_slots_ / n_heads_ + 1, n_context_); }

 private:
  uint32_t tail_at(uint32_t n_tokens) const;
  // Prompt slots of all compressed heads with a tail of `tail`; less than n_compressed: no room.
  uint64_t selected_with(uint32_t n_tokens, uint32_t n_full, uint32_t tail) const;
  uint32_t n_heads_, n_context_;
  KvShare share_;
  uint64_t max_slots_;
  Tail tail_;
  Ratio beside_;
  uint64_t beside(uint32_t n_full) const { return ((n_heads_ - n_full) * beside_.num + beside_.den - 1) / beside_.den; }
};

}  // namespace orrery::policy
