// A model as it is described to everyone above its weights: sizes, constants, and each layer's shape. Structs only: families read them from
// a file (families/family.h), blocks compute by them. After read_description(), every product of two sizes fits an int64, and every value
// is in the range that the kernels support.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/backend/experts.h"
#include "runtime/backend/recurrent.h"
#include "runtime/backend/step.h"

namespace orrery::model {

// How the rows of a text become its embedding, numbered as files have it: no pooling; the rows' mean; the first row; the last row; the
// score of a query and a text (a reranker's head).
enum class Pooling : uint8_t { none, mean, first, last, rank };

enum class RopeScaling : uint8_t { none, linear, yarn, llama3, longrope };

struct RopeParameters {
  bool interleaved = false;   // rotary pairs are neighbours (NORM), else halves (NEOX)
  bool long_factors = false;  // the file may have rope_factors_long and rope_factors_short
  int32_t n_rot = 0;          // rotated dimensions of a head, from its start; even
  RopeScaling scaling = RopeScaling::none;
  float base = 10000.0f;
  float factor = 1.0f;                                // ratio of the extended context to the trained context
  float attention_factor = 1.0f;                      // multiplies cos and sin, in addition to yarn's own magnitude
  uint32_t original_context = 0;                      // tokens of the original training; 0: the model's context
  float beta_fast = 32.0f, beta_slow = 1.0f;          // yarn
  float log_multiplier = 0.0f;                        // yarn: its magnitude is g(1) / g(this), g(x) = 1 + 0.1 x ln factor; 0: g(1)
  bool whole_pairs = true;                            // yarn: the ramp begins and ends at whole pairs
  float temperature = 0.0f;                           // cos and sin grow with the position: RopeSpec
  float low_frequency = 1.0f, high_frequency = 4.0f;  // llama3, if set by an override
};

// A caller's replacement for the file's RoPE scaling.
struct RopeOverride {
  bool set = false;  // `scaling` and `factor` replace the file's
  RopeScaling scaling = RopeScaling::none;
  float factor = 0.0f;
  float base = 0.0f;              // > 0: replaces the file's, with or without `set`
  uint32_t original_context = 0;  // > 0: replaces the file's
};

// Attention of one layer. K and V have heads of the same size, unless V is a part of K.
struct AttentionShape {
  int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int32_t shared_values = 0;    // KvFormat's: of latent attention
  int32_t kv_of = -1;           // it reads the KV of this earlier layer, whose shape it has, and writes none; -1: it has its own
  int32_t window = 0;           // keys with position > row position - window; 0: all
  int32_t ahead = 0;            // keys after the row's own position that it sees; 0: causal
  int32_t rope = 0;             // number of its keys' RoPE in Description::ropes; -1: none, neither for queries
  int32_t query_rope = 0;       // of its queries' RoPE
  float scale = 0.0f;           // of q k
  bool qk_norm = false;         // RMS norm of each query and key head, before RoPE
  bool gated = false;           // the output is multiplied by sigmoid(gate); attn_q has each head's query, then its gate
  bool own_gate = false;        // the same with a gate that has a matrix of its own, attn_gate
  bool sinks = false;           // each query head has a further logit in the softmax, without a value
  bool v_norm = false;          // RMS norm of each value head, without weights
  bool values_of_keys = false;  // without attn_v, values are what attn_k gives, before the keys' norm and RoPE

  int32_t q_dim() const { return n_heads * head_dim; }
  int32_t kv_dim() const { return n_kv_heads * head_dim; }
};

// Latent attention (MLA), in its absorbed form. A token's KV is one row [c (rank) | k (rope)], for all query heads: c is the normed latent
// vector, which is also the value, and k the rotated part of the key. With a head's query [n (nope) | r (rope)] and its matrices k_b and
// v_b:
//   score = (k_b n . c + rotated r . k) * scale, output = v_b (sum of the weights times c)
// So attention has query heads of rank + rope values over one KV head, whose values are its keys' first `rank` values.
struct LatentShape {
  int32_t rank = 0;            // 0: the layer has other attention
  int32_t q_rank = 0;          // queries come through a normed vector of this width; 0: from one matrix
  int32_t nope = 0, rope = 0;  // of a head's query: dimensions without and with RoPE
  int32_t value_dim = 0;       // of a head's output

