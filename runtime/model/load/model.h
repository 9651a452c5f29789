// A model ready to run: its description, and every weight in memory of the backend's choice. Immutable once loaded,
// and shared by any number of sessions. load_model() checks that every tensor has the shape that the description
// implies, and that the file has no other tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/backend/turn.h"
#include "runtime/base/priority.h"
#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/recurrent/delta_net.h"
#include "runtime/model/blocks/encoder/inputs.h"
#include "runtime/model/blocks/encoder/dense_modules.h"
#include "runtime/model/blocks/encoder/score_head.h"
#include "runtime/model/blocks/experts.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/blocks/guessing_head.h"
#include "runtime/model/blocks/latent_attention.h"
#include "runtime/model/blocks/recurrent/mamba2.h"
#include "runtime/model/blocks/per_layer.h"
#include "runtime/model/blocks/recurrent/short_conv.h"
#include "runtime/model/blocks/vocabulary.h"
#include "runtime/model/families/family.h"
#include "runtime/model/store/expert_store.h"
#include "runtime/model/store/host_columns.h"
#include "runtime/model/store/host_experts.h"
#include "runtime/model/store/layer_store.h"

namespace orrery::model {

// One decoder layer: its mixer and its FFN, each behind its norm, or one of both alone. Vectors are float32 in device memory; post norms
// are null in a model without them.
struct Layer {
  Ptr<const float> attn_norm;          // (n_embd)
  attention::Weights attention;        // or
  latent_attention::Weights latent;    // or
  delta_net::Weights delta_net;        // or
  mamba2::Weights mamba2;              // or
  short_conv::Weights short_conv;      // by the layer's mixer
  Ptr<const float> post_attn_norm;     // (n_embd)
  Ptr<const float> ffn_norm;           // (n_embd)
  feed_forward::Weights feed_forward;  // or
  experts::Weights experts;            // by the layer's shape, or both
  Ptr<const float> post_ffn_norm;      // (n_embd)
  Ptr<const float> attn_norm_bias,
      ffn_norm_bias;  // (n_embd); of layer norms, or null. With Description::norms_after the norms come after the additions
  per_layer::Weights per_layer;
  float output_scale = 1.0f;  // multiplies the residual stream at the layer's end
};

// How much of a model lies on the device; the rest is in the reservoir.
struct WeightsPlace {
  static constexpr int64_t kAll = -1;
  int64_t experts = kAll;  // units (store/expert_units.h), at most
  int64_t layers = kAll;   // whose matrices lie there; experts and divided blocks count apart
  int64_t columns = kAll;  // of each dense feed-forward block, in parts of HostColumns::kWhole; the host computes the others
  bool in_place = false;   // operations use the reservoir by the host's addresses, and there is no link
  // The embedding stays where the file lies, if no product reads it: on a device that reads the host's memory always, on another one where
  // weights are away, so that more of them fit.
  bool rows_on_host(const Device& device) const { return away() || embedding_away || device.info().reads_host_memory; }
  bool embedding_away = false;  // even if nothing else is
  bool experts_by_host =
      false;  // the host computes the experts that are not on the device, but for those of long prompts; else they cross the link
  bool needs_host() const { return (experts_by_host && experts != kAll) || columns != kAll; }
  bool away() const { return experts != kAll || layers != kAll || columns != kAll; }
};

struct LoadOptions {
  RopeOverride rope;
  Span<const Family> families;  // further ones, beside those of the table (families/family.h); they live as long as the model
  bool full_fingerprint = false;
  WeightsPlace place;
  Backend* host = nullptr;         // if place.needs_host(): the processor's
  kv::Arena* reservoir = nullptr;  // of weights that are not on the device
  kv::IoThread* io = nullptr;      // brings them; null: in place
  TwoSides* sides = nullptr;       // HostSide
  // Called with (bytes done, total bytes) between tensors, and while the backend serves other sessions. Returning
  // false cancels.
  std::function<bool(uint64_t, uint64_t)> progress;
  // Backend::begin_loading()
  int32_t n_threads = 0;
  Priority priority = Priority::normal;
};

// `output` is the same weight as `embedding` if the model is tied.
struct Weights : vocabulary::Weights {
  std::vector<Layer> layers;
  guessing_head::Weights head;  // if the model reads hidden states
  per_layer::Inputs per_layer;
  encoder_inputs::Weights inputs;  // if the model is an encoder
  score_head::Weights score;       // if the description has a score
  dense_modules::Weights dense;    // if it has a dense_width
};

// A matrix that a block multiplies by Pass::matmul(), and its tensor: what an adapter may change.
struct NamedMatrix {
  const gguf::Tensor* tensor = nullptr;
  const Weight* weight = nullptr;  // null: a part of its columns is on the host
};

struct Model {
  explicit Model(std::shared_ptr<const gguf::File> f) : file(std::move(f)) {}

