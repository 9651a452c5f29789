// The experts of a mixture which the processor computes beside the device.
//
// Of each layer the first experts lie in the arena, as the device stores them, and the others in the reservoir: as the processor's backend
// stores them, or as the file has them where the device stores them in another way. A layer's rows cross to the host once (kilobytes for a
// generated token), and the results of the reservoir's experts cross back. Both sides compute at the same time.
//
// A prompt's chunk with many rows for each expert (streams()) leaves the processor alone: the device computes all slots, and the
// reservoir's experts cross the link for it, through a ring of the arena (weight_ring.h). First the gate and up matrices of all of the
// layer's experts come, a group of experts at a time; then, behind the activation of all slots, their down matrices.
//
// Who computes a slot depends on the step's rows and phase and on the division, which is fixed while the model is open: so no answer
// depends on time. Where the device is the processor too, they have the bits that they have with all experts in the arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/store/expert_units.h"
#include "runtime/model/store/host_side.h"
#include "runtime/model/store/weight_ring.h"

namespace orrery::model {

class HostExperts {
 public:
  // What a step's work memory depends on, beside its rows.
  struct WorkShape {
    RouterShape router;
    int64_t n_embd = 0, used_width = 0;  // of the chosen experts' gates, side by side
  };
  // What crosses the link as one: of each expert of a group, the matrices before the activation, or the one behind it.
  enum class Part : uint8_t { gate_up, down };
  static constexpr Part kParts[] = {Part::gate_up, Part::down};
  // The rows for each expert, in the mean, from which on a prompt's experts cross the link. With fewer the processor is faster: a matrix of
  // 4.5 bits a weight crosses a link of 25 GB/s in the time in which a processor of 0.7e12 operations a second multiplies it by 8 rows; a
  // link of 12 GB/s, by 16 rows. Arithmetic, not measured.
  static constexpr int64_t kLeastRowsToStream = 8;
  static constexpr uint64_t kGroupBytes = uint64_t{16} << 20;  // .6 ms on PCIe 4.0, much longer than a wait for the device

  // Where a unit's down matrix begins, and where it ends.
  struct UnitShape {
    uint64_t down = 0, end = 0;
    uint64_t from(Part part) const { return part == Part::gate_up ? 0 : down; }
    uint64_t bytes(Part part) const { return part == Part::gate_up ? down : end - down; }
  };
  // Where units lie, from the file's header alone.
  struct Layout {
    // Of a part of a layer: loads of the ring from first_load on, each of n_experts at most.
    struct Groups {
      int32_t n_experts = 0;
      size_t first_load = 0, n_loads = 0;
      uint64_t table = 0;  // (n_experts) addresses, on the device: of its own experts, and of the others when they have crossed
    };
    struct Layer {
      int32_t layer = 0;  // of the model
      int32_t n_experts = 0, n_on_device = 0;
      UnitShape device, host;
      Groups groups[2];                             // of each part
      uint64_t device_bytes = 0, host_bytes = 0;    // of a unit on each side
      uint64_t device_offset = 0, host_offset = 0;  // of the layer's first unit there, in its region
      uint64_t device_table = 0, host_table = 0;    // (n_experts) addresses, in the same regions
      uint64_t biases_offset = 0;                   // of the host's copy of the biases
    };
    std::vector<Layer> layers;
    std::vector<RingLoad> loads;
    uint64_t n_units = 0, n_on_device = 0;
    uint64_t slots_offset = 0;   // of the ring
    uint64_t stored_offset = 0;  // of room for a load as the device stores it,
    bool as_in_file = false;     // where the reservoir has the matrices as in the file
    uint64_t arena_bytes = 0, reservoir_bytes = 0;
    explicit operator bool() const { return !layers.empty(); }
  };
  // A layer's units, as each side stores them, and the bytes of its experts' biases.
  struct Unit {
    UnitShape device, host;
    uint64_t biases_bytes = 0;
  };
  // units: the device's. of_layer: of each of their layers. n_on_device: units in the arena.
  static Layout layout(const ExpertUnits& units, Span<const Unit> of_layer, bool as_in_file, uint64_t n_on_device);

  // host: computes on the processor. sides: null where the device's operations return before they are done; else one thread calls them while
  // another one computes. io brings the experts of prompts. All outlive the object. Errors: those of ArenaRegion::take().
  static Result<std::unique_ptr<HostExperts>> make(Layout layout, Backend* host, TwoSides* sides, kv::Arena* arena, kv::Arena* reservoir,
                                                   kv::IoThread* io);
  HostExperts(const HostExperts&) = delete;
  HostExperts& operator=(const HostExperts&) = delete;

  const Layout& layout() const { return layout_; }
  Backend& host() const { return host_.backend(); }

  // For the loader. A unit's place is in the arena or in host memory.
  bool on_device(int32_t layer, int32_t expert) const { return expert < of(layer).n_on_device; }
  Ptr<std::byte> device_unit(int32_t layer, int32_t expert) const;
  std::byte* host_unit(int32_t layer, int32_t expert) const;
  Ptr<const uint64_t> device_places(int32_t layer) const { return {device_.data().address + of(layer).device_table}; }
  Ptr<const uint64_t> host_places(int32_t layer) const { return {reservoir_.data().address + of(layer).host_table}; }
  float* take_biases(int32_t layer, uint64_t n);  // room for n floats of the layer's biases
  ExpertMatrices& matrices(int32_t layer) { return matrices_[index(layer)]; }
  // Once all units are written. Brings the first loads.
  Status begin(Backend* backend);

