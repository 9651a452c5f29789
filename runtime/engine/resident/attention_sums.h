// What all queries so far have attended to each key of each head, summed: the mean of the group's softmax weights, position by position,
// neither normalised nor forgotten (H2O's score).  Of prompts every position's query, over all that it sees; of generated tokens the
// step's, over what was resident.
//
// A prompt's weights are made tile by tile, layer by layer, while its chunk is computed (KeyOperations::key_weights, which needs a tile's keys
// and a few rows of weights at a time), and added in the order of positions: how the prompt is cut does not show. Queries are not kept,
// so that a sum cannot be taken back: where positions go, or come without having been computed here (rewound, loaded), all sums are lost
// until their tokens are computed once more (Session::recover_queries).
//
// Host memory, taken when the session opens.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/checked.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/model/model.h"

namespace orrery::engine {

class AttentionSums {
 public:
  // n_slots: of all heads together.
  static kv::Region layout(const model::Hyperparameters& h, uint32_t n_context, uint64_t n_slots) {
    const uint64_t n_heads = static_cast<uint64_t>(h.n_layers) * static_cast<uint64_t>(h.n_kv_heads);
    return {"attention sums", kv::Holds::tables, 0, 0, n_heads * (stride(n_context) * sizeof(float) + sizeof(KeyWeightsJob)) + n_slots * sizeof(float), 0};
  }
  AttentionSums(const model::Hyperparameters& h, uint32_t n_context, uint64_t n_slots);

  uint64_t used_bytes() const { return 0; }   // not KV, nor its summary

  // The queries of positions 0 .. n_rows() - 1 are in the sums, and no others.
  uint32_t n_rows() const { return n_rows_; }
  // (n_context) of a head (layer * n_kv_heads + KV head), by the key's position. Heads of windowed layers have none.
  Span<float> of(uint32_t head) { return {sums_.data() + head * stride(n_context_), n_context_}; }

  // The queries of [from, from + n) come, layer by layer, and then finish(); false: those before them are not known, and they are not
  // taken in. The pages hold their keys when a layer's come, q_stride floats apart.
  bool begin(uint32_t from, uint32_t n);
  bool under_way() const { return n_coming_ > 0; }
  Status add_layer(Backend* backend, const kv::PageTable& pages, int32_t layer, Ptr<const float> q, int64_t q_stride);
  void finish();
  // A generated token's query has been added, key by key, through of().
  void add_row() { ++n_rows_; }

  // Tokens from n_tokens on are gone.
  void truncate(uint32_t n_tokens) {
    if (n_tokens < n_rows_ || under_way()) n_rows_ = 0, n_coming_ = 0;
  }
  // For benchmarks: as if the queries of n tokens had looked nowhere.
  void assume(uint32_t n_tokens);
  void copy_from(Backend* backend, const AttentionSums& other);
  // (n_slots) room for the weights of a step's query, slot by slot.
  float* step_weights() { return step_weights_.data(); }

 private:
  // Whole tiles: a query's weights are then made of whole tiles too, however far its chunk reaches; behind it they are 0.
  static uint64_t stride(uint32_t n_context) { return align_up(n_context, uint32_t{kPageTokens}); }
  const model::Hyperparameters& h_;
  const uint32_t n_context_;
  uint32_t n_rows_ = 0;
  uint32_t first_coming_ = 0, n_coming_ = 0;   // rows
  std::vector<float> sums_;                    // (n_heads, stride())
  std::vector<KeyWeightsJob> jobs_;            // room for a layer's
  std::vector<float> step_weights_;
};

}  // namespace orrery::engine
