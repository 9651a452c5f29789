// The experts of a model that has not all of them in the arena.
//
// In place, where operations read the host's memory by its address: some units lie in the arena, the others in the reservoir, and all are
// computed where they lie.
//
// Over a link: the reservoir has all units, and the arena a cache of some. Before a layer's products, bring() has the chosen experts there:
// those that are missing cross the link, each to the slot of the unit that is worth least. A unit's worth is a count of its uses by generated
// tokens, halved every kHalfLife tokens. Prompts use most experts of each layer, so they do not count: what they bring leaves first, and what
// was worth more before a prompt is there after it. expect() brings units of the layer to come, if the link is free.
// Which units are where decides what a step waits for, and no result.
#pragma once

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
#include "runtime/model/store/expert_units.h"

namespace orrery::model {

class ExpertStore {
 public:
  // Of units, as layers asked for them for generated tokens.
  struct Counts {
    uint64_t hits = 0;                               // there when the layer asked
    uint64_t late = 0;                               // on their way, after expect()
    uint64_t missed = 0;                             // not even on their way
    uint64_t expected = 0;                           // brought by expect()
    uint64_t wasted = 0;                             // of `expected`: gone before a layer asked for them
    uint64_t bytes = 0;                              // over the link
    uint64_t stall_us = 0;                           // time that layers waited
    uint64_t prompt_bytes = 0, prompt_stall_us = 0;  // the same of prompts
    uint64_t asked() const { return hits + late + missed; }
  };
  struct Needs {
    uint64_t arena_bytes = 0, reservoir_bytes = 0;
  };

  static constexpr uint64_t kHalfLife = 256;  // tokens
  // n_on_device: units in the arena; over a link at least least_slots(). At most all of them.
  static Needs needs(const ExpertUnits& units, uint64_t n_on_device, bool in_place);
  // io: null in place. All outlive the store. Errors: those of ArenaRegion::take().
  static Result<std::unique_ptr<ExpertStore>> make(const ExpertUnits& units, uint64_t n_on_device, kv::Arena* arena, kv::Arena* reservoir,
                                                   kv::IoThread* io);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  const ExpertUnits& units() const { return units_; }
  bool in_place() const { return io_ == nullptr; }
  uint64_t n_on_device() const { return n_on_device_; }
  uint64_t arena_bytes() const { return device_.bytes(); }
  uint64_t reservoir_bytes() const { return host_.bytes(); }
  // Where the loader writes a unit, in host memory. layer: of the model, with experts.
  std::byte* at(int32_t layer, int32_t expert) const;
  // ExpertWeights::units of the layer.
  Ptr<const uint64_t> places(int32_t layer) const;
  // Once all units are written: gives the first ones their places on the device.
  Status begin(Backend* backend);

  // The next functions are for the thread that has the turn.

  // Has the layer's experts in their places: those with rows, first_slots[e] < first_slots[e + 1] (RoutedRows::first_slots). Operations on
  // other layers' experts are done. Errors: that of the transfer, and Code::cancelled; then nothing is under way, and the next call tries
  // again.
  Status bring(Backend* backend, int32_t layer, Span<const int32_t> first_slots, Phase phase, const Cancel& cancel);
  // Brings these experts of the layer to come: those with rows, or all (empty). After bring(), before the products. Without an effect where
  // the link has much to do already.
  void expect(int32_t layer, Span<const int32_t> first_slots, Phase phase);
  // The layer whose experts are used after this layer's; -1: none.
  int32_t next_layer(int32_t layer) const;
  Counts counts() const;  // for any thread

 private:
  struct Slot {
    int64_t unit = -1;      // or none
    size_t layer = 0;       // index of its layer
    uint64_t tick = 0;      // its latest use
    bool transit = false;   // a prompt has brought it, and no generated token has used it
    bool expected = false;  // brought by expect(), and not used yet
    bool arriving = false;
    uint64_t pinned = 0;  // tick at which it may not leave
    kv::IoRequest request;
    HostPiece piece;
  };

  ExpertStore(ExpertUnits units, uint64_t n_on_device, kv::IoThread* io);
  size_t index_of(int32_t layer) const;
  const std::byte* host_unit(size_t l, int64_t expert) const;
  Ptr<std::byte> slot_at(size_t slot) const { return device_.data() + slot * slot_bytes_; }
  Ptr<std::byte> table_at(size_t l) const { return device_.data() + tables_at_ + units_.layers[l].first_unit * sizeof(uint64_t); }
  void publish();
  void give_up();
  bool free_slots(size_t n);
  bool submit(size_t slot, size_t l, int64_t expert, Phase phase, bool urgent, const Cancel& cancel, Status* status);
  void empty(Slot* slot);

  const ExpertUnits units_;
  const uint64_t n_on_device_;
  kv::IoThread* const io_;
  uint64_t slot_bytes_ = 0, tables_at_ = 0;
  kv::ArenaRegion device_, host_;
  std::vector<uint64_t> places_;   // (n_units) addresses: the tables in device memory, of all layers
  std::vector<int32_t> slot_of_;   // (n_units) or -1
  std::vector<double> worth_;      // (n_units), times growth_ since the first token
  std::vector<Slot> slots_;        // over a link
  std::vector<size_t> free_;       // free_slots(): those to fill, the worthless first
  std::vector<size_t> wanted_;     // bring(): slots of the layer's experts
  std::vector<int64_t> missing_;   // experts
  std::vector<int32_t> index_of_;  // by the model's layers; -1: without experts
  uint64_t tick_ = 0;
  size_t last_layer_ = 0;
  double growth_ = 1.0;  // a use now counts this much
  Counts counts_;
  mutable std::mutex published_mutex_;
  Counts published_;  // counts_ as it was at the end of a call
};

}  // namespace orrery::model
