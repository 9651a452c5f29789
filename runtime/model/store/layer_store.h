// The matrices of layers that lie in host memory.
//
// In place, where operations read the host's memory by its address, they are used where they lie in the reservoir. Over a link they go
// through a ring of the arena (weight_ring.h), a layer a load: each step uses them in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/store/weight_ring.h"

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
  // n_away of the model's layers, spread over all of them, so that layers on the device compute while the others cross the link. bytes: of
  // each of the model's layers. At most all layers.
  static LayerUnits spread(Span<const uint64_t> bytes, int32_t n_away);
};

class LayerStore {
 public:
  struct Needs {
    uint64_t arena_bytes = 0, reservoir_bytes = 0;
  };

  static Needs needs(const LayerUnits& units, bool in_place);
  // io: null in place. All outlive the store. Errors as of ArenaRegion::take().
  static Result<std::unique_ptr<LayerStore>> make(const LayerUnits& units, kv::Arena* arena, kv::Arena* reservoir, kv::IoThread* io);
  LayerStore(const LayerStore&) = delete;
  LayerStore& operator=(const LayerStore&) = delete;

  const LayerUnits& units() const { return units_; }
  bool in_place() const { return !ring_; }
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

  // Has the layer's matrices in their place until leave(). Errors of both: the ring's.
  Status bring(int32_t layer, Phase phase, const Cancel& cancel);
  Status leave(Backend* backend, int32_t layer, Phase phase);
  WeightRing::AllCounts counts() const { return ring_ ? ring_->counts() : WeightRing::AllCounts{}; }  // of layers; for any thread

 private:
  explicit LayerStore(LayerUnits units);
  int64_t index_of(int32_t layer) const {
    return static_cast<size_t>(layer) < index_of_.size() ? index_of_[static_cast<size_t>(layer)] : -1;
  }

  const LayerUnits units_;
  kv::ArenaRegion device_, host_;
  std::vector<int64_t> index_of_;     // by the model's layers
  std::unique_ptr<WeightRing> ring_;  // null: in place
};

}  // namespace orrery::model
