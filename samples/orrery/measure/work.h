// Counts the work of a token from a file's tensors and keys: bytes that a decoded token reads, and products of a prompt token.
#pragma once

#include <cstdint>

#include "json_file.h"

namespace orrery::tool {

struct Work {
  uint64_t weights_bytes = 0;  // that a decoded token reads; of the experts, n_used
  uint64_t state_bytes = 0;    // of recurrent layers; a token reads and writes each state, so it counts twice
  // Operations of products with F32 weights, with F16 and BF16 weights, and with quantized weights.
  struct Ops {
    double floats = 0, halves = 0, quantized = 0;
  };
  Ops ops, last_ops;  // per prompt token; additional for the prompt's last token

  // What a card must hold: all weights but experts and tables of which a step reads rows (an embedding is there if it has room); and the experts
  // of all layers.
  uint64_t resident_bytes = 0, expert_bytes = 0;
  uint64_t n_experts = 0, used_experts = 0, expert_layers = 0;  // counted over all layers; layers that have some
  uint64_t n_layers = 0, layer_bytes = 0;                       // of resident_bytes, the layers' matrices, which may lie in host memory
  uint64_t block_bytes = 0;  // of layer_bytes, dense feed-forward blocks, of which the host may compute a part

  uint64_t bytes() const { return weights_bytes + state_bytes; }
};

// description: the JSON of orrery_inspect(). Two kinds of tensors do not count: an embedding table that is not the output matrix, since a
// token reads one row; and nextn blocks, since decoding without guesses skips them. Only a prompt's last token is multiplied by the output
// matrix, and passes the layers that share an earlier layer's KV (gemma4).
Work work_per_token(const Json& description);

}  // namespace orrery::tool
