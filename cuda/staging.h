// Prompts' keys that lie in host memory, as those under a policy do: a layer's pages come through two halves of device memory, some into
// the one while rows attend to those in the other. Read in place they would cross the link once for every block of queries that sees them,
// eight times and more; so they do once a layer and step.
//
// Copies have a stream of their own, so that those of a layer begin while the products before its attention run. They keep to the steps'
// order by events: a half is written when nobody reads it any more, and read when it is there; the pages that the step's own rows are
// written to come when these are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/kernels.h"
#include "cuda/device/owners.h"
#include "cuda/device/queue.h"
#include "cuda/scratch.h"
#include "runtime/backend/backend.h"
#include "runtime/base/status.h"

namespace orrery::cuda {

class Staging {
 public:
  explicit Staging(ErrorLatch* latch) : copies_(nullptr, latch) {}
  Status create();
  // Its part of the scratch memory; where the plan has none, everything is read in place.
  void use(std::byte* scratch, const ScratchPlan& plan);
  // Whether a step's keys come this way: those of one sequence's prompt that are not all in [arena, arena + arena_bytes).
  bool takes(const Step& step, uint64_t arena, uint64_t arena_bytes) const;
  // Everything that the queue has is in front of what is copied for the step.
  void begin(Queue& queue);
  // attend_prefill() of the step's rows, by segments; to the bit what it gives at once.
  void attend(Queue& queue, const DeviceShape& device, const StepView& view, const Step& step, const Attention& shape, ConstRows q, Rows out);

 private:
  void copy(const KvView& pages, const KvFormat& kv, int32_t layer, int32_t first, int32_t end, std::byte* to);

  StreamOwner stream_;
  Queue copies_;
  EventOwner begun_, appended_;      // on the steps' queue: what was there before the step; the rows' own keys
  EventOwner copied_[2], read_[2];   // of each half
  std::byte* halves_ = nullptr;
  uint64_t half_bytes_ = 0;          // 0: there is no room
  float* left_ = nullptr;
  int turn_ = 0;
};

}  // namespace orrery::cuda
