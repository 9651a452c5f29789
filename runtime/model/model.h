// A model ready to run: hyperparameters, and every weight where the backend wants it.  Immutable once loaded, shared
// by any number of sessions.  load_model() checks that every tensor has the shape that the hyperparameters imply, and that
// the file has no tensor that it does not read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/backend/turn.h"
#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/hyperparameters.h"
#include "runtime/model/rope.h"

namespace orrery::model {

// One decoder layer.  Vectors are float32 in device memory; null where the architecture has none.
struct Layer {
  Ptr<const float> attn_norm;                  // (n_embd)
  Weight qkv;                                  // (q_dim + 2 kv_dim, n_embd) fused, or none and:
  Weight q, k, v;                              // (q_dim, n_embd), (kv_dim, n_embd) twice
  Ptr<const float> qkv_bias;                   // (q_dim + 2 kv_dim)
  Ptr<const float> q_bias, k_bias, v_bias;
  Ptr<const float> q_norm, k_norm;             // (head_dim)
  Weight attn_out;                             // (n_embd, q_dim)
  Ptr<const float> attn_out_bias;              // (n_embd)
  Ptr<const float> post_attn_norm;             // (n_embd)
  Ptr<const float> ffn_norm;                   // (n_embd)
  Weight gate_up;                              // (2 n_ff, n_embd) fused, or none and:
  Weight gate, up;                             // (n_ff, n_embd)
  Weight down;                                 // (n_embd, n_ff)
  Ptr<const float> post_ffn_norm;              // (n_embd)
};

struct LoadOptions {
  RopeOverride rope;
  bool full_fingerprint = false;
  // Called with bytes done of total, between tensors, and while the backend serves others; false cancels.
  std::function<bool(uint64_t, uint64_t)> progress;
};

struct Weights {
  Weight embedding;                            // (n_vocab, n_embd)
  std::vector<Layer> layers;
  Ptr<const float> output_norm;                // (n_embd)
  Weight output;                               // (n_vocab, n_embd); the embedding where tied
};

struct Model {
  explicit Model(gguf::File f) : file(std::move(f)) {}

  Hyperparameters hyper;
  RopeFactors rope_factors;
  Weights weights;
  uint8_t fingerprint[16] = {};
  uint64_t n_parameters = 0;
  uint64_t weights_bytes = 0;                  // as they lie in the file, of the tensors that are used
  TensorType main_type = TensorType::f32;      // that most weights have

  gguf::File file;                             // weights may lie in its mapping
  kv::ArenaRegion region;                      // weights that do not
};

// That the file's tensors are those of the architecture, in the shapes that the hyperparameters imply, and no others. From
// the header alone; load_model() and place_weights() do the same.
Status check_tensors(const gguf::File& file, const Hyperparameters& hyper);

// Where load_model() will place weights, from the header alone: in the arena matrices that the backend repacks, and vectors with
// them. A backend that reads matrices as they lie too repacks none if they took more than half of the arena; then only vectors that
// need converting are placed there.
struct Placement {
  uint64_t arena_bytes = 0;
  bool repacks = false;                        // matrices for which Device::weight_bytes() is not 0
};
Result<Placement> place_weights(const gguf::File& file, const Hyperparameters& hyper, const Device& device,
                                uint64_t arena_bytes);

// Takes the file over, and a turn for each tensor that the backend places: sessions go on meanwhile. Errors: bad_model (tensor, found, expected), unsupported_architecture, out_of_device_memory,
// cancelled.
Result<std::unique_ptr<Model>> load_model(gguf::File file, Turns* turns, kv::Arena* arena,
                                          const LoadOptions& options);

}  // namespace orrery::model
