// The columns of feed-forward blocks which the processor computes beside the device, of a dense model that is larger than the device.
//
// A block is down(act(gate x) * up x): a sum over its columns. Of each layer the first columns lie in the arena, as the device stores them: rows
// of gate and up, columns of down. The others lie in the reservoir, as the file has them. Generated tokens: both sides compute their columns
// at the same time, and a row of inputs and a row of sums cross the link. Prompts: the reservoir's columns cross, layer by layer, ahead of
// their layer (layer_store.h), and the device computes them, too: a chunk's products would keep the processor longer than the link.
// The device's sum comes first, then the other one, whoever has computed it. Which columns lie where never changes while the model is open, so its
// answers do not depend on time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor_type.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/store/host_side.h"
#include "runtime/model/store/layer_store.h"

namespace orrery::model {

// The matrices of a feed-forward block.
struct FeedForwardMatrices {
  Weight gate_up;   // (2 width, n_embd), gate first; if null:
  Weight gate, up;  // (width, n_embd); gate is null without a gate
  Weight down;      // (n_embd, width)
};
enum class FeedForwardPart : uint8_t { gate_up, gate, up, down };
inline Weight* matrix_of(FeedForwardPart part, FeedForwardMatrices* m) {
  switch (part) {
    case FeedForwardPart::gate_up: return &m->gate_up;
    case FeedForwardPart::gate: return &m->gate;
    case FeedForwardPart::up: return &m->up;
    case FeedForwardPart::down: break;
  }
  return &m->down;
}

class HostColumns {
 public:
  static constexpr int32_t kWhole = 1024;  // a share of 1: shares count in parts of it

  // A matrix of a part of the columns, and its place in what holds the layer's matrices.
  struct Matrix {
    TensorType type = TensorType::f32;
    int64_t rows = 0, cols = 0;
    uint64_t offset = 0, bytes = 0;
  };
  struct Block {
    Matrix gate, up, down;
    uint64_t bytes = 0;  // of all three, each from an aligned place on
    Weight weight(const Matrix& m, Ptr<const std::byte> at, bool repacked) const {
      return {m.type, m.rows, m.cols, {at.address + m.offset}, repacked};
    }
  };
  // A layer's block in the file.
  struct Source {
    int32_t layer = 0, width = 0, n_embd = 0;
    TensorType gate = TensorType::f32, up = TensorType::f32, down = TensorType::f32;
  };
  // Where columns lie, from the file's header alone.
  struct Layout {
    struct Layer {
      int32_t layer = 0;               // of the model
      int32_t width = 0, n_there = 0;  // columns; of them, the device's
      Block there, host, brought;      // on the device; in the reservoir, as the file has it; brought to the device, as that stores it
      uint64_t there_offset = 0;
    };
    std::vector<Layer> layers;
    LayerUnits units;            // of the reservoir, by layers
    LayerStore::Needs ring;      // through which they come
    uint64_t brought_bytes = 0;  // room for the brought columns of any layer; 0: the device multiplies what the file has
    uint64_t there_bytes = 0;    // of the arena, beside `ring`, with brought_bytes
    uint64_t arena_bytes() const { return there_bytes + ring.arena_bytes; }
    uint64_t reservoir_bytes() const { return ring.reservoir_bytes; }
    int32_t width() const;  // of the reservoir's part, of any layer
    explicit operator bool() const { return !layers.empty(); }
  };
  // share: of each block's columns on the device, of kWhole.
  static Layout layout(Span<const Source> sources, const Device& device, int64_t share);

  // host, sides: HostSide. io brings the columns of prompts. All outlive the object. Errors as of ArenaRegion::take().
  static Result<std::unique_ptr<HostColumns>> make(Layout layout, Backend* host, TwoSides* sides, kv::Arena* arena, kv::Arena* reservoir,
                                                   kv::IoThread* io);
  HostColumns(const HostColumns&) = delete;
  HostColumns& operator=(const HostColumns&) = delete;

