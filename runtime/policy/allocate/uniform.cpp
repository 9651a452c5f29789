#include "runtime/policy/allocate/uniform.h"

#include <algorithm>

namespace orrery::policy {

UniformAllocation::UniformAllocation(const Shape& shape, const Budget& budget)
    : n_kv_heads_(shape.n_kv_heads), n_context_(shape.n_context), share_(budget.share) {
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    window_.push_back(static_cast<uint32_t>(shape.window[l]));
    if (window_.back() > 0) windowed_slots_ += uint64_t{std::min(window_.back(), n_context_)} * n_kv_heads_;
    else n_full_ += n_kv_heads_;
  }
  if (n_full_ > 0) head_max_ = (budget.max_slots - std::min(windowed_slots_, budget.max_slots)) / n_full_;
}

void UniformAllocation::allocate(uint32_t n_tokens, Span<uint32_t> capacity) const {
  // A full share is the whole context, and not only the present tokens: no token is ever replaced.
  const uint64_t wanted = share_.of_tokens() >= 1 ? n_context_ : share_.tokens(n_tokens);
  const uint64_t slots = std::max<uint64_t>(wanted, kMinSlots);
  const uint32_t each = static_cast<uint32_t>(std::min({slots, head_max_, uint64_t{n_context_}}));
  for (size_t head = 0; head < capacity.size(); ++head) {
    const uint32_t window = window_[head / n_kv_heads_];
    capacity[head] = window > 0 ? std::min(window, n_context_) : each;
  }
}

}  // namespace orrery::policy