  explicit operator bool() const { return rank > 0; }
  int32_t query_dim() const { return nope + rope; }
};

// down(activation(gate x) * up x).
struct FeedForwardShape {
  int32_t width = 0;   // of gate and up
  bool gated = true;   // else there is no gate: down(activation(up x + up_bias)) + down_bias
  bool fused = false;  // the file has gate and up in one matrix, gate first
  Activation activation = Activation::silu;
};

// A mixture of experts. Each expert is a feed-forward block. The router chooses n_used experts for each row, and the block adds their
// outputs. Some families add the output of one more expert, the shared one, for every row.
struct ExpertsShape {
  RouterShape router;                        // n_experts 0: the layer has none
  int32_t width = 0;                         // of an expert's gate and up
  int32_t shared_width = 0;                  // of the shared expert's gate and up; 0: the layer has no shared expert
  bool biased = false;                       // the router, and the matrices of all experts, have biases
  bool clamped = false;                      // an expert's gate and up are clamped (ExpertOperations::clamped_swiglu)
  bool shared_gated = false;                 // the shared expert's output is multiplied by sigmoid(gate x), one number for each row
  bool choice_bias = false;                  // the experts are chosen by p + bias (ExpertOperations::route)
  bool squared_relu = false;                 // an expert, the shared one too, is down(max(up x, 0)^2): it has no gate
  bool beside_ffn = false;                   // the layer has a feed-forward block, too, and each has norms of its own (experts::run_beside)
  Activation activation = Activation::silu;  // of the chosen experts

  explicit operator bool() const { return router.n_experts > 0; }
  int64_t used_width() const { return int64_t{router.n_used} * width; }
};

// What mixes the tokens of a layer: attention over KV; or a block with a recurrent state (backend/recurrent.h); or nothing, in a layer that
// is an FFN alone.
enum class Mixer : uint8_t { attention, delta_net, mamba2, short_conv, none };

struct LayerShape {
  Mixer mixer = Mixer::attention;
  AttentionShape attention;
  LatentShape latent;  // of Mixer::attention, whose AttentionShape says what the KV and the queries are then
  DeltaNetShape delta_net;
  Mamba2Shape mamba2;
  ShortConvShape short_conv;
  const char* ffn_norm = "ffn_norm";  // the tensor of the norm before the FFN
  FeedForwardShape feed_forward;      // or
  ExpertsShape experts;               // if it has any; or both, if ExpertsShape::beside_ffn
  bool post_norms = false;            // RMS norm of the attention's and the FFN's output, before the residual addition
  float post_norm_eps = 0.0f;         // theirs; 0: Description::norm_eps

  bool has_ffn() const { return experts || feed_forward.width > 0; }
  uint64_t state_floats() const;       // of a recurrent mixer; else 0
  uint64_t head_state_floats() const;  // of one of its heads
  uint64_t guessed_floats() const;     // the kept inputs of a guessed row (backend/recurrent.h)
};

// A reranker's head: what a query's and a text's pooled row becomes.
struct ScoreShape {
  int32_t n_labels = 0;      // 0: the model has none
  int32_t yes = 0, no = -1;  // the labels for and against; -1: the one label's logit is the log-odds
  bool dense = false;        // a matrix, a bias and tanh come first

  explicit operator bool() const { return n_labels > 0; }
};

// Layers whose KV has equal shape, whose queries have equal scales, and which see equal windows. Each group has pages of its own. Policies,
// residency and profiles know group 0 alone.
struct KvGroup {
  int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  float scale = 0.0f;
  int32_t window = 0;            // 0: none
  std::vector<int32_t> layers;   // that have their own KV, ascending
  std::vector<int32_t> windows;  // (layers): `window`, as policies take it
  uint64_t first_key = 0;        // where its keys begin among one token's keys of all groups, in values
  int32_t shared_values = 0;     // KvFormat's

