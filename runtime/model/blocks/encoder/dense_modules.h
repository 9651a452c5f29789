// The two products behind the pooling of EmbeddingGemma, on the host: of a text's pooled row h, w3 (w2 h). They have neither biases nor an
// activation. A file has both or none.
#pragma once

#include <vector>

#include "runtime/base/span.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::dense_modules {

struct Weights {
  std::vector<float> in, out;  // (width, n_embd), (n_embd, width); empty: none
};

// Keys: dense_2_feat_in, dense_2_feat_out, dense_3_feat_in, dense_3_feat_out; they tell what the tensors' shapes tell. Sets
// Description::dense_width.
Status read(Reading& in);
Status find(Tensors* tensors, const Description& d, Weights* out);
// row: (n_embd). Each sum is of float64, in eight parts.
void apply(const Weights& w, Span<float> row);

}  // namespace orrery::model::dense_modules
