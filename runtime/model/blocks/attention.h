// The attention block: queries, keys and values of a layer's rows, RoPE, causal attention over the KV pages, and the output product. QKV
// may be one matrix or three, with biases or without: the file's tensors decide. Its state is the layer's part of its KV group's pages.
#pragma once

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"
#include "runtime/model/description/rope.h"

namespace orrery::model::attention {

// What a family says of it.
struct Parts {
  bool rope_interleaved = false;               // rotary pairs are neighbours (NORM), else halves (NEOX)
  bool qk_norm = false;                        // RMS norm of each query and key head, before RoPE
  bool windows = false;                        // attention.sliding_window sets the window; in other families the key is a leftover
  bool gated = false;                          // AttentionShape::gated
  bool long_factors = false;                   // the file may have rope_factors_long and rope_factors_short
};

// Vectors are null if the file has none.
struct Weights {
  Weight qkv;                                  // (q_dim + 2 kv_dim, n_embd) fused; if null:
  Weight q, k, v;                              // (q_dim, n_embd), (kv_dim, n_embd) twice; q (2 q_dim, n_embd) if gated
  Ptr<const float> qkv_bias;                   // (q_dim + 2 kv_dim)
  Ptr<const float> q_bias, k_bias, v_bias;
  Ptr<const float> q_norm, k_norm;             // (head_dim)
  Weight out;                                  // (n_embd, q_dim)
  Ptr<const float> out_bias;                   // (n_embd)
};

// Keys: attention.head_count, head_count_kv, key_length, value_length, sliding_window and its pattern; rope.*.
Status read(Reading& in, const Parts& parts);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const AttentionShape& shape, const std::string& prefix, Weights* out);
// The rotary factors of all layers that are tensors.
Status find_factors(Tensors* tensors, const Description& d, RopeFactors* out);

// A layer's place in a pass. next: the next layer's weights, or null in the last layer; for hooks that look ahead.
struct Place {
  int32_t layer = 0;
  const Weights* weights = nullptr;
  const Weights* next = nullptr;
  Ptr<const float> post_norm;
};
// Adds the branch of Workspace::normed to the residual stream. False: all sessions' hooks have failed.
bool run(Pass& pass, const Place& place);

}  // namespace orrery::model::attention