  int32_t n_layers() const { return static_cast<int32_t>(layers.size()); }
  int32_t q_dim() const { return n_heads * head_dim; }
  int32_t kv_dim() const { return n_kv_heads * head_dim; }
  uint64_t key_values() const { return static_cast<uint64_t>(n_layers()) * static_cast<uint64_t>(kv_dim()); }  // of one token
};

struct Description {
  const char* family = "";  // general.architecture
  std::string name;         // general.name, shown to people
  int32_t n_layers = 0, n_embd = 0, n_vocab = 0;
  int32_t n_skipped_blocks = 0;  // further blocks of the file, which guess tokens (MTP); the model is loaded without them
  LayerShape guessing_layer;     // if there are some: the layer in the first of them
  int32_t first_block = 0;       // of the file, the block of layer 0
  bool reads_hidden = false;     // a row's input is its token and a hidden state of another model (blocks/guessing_head.h)
  int32_t trained_context = 0;
  float norm_eps = 1e-5f;
  float embedding_scale = 1.0f;  // multiplies the rows of the embedding
  bool embedding_norm = false;   // the rows of the embedding have an RMS norm without weights
  int32_t n_per_layer = 0;       // width of each layer's own embedding of a token (blocks/per_layer.h); 0: the model has no such embeddings
  const char* output_norm = "output_norm";     // the tensor of the norm before the logits
  bool output_scales = false;                  // a layer may have a factor of the residual stream at its end
  float logit_scale = 1.0f;                    // multiplies logits
  float logit_cap = 0.0f;                      // then they become cap * tanh(logit / cap); 0: they stay
  int32_t n_positions = 0, n_token_types = 0;  // rows of the tables that are added to an encoder's embedding; 0: none
  bool layer_norms = false;                    // norms subtract the mean, and may have biases; else they are RMS norms
  bool norms_after = false;  // a layer's norms come after the residual additions, none before them, and the model has no output norm
  bool encoder = false;      // each row of a text sees all of the text's rows: the model gives hidden states, and no logits
  ScoreShape score;
  int32_t dense_width = 0;                   // of a pooled row between two products (blocks/encoder/dense_modules.h); 0: there are none
  Pooling pooling = Pooling::none;           // key pooling_type; none: the file says nothing, or that it is no embedding model
  std::vector<RopeParameters> ropes = {{}};  // at most kMostRopes; the first is that of layers without a window
  std::vector<LayerShape> layers;            // (n_layers)
  // As group_layers() makes them:
  std::vector<KvGroup> groups;     // the first one has no window, if any group has none
  std::vector<KvLayer> kv_layers;  // (n_layers) each layer's place in the KV; that of another layer where it reads another's
  std::vector<StatePlace>
      states;  // (n_layers) where a layer's part begins in a sequence's recurrent state, and in the kept inputs of guessed rows
  uint64_t state_floats = 0;    // of a sequence; 0: no layer is recurrent
  uint64_t guessed_floats = 0;  // of kMostGuessedRows rows of a sequence

  const LayerShape& layer(int32_t i) const { return layers[static_cast<size_t>(i)]; }
  const RopeParameters& rope() const { return ropes[0]; }
  const KvGroup& kv() const { return groups[0]; }                                               // that of policies
  uint64_t key_values() const { return groups.back().first_key + groups.back().key_values(); }  // of one token, in all groups
  int32_t max_q_dim() const;                                                                    // of a layer with attention
  bool recurrent() const { return state_floats > 0; }
  // Whether a layer reads the KV of another.
  bool shares_kv() const;
  // Whether a layer's values are a part of its keys.
  bool shares_values() const;
  uint64_t state_bytes() const { return state_floats * sizeof(float); }
  int64_t max_ff() const;  // of a row's gates, in all experts that it takes
  // Most of a layer; n_experts 0: no layer has experts.
  ExpertsShape experts() const;
  int64_t per_layer_floats() const { return int64_t{n_layers} * n_per_layer; }  // of a row
  int64_t mixer_floats() const;  // of a row, beside queries, keys and values: gates, and rows of recurrent layers
  int64_t max_in() const;        // the widest input of a product
  bool any_post_norms() const;   // or tables of an encoder's inputs: whether there is Workspace::branch
};

// Makes the groups out of the layers.
void group_layers(Description* d);

// The head of a model with n_skipped_blocks, as a model of its own: one layer.
Description describe_head(const Description& d);

// Tokens up to which the rotary positions mean something: the trained context, or what its scaling makes of that.
uint32_t reach_of_context(const Description& d);

}  // namespace orrery::model
