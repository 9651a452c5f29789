// The plan of a model and one session: their layout, added up, and the largest context that fits. It follows from the file's header and the
// options alone. orrery_plan() prints it, and opening a model and a session takes exactly this.
#pragma once

#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/layout.h"

namespace orrery::kv {

struct PlanInput {
  uint32_t max_context = 0;                                     // no more is asked for: as trained, or by option
  uint64_t budget_bytes = 0;
  // Everything that is taken for a context of n_context tokens. Its device_bytes() never fall as n_context grows.
  Layout (*layout)(const void* self, uint32_t n_context) = nullptr;
  const void* self = nullptr;
};

struct Plan {
  uint32_t n_context = 0;
  Layout layout;                                                // of n_context; the sums that follow are its own
  uint64_t weights_mapped_bytes = 0, weights_bytes = 0, full_kv_bytes = 0, workspace_bytes = 0;
  uint64_t compressed_kv_bytes = 0, digests_bytes = 0, reservoir_bytes = 0;
  uint64_t staging_bytes = 0;                                   // Holds::staging
  uint64_t device_bytes = 0;                                    // all of the device's
  uint64_t host_bytes = 0, budget_bytes = 0;
  uint32_t largest_context = 0;                                 // in the budget, at most max_context; 0: none
  bool fits = false;
  KvType device_type = KvType::f16;                             // of the KV in the arena; whoever asks for the plan knows it,
  uint32_t trained_context = 0;                                 // and this: tokens of the model's training
};

// KV pages that hold n tokens, and those that are reserved for a context: in units of kPagesTogether.
uint32_t pages_for(uint32_t n_tokens);
uint32_t pages_to_reserve(uint32_t n_context);

// For n_context tokens; 0: the largest context that fits, at most max_context.
Plan make_plan(const PlanInput& input, uint32_t n_context);

}  // namespace orrery::kv