  // Work memory for steps of some limits, in the reservoir. Within a turn.
  static uint64_t work_bytes(const Device& host, const StepLimits& limits, const WorkShape& shape);
  Status reserve(kv::Arena* reservoir, const StepLimits& limits, const WorkShape& shape);

  // The next functions are for the thread that has the turn.

  // The rows of a layer: what the device's rows chose, and the input of the experts. The caller fills them by download.
  struct Rows {
    int32_t* chosen;  // (n_rows, n_used)
    float* input;     // (n_rows, n_embd)
  };
  Rows rows() const { return {chosen_, input_}; }
  // The slots of rows().chosen, first the device's, then the processor's.
  struct Dealt {
    int32_t n_on_device = 0, n_on_host = 0;
    // RoutedRows from `slots` on, as they lie in the device's memory (RoutedRows::at): the processor's slots have no expert there, owner -1.
    Span<const int32_t> lists;
  };
  Dealt deal(int32_t layer, int32_t n_rows, Phase phase);
  // For the processor: its slots, counted from 0, and its buffers.
  struct Side {
    RoutedRows routed;
    Ptr<const float> input;
    Ptr<float> gate, up, act, slots;
  };
  Side side(int32_t n_rows) const;
  // compute() on the processor's backend, in a step of n_rows, while device() has the device do its part.
  template <class Device, class Host>
  void side_by_side(Phase phase, int32_t n_rows, const Device& device, const Host& compute) {
    const uint64_t us = host_.side_by_side(phase, n_rows, device, compute);
    (phase == Phase::decode ? counts_.host_us : counts_.prompt_host_us) += us;
    publish();
  }

  // Of a prompt: whether the device computes all of the layer's slots.
  bool streams(int32_t layer, int32_t n_rows, Phase phase) const;
  // Room for the layer's first_slots, which the caller fills by download.
  int32_t* first_slots() const { return host_firsts_; }
  // The matrices of all of the layer's experts for the device: `matrices`, which has its own, at other places.
  ExpertMatrices streamed(int32_t layer, const ExpertMatrices& matrices) const;
  // multiply(first slot, number of slots) of the layer's slots, with a part of their experts' matrices: of the device's experts, then of each
  // group that crosses the link. Errors: the ring's.
  template <class F>
  Status stream(Backend* backend, int32_t layer, Part part, const ExpertMatrices& matrices, const Cancel& cancel, const F& multiply) {
    const Layout::Layer& l = of(layer);
    const Layout::Groups& groups = l.groups[static_cast<size_t>(part)];
    const int32_t* const first = first_slots();
    if (first[l.n_on_device] > 0) multiply(0, first[l.n_on_device]);
    backend->send();
    for (size_t g = 0; g < groups.n_loads; ++g) {
      const int32_t from = l.n_on_device + static_cast<int32_t>(g) * groups.n_experts, end = std::min(from + groups.n_experts, l.n_experts);
      const size_t load = groups.first_load + g;
      ORRERY_TRY(ring_->bring(load, Phase::prefill, cancel));
      const int32_t n = first[end] - first[from];
      if (layout_.as_in_file) {  // the operations that wait behind bring() read the slot no longer
        if (n > 0) store(backend, l, part, load, end - from, matrices);
        ORRERY_TRY(ring_->leave(backend, load, Phase::prefill));
      }
      if (n > 0) multiply(first[from], n);
      if (!layout_.as_in_file) ORRERY_TRY(ring_->leave(backend, load, Phase::prefill));
    }
    return ok_status();
  }
  // Behind both parts.
  void count_streamed(int32_t layer);

  // Of choices (a row with one of its experts), since the model was opened.
  struct Counts {
    uint64_t on_device = 0, by_host = 0;  // of generated tokens
    uint64_t host_us = 0;                 // time in which the processor computed its choices
    uint64_t prompt_on_device = 0, prompt_by_host = 0, prompt_host_us = 0;
    uint64_t prompt_brought = 0;  // of prompt_on_device: by experts that crossed the link
  };
  Counts counts() const;                                                  // for any thread, as the next one
  WeightRing::Counts prompts() const { return ring_->counts().prefill; }  // what crossed the link

 private:
  HostExperts(Layout layout, Backend* host, TwoSides* sides);
  size_t index(int32_t layer) const { return static_cast<size_t>(index_of_[static_cast<size_t>(layer)]); }
  const Layout::Layer& of(int32_t layer) const { return layout_.layers[index(layer)]; }
  void publish();
  Ptr<std::byte> device_at(uint64_t offset) const { return device_.data() + offset; }
  // The matrices of a load's n experts, as the device stores them.
  void store(Backend* backend, const Layout::Layer& l, Part part, size_t load, int32_t n, const ExpertMatrices& matrices);

  const Layout layout_;
  HostSide host_;
  kv::ArenaRegion device_, reservoir_, work_;
  std::unique_ptr<WeightRing> ring_;
  std::vector<ExpertMatrices> matrices_;  // of each layer, on the host
  std::vector<int32_t> index_of_;         // by the model's layers; -1: without experts
  std::vector<uint64_t> biases_used_;     // of each layer
  WorkShape shape_;
  int32_t* chosen_ = nullptr;  // in the work memory, as the next members
  float *input_ = nullptr, *ffn_ = nullptr, *act_ = nullptr, *slots_ = nullptr;
  int32_t *lists_ = nullptr, *host_rows_ = nullptr, *host_firsts_ = nullptr;
  Counts counts_;
  mutable std::mutex published_mutex_;
  Counts published_;  // counts_ as it was at the end of a call
};

}  // namespace orrery::model
