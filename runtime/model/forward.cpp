#include "runtime/model/forward.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/checked.h"

namespace orrery::model {

namespace {

// Ends the backend's step on every return path.
class StepScope {
 public:
  StepScope(Backend* backend, Span<const Step> steps) : backend_(*backend) { backend_.begin_steps(steps); }
  ~StepScope() { backend_.end_step(); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  Backend& backend_;
};

class Pass {
 public:
  Pass(Backend* backend, const Model& model, const Workspace& work, Span<const Step> steps, Span<SessionPart> parts)
      : b_(*backend), h_(model.hyper), w_(model.weights), work_(work), steps_(steps), parts_(parts) {
    for (size_t i = 0; i < steps.size(); ++i) {
      n_rows_ += static_cast<int32_t>(steps[i].rows.size());
      rotated_ |= steps[i].transform.rotated;
      transformed_ |= static_cast<bool>(steps[i].transform);
      looks_ahead_ |= parts[i].hook && parts[i].hook->looks_ahead();
      hooked_ |= parts[i].hook && !parts[i].hook->looks_ahead();
    }
  }

  // The residual stream of embeddings, or of an earlier call.
  void begin(Span<const RopeSpec> ropes, const Layers& layers) {
    if (layers.first == 0)
      b_.embed(w_.embedding, work_.x);
    else
      b_.upload({work_.x.address}, layers.stream, stream_bytes());
    b_.prepare_ropes(ropes);
  }
  void pause(const Layers& layers) { b_.download(layers.stream, {work_.x.address}, stream_bytes()); }
  // False: all sessions' hooks have failed.
  bool layer(int32_t i) {
    const Layer& l = w_.layers[static_cast<size_t>(i)];
    if (!attention(i, l)) return false;
    feed_forward(i, l);
    return true;
  }
  void output();

 private:
  bool attention(int32_t i, const Layer& l);
  // Calls the hooks that look ahead, or the others: f(hook, the session's first query at q or null) -> Status. False: all have failed.
  template <class F>
  bool call_hooks(bool looks_ahead, Ptr<const float> q, const F& f) {
    uint64_t row = 0;
    for (size_t i = 0; i < parts_.size(); row += steps_[i++].rows.size()) {
      SessionPart& part = parts_[i];
      if (!part.hook || part.failed() || part.hook->looks_ahead() != looks_ahead) continue;
      try {
        part.status = f(part.hook, q ? q + row * static_cast<uint64_t>(qkv_stride()) : q);
      } catch (...) {
        part.thrown = std::current_exception();
      }
    }
    return !std::all_of(parts_.begin(), parts_.end(), [](const SessionPart& part) { return part.failed(); });
  }
  // Rotates `n_heads` vectors at x as the sessions want it. mean: where the layer's means begin in KvTransform::key_means; -1: K alone is
  // centred.
  void transform(Ptr<float> x, int64_t stride, int32_t n_heads, int64_t mean);
  // Projects work_.normed to queries, keys and values of layer i in work_.qkv, as Step::transform wants them. `queries_alone`: only
  // queries, if the layer has separate Q, K and V weights.
  void project(int32_t i, bool queries_alone);
  uint64_t stream_bytes() const { return static_cast<uint64_t>(n_rows_) * static_cast<uint64_t>(h_.n_embd) * sizeof(float); }
  int64_t qkv_stride() const { return h_.q_dim() + 2 * int64_t{h_.kv_dim()}; }
  void feed_forward(int32_t i, const Layer& l);
  void norm(Ptr<const float> x, Ptr<const float> weight, Ptr<float> out) {
    b_.rms_norm(x, h_.n_embd, weight, out, h_.n_embd, 1, h_.n_embd, h_.norm_eps);
  }
  // x += w * input (+ bias). In a family with post norms, the branch is normalised before the addition.
  void add_branch(const Weight& w, Ptr<const float> bias, Ptr<const float> post_norm, Ptr<const float> input,
                  int64_t input_stride) {
    Product p{&w, bias, post_norm ? work_.branch : work_.x, h_.n_embd, !post_norm};
    b_.matmul({&p, 1}, input, input_stride, n_rows_);
    if (post_norm) {
      norm(work_.branch, post_norm, work_.branch);
      b_.add(work_.x, work_.branch, h_.n_embd);
    }
  }

