// The feed-forward block: down(activation(gate x) * up x), or without a gate down(activation(up x + up_bias)) + down_bias.
#pragma once

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::feed_forward {

// What a family says of it.
struct Parts {
  bool fused = false;  // the file has gate and up in one matrix, ffn_up, gate first
  Activation activation = Activation::silu;
  bool gated = true;  // FeedForwardShape::gated
};

struct Weights : FeedForwardMatrices {
  Ptr<const float> up_bias, down_bias;  // (width), (n_embd); null with a gate, or if the file has none
};

// Keys: feed_forward_length, of all layers or of each.
Status read(Reading& in, const Parts& parts);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const FeedForwardShape& shape, const std::string& prefix, Weights* out);
// Workspace::act (n_rows, width) = what goes through `down`.
void activate(Pass& pass, const FeedForwardShape& shape, const Weights& w);
// Adds the branch of Workspace::normed to the residual stream.
void run(Pass& pass, const FeedForwardShape& shape, const Weights& w, Ptr<const float> post_norm);
// The same of a layer that Pass::columns has; w: the columns on the device. False: Pass::status has an error.
bool run_divided(Pass& pass, int32_t layer, const FeedForwardShape& shape, const Weights& w, Ptr<const float> post_norm);

}  // namespace orrery::model::feed_forward
