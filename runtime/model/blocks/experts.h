// A mixture of experts (backend/experts.h): the router's choice, the chosen experts' feed-forward blocks, and the expert that every row
// takes.
#pragma once

#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::experts {

// What a family says of it.
struct Parts {
  Gating gating = Gating::softmax;
  bool normalised = false;                         // whatever the file's key says: the key has no default that suits all files
  bool biased = false, clamped = false;            // ExpertsShape's
  bool norm_by_key = false;                        // expert_weights_norm says whether weights are normalised, and must be there
  bool norm_or_not = false;                        // the same, and without the key they are not
  bool gating_is_read = false;                     // the family has read expert_gating_func
  bool scaled = false;                             // expert_weights_scale multiplies the weights
  bool choice_bias = false, squared_relu = false;  // ExpertsShape's
  bool beside_ffn = false;                         // ExpertsShape's; experts' outputs have scales. Layers keep their feed-forward blocks
  Activation activation = Activation::silu;
  bool shared = false, shared_gated = true;  // the family has an expert that every row takes; its output has a gate
  bool shared_by_count = false;  // the shared expert has the width of expert_shared_count experts; without the key the layer has none
};

struct Weights : ExpertMatrices {
  Weight router;                              // (n_experts, n_embd)
  Ptr<const float> router_bias, choice_bias;  // (n_experts)
  // If beside_ffn: the norms of the router's input, the experts' input, the feed-forward block's output, the experts' output; the scales of
  // each expert's output.
  Ptr<const float> router_norm, norm, ffn_post_norm, post_norm;  // (n_embd)
  Ptr<const float> output_scales;                                // (n_experts)
  feed_forward::Weights shared;                                  // (shared_width)
  Weight shared_gate;                                            // (1, n_embd)
};

// Keys: expert_count, expert_used_count, expert_feed_forward_length, expert_shared_feed_forward_length or expert_shared_count,
// expert_weights_norm, expert_weights_scale. Sets the shape of all layers.
Status read(Reading& in, const Parts& parts);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const ExpertsShape& shape, const std::string& prefix, Weights* out);
// A layer's experts, and those of the next layer that has some, or null.
struct Layer {
  int32_t index = 0;
  const LayerShape& shape;
  const Weights& weights;
  const Weights* next = nullptr;
};
// Adds the branch of Workspace::normed to the residual stream. False: Pass::status has an error.
bool run(Pass& pass, const Layer& layer);
// x += norm(norm(ffn of Workspace::normed) + norm(experts of norm(x))), with a norm of its own each; `post_norm` is the last. The router
// reads norm(x) / sqrt(n_embd), of yet another norm, not what the experts read.
bool run_beside(Pass& pass, const Layer& layer, const feed_forward::Weights& dense, Ptr<const float> post_norm);

}  // namespace orrery::model::experts