  Backend& b_;
  const Hyperparameters& h_;
  const Weights& w_;
  const Workspace& work_;
  Span<const Step> steps_;
  Span<SessionPart> parts_;
  int32_t n_rows_ = 0;          // of all steps
  bool rotated_ = false, transformed_ = false;   // some session's KV is
  bool hooked_ = false, looks_ahead_ = false;    // some hook is called before_attend(), or before_layer()
};

void Pass::transform(Ptr<float> x, int64_t stride, int32_t n_heads, int64_t mean) {
  std::array<HeadTransform, static_cast<size_t>(kMostTogether)> of_steps;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const KvTransform& t = steps_[i].transform;
    of_steps[i] = {mean >= 0 && t.key_means ? t.key_means + static_cast<uint64_t>(mean) : Ptr<const float>(), t.rotated};
  }
  b_.transform_rows(x, stride, n_heads, h_.head_dim, {of_steps.data(), steps_.size()});
}

void Pass::project(int32_t i, bool queries_alone) {
  const Layer& l = w_.layers[static_cast<size_t>(i)];
  const int64_t stride = qkv_stride();
  const Ptr<float> q = work_.qkv, k = q + static_cast<uint64_t>(h_.q_dim()), v = k + static_cast<uint64_t>(h_.kv_dim());
  if (l.qkv) {
    const Product p{&l.qkv, l.qkv_bias, q, stride, false};
    b_.matmul({&p, 1}, work_.normed, h_.n_embd, n_rows_);
  } else {
    const Product p[] = {{&l.q, l.q_bias, q, stride, false},
                         {&l.k, l.k_bias, k, stride, false},
                         {&l.v, l.v_bias, v, stride, false}};
    b_.matmul({p, queries_alone ? size_t{1} : size_t{3}}, work_.normed, h_.n_embd, n_rows_);
  }
  if (l.q_norm) b_.rms_norm(q, stride, l.q_norm, q, stride, h_.n_heads, h_.head_dim, h_.norm_eps);
  b_.rope(q, stride, h_.n_heads, h_.head_dim);
  if (rotated_) transform(q, stride, h_.n_heads, -1);
  if (queries_alone) return;
  if (l.k_norm) b_.rms_norm(k, stride, l.k_norm, k, stride, h_.n_kv_heads, h_.head_dim, h_.norm_eps);
  b_.rope(k, stride, h_.n_kv_heads, h_.head_dim);
  if (transformed_) transform(k, stride, h_.n_kv_heads, int64_t{i} * h_.kv_dim());
  if (rotated_) transform(v, stride, h_.n_kv_heads, -1);
}

bool Pass::attention(int32_t i, const Layer& l) {
  const uint64_t q_dim = static_cast<uint64_t>(h_.q_dim()), kv_dim = static_cast<uint64_t>(h_.kv_dim());
  const int64_t stride = qkv_stride();
  const Ptr<float> q = work_.qkv, k = q + q_dim, v = k + kv_dim;

  norm(work_.x, l.attn_norm, work_.normed);
  if (looks_ahead_ && i == 0) {
    project(0, true);
    if (!call_hooks(true, q, [](LayerHook* hook, Ptr<const float> next_q) { return hook->before_layer(-1, next_q); })) return false;
  }
  if (looks_ahead_) {
    const bool last = i + 1 == h_.n_layers;
    if (!last) project(i + 1, true);
    const auto ask = [i](LayerHook* hook, Ptr<const float> next_q) { return hook->before_layer(i, next_q); };
    if (!call_hooks(true, last ? Ptr<const float>() : q, ask)) return false;
  }
  project(i, false);
  b_.append_kv(i, k, v, stride);
  if (hooked_ &&
      !call_hooks(false, q, [i, stride](LayerHook* hook, Ptr<const float> layer_q) { return hook->before_attend(i, layer_q, stride); }))
    return false;

  AttendShape shape;
  shape.n_heads = h_.n_heads;
  shape.q_stride = stride;
  shape.out_stride = static_cast<int64_t>(q_dim);
  shape.scale = 1.0f / std::sqrt(static_cast<float>(h_.head_dim));
  shape.window = h_.window[static_cast<size_t>(i)];
  b_.attend(i, q, work_.attn, shape);
  if (rotated_) transform(work_.attn, shape.out_stride, h_.n_heads, -1);
  add_branch(l.attn_out, l.attn_out_bias, l.post_attn_norm, work_.attn, static_cast<int64_t>(q_dim));
  return true;
}

void Pass::feed_forward(int32_t i, const Layer& l) {
  const int32_t ff = h_.n_ff[static_cast<size_t>(i)];
  const int64_t stride = 2 * int64_t{ff};
  const Ptr<float> gate = work_.ffn, up = gate + static_cast<uint64_t>(ff);

  norm(work_.x, l.ffn_norm, work_.normed);
  if (l.gate_up) {
    const Product p{&l.gate_up, {}, gate, stride, false};
    b_.matmul({&p, 1}, work_.normed, h_.n_embd, n_rows_);
  } else {
    const Product p[] = {{&l.gate, {}, gate, stride, false}, {&l.up, {}, up, stride, false}};
    b_.matmul({p, 2}, work_.normed, h_.n_embd, n_rows_);
  }
  b_.swiglu(gate, up, stride, work_.act, ff, ff);
  add_branch(l.down, {}, l.post_ffn_norm, work_.act, ff);
}

// The rows of logits are the last ones: those of a single step, or all.
void Pass::output() {
  const ForwardOutput& out = parts_[0].out;
  const bool together = steps_.size() > 1;
  const int32_t n_logits = together ? n_rows_ : out.n_logits;
  norm(work_.x, w_.output_norm, work_.normed);
  const uint64_t n_embd = static_cast<uint64_t>(h_.n_embd), n_vocab = static_cast<uint64_t>(h_.n_vocab);
  const Product p{&w_.output, {}, work_.logits, h_.n_vocab, false};
  if (out.request && !together) {
    b_.matmul({&p, 1}, exported_embedding(work_, h_, n_rows_), h_.n_embd, 1);
    b_.shortlists()->shortlist(exported_logits(work_), h_.n_vocab, *out.request, work_.shortlist);
    b_.download(out.shortlist, work_.shortlist, shortlist_result_bytes(*out.request));
    return;
  }
  std::array<Download, size_t{2} * static_cast<size_t>(kMostTogether)> downloads;   // the host waits once for a batch of rows
  size_t n_downloads = 0;
  const auto fetch = [&](float* to, Ptr<const float> from, uint64_t n) {
    if (to && n > 0) downloads[n_downloads++] = {to, {from.address}, n * sizeof(float)};
  };
  bool exports = false;
  for (size_t i = 0; together && i < parts_.size(); ++i) {
    exports |= parts_[i].out.request != nullptr;
    if (!parts_[i].out.request) fetch(parts_[i].out.embedding, work_.normed + i * n_embd, n_embd);
  }
  if (!together) {
    const uint64_t first = static_cast<uint64_t>(n_rows_ - out.n_embeddings);
    fetch(out.embedding, work_.normed + first * n_embd, static_cast<uint64_t>(out.n_embeddings) * n_embd);
  }
  for (int32_t from = 0; from < n_logits; from += kLogitRows) {
    const int32_t n = std::min(kLogitRows, n_logits - from);
    const uint64_t row = static_cast<uint64_t>(n_rows_ - n_logits + from);
    b_.matmul({&p, 1}, work_.normed + row * n_embd, h_.n_embd, n);
    for (int32_t i = 0; together && i < n; ++i) {
      const ForwardOutput& its = parts_[static_cast<size_t>(from + i)].out;
      const Ptr<const float> logits = work_.logits + static_cast<uint64_t>(i) * n_vocab;
      if (!its.request) {
        fetch(its.logits, logits, n_vocab);
        continue;
      }
      const Ptr<std::byte> list = work_.shortlist + static_cast<uint64_t>(i) * b_.shortlist_bytes(h_.n_vocab);
      b_.shortlists()->shortlist(logits, h_.n_vocab, *its.request, list);
      downloads[n_downloads++] = {its.shortlist, list, shortlist_result_bytes(*its.request)};
    }
    if (!together) fetch(out.logits + static_cast<uint64_t>(from) * n_vocab, work_.logits, static_cast<uint64_t>(n) * n_vocab);
    b_.download_all({downloads.data(), n_downloads});
    n_downloads = 0;
  }
  if (exports)
    b_.copy({work_.exported_embeddings.address}, {work_.normed.address}, static_cast<uint64_t>(n_rows_) * n_embd * sizeof(float));
}

}  // namespace

StepLimits step_limits(const Hyperparameters& h, int32_t max_rows, int32_t max_context) {
  StepLimits limits;
  limits.max_rows = max_rows;
  limits.max_context = max_context;
  limits.n_heads = h.n_heads;
  limits.n_kv_heads = h.n_kv_heads;
  limits.head_dim = h.head_dim;
  limits.max_in = std::max({h.n_embd, h.q_dim(), h.max_ff()});
  limits.n_layers = h.n_layers;
  return limits;
}

Workspace carve_workspace(const Hyperparameters& h, const Device& device, const StepLimits& limits,
                          Ptr<std::byte> base) {
  Workspace work;
  uint64_t at = 0;
  const auto floats = [&](int64_t rows, int64_t cols) {
    const Ptr<float> p{base.address + at};
    at += align_up(static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols) * sizeof(float), kv::kArenaAlignment);
    return p;
  };
  const int64_t rows = limits.max_rows;
  work.x = floats(rows, h.n_embd);
  work.normed = floats(rows, h.n_embd);
  work.qkv = floats(rows, h.q_dim() + 2 * int64_t{h.kv_dim()});
  work.attn = floats(rows, h.q_dim());
  work.ffn = floats(rows, 2 * int64_t{h.max_ff()});
  work.act = floats(rows, h.max_ff());
  if (h.architecture->post_norms) work.branch = floats(rows, h.n_embd);
  work.logits = floats(kLogitRows, h.n_vocab);
  if (const uint64_t bytes = device.shortlist_bytes(h.n_vocab); bytes > 0) {
    work.shortlist = {base.address + at};
    at += align_up(kLogitRows * bytes, kv::kArenaAlignment);
    work.exported_embeddings = floats(kLogitRows, h.n_embd);
  }
  work.scratch = {base.address + at};
  at += align_up(device.scratch_bytes(limits), kv::kArenaAlignment);
  work.bytes = at;
  return work;
}

