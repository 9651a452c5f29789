#include "runtime/kv/memory/plan.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/arena.h"

namespace orrery::kv {

namespace {

uint64_t page_bytes(const PlanInput& in, uint32_t n_context) {
  const uint32_t pages = pages_to_reserve(n_context);
  return align_up((pages - std::min(pages, in.spare_pages)) * in.kv.page_bytes(), kArenaAlignment);
}

uint64_t kv_bytes(const PlanInput& in, uint32_t n_context) {
  return in.compressed ? in.resident_bytes(in.self, n_context).all() : page_bytes(in, n_context);
}

uint64_t device_bytes(const PlanInput& in, uint32_t n_context) {
  return align_up(in.weights_bytes, kArenaAlignment) + kv_bytes(in, n_context) + in.workspace_bytes(in.self, n_context);
}

}  // namespace

uint32_t pages_for(uint32_t n_tokens) { return div_up(n_tokens, static_cast<uint32_t>(kPageTokens)); }
uint32_t pages_to_reserve(uint32_t n_context) {
  constexpr uint32_t kTogether = kPagesTogether;
  return div_up(pages_for(n_context), kTogether) * kTogether;
}

Plan make_plan(const PlanInput& in, uint32_t n_context) {
  Plan plan;
  // The largest n that fits: device_bytes never falls as n grows.
  uint32_t low = 0, high = in.max_context;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (device_bytes(in, middle) <= in.budget_bytes)
      low = middle;
    else
      high = middle - 1;
  }
  plan.largest_context = low;
  plan.n_context = n_context ? n_context : std::max(low, 1u);
  plan.weights_mapped_bytes = in.weights_mapped_bytes;
  plan.weights_bytes = align_up(in.weights_bytes, kArenaAlignment);
  if (in.compressed) {
    const ResidentBytes resident = in.resident_bytes(in.self, plan.n_context);
    plan.full_kv_bytes = resident.full_kv;
    plan.compressed_kv_bytes = resident.compressed_kv;
    plan.digests_bytes = resident.digests;
    plan.staging_bytes = resident.staging;
    plan.reservoir_bytes = page_bytes(in, plan.n_context);
  } else {
    plan.full_kv_bytes = kv_bytes(in, plan.n_context);
  }
  plan.workspace_bytes = in.workspace_bytes(in.self, plan.n_context);
  plan.device_bytes = device_bytes(in, plan.n_context);
  plan.host_bytes = in.host_bytes(in.self, plan.n_context);
  plan.budget_bytes = in.budget_bytes;
  plan.fits = plan.device_bytes <= in.budget_bytes;
  return plan;
}

}  // namespace orrery::kv
