// The short convolution (backend/recurrent.h). Its state is the layer's part of the sequence's recurrent state.
#pragma once

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::short_conv {

struct Weights {
  Weight in;              // (3 n_channels, n_embd): B, C, X
  Ptr<const float> conv;  // (n_channels, n_taps)
  Weight out;             // (n_embd, n_channels)
};

// Key: shortconv.l_cache. Sets the shape of the layers whose mixer it is.
Status read(Reading& in);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const ShortConvShape& shape, const std::string& prefix, Weights* out);
// Adds the branch of Workspace::normed to the residual stream.
void run(Pass& pass, int32_t layer, const Weights& w);

}  // namespace orrery::model::short_conv
