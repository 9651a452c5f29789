// The two ends of a model: the embedding, a row for each token, and the output, whose matrix is the embedding's where the file has no
// other.
#pragma once

#include "runtime/backend/step.h"
#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::vocabulary {

struct Weights {
  Weight embedding;                // (n_vocab, n_embd); no product reads it if the file has another output matrix
  bool embedding_on_host = false;  // it stays where the file lies, and the host reads the rows of a step
  Ptr<const float> output_norm;    // (n_embd); null with Description::norms_after
  Weight output;                   // (n_vocab, n_embd); null if the file has none
};

// Sets n_vocab.
Status read(Reading& in);
Status find_embedding(Tensors* tensors, const Description& d, Weights* out);
Status find_output(Tensors* tensors, const Description& d, Weights* out);

// x = scale * the embeddings of the step's tokens. The step's first operation.
void embed(Pass& pass, const Weights& weights, float scale, Ptr<float> x);
// out (n_rows, n_cols) = scale * the rows of a table where the file lies, which the host reads (StepOperations::read_rows).
void read_rows(Pass& pass, const Weight& table, float scale, Ptr<float> out);

}  // namespace orrery::model::vocabulary
