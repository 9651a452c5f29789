// The one table of every buffer and its size: what a model and one session take, from the file's header and the
// options alone.  orrery_plan() prints it, opening a model and a session takes exactly this.
#pragma once

#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/base/status.h"

namespace orrery::kv {

// What a compressed session takes of the arena beside the workspace.
struct ResidentBytes {
  uint64_t full_kv = 0, compressed_kv = 0, digests = 0, staging = 0;
  uint64_t all() const { return full_kv + compressed_kv + digests + staging; }
};

// What grows with the context, as functions of it; the rest is constant.
struct PlanInput {
  uint64_t weights_mapped_bytes = 0, weights_bytes = 0;
  KvFormat kv;
  uint32_t spare_pages = 0;                                     // that exist already, and nobody has reserved
  uint32_t max_context = 0;                                     // no more is asked for: as trained, or by option
  uint64_t budget_bytes = 0;
  bool compressed = false;                                      // pages lie in the reservoir, resident KV in the arena
  uint64_t (*workspace_bytes)(const void* self, uint32_t n_context) = nullptr;
  uint64_t (*host_bytes)(const void* self, uint32_t n_context) = nullptr;
  ResidentBytes (*resident_bytes)(const void* self, uint32_t n_context) = nullptr;   // if compressed
  const void* self = nullptr;
};

struct Plan {
  uint32_t n_context = 0;
  uint64_t weights_mapped_bytes = 0, weights_bytes = 0, full_kv_bytes = 0, workspace_bytes = 0;
  uint64_t compressed_kv_bytes = 0, digests_bytes = 0, reservoir_bytes = 0;
  uint64_t staging_bytes = 0;                                   // the refills' ring, room to work on low-rank keys, and the last queries
  uint64_t device_bytes = 0;                                    // weights + KV + staging + workspace
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
