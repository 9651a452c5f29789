// The gated delta net (backend/recurrent.h). Its state is the layer's part of the sequence's recurrent state.
#pragma once

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::delta_net {

// What a family says of it.
struct Parts {
  bool grouped = false;  // DeltaNetShape::grouped
};

struct Weights {
  Weight qkv;          // (channels, n_embd): query heads, key heads, value heads
  Weight gate;         // (values, n_embd): z
  Weight alpha, beta;  // (n_value_heads, n_embd); or, of a grouped shape, in beta both: (2 n_value_heads, n_embd)
  DeltaNetWeights own;
  Weight out;  // (n_embd, values)
};

// Keys: ssm.conv_kernel, state_size, group_count, time_step_rank, inner_size. Sets the shape of the layers whose mixer it is.
Status read(Reading& in, const Parts& parts);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const DeltaNetShape& shape, const std::string& prefix, Weights* out);
// Adds the branch of Workspace::normed to the residual stream.
void run(Pass& pass, int32_t layer, const Weights& w, Ptr<const float> post_norm);

}  // namespace orrery::model::delta_net
