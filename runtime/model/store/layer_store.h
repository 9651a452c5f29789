// The matrices of layers that lie in host memory.
//
// In place, where operations read the host's memory by its address, they are used where they lie in the reservoir.
//
// Over a link, the arena has kSlots slots, each with room for a layer's matrices. The layers go round: each step uses them in the same
// order, and layer l of the store has slot l % kSlots. bring() has a layer's matrices in its slot before its operations. leave() follows
// them, and begins to bring the matrices of the slot's next layer, so the link is busy while other layers compute. Bytes cross in pieces, and
// what a layer waits for comes between two pieces.
// Which bytes are where decides what a step waits for, and no result.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/transfers/io_thread.h"

namespace orrery::model {

// Layers whose matrices lie in host memory, one layer after the other, as the backend stores them.
struct LayerUnits {
  struct Layer {
    int32_t layer = 0;   // of the model
    uint64_t bytes = 0;  // of its matrices, a multiple of the arena's alignment
    uint64_t host_offset = 0;
  };
  std::vector<Layer> layers;  // in their order

  explicit operator bool() const { return !layers.empty(); }
  uint64_t bytes() const { return layers.empty() ? 0 : layers.back().host_offset + layers.back().bytes; }
  uint64_t slot_bytes() const;  // room for any layer
  // n_away of the model's layers, spread over all of them, so that layers on the device compute while the others cross the link. bytes: of
  // each of the model's layers. At most all layers.
  static LayerUnits spread(Span<const uint64_t> bytes, int32_t n_away);
};

class LayerStore {
 public:
  // Since the store was made: of steps of generated tokens, and of prompts.
  struct Counts {
    uint64_t asked = 0;     // layers that a step came to
    uint64_t waited = 0;    // of them, layers whose matrices were not all there
    uint64_t bytes = 0;     // over the link
    uint64_t stall_us = 0;  // time that steps waited
  };
  struct AllCounts {
    Counts decode, prefill;
  };
  struct Needs {
    uint64_t arena_bytes = 0, reservoir_bytes = 0;
  };

  static constexpr size_t kSlots = 2;
  static Needs needs(const LayerUnits& units, bool in_place);
  // io: null in place. All outlive the store. Errors as of ArenaRegion::take().
  static Result<std::unique_ptr<LayerStore>> make(const LayerUnits& units, kv::Arena* arena, kv::Arena* reservoir, kv::IoThread* io);
  ~LayerStore();
  LayerStore(const LayerStore&) = delete;
  LayerStore& operator=(const LayerStore&) = delete;

  const LayerUnits& units() const { return units_; }
  bool in_place() const { return io_ == nullptr; }
  uint64_t arena_bytes() const { return device_.bytes(); }
  uint64_t reservoir_bytes() const { return host_.bytes(); }
  // Whether the store has this layer of the model.
  bool has(int32_t layer) const { return index_of(layer) >= 0; }
  // Where the loader writes the matrices of a layer that the store has, in host memory; and where operations find them.
  std::byte* at(int32_t layer) const;
  Ptr<std::byte> place(int32_t layer) const;
  // Once all layers are written: brings the first ones.
  Status begin();

  // The next functions are for the thread that has the turn. Layers that the store does not have are ignored.

  // Has the layer's matrices in their place until leave(). Errors: that of the transfer, and Code::cancelled; the next call tries again.
  Status bring(int32_t layer, Phase phase, const Cancel& cancel);
  // After the layer's last operation. Waits for the operations, and reports their error.
  Status leave(Backend* backend, int32_t layer, Phase phase);
  AllCounts counts() const;  // for any thread

 private:
  // A piece of a layer on its way.
  struct Piece {
    kv::IoRequest request;
    HostPiece from;
  };
  struct Slot {
    int64_t layer = -1;                          // index into units_.layers; -1: none
    size_t n = 0, n_submitted = 0, n_there = 0;  // pieces of the layer
    bool in_use = false;                         // from bring() to leave()
    std::vector<Piece> pieces;
  };

  LayerStore(LayerUnits units, kv::IoThread* io);
  int64_t index_of(int32_t layer) const {
    return static_cast<size_t>(layer) < index_of_.size() ? index_of_[static_cast<size_t>(layer)] : -1;
  }
  Ptr<std::byte> slot_at(size_t slot) const { return device_.data() + slot * slot_bytes_; }
  void give_up(Slot* slot);
  void choose(Slot* slot, size_t l);
  bool submit_next(Slot* slot, kv::IoThread::Urgency urgency, Phase phase);
  void publish();

  const LayerUnits units_;
  kv::IoThread* const io_;
  uint64_t slot_bytes_ = 0, piece_bytes_ = 0;
  kv::ArenaRegion device_, host_;
  std::vector<int64_t> index_of_;  // by the model's layers
  std::array<Slot, kSlots> slots_;
  AllCounts counts_;
  mutable std::mutex published_mutex_;
  AllCounts published_;  // counts_ as it was at the end of a call
};

}  // namespace orrery::model
