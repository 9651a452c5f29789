// The input of an encoder: a row is its token's embedding, plus the embeddings of its position and of its token type where the model has
// them, and then a layer norm:
//   x = norm(token_embd + position_embd[position] + token_types[type]), type 1 for the second text of a pair, else 0
#pragma once

#include <vector>

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::encoder_inputs {

struct Weights {
  std::vector<float> positions, token_types;  // (n_positions, n_embd), (n_token_types, n_embd), on the host
  Ptr<const float> norm, norm_bias;           // (n_embd)
};

// Sets n_positions (learned: a row for each token of the trained context) and n_token_types.
Status read(Reading& in, bool learned_positions);
Status find(Tensors* tensors, const Description& d, Weights* out);
// Workspace::x has the rows' embeddings, and becomes the first layer's input.
void run(Pass& pass, const Weights& w);

}  // namespace orrery::model::encoder_inputs
