// The two ends of a model: the embedding, a row for each token, and the output, whose matrix is the embedding's where the file has no
// other.
#pragma once

#include "runtime/backend/step.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::vocabulary {

struct Weights {
  Weight embedding;              // (n_vocab, n_embd)
  Ptr<const float> output_norm;  // (n_embd); null with Description::norms_after
  Weight output;                 // (n_vocab, n_embd); null if the file has none
};

// Sets n_vocab.
Status read(Reading& in);
Status find_embedding(Tensors* tensors, const Description& d, Weights* out);
Status find_output(Tensors* tensors, const Description& d, Weights* out);

}  // namespace orrery::model::vocabulary