  Description description;
  RopeFactors rope_factors;
  Weights weights;
  uint8_t fingerprint[16] = {};
  uint64_t n_parameters = 0;
  uint64_t n_used_parameters = 0;  // those that one row meets: of experts, the chosen ones'
  uint64_t weights_bytes = 0;      // size in the file of all tensors that the model uses, but for those that a head shares with its model
  uint64_t output_bytes = 0;       // of `output`
  TensorType main_type = TensorType::f32;  // the type of most weights

  std::vector<NamedMatrix> matrices;
  std::shared_ptr<const gguf::File> file;  // some weights may be in its mapping
  kv::ArenaRegion region;                  // all other weights
  std::unique_ptr<ExpertStore> experts;    // but for these, where not all of them are on the device,
  std::unique_ptr<HostExperts> host;       // or for these
  std::unique_ptr<HostColumns> columns;    // and feed-forward blocks whose columns are divided, if some are on the host,
  std::unique_ptr<LayerStore> layers;      // and the matrices of these layers
};

// Checks, from the header alone, that the file has exactly the description's tensors, in their shapes. load_model() and place_weights() run
// the same check.
Status check_tensors(const gguf::File& file, const Description& description);
// The same check; lists Model::matrices, without weights.
Status name_matrices(const gguf::File& file, const Description& description, std::vector<NamedMatrix>* out);

// The places that load_model() will give the weights, from the header alone. The arena takes the matrices that the
// backend repacks, and all vectors. A backend that can also read matrices from the file repacks none if they took
// more than half of the arena; the arena then takes only the vectors that need converting.
struct Placement {
  uint64_t arena_bytes = 0;
  bool repacks = false;                       // whether matrices with repacked_bytes() above 0 are repacked
  ExpertUnits units;                          // of a mixture: its experts, if they do not all lie with the other weights
  ExpertStore::Needs experts;                 // their memory beside arena_bytes; 0: they lie with the other weights
  HostExperts::Layout host;                   // if the host computes some
  HostColumns::Layout columns;                // if it computes columns of dense blocks: their memory beside arena_bytes
  std::vector<uint64_t> layer_bytes;          // (n_layers) what each layer's matrices take in the reservoir, without experts,
  std::vector<uint64_t> layer_arena_bytes;    // and in the arena, if they lie there
  LayerUnits away;                            // the layers that lie there
  LayerStore::Needs layers;                   // their memory beside arena_bytes
  std::vector<const gguf::Tensor*> in_units;  // the tensors that lie in one of these
  bool store() const { return experts.arena_bytes > 0; }
  uint64_t all_arena_bytes() const { return arena_bytes + experts.arena_bytes + columns.arena_bytes() + layers.arena_bytes; }
};
// Bytes of the arena that a matrix takes if it is repacked. 0 for a table that stays where the file lies, as an embedding with an output
// matrix of its own may do (WeightsPlace::rows_on_host): a step reads a row of it for each token.
uint64_t repacked_bytes(const gguf::File& file, const gguf::Tensor& t, const Device& device, const WeightsPlace& place = {});
Result<Placement> place_weights(const gguf::File& file, const Description& description, const Device& device, uint64_t arena_bytes,
                                const WeightsPlace& place = {});

// The same of a model's head (describe_head). Where the file has no embedding, output or output norm of its own for it, it takes the
// model's.
Result<Placement> place_head(const gguf::File& file, const Description& head, const Device& device, uint64_t arena_bytes);
// Places the head of a model that outlives it.
Result<std::unique_ptr<Model>> load_head(const Model& of, Turns* turns, kv::Arena* arena, const LoadOptions& options);

// Takes ownership of the file. Places tensors in the order of the file. Takes one turn for each tensor that the backend places, so other
// sessions continue meanwhile. Errors: bad_model (tensor, value found, value expected), unsupported_architecture, out_of_device_memory,
// cancelled.
Result<std::unique_ptr<Model>> load_model(gguf::File file, Turns* turns, kv::Arena* arena, const LoadOptions& options);

}  // namespace orrery::model
