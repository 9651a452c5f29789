// Weights that cross the link in a fixed order, again and again: a ring of kSlots slots in the arena.
//
// A load is what crosses as one. Load i has slot i % kSlots. bring() has a load in its slot before the operations that read it. leave()
// follows them, and begins to bring the slot's next load, so the link is busy while other loads are in use. Bytes cross in pieces, and what a
// caller waits for comes between two pieces.
// Which bytes are where decides what a step waits for, and no result.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/transfers/io_thread.h"

namespace orrery::model {

// `n` parts of host memory, `bytes` long and `stride` bytes apart; in the slot they lie side by side.
struct RingLoad {
  uint64_t host_offset = 0, bytes = 0, stride = 0;
  uint32_t n = 1;
  int32_t layer = 0;  // of the model; errors name it
  uint64_t all_bytes() const { return n * bytes; }
};

class WeightRing {
 public:
  // Since the ring was made: of steps of generated tokens, and of prompts.
  struct Counts {
    uint64_t asked = 0;     // loads that a step came to
    uint64_t waited = 0;    // of them, loads that were not all there
    uint64_t bytes = 0;     // over the link
    uint64_t stall_us = 0;  // time that steps waited
  };
  struct AllCounts {
    Counts decode, prefill;
  };

  static constexpr size_t kSlots = 2;
  static uint64_t slot_bytes(Span<const RingLoad> loads);   // room for any load, a multiple of the arena's alignment
  static uint64_t arena_bytes(Span<const RingLoad> loads);  // of all slots

  // slots: arena_bytes(). host: where host_offset counts from; once begin() is called, the loads are written. part: of a load, for
  // errors; of static storage. io outlives the ring.
  WeightRing(std::vector<RingLoad> loads, Ptr<std::byte> slots, const std::byte* host, const char* part, kv::IoThread* io);
  ~WeightRing();
  WeightRing(const WeightRing&) = delete;
  WeightRing& operator=(const WeightRing&) = delete;

  // Where operations find load i.
  Ptr<std::byte> place(size_t i) const { return slots_at_ + i % kSlots * slot_bytes_; }
  // Brings the first loads.
  void begin();

  // The next functions are for the thread that has the turn.

  // Has load i in its slot until leave(). Errors: that of the transfer, and Code::cancelled; the next call tries again.
  Status bring(size_t i, Phase phase, const Cancel& cancel);
  // After the last operation that reads load i. Where another load takes its slot: waits for the operations, and reports their error.
  Status leave(Backend* backend, size_t i, Phase phase);
  AllCounts counts() const;  // for any thread

 private:
  struct Slot {
    int64_t load = -1;                           // -1: none
    size_t n = 0, n_submitted = 0, n_there = 0;  // requests of the load
    bool in_use = false;                         // from bring() to leave()
    std::vector<kv::IoRequest> requests;
    std::vector<HostPiece> from;  // the requests' pieces
  };

  void give_up(Slot* slot);
  void choose(Slot* slot, size_t i);
  bool submit_next(Slot* slot, kv::IoThread::Urgency urgency, Phase phase);
  void publish();

  const std::vector<RingLoad> loads_;
  const Ptr<std::byte> slots_at_;
  const std::byte* const host_;
  const char* const part_;
  kv::IoThread& io_;
  const uint64_t slot_bytes_, piece_bytes_;
  std::array<Slot, kSlots> slots_;
  AllCounts counts_;
  mutable std::mutex published_mutex_;
  AllCounts published_;  // counts_ as it was at the end of a call
};

}  // namespace orrery::model
