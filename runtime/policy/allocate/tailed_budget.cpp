#include "runtime/policy/allocate/tailed_budget.h"

#include <algorithm>

#include "runtime/base/checked.h"

namespace orrery::policy {

uint64_t TailedBudget::selected_with(uint32_t n_tokens, uint32_t n_full, uint32_t tail) const {
  const uint64_t horizon = uint64_t{n_tokens} + tail, n_compressed = n_heads_ - n_full, extra = extra_slots(n_full);
  // A millionth of a slot is a rounding of the share, not a token.
  const auto share = static_cast<uint64_t>(share_.of_tokens() * static_cast<double>(horizon) * n_heads_ + 1e-6);
  uint64_t slots = std::min(std::max(share, n_heads_ * std::min<uint64_t>(horizon, kMinSlots) + extra), n_heads_ * horizon + extra);
  // Far from the end of the context the plan has room for the full heads, however small the share.
  const uint64_t least = n_full * horizon + n_compressed * std::min<uint64_t>(horizon, 2 * uint64_t{tail}) + extra;
  slots = std::min(std::max(slots, least), max_slots_);
  const uint64_t taken = n_full * horizon + n_compressed * tail + extra;
  return slots > taken ? std::min(slots - taken, n_compressed * n_tokens) : 0;
}

uint32_t TailedBudget::tail_at(uint32_t n_tokens) const {
  if (tail_.slots > 0) return tail_.slots;
  if (tail_.least_part == 0) return std::clamp(n_tokens / 32, 16u, 256u);
  const uint32_t tail = std::max(n_tokens / 32, 16u);
  const double each = std::min(share_.of_tokens() * n_tokens, static_cast<double>(max_slots_) / n_heads_);
  return std::clamp(static_cast<uint32_t>(each / tail_.least_part + 1e-6), tail_.least, tail);
}

TailedBudget::Division TailedBudget::divide(uint32_t n_tokens, uint32_t n_full) const {
  const uint32_t n_compressed = n_heads_ - n_full, room = n_context_ - n_tokens;
  Division division;
  division.tail = std::min(room, holds_all() || n_compressed == 0 ? room : tail_at(n_tokens));
  // The tail takes at most as much as the prompt's selection. Where room is scarce, each shrinks to one token.
  division.selected = selected_with(n_tokens, n_full, division.tail);
  while (division.tail > 1 && n_compressed > 0 && division.selected < std::min<uint64_t>(division.tail, n_tokens) * n_compressed) {
    division.tail = (division.tail + 1) / 2;
    division.selected = selected_with(n_tokens, n_full, division.tail);
  }
  if (division.selected < n_compressed) division.selected = 0;
  return division;
}

uint64_t TailedBudget::least_slots(uint32_t n_full) const {
  // At the end of the context: full heads hold all of it, the others one prompt token and one generated token.
  return uint64_t{n_full} * n_context_ + 2 * uint64_t{n_heads_ - n_full} + extra_slots(n_full);
}

double TailedBudget::least_share(uint32_t n_full) const {
  return share_.least(div_up(least_slots(n_full), uint64_t{n_heads_}), n_context_);  // whole slots of a head
}

bool TailedBudget::fits(uint32_t n_full) const {
  if (n_full == n_heads_) return max_slots_ >= uint64_t{n_heads_} * n_context_;
  return divide(std::max(n_context_, 2u) - 1, n_full).selected > 0;
}

}  // namespace orrery::policy
