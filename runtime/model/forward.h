// One step through a model: tokens in, KV appended, logits of the last rows out.  The same code for every
// architecture (a Layer's null members say what it lacks), every backend and both phases.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/model/model.h"

namespace orrery::model {

// Rows whose logits are computed at once; more are done in turns.
inline constexpr int32_t kLogitRows = 8;

// Device buffers of a step, shared by all sessions of a model (they take turns).
struct Workspace {
  Ptr<float> x;        // (max_rows, n_embd) the residual stream
  Ptr<float> normed;   // (max_rows, n_embd)
  Ptr<float> qkv;      // (max_rows, q_dim + 2 kv_dim)
  Ptr<float> attn;     // (max_rows, q_dim)
  Ptr<float> ffn;      // (max_rows, 2 max_ff)
  Ptr<float> act;      // (max_rows, max_ff)
  Ptr<float> branch;   // (max_rows, n_embd) a branch's output before its post norm; only where there are such
  Ptr<float> logits;   // (kLogitRows, n_vocab)
  Ptr<std::byte> shortlist;     // Device::shortlist_bytes() of it; null where there are no shortlists
  Ptr<float> left_embeddings;   // (kLogitRows, n_embd) beside rows of logits that steps have left; likewise
  Ptr<std::byte> scratch;
  uint64_t bytes = 0;  // all of it
};

StepLimits step_limits(const Hyperparameters& h, int32_t max_rows, int32_t max_context);

// Lays the workspace out from `base`; with a null base only `bytes` means anything.
Workspace carve_workspace(const Hyperparameters& h, const Device& device, const StepLimits& limits,
                          Ptr<std::byte> base);

struct ForwardOutput {
  int32_t n_logits = 0;        // of the step's last rows; 0: none are computed
  float* logits = nullptr;     // (n_logits, n_vocab), host
  float* embedding = nullptr;  // (n_embd), host: the last row after the output norm; null: not wanted. Needs n_logits
  // Where given, of a single row: its shortlist goes to `shortlist` (shortlist_result_bytes(), host), and the row itself is not
  // fetched, nor the embedding: both stay in the workspace, at left_logits() and left_embedding(). Of the rows of logits only the first is
  // written then.
  const ShortlistRequest* request = nullptr;
  std::byte* shortlist = nullptr;
};

inline Ptr<const float> left_logits(const Workspace& work) { return work.logits; }
inline Ptr<const float> left_embedding(const Workspace& work, const Hyperparameters& h, int32_t n_rows) {
  return work.normed + static_cast<uint64_t>(n_rows - 1) * static_cast<uint64_t>(h.n_embd);
}

// Asked between layers of a step, of one row where it decodes: before its attention, when the rows' KV has been appended; or, where
// it decodes, when a layer begins.
class LayerHook {
 public:
  virtual ~LayerHook() = default;
  // q: (n_rows, n_heads, head_dim) behind RoPE, on the device, rows q_stride floats apart. What follows goes on when this returns.
  virtual Status before_attend(int32_t layer, Ptr<const float> q, int64_t q_stride) = 0;
  // Whether before_layer() is asked in place of before_attend().
  virtual bool looks_ahead() const { return false; }
  // When a layer begins: next_q is as q, but the next layer's, made by its own weights of what this one's attention takes in; null in the
  // last one. At first for layer -1, with what layer 0 makes of its own.
  virtual Status before_layer(int32_t layer, Ptr<const float> next_q) {
    (void)layer, (void)next_q;
    return ok_status();
  }
};

// Runs the step on `backend`, whose scratch is set from `work`.  `cancel` is looked at between layers: then the status
// is cancelled, and what was appended for the step's rows is void. hook: null, or asked in every layer; its error ends the step likewise.
Status forward(Backend* backend, const Model& model, const RopeSpec& rope, const Workspace& work, const Step& step,
               const std::atomic<bool>* cancel, const ForwardOutput& out, LayerHook* hook = nullptr);

}  // namespace orrery::model
