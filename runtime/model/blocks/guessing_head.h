// The inputs of a head that guesses tokens (multi-token prediction, as in DeepSeek-V3 and Qwen3.5). It is a model of one layer, whose row
// for position p has the next token's embedding e, and the model's hidden state h of position p behind its output norm:
//   x = eh_proj [rms_norm(e) * enorm | rms_norm(h) * hnorm]
// Then come the layer, a norm and the logits of the token behind the next one. The hidden state behind that norm takes the place of h where
// the head goes on guessing.
#pragma once

#include <string>

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::guessing_head {

struct Weights {
  Weight in;                                     // (n_embd, 2 n_embd)
  Ptr<const float> embedding_norm, hidden_norm;  // (n_embd)
};

// prefix: "blk.N.nextn.".
Status find(Tensors* tensors, const Description& d, const std::string& prefix, Weights* out);
// Workspace::x has the rows' embeddings, Workspace::normed their hidden states; x becomes the layer's input.
void run(Pass& pass, const Weights& w);

}  // namespace orrery::model::guessing_head
