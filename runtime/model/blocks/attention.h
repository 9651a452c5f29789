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
  bool rope_interleaved = false;  // rotary pairs are neighbours (NORM), else halves (NEOX)
  bool qk_norm = false;           // RMS norm of each query and key head, before RoPE
  bool windows = false;           // attention.sliding_window sets the window; in other families the key is a leftover
  int32_t window_period = 0;      // unless the file says otherwise, every nth layer has no window; 0: all have one
  bool window_rope = false;       // RoPE of layers with a window is not scaled, and its base is rope.freq_base_swa, or
  float window_base = 10000.0f;   // this, or if 0 that of the other layers
  bool rope_in_windows = false;   // layers without a window have no RoPE
  int32_t rope_period = 0;        // every nth layer has no RoPE; 0: all have one
  bool temperature = false;       // attention.temperature_scale, and YaRN's log multiplier
  bool gated = false;             // AttentionShape::gated
  bool own_gate = false;          // AttentionShape::own_gate
  bool sinks = false;             // AttentionShape::sinks
  // Layers with a window have heads and a RoPE of sizes of their own (key_length_swa, value_length_swa, rope.dimension_count_swa), and each
  // layer its own number of heads.
  bool by_kind = false;
  float scale = 0.0f;                           // unless the file says otherwise; 0: 1 / sqrt(head_dim)
  bool v_norm = false, values_of_keys = false;  // AttentionShape's
  bool shares_kv = false;                       // the last attention.shared_kv_layers layers have no KV of their own
  bool whole_pairs = true;                      // RopeParameters::whole_pairs
  bool bidirectional = false;                   // rows see the rows after them: attention.causal is false
  bool long_factors = false;                    // the file may have rope_factors_long and rope_factors_short
};

// Vectors are null if the file has none.
struct Weights {
  Weight qkv;                 // (q_dim + 2 kv_dim, n_embd) fused; if null:
  Weight q, k, v;             // (q_dim, n_embd), (kv_dim, n_embd) twice; q (2 q_dim, n_embd) if gated. v: null if its values
                              // are of keys, k and v: null if the layer reads another's KV
  Weight gate;                // (q_dim, n_embd), if own_gate
  Ptr<const float> qkv_bias;  // (q_dim + 2 kv_dim)
  Ptr<const float> q_bias, k_bias, v_bias;
  Ptr<const float> q_norm, k_norm;  // (head_dim)
  Ptr<const float> sinks;           // (n_heads)
  Weight out;                       // (n_embd, q_dim)
  Ptr<const float> out_bias;        // (n_embd)
};

// A number of heads by this key. All layers with attention must have the same. Where some layers have no attention, the key may be 0 in
// those.
Status read_equal_heads(Reading& in, const char* key, int32_t* out);
// Refuses a window that hides keys. For families and blocks without windows.
Status refuse_windows(Reading& in);
// The RoPE of layers without a window, but for its n_rot.
Status read_rope(Reading& in, const Parts& parts);
// attention.head_count_kv of a family whose layers have attention where it is not 0; at least one of them has. The family sets the other
// layers' mixers before read().
Status read_kv_heads(Reading& in, std::vector<int32_t>* n_kv_heads);
// Keys: attention.head_count, head_count_kv, key_length, value_length, scale, sliding_window and its pattern; rope.*.
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
