// Latent attention (MLA): LayerShape::latent has its formula. The layer's state is one row for each token in its KV group's pages, stored
// once: the row is the key, and its first values are the value.
#pragma once

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::latent_attention {

struct Weights {
  Weight q;                  // (n_heads * query_dim, n_embd) without q_rank; or
  Weight q_a, q_b;           // (q_rank, n_embd), (n_heads * query_dim, q_rank)
  Ptr<const float> q_norm;   // (q_rank)
  Weight kv_a;               // (rank + rope, n_embd)
  Ptr<const float> kv_norm;  // (rank)
  Weight k_b, v_b;           // of each head: (rank, nope), (value_dim, rank)
  Weight out;                // (n_embd, n_heads * value_dim)
};

// Keys: attention.head_count, head_count_kv, q_lora_rank, kv_lora_rank, key_length, value_length, key_length_mla, value_length_mla; rope.*.
Status read(Reading& in);
// prefix: "blk.N.".
Status find(Tensors* tensors, const Description& d, const LayerShape& layer, const std::string& prefix, Weights* out);
// Adds the branch of Workspace::normed to the residual stream. False: all sessions' hooks have failed.
bool run(Pass& pass, int32_t layer, const Weights& w);

}  // namespace orrery::model::latent_attention