  const Layout& layout() const { return layout_; }
  Backend& host() const { return host_.backend(); }
  bool has(int32_t layer) const { return index_of(layer) >= 0; }
  const Layout::Layer& of(int32_t layer) const { return layout_.layers[static_cast<size_t>(index_of(layer))]; }

  // For the loader: where the layer's matrices are written, on the device and in host memory.
  Ptr<std::byte> there(int32_t layer) const { return there_.data() + of(layer).there_offset; }
  std::byte* host_at(int32_t layer) const { return ring_->at(layer); }
  Status begin() { return ring_->begin(); }  // once all are written

  // Work memory for steps of some limits, in the reservoir. Within a turn. width: Layout::width().
  static uint64_t work_bytes(const Device& host, const StepLimits& limits, int64_t n_embd, int64_t width);
  Status reserve(kv::Arena* reservoir, const StepLimits& limits, int64_t n_embd);

  // The next functions are for the thread that has the turn.

  // Of a prompt: has the reservoir's columns of a layer on the device until leave(). Errors of both: LayerStore's.
  Status bring(Backend* backend, int32_t layer, const Cancel& cancel, FeedForwardMatrices* brought);
  Status leave(Backend* backend, int32_t layer) { return ring_->leave(backend, layer, Phase::prefill); }

  // Of generated tokens. The caller fills `input` of at most n_rows rows, and finds the sums of the reservoir's columns in `sums`.
  struct Rows {
    int32_t n_rows;
    float *input, *sums;  // (n_rows, n_embd) each
  };
  Rows rows() const { return {n_rows_, input_, sums_}; }
  // `sums` of n rows of `input`, on the processor, while device() has the device do its part. activate(host, gate, up, stride, act, width) makes
  // of gate and up, rows `stride` floats apart, the input of the last product.
  template <class Device, class Activate>
  void side_by_side(int32_t layer, int32_t n, const Device& device, const Activate& activate) {
    const Layout::Layer& l = of(layer);
    const int64_t width = l.host.gate.rows;
    const Ptr<const std::byte> at = address(ring_->at(layer));
    const Weight gate = l.host.weight(l.host.gate, at, false), up = l.host.weight(l.host.up, at, false),
                 down = l.host.weight(l.host.down, at, false);
    const uint64_t us = host_.side_by_side(Phase::decode, n, device, [&] {
      Backend& host = host_.backend();
      const Ptr<float> gates = floats(ffn_), ups = gates + static_cast<uint64_t>(width), act = floats(act_);
      const Product in[] = {{&gate, {}, gates, 2 * width, false}, {&up, {}, ups, 2 * width, false}};
      host.matmul({in, 2}, floats(input_), gate.n_cols, n);
      activate(host, gates, ups, 2 * width, act, width);
      const Product out{&down, {}, floats(sums_), down.n_rows, false};
      host.matmul({&out, 1}, act, width, n);
    });
    count(us);
  }

  struct Counts {
    uint64_t layers = 0;   // that the processor computed a part of, in steps of generated tokens
    uint64_t host_us = 0;  // time that it took
  };
  Counts counts() const;                                                  // for any thread, as the next one
  WeightRing::Counts prompts() const { return ring_->counts().prefill; }  // what crossed the link

 private:
  HostColumns(Layout layout, Backend* host, TwoSides* sides);
  int64_t index_of(int32_t layer) const {
    return static_cast<size_t>(layer) < index_of_.size() ? index_of_[static_cast<size_t>(layer)] : -1;
  }
  static Ptr<const std::byte> address(const std::byte* p) { return {reinterpret_cast<uintptr_t>(p)}; }
  static Ptr<float> floats(float* p) { return {reinterpret_cast<uintptr_t>(p)}; }
  void count(uint64_t us);

  const Layout layout_;
  HostSide host_;
  std::unique_ptr<LayerStore> ring_;
  kv::ArenaRegion there_, work_;
  std::vector<int64_t> index_of_;  // by the model's layers
  int32_t n_rows_ = 0;             // of the work memory
  float *input_ = nullptr, *ffn_ = nullptr, *act_ = nullptr, *sums_ = nullptr;
  mutable std::mutex counts_mutex_;
  Counts counts_;
};

}  // namespace orrery::model
