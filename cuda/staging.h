// Prompts of sessions under a policy attend to pages in host memory. A layer's pages come through two halves of device memory: rows attend
// to one half's keys while the other half is filled. Each byte crosses the link once for each layer and step. Read in place, it would cross
// once for each block of queries that sees it: eight times and more.
//
// Copies have a stream of their own, so that a layer's copies begin while the products before its attention run. Events order them: a half
// is written when its readers are done, and read when its copies have arrived. Pages with the step's own rows are copied when append_kv()
// has written these rows.
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
  explicit Staging(Gpu* gpu) : copies_(gpu, nullptr) {}
  Status create(const Gpu& gpu);
  // Takes the plan's part of the scratch memory. A plan without such a part has all keys read in place.
  void use(std::byte* scratch, const ScratchPlan& plan);
  // Whether the step's keys are staged: a prompt of one sequence, with pages outside of [arena, arena + arena_bytes).
  bool takes(const Step& step, uint64_t arena, uint64_t arena_bytes) const;
  // Waits for the copies that are under way, whatever has failed.
  void drain() { copies_.drain(); }
  // The step's copies wait for everything that the queue has now.
  void begin(Queue& queue);
  // attend_prefill() of the step's rows, segment by segment, with the bits of one attend_prefill() over all keys.
  void attend(Queue& queue, const DeviceShape& device, const StepView& view, const Step& step, const Attention& shape, ConstRows q,
              Rows out);

 private:
  void copy(const KvView& pages, const KvFormat& kv, int32_t layer, int32_t first, int32_t end, std::byte* to);

  StreamOwner stream_;
  Queue copies_;
  EventOwner begun_, appended_;     // on the steps' queue: the step begins; its rows' keys are appended
  EventOwner copied_[2], read_[2];  // of each half: its copies have arrived; its readers are done
  std::byte* halves_ = nullptr;
  uint64_t half_bytes_ = 0;   // 0: no keys are staged
  float* m_and_l_ = nullptr;  // KeySegment::m_and_l
  int turn_ = 0;              // the half that is filled next
};

}  // namespace orrery::cuda
