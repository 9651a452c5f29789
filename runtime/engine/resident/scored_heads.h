// A part of the resident KV: memory for the exported attention weights of scored heads, which the policy names (Policy::scored_heads).
// Policy::after_step() reads the weights instead of the keys. They belong to one step's query, so a fork copies nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/description/description.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

class ScoredHeads {
 public:
  // For n_heads heads, with `stride` keys each.
  static kv::Region layout(const model::Description& h, uint32_t n_heads, int64_t stride);
  static Result<std::unique_ptr<ScoredHeads>> make(kv::Arena* arena, const model::Description& h, uint32_t n_heads, int64_t stride);

  uint64_t used_bytes() const { return 0; }  // not KV, nor its summary

  // Sets the views of the policy's scored heads so that the next step exports their weights. views: (n_heads).
  void begin(const policy::Policy& policy, Span<HeadView> views);

  void truncate(uint32_t) {}
  void copy_from(Backend*, const ScoredHeads&) {}

 private:
  ScoredHeads(const model::Description& h, kv::ArenaRegion region, uint32_t n_heads, int64_t stride);
  static uint64_t head_bytes(const model::Description& h, int64_t stride);

  kv::ArenaRegion region_;
  uint32_t n_heads_;
  int64_t stride_;
  uint64_t head_bytes_;          // of one head's ExportedWeights
  std::vector<uint32_t> heads_;  // room for n_heads
};

}  // namespace orrery::engine
