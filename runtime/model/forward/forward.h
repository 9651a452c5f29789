// One step through a model: it takes tokens, appends their KV, and returns the logits of the last rows. The code is
// the same for every family, whose layers are blocks (blocks/), every backend, and both phases, and for one session as for the steps of
// several sessions that are computed at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/model/blocks/pass.h"
#include "runtime/model/load/model.h"

namespace orrery::model {

// Rows of logits computed at once. A step that wants more rows computes them in batches of this size.
inline constexpr int32_t kLogitRows = 8;

StepLimits step_limits(const Description& h, int32_t max_rows, int32_t max_context);

// For the work memory of experts that the host computes (HostExperts::work_bytes).
HostExperts::WorkShape host_work_shape(const Description& description);
// Lays the workspace out from `base`. With a null base, only `bytes` of the result is valid.
Workspace carve_workspace(const Description& h, const Device& device, const StepLimits& limits, Ptr<std::byte> base);

struct ForwardOutput {
  int32_t n_logits = 0;     // number of the step's last rows whose logits are computed; 0: none
  float* logits = nullptr;  // (n_logits, n_vocab), host
  // (n_embeddings, n_embd), host: the step's last rows after the output norm; null: not wanted. Needs n_logits
  float* embedding = nullptr;
  int32_t n_embeddings = 1;
  float* hidden = nullptr;  // (rows of the step, n_embd), host: all of them after the output norm; null: not wanted
  // Null, or a request for the sampling candidates of a single row. The step then writes the shortlist to `shortlist`
  // (shortlist_result_bytes(), host). It exports the row and its embedding: both stay in the workspace, at exported_logits() and
  // exported_embedding(), and are not fetched. Of the workspace's rows of logits, the step writes the first alone. At most kLogitRows
  // steps at once may have requests: row i is then that of step i, and its embedding is row i of Workspace::exported_embeddings.
  const ShortlistRequest* request = nullptr;
  std::byte* shortlist = nullptr;
};

// Where a step with a shortlist has exported its row of logits, (n_vocab), and its embedding, (n_embd). n_rows: tokens of the step.
inline Ptr<const float> exported_logits(const Workspace& work) { return work.logits; }
inline Ptr<const float> exported_embedding(const Workspace& work, const Description& h, int32_t n_rows) {
  return work.normed + static_cast<uint64_t>(n_rows - 1) * static_cast<uint64_t>(h.n_embd);
}

// The layers of a step that one call computes; a step may take several calls. Between them other steps may use the workspace.
struct Layers {
  int32_t first = 0;
  int32_t end = INT32_MAX;  // at least the number of layers: the call also computes the outputs
  float* stream = nullptr;  // (n_rows, n_embd), host: the residual stream before layer `first`, if that is not 0; the call writes it
                            // before layer `end`, if that is not the last one's end
};

// Called between layers of a session's step, which has one row in decode. before_attend() comes before the attention of a layer with its
// own KV, once the KV of the step's rows has been appended. before_layer() comes at the start of a layer, in decode only.
class LayerHook {
 public:
  virtual ~LayerHook() = default;
  // q: (n_rows, n_heads, head_dim) after RoPE and Step::transform, on the device, rows q_stride floats apart. The row's keys follow its
  // queries: (n_kv_heads, head_dim); not of latent attention. The step continues when the call returns.
  virtual Status before_attend(KvLayer layer, Ptr<const float> q, int64_t q_stride) = 0;
  // Whether before_attend() comes for the layers of all KV groups; false: for those of group 0.
  virtual bool in_all_groups() const { return false; }
  // Whether the step calls before_layer() instead of before_attend().
  virtual bool looks_ahead() const { return false; }
  // Called at the start of a layer. next_q is laid out as q, but holds the next layer's queries: the next layer's
  // weights applied to the input of this layer's attention. next_q is null in the last layer. The first call has
  // layer -1 and layer 0's own queries.
  virtual Status before_layer(int32_t layer, Ptr<const float> next_q) {
    (void)layer, (void)next_q;
    return ok_status();
  }
};

// What a step gives and asks, beside its Step.
struct SessionPart {
  ForwardOutput out;
  LayerHook* hook = nullptr;
  // An error, or an exception, of the hook.
  Status status;
  std::exception_ptr thrown;
  SequenceState state = {};       // recurrent (Description::state_floats, guessed_floats); null if the model has none
  const float* hidden = nullptr;  // (rows of the step, n_embd), host: what a model that reads hidden states reads
  Span<const AdapterUse> adapters = {};
  bool failed() const { return thrown || !status.ok(); }
};

// Who may end a pass: between two layers, and while it waits for the link.
struct Cancels {
  const std::atomic<bool>* between_layers = nullptr;
  Cancel waits = {};
};

// Runs the steps of one session or of several on `backend` (StepOperations::begin_steps), with scratch from `work`. steps and parts:
// (n_steps) each; ropes: as for StepOperations::prepare_ropes(). Steps of several sessions want one row of logits each. Each row has the
// bits of its own step. An error of a hook ends up in its part alone, and its hook is not called again: the KV of the step's rows is
// invalid, the other steps go on. The pass ends when all have failed. The error that is returned is everybody's. layers: all, unless the
// step is one session's.
Status forward_together(Backend* backend, const Model& model, const Workspace& work, Span<const Step> steps, Span<const RopeSpec> ropes,
                        Span<SessionPart> parts, const Cancels& cancel, const Layers& layers = {});

// Runs the step of one session. The step reads `cancel` between layers; when it is set, the
// status is cancelled and the KV appended for the step's rows is invalid. hook: null, or called in every layer. An
// error of the hook ends the step in the same way.
Status forward(Backend* backend, const Model& model, Span<const RopeSpec> ropes, const Workspace& work, const Step& step,
               const std::atomic<bool>* cancel, const ForwardOutput& out, LayerHook* hook = nullptr, const SequenceState& state = {},
               Span<const AdapterUse> adapters = {});

}  // namespace orrery::model
