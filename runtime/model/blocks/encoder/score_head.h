// The head of a reranker, on the host: of a pair's pooled row h,
//   logits = out h + out_bias, or with a dense part: logits = out tanh(dense h + dense_bias) + out_bias
// The log-odds that the text answers the query are the one label's logit, or that of the label "yes" less that of "no".
#pragma once

#include <vector>

#include "runtime/base/span.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::score_head {

struct Weights {
  std::vector<float> dense, dense_bias;  // (n_embd, n_embd), (n_embd); empty without a dense part or a bias
  std::vector<float> out, out_bias;      // (n_labels, n_embd), (n_labels)
};

// Keys: classifier.output_labels; the number of labels is that of the tensor's rows.
Status read(Reading& in);
Status find(Tensors* tensors, const Description& d, Weights* out);
// row: (n_embd). Sums are of float64.
double log_odds(const ScoreShape& shape, const Weights& w, Span<const float> row);

}  // namespace orrery::model::score_head
