#include "runtime/kv/memory/plan.h"

#include <algorithm>

#include "runtime/base/checked.h"

namespace orrery::kv {

uint32_t pages_for(uint32_t n_tokens) { return div_up(n_tokens, static_cast<uint32_t>(kPageTokens)); }
uint32_t pages_to_reserve(uint32_t n_context) {
  constexpr uint32_t kTogether = kPagesTogether;
  return div_up(pages_for(n_context), kTogether) * kTogether;
}

Plan make_plan(const PlanInput& in, uint32_t n_context) {
  Plan plan;
  uint32_t low = 0, high = in.max_context;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    const Layout layout = in.layout(in.self, middle);
    if (layout.device_bytes() <= in.budget_bytes && layout.reservoir_bytes() <= in.reservoir_budget_bytes) low = middle;
    else high = middle - 1;
  }
  plan.largest_context = low;
  plan.n_context = n_context ? n_context : std::max(low, 1u);
  plan.layout = in.layout(in.self, plan.n_context);
  const Layout& layout = plan.layout;
  plan.weights_mapped_bytes = layout.weights_mapped_bytes();
  plan.weights_bytes = layout.device_bytes(Holds::weights);
  plan.full_kv_bytes = layout.full_heads_bytes();
  plan.compressed_kv_bytes = layout.device_bytes(Holds::kv) - plan.full_kv_bytes;
  plan.digests_bytes = layout.device_bytes(Holds::summaries);
  plan.staging_bytes = layout.device_bytes(Holds::staging);
  plan.workspace_bytes = layout.device_bytes(Holds::workspace);
  plan.reservoir_bytes = layout.reservoir_bytes();
  plan.device_bytes = layout.device_bytes();
  plan.host_bytes = layout.host_bytes();
  plan.budget_bytes = in.budget_bytes;
  plan.reservoir_budget_bytes = in.reservoir_budget_bytes;
  plan.fits = plan.device_bytes <= in.budget_bytes && plan.fits_reservoir();
  plan.reservoir_bounds = low < in.max_context && in.layout(in.self, low + 1).device_bytes() <= in.budget_bytes;
  return plan;
}

}  // namespace orrery::kv
