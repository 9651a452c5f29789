// Per-layer embeddings: besides the embedding that begins the residual stream, each layer has an embedding of the token of its own. The
// table of these has a row for each token, which is far larger than what a step reads of it. So it stays where the file lies, on every
// device, and the host reads the rows.
#pragma once

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::per_layer {

inline constexpr const char* kTable = "per_layer_token_embd.weight";

// What makes all layers' inputs.
struct Inputs {
  Weight table;           // (n_vocab, n_layers n_per_layer), in host memory, as the file has it
  Weight projection;      // (n_layers n_per_layer, n_embd)
  Ptr<const float> norm;  // (n_per_layer)
};

// Of a layer.
struct Weights {
  Weight gate;                 // (n_per_layer, n_embd)
  Weight projection;           // (n_embd, n_per_layer)
  Ptr<const float> post_norm;  // (n_embd)
};

// Key: embedding_length_per_layer_input, which must be there.
Status read(Reading& in);
Status find_inputs(Tensors* tensors, const Description& d, Inputs* out);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const std::string& prefix, Weights* out);

// Workspace::ffn (n_rows, n_layers, n_per_layer) = the tokens' rows of the table * sqrt(n_per_layer).
void read_rows(Pass& pass, const Inputs& inputs);
// Workspace::per_layer = (those rows + norm(projection x / sqrt(n_embd))) / sqrt(2), with a norm for each layer. x: the embedding, in
// Workspace::x.
void make_inputs(Pass& pass, const Inputs& inputs);
// x += norm(projection(gelu(gate x) * the layer's input)).
void run(Pass& pass, int32_t layer, const Weights& w);

}  // namespace orrery::model::per_layer
