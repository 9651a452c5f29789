// What blocks compute a step with: the buffers, the steps' rows, and the operations that several blocks share.
#pragma once

#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/model/adapters/adapter.h"
#include "runtime/model/description/description.h"
#include "runtime/model/store/expert_store.h"
#include "runtime/model/store/host_columns.h"
#include "runtime/model/store/host_experts.h"
#include "runtime/model/store/layer_store.h"

namespace orrery::model {

// Device buffers of a step. All sessions of a model share them and take turns.
struct Workspace {
  Ptr<float> x;       // (max_rows, n_embd) the residual stream
  Ptr<float> normed;  // (max_rows, n_embd)
  Ptr<float> qkv;     // (max_rows, q_dim + 2 kv_dim), of the widest layer
  Ptr<float> attn;    // (max_rows, q_dim), of the widest layer
  Ptr<float>
      mixer;  // (max_rows, or kMostGuessedRows more in a model with recurrent layers; Description::mixer_floats()); null in a model without
              // gates and recurrent layers
  Ptr<float> pair;       // (max_rows, 2 n_embd); null unless the model reads hidden states
  Ptr<float> per_layer;  // (max_rows, n_layers, n_per_layer) the layers' own embeddings of the rows' tokens; null in a model without them
  Ptr<float> ffn;        // (max_rows, 2 max_ff), or as `per_layer` if that is wider
  Ptr<float> act;        // (max_rows, max_ff)
  Ptr<float> router;  // (max_rows, n_experts + 1) the router's logits, then the gate of the shared expert; null in a model without experts,
  Ptr<std::byte> routed;           // RoutedRows::bytes()                             as these two
  Ptr<float> slots;                // (max_rows * n_used, n_embd) what the chosen experts give
  Ptr<std::byte> routed_next;      // RoutedRows::bytes() of kMostTogether rows: the next layer's choice, guessed. Null as well
  Ptr<float> branch;               // (max_rows, n_embd) a branch's output before its post norm; null in a model without post norms
  Ptr<float> logits;               // (kLogitRows, n_vocab)
  Ptr<std::byte> shortlist;        // (kLogitRows, Device::shortlist_bytes()) bytes; null on a device without shortlists
  Ptr<float> exported_embeddings;  // (kLogitRows, n_embd) of exported rows of logits; null on a device without shortlists
  Ptr<std::byte> scratch;
  uint64_t bytes = 0;  // size of the whole workspace
};

// The calls to the sessions' hooks (LayerHook) in a step. Each returns false once all sessions' hooks have failed.
class HookCalls {
 public:
  virtual bool before_attend(KvLayer layer, Ptr<const float> q, int64_t q_stride) = 0;
  virtual bool before_layer(int32_t layer, Ptr<const float> next_q, int64_t q_stride) = 0;
  bool at_attention = false, ahead = false;  // some hook wants the first call, or the second

 protected:
  ~HookCalls() = default;
};

struct Pass {
  Backend& backend;
  const Description& d;
  const Workspace& work;
  Span<const Step> steps;
  HookCalls& hooks;
  int32_t n_rows = 0;                         // of all steps
  bool rotated = false, transformed = false;  // some session's KV is
  float post_norm_eps = 0.0f;                 // of the layer
  ExpertStore* store = nullptr;               // if the model has one
  HostExperts* host = nullptr;                // the same
  HostColumns* columns = nullptr;             // the same
  LayerStore* layers = nullptr;               // the same
  Cancel cancel = {};                         // of waits for the link
  Status status = {};                         // an error that ends the pass
  Span<const AdaptedRows> adapted = {};       // in ascending order; empty: no session has adapters

  void norm(Ptr<const float> x, Ptr<const float> weight, Ptr<float> out) {
    backend.rms_norm(x, d.n_embd, weight, out, d.n_embd, 1, d.n_embd, d.norm_eps);
  }
  // A block's products with the model's matrices go through here, so that adapters add their part. The n rows of x and of the outputs
  // are those from the step's row `first` on.
  void matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t n, int32_t first = 0) {
    backend.matmul(products, x, x_stride, n);
    if (!adapted.empty()) add_low_rank(&backend, adapted, products, x, x_stride, first, n);
  }
  void matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride) { matmul(products, x, x_stride, n_rows); }
  // Products of Workspace::normed.
  void project(Span<const Product> products) { matmul(products, work.normed, d.n_embd); }
  // x += w * input (+ bias). With a post norm, the branch is normalised before the addition.
  void add_branch(const Weight& w, Ptr<const float> bias, Ptr<const float> post_norm, Ptr<const float> input, int64_t input_stride) {
    const Product p{&w, bias, post_norm ? work.branch : work.x, d.n_embd, !post_norm};
    matmul({&p, 1}, input, input_stride);
    if (post_norm) {
      backend.rms_norm(work.branch, d.n_embd, post_norm, work.branch, d.n_embd, 1, d.n_embd, post_norm_eps);
      backend.add(work.x, work.branch, d.n_embd);
    }
  }
};

}  // namespace orrery::model
