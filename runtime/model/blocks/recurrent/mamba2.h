// Mamba2 (backend/recurrent.h). Its state is the layer's part of the sequence's recurrent state.
#pragma once

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::mamba2 {

struct Weights {
  Weight in;  // (projected, n_embd): z, u, t
  Mamba2Weights own;
  Weight out;  // (n_embd, inner)
};

// Keys: ssm.conv_kernel, state_size, group_count, time_step_rank, inner_size. Sets the shape of the layers whose mixer it is.
Status read(Reading& in);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const Mamba2Shape& shape, const std::string& prefix, Weights* out);
// Adds the branch of Workspace::normed to the residual stream.
void run(Pass& pass, int32_t layer, const Weights& w);

}  // namespace orrery::model::mamba2
