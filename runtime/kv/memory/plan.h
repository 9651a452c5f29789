// The plan of a model and one session: their layout, its sums, and the largest context that fits. It follows from the file's header and the
// options alone. orrery_plan() and orrery_plan_regions() report it. Opening a model and a session takes exactly these bytes.
#pragma once

#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/layout.h"

namespace orrery::kv {

struct PlanInput {
  uint32_t max_context = 0;                                        // upper bound of the search: as trained, or by option
  uint64_t budget_bytes = 0, reservoir_budget_bytes = UINT64_MAX;  // of the arena, of the reservoir
  // The layout for a context of n_context tokens. Its device_bytes() and reservoir_bytes() never fall as n_context grows.
  Layout (*layout)(const void* self, uint32_t n_context) = nullptr;
  const void* self = nullptr;
};

struct Plan {
  uint32_t n_context = 0;
  Layout layout;  // for n_context; the next fields are its sums
  uint64_t weights_mapped_bytes = 0, weights_bytes = 0, full_kv_bytes = 0, workspace_bytes = 0;
  uint64_t compressed_kv_bytes = 0, digests_bytes = 0, reservoir_bytes = 0;
  uint64_t staging_bytes = 0;  // Holds::staging
  uint64_t device_bytes = 0;   // of all regions
  uint64_t host_bytes = 0, budget_bytes = 0, reservoir_budget_bytes = 0;
  uint32_t largest_context = 0;  // that fits both budgets, at most max_context; 0: none fits
  bool fits = false;
  bool fits_reservoir() const { return reservoir_bytes <= reservoir_budget_bytes; }
  // Whether it is the reservoir that keeps the next larger context from fitting.
  bool reservoir_bounds = false;
  // make_plan() leaves the next ones to its caller:
  const char* policy = "full";       // static
  double kv_share = 1;               // of full KV's bytes: the policy's budget
  KvType device_type = KvType::f16;  // of the KV in the arena
  uint32_t trained_context = 0;      // tokens
};

// Pages that n_tokens tokens fill, and pages reserved for a context: a multiple of kPagesTogether.
uint32_t pages_for(uint32_t n_tokens);
uint32_t pages_to_reserve(uint32_t n_context);

// The plan for n_context tokens. 0: for the largest context that fits (1 if none fits).
Plan make_plan(const PlanInput& input, uint32_t n_context);

}  // namespace orrery::kv
