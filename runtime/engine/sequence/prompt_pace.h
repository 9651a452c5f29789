// The pace of a prompt. A chunk of the prompt is computed in parts: as many layers as take about part_us together. Between two parts the
// session gives its turn back. So other sessions compute their steps meanwhile, and the caller sees progress and may cancel.
//
// Where one layer of a chunk takes longer than part_us (a long context, a large model), the chunk has fewer tokens. Neither changes a bit:
// a row of a prompt depends neither on the chunk's other rows nor on a pause between layers. The residual stream waits in host memory,
// because all sessions share the workspace.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/kv/memory/layout.h"
#include "runtime/model/load/model.h"

namespace orrery::engine {

class PromptPace {
 public:
  static constexpr uint32_t kFewestRows = 16;  // of a chunk that was cut because its layers took too long
  static kv::Region layout(const model::Description& h, uint32_t chunk_tokens) {
    return {"chunk under way", kv::Holds::tables, 0, 0, uint64_t{chunk_tokens} * static_cast<uint64_t>(h.n_embd) * sizeof(float), 0};
  }

  // row_layer_us: the expected time of one row in one layer.
  PromptPace(const model::Description& h, uint32_t chunk_tokens, uint64_t part_us, double row_layer_us)
      : n_layers_(h.n_layers), part_us_(static_cast<double>(part_us)), row_layer_us_(row_layer_us) {
    stream_.resize(size_t{chunk_tokens} * static_cast<size_t>(h.n_embd));
  }

  // The chunk under way, if a part of it has been computed.
  bool under_way() const { return n_rows_ > 0; }
  uint32_t n_rows() const { return n_rows_; }
  int32_t layer() const { return layer_; }  // the first layer that is not computed
  uint32_t done() const {                   // its computed part, in tokens
    return static_cast<uint32_t>(uint64_t{n_rows_} * static_cast<uint64_t>(layer_) / static_cast<uint64_t>(n_layers_));
  }
  float* stream() { return stream_.data(); }  // (n_rows, n_embd) the residual stream before layer()

  // Rows of the next chunk: at most `most`. work: of a row, in layers, if more than n_layers are computed for it.
  uint32_t rows(uint32_t most, double work = 1) const {
    const double fit = part_us_ / (row_layer_us_ * std::max(work, 1.0));
    return fit >= most ? most : std::min(most, std::max(static_cast<uint32_t>(fit), kFewestRows));
  }
  // The layer behind the next part's last one.
  int32_t end_of_part(uint32_t n_rows) const {
    const double fit = part_us_ / (row_layer_us_ * n_rows), left = n_layers_ - layer_;
    return fit >= left ? n_layers_ : layer_ + std::max(static_cast<int32_t>(fit), 1);
  }
  // A part of n_rows rows has ended before layer `end`. One slow part (another program had the processor) counts as half as fast at most.
  void computed(uint32_t n_rows, int32_t end, uint64_t us) {
    const double now = static_cast<double>(std::max<uint64_t>(us, 1)) / (static_cast<double>(n_rows) * (end - layer_));
    row_layer_us_ = measured_ ? std::min(now, 2 * row_layer_us_) : now;
    measured_ = true;
    n_rows_ = end < n_layers_ ? n_rows : 0;
    layer_ = end < n_layers_ ? end : 0;
  }
  void drop() { n_rows_ = 0, layer_ = 0; }

 private:
  int32_t n_layers_;
  double part_us_, row_layer_us_;
  bool measured_ = false;
  uint32_t n_rows_ = 0;
  int32_t layer_ = 0;
  std::vector<float> stream_;
};

}  // namespace orrery::engine
