// Attention sums: for each key of each head, the sum of the attention weights that all queries so far have given it. A weight
// is the mean over the heads of the group. Sums are neither normalised nor decayed. Queries of prompts attend to all tokens; queries of
// generated tokens attend to the resident KV.
//
// A prompt's weights are computed layer by layer while its chunk is computed (KeyOperations::key_weights), and added in the order of
// positions. So chunk sizes do not change the sums. A sum cannot be taken back, because queries are not kept: after a rewind or a load all
// sums are lost, until Sequence::recover_queries() computes the tokens again.
//
// The sums lie in host memory, taken when the session opens.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/checked.h"
#include "runtime/base/span.h"
#include "runtime/base/state_bytes.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/model/load/model.h"

namespace orrery::engine {

class AttentionSums {
 public:
  // n_slots: of all heads together.
  static kv::Region layout(const model::Description& h, uint32_t n_context, uint64_t n_slots) {
    const uint64_t n_heads = static_cast<uint64_t>(h.kv().n_layers()) * static_cast<uint64_t>(h.kv().n_kv_heads);
    const uint64_t host = n_heads * (stride(n_context) * sizeof(float) + sizeof(KeyWeightsJob)) + n_slots * sizeof(float);
    return {"attention sums", kv::Holds::tables, 0, 0, host, 0};
  }
  AttentionSums(const model::Description& h, uint32_t n_context, uint64_t n_slots);

  uint64_t used_bytes() const { return 0; }  // not KV, nor its summary

  // The sums contain the queries of positions 0 .. n_rows() - 1.
  uint32_t n_rows() const { return n_rows_; }
  // (n_context) sums of a head (layer * n_kv_heads + KV head), by the key's position. Not of heads in layers with a sliding window.
  Span<float> of(uint32_t head) { return {sums_.data() + head * stride(n_context_), n_context_}; }

  // Begins to add the queries of [from, from + n): add_layer() for each layer, then finish(). False if the sums lack earlier positions:
  // then these queries are not added. At add_layer() the pages hold the layer's keys. q: rows q_stride floats apart.
  bool begin(uint32_t from, uint32_t n);
  bool under_way() const { return n_coming_ > 0; }
  Status add_layer(Backend* backend, const kv::PageTable& pages, int32_t layer, Ptr<const float> q, int64_t q_stride);
  void finish();
  // The caller has added a generated token's query to of() of every head.
  void add_row() { ++n_rows_; }

  // Removes tokens from n_tokens on.
  void truncate(uint32_t n_tokens) {
    if (n_tokens < n_rows_ || under_way()) n_rows_ = 0, n_coming_ = 0;
  }
  // For benchmarks: as if the queries of n tokens had added 0.
  void assume(uint32_t n_tokens);
  void copy_from(Backend* backend, const AttentionSums& other);
  Status state(StateBytes* s, uint32_t n_tokens);
  // (n_slots) room for the weights of a step's query, by slot.
  float* step_weights() { return step_weights_.data(); }

 private:
  // Whole tiles, because weights are computed in whole tiles. Weights behind a query's position are 0.
  static uint64_t stride(uint32_t n_context) { return align_up(n_context, uint32_t{kPageTokens}); }
  const model::Description& h_;
  const uint32_t n_context_;
  uint32_t n_rows_ = 0;
  uint32_t first_coming_ = 0, n_coming_ = 0;  // rows
  std::vector<float> sums_;                   // (n_heads, stride())
  std::vector<KeyWeightsJob> jobs_;           // room for a layer
  std::vector<float> step_weights_;
};

}  // namespace orrery::engine