Status forward_together(Backend* backend, const Model& model, const Workspace& work, Span<const Step> steps, Span<const RopeSpec> ropes,
                        Span<SessionPart> parts, const std::atomic<bool>* cancel, const Layers& layers) {
  {
    const StepScope scope(backend, steps);
    Pass pass(backend, model, work, steps, parts);
    pass.begin(ropes, layers);
    const int32_t end = std::min(layers.end, model.hyper.n_layers);
    for (int32_t i = layers.first; i < end; ++i) {
      if (cancel && cancel->load(std::memory_order_relaxed)) return error(Code::cancelled, "cancelled");
      if (!pass.layer(i)) return ok_status();
    }
    if (end < model.hyper.n_layers)
      pass.pause(layers);
    else if (parts[0].out.n_logits > 0)
      pass.output();
  }
  return backend->synchronize();
}

Status forward(Backend* backend, const Model& model, const RopeSpec& rope, const Workspace& work, const Step& step,
               const std::atomic<bool>* cancel, const ForwardOutput& out, LayerHook* hook) {
  SessionPart part{out, hook, ok_status(), nullptr};
  Status status = forward_together(backend, model, work, {&step, 1}, {&rope, 1}, {&part, 1}, cancel);
  if (part.thrown) std::rethrow_exception(part.thrown);
  return part.status.ok() ? std::move(status) : std::move(part.status);
}

}  // namespace orrery::model
