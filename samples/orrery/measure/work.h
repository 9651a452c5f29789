// What a token costs, counted from a file's tensors and keys: the bytes that a decoded token reads, and the products of a prompt's token.
#pragma once

#include <cstdint>

#include "json_file.h"

namespace orrery::tool {

struct Work {
  uint64_t weights_bytes = 0;   // read by each decoded token: of experts, those that it meets
  uint64_t state_bytes = 0;     // of recurrent layers: read and written by each token, so counted twice
  // Operations of products with F32 weights, with F16 and BF16 weights, and with quantized weights.
  struct Ops {
    double floats = 0, halves = 0, quantized = 0;
  };
  Ops ops, last_ops;            // per prompt token; additional for the prompt's last token

  uint64_t bytes() const { return weights_bytes + state_bytes; }
};

// description: as orrery_inspect() gives it. A table of embeddings that is not the output matrix too gives one row, and blocks that guess tokens
// (nextn) are not computed: neither counts. Only a prompt's last token is multiplied by the output matrix, and passes layers that keep nothing
// of a token (gemma4's, whose KV an earlier layer has).
Work work_per_token(const Json& description);

}  // namespace orrery::tool
