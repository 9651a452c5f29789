#include "runtime/model/forward/forward.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

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

// The sessions' hooks. Each hook's error ends up in its part alone, and that hook is not called again.
class Hooks final : public HookCalls {
 public:
  Hooks(Span<const Step> steps, Span<SessionPart> parts) : steps_(steps), parts_(parts) {
    for (const SessionPart& part : parts) {
      ahead |= part.hook && part.hook->looks_ahead();
      at_attention |= part.hook && !part.hook->looks_ahead();
    }
  }
  bool before_attend(KvLayer layer, Ptr<const float> q, int64_t q_stride) override {
    return call(false, q, q_stride, [layer, q_stride](LayerHook* hook, Ptr<const float> its) {
      return layer.group == 0 || hook->in_all_groups() ? hook->before_attend(layer, its, q_stride) : ok_status();
    });
  }
  bool before_layer(int32_t layer, Ptr<const float> next_q, int64_t q_stride) override {
    return call(true, next_q, q_stride, [layer](LayerHook* hook, Ptr<const float> its) { return hook->before_layer(layer, its); });
  }

 private:
  // f(hook, the session's first query at q or null) -> Status.
  template <class F>
  bool call(bool looks_ahead, Ptr<const float> q, int64_t q_stride, const F& f) {
    uint64_t row = 0;
    for (size_t i = 0; i < parts_.size(); row += steps_[i++].rows.size()) {
      SessionPart& part = parts_[i];
      if (!part.hook || part.failed() || part.hook->looks_ahead() != looks_ahead) continue;
      try {
        part.status = f(part.hook, q ? q + row * static_cast<uint64_t>(q_stride) : q);
      } catch (...) {
        part.thrown = std::current_exception();
      }
    }
    return !std::all_of(parts_.begin(), parts_.end(), [](const SessionPart& part) { return part.failed(); });
  }

  Span<const Step> steps_;
  Span<SessionPart> parts_;
};

Pass make_pass(Backend* backend, const Model& model, const Workspace& work, Span<const Step> steps, HookCalls* hooks) {
  Pass pass{*backend, model.description, work, steps, *hooks};
  for (const Step& step : steps) {
    pass.n_rows += static_cast<int32_t>(step.rows.size());
    pass.rotated |= step.transform.rotated;
    pass.transformed |= static_cast<bool>(step.transform);
  }
  return pass;
}

bool same(Span<const AdapterUse> a, Span<const AdapterUse> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const AdapterUse& u, const AdapterUse& v) { return u.adapter == v.adapter && u.scale == v.scale; });
}

// Writes the runs of rows that have adapters to `out`. Returns their number.
size_t adapted_rows(Span<const Step> steps, Span<const SessionPart> parts, AdaptedRows* out) {
  size_t n = 0;
  int32_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int32_t first = std::exchange(row, row + static_cast<int32_t>(steps[i].rows.size()));
    if (parts[i].adapters.empty()) continue;
    if (n > 0 && out[n - 1].end == first && same(out[n - 1].uses, parts[i].adapters)) out[n - 1].end = row;
    else out[n++] = {first, row, parts[i].adapters};
  }
  return n;
}

uint64_t stream_bytes(const Pass& pass) {
  return static_cast<uint64_t>(pass.n_rows) * static_cast<uint64_t>(pass.d.n_embd) * sizeof(float);
}

// The experts of layer i, and of the next layer that has some.
experts::Layer experts_of(const Description& d, const Weights& w, int32_t i) {
  experts::Layer layer{i, d.layer(i), w.layers[static_cast<size_t>(i)].experts, nullptr};
  for (int32_t next = i + 1; next < d.n_layers && !layer.next; ++next)
    if (d.layer(next).experts) layer.next = &w.layers[static_cast<size_t>(next)].experts;
  return layer;
}

bool compute_layer(Pass& pass, const Weights& w, int32_t i) {
  const Layer& l = w.layers[static_cast<size_t>(i)];
  const Layer* next = i + 1 < pass.d.n_layers ? &l + 1 : nullptr;
  pass.post_norm_eps = pass.d.layer(i).post_norm_eps > 0.0f ? pass.d.layer(i).post_norm_eps : pass.d.norm_eps;
  const LayerShape& shape = pass.d.layer(i);
  if (pass.d.norms_after) {
    const auto norm = [&](Ptr<const float> weight, Ptr<const float> bias) {
      pass.backend.encoder()->layer_norm(pass.work.x, weight, bias, pass.work.x, pass.d.n_embd, pass.d.norm_eps);
    };
    if (!attention::run(pass, {i, &l.attention, next ? &next->attention : nullptr, {}})) return false;
    norm(l.attn_norm, l.attn_norm_bias);
    feed_forward::run(pass, shape.feed_forward, l.feed_forward, {});
    norm(l.ffn_norm, l.ffn_norm_bias);
    return true;
  }
  if (shape.mixer != Mixer::none) pass.norm(pass.work.x, l.attn_norm, pass.work.normed);
  switch (shape.mixer) {
    case Mixer::attention:
      if (shape.latent) {
        if (!latent_attention::run(pass, i, l.latent)) return false;
        break;
      }
      if (!attention::run(pass, {i, &l.attention, next ? &next->attention : nullptr, l.post_attn_norm})) return false;
      break;
    case Mixer::delta_net: delta_net::run(pass, i, l.delta_net, l.post_attn_norm); break;
    case Mixer::mamba2: mamba2::run(pass, i, l.mamba2); break;
    case Mixer::short_conv: short_conv::run(pass, i, l.short_conv); break;
    case Mixer::none: break;
  }
  if (!shape.has_ffn()) return true;
  pass.norm(pass.work.x, l.ffn_norm, pass.work.normed);
  if (shape.experts.beside_ffn) {
    if (!experts::run_beside(pass, experts_of(pass.d, w, i), l.feed_forward, l.post_ffn_norm)) return false;
  } else if (shape.experts) {
    if (!experts::run(pass, experts_of(pass.d, w, i))) return false;
  } else {
    if (!pass.columns || !pass.columns->has(i)) feed_forward::run(pass, shape.feed_forward, l.feed_forward, l.post_ffn_norm);
    else if (!feed_forward::run_divided(pass, i, shape.feed_forward, l.feed_forward, l.post_ffn_norm)) return false;
  }
  if (pass.d.n_per_layer > 0) per_layer::run(pass, i, l.per_layer);
  if (l.output_scale != 1.0f) pass.backend.soft_cap(pass.work.x, pass.n_rows, pass.d.n_embd, l.output_scale, 0.0f);
  return true;
}

// False: all sessions' hooks have failed, or Pass::status has an error.
bool run_layer(Pass& pass, const Weights& w, int32_t i) {
  if (!pass.layers) return compute_layer(pass, w, i);
  const Phase phase = pass.steps[0].phase;
  pass.status = pass.layers->bring(i, phase, pass.cancel);
  // A hook that looks ahead has this layer compute the next one's queries.
  if (pass.status.ok() && pass.hooks.ahead) pass.status = pass.layers->bring(i + 1, phase, pass.cancel);
  if (!pass.status.ok() || !compute_layer(pass, w, i)) return false;
  pass.status = pass.layers->leave(&pass.backend, i, phase);
  return pass.status.ok();
}

// The rows of logits are the last ones: those of a single step, or all.
void output(Pass& pass, const Weights& w, Span<const SessionPart> parts) {
  Backend& b = pass.backend;
  const Workspace& work = pass.work;
  const ForwardOutput& out = parts[0].out;
  const int32_t n_rows = pass.n_rows;
  const bool together = pass.steps.size() > 1;
  const int32_t n_logits = together ? n_rows : out.n_logits;
  if (w.output_norm) pass.norm(work.x, w.output_norm, work.normed);
  const uint64_t n_embd = static_cast<uint64_t>(pass.d.n_embd), n_vocab = static_cast<uint64_t>(pass.d.n_vocab);
  const Product p{&w.output, {}, work.logits, pass.d.n_vocab, false};
  const auto product = [&](Ptr<const float> x, int32_t first, int32_t n) {
    pass.matmul({&p, 1}, x, pass.d.n_embd, n, first);
    if (pass.d.logit_cap > 0.0f || pass.d.logit_scale != 1.0f)
      b.soft_cap(work.logits, n, pass.d.n_vocab, pass.d.logit_scale, pass.d.logit_cap);
  };
  if (out.request && !together) {
    product(exported_embedding(work, pass.d, n_rows), n_rows - 1, 1);
    b.shortlists()->shortlist(exported_logits(work), pass.d.n_vocab, *out.request, work.shortlist);
    const Download both[] = {{out.shortlist, work.shortlist, shortlist_result_bytes(*out.request)},
                             {out.hidden, {work.normed.address}, static_cast<uint64_t>(n_rows) * n_embd * sizeof(float)}};
    b.download_all({both, out.hidden ? size_t{2} : size_t{1}});
    return;
  }
  std::array<Download, size_t{3} * static_cast<size_t>(kMostTogether)> downloads;  // the host waits once for a batch of rows
  size_t n_downloads = 0;
  const auto fetch = [&](float* to, Ptr<const float> from, uint64_t n) {
    if (to && n > 0) downloads[n_downloads++] = {to, {from.address}, n * sizeof(float)};
  };
  bool exports = false;
  for (size_t i = 0; together && i < parts.size(); ++i) {
    exports |= parts[i].out.request != nullptr;
    fetch(parts[i].out.hidden, work.normed + i * n_embd, n_embd);
    if (!parts[i].out.request) fetch(parts[i].out.embedding, work.normed + i * n_embd, n_embd);
  }
  if (!together) {
    const uint64_t first = static_cast<uint64_t>(n_rows - out.n_embeddings);
    fetch(n_logits > 0 ? out.embedding : nullptr, work.normed + first * n_embd, static_cast<uint64_t>(out.n_embeddings) * n_embd);
    fetch(out.hidden, work.normed, static_cast<uint64_t>(n_rows) * n_embd);
  }
  for (int32_t from = 0; from < n_logits; from += kLogitRows) {
    const int32_t n = std::min(kLogitRows, n_logits - from);
    const uint64_t row = static_cast<uint64_t>(n_rows - n_logits + from);
    product(work.normed + row * n_embd, static_cast<int32_t>(row), n);
    for (int32_t i = 0; together && i < n; ++i) {
      const ForwardOutput& its = parts[static_cast<size_t>(from + i)].out;
      const Ptr<const float> logits = work.logits + static_cast<uint64_t>(i) * n_vocab;
      if (!its.request) {
        fetch(its.logits, logits, n_vocab);
        continue;
      }
      const Ptr<std::byte> list = work.shortlist + static_cast<uint64_t>(i) * b.shortlist_bytes(pass.d.n_vocab);
      b.shortlists()->shortlist(logits, pass.d.n_vocab, *its.request, list);
      downloads[n_downloads++] = {its.shortlist, list, shortlist_result_bytes(*its.request)};
    }
    if (!together) fetch(out.logits + static_cast<uint64_t>(from) * n_vocab, work.logits, static_cast<uint64_t>(n) * n_vocab);
    b.download_all({downloads.data(), n_downloads});
    n_downloads = 0;
  }
  if (n_downloads > 0) b.download_all({downloads.data(), n_downloads});
  if (exports) b.copy({work.exported_embeddings.address}, {work.normed.address}, static_cast<uint64_t>(n_rows) * n_embd * sizeof(float));
}

}  // namespace

StepLimits step_limits(const Description& d, int32_t max_rows, int32_t max_context) {
  StepLimits limits;
  limits.max_rows = max_rows;
  limits.max_context = max_context;
  for (const KvGroup& group : d.groups) {
    limits.n_heads = std::max(limits.n_heads, group.n_heads);
    limits.n_kv_heads = std::max(limits.n_kv_heads, group.n_kv_heads);
    limits.head_dim = std::max(limits.head_dim, group.head_dim);
  }
  limits.n_groups = static_cast<int32_t>(d.groups.size());
  limits.queries_per_head = d.kv().n_heads / d.kv().n_kv_heads;
  for (const RopeParameters& rope : d.ropes) limits.rope_floats += rope.n_rot;
  limits.max_in = d.max_in();
  if (const ExpertsShape most = d.experts()) {
    limits.n_experts = most.router.n_experts;
    limits.n_used_experts = most.router.n_used;
    limits.max_expert_in = std::max(d.n_embd, most.width);
  }
  limits.n_layers = d.kv().n_layers();
  for (const LayerShape& layer : d.layers)
    limits.max_head_state = std::max(limits.max_head_state, static_cast<int64_t>(layer.head_state_floats()));
  return limits;
}

HostExperts::WorkShape host_work_shape(const Description& d) {
  const ExpertsShape most = d.experts();
  return {most.router, d.n_embd, most.used_width()};
}

Workspace carve_workspace(const Description& d, const Device& device, const StepLimits& limits, Ptr<std::byte> base) {
  Workspace work;
  uint64_t at = 0;
  const auto floats = [&](int64_t rows, int64_t cols) {
    const Ptr<float> p{base.address + at};
    at += align_up(static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols) * sizeof(float), kv::kArenaAlignment);
    return p;
  };
  const int64_t rows = limits.max_rows;
  work.x = floats(rows, d.n_embd);
  work.normed = floats(rows, d.n_embd);
  int64_t qkv = 0;
  for (const KvGroup& group : d.groups) qkv = std::max(qkv, group.q_dim() + 2 * int64_t{group.kv_dim()});
  work.qkv = floats(rows, qkv);
  work.attn = floats(rows, d.max_q_dim());
  if (d.reads_hidden) work.pair = floats(rows, 2 * int64_t{d.n_embd});
  if (const int64_t n = d.mixer_floats(); n > 0) work.mixer = floats(rows + (d.recurrent() ? kMostGuessedRows : 0), n);
  if (d.n_per_layer > 0) work.per_layer = floats(rows, d.per_layer_floats());
  work.ffn = floats(rows, std::max(2 * d.max_ff(), d.per_layer_floats()));
  work.act = floats(rows, d.max_ff());
  if (const ExpertsShape most = d.experts()) {
    work.router = floats(rows, most.router.n_experts + 1);
    work.routed = {base.address + at};
    at += align_up(RoutedRows::bytes(rows, most.router), kv::kArenaAlignment);
    work.slots = floats(rows * most.router.n_used, d.n_embd);
    work.routed_next = {base.address + at};
    at += align_up(RoutedRows::bytes(kMostTogether, most.router), kv::kArenaAlignment);
  }
  if (d.any_post_norms()) work.branch = floats(rows, d.n_embd);
  work.logits = floats(kLogitRows, d.n_vocab);
  if (const uint64_t bytes = device.shortlist_bytes(d.n_vocab); bytes > 0) {
    work.shortlist = {base.address + at};
    at += align_up(kLogitRows * bytes, kv::kArenaAlignment);
    work.exported_embeddings = floats(kLogitRows, d.n_embd);
  }
  work.scratch = {base.address + at};
  at += align_up(device.scratch_bytes(limits), kv::kArenaAlignment);
  work.bytes = at;
  return work;
}

namespace {

// The end of a model whose last layers keep nothing of a token, neither KV nor a state (Gemma 4's small models): of a prompt's chunk they
// compute the rows alone whose output is wanted, which are the last ones.
struct Tail {
  int32_t first = 0;  // layer; n_layers: no row is left out
  int32_t n_rows = 0;
};

Tail tail_of(const Description& d, Span<const Step> steps, Span<const SessionPart> parts) {
  const auto keeps = [](const LayerShape& layer) {
    return layer.mixer != Mixer::none && (layer.mixer != Mixer::attention || layer.attention.kv_of < 0);
  };
  const ForwardOutput& out = parts[0].out;
  const int32_t n_wanted = out.n_logits > 0 ? std::max(out.n_logits, out.n_embeddings) : 0;
  const bool leaves_out = steps.size() == 1 && steps[0].phase == Phase::prefill && !parts[0].hook && !out.hidden &&
                          n_wanted < static_cast<int32_t>(steps[0].rows.size());
  if (!leaves_out) return {d.n_layers, 0};
  const auto last = std::find_if(d.layers.rbegin(), d.layers.rend(), keeps);
  return {static_cast<int32_t>(d.layers.rend() - last), n_wanted};
}

// Some layers of some rows.
struct Stretch {
  int32_t first, end;  // layers
  bool begins, ends;   // the call's first stretch, to which the rows come; its last one, which they leave
  float* stream;       // Layers::stream, of these rows
};

// Sets *stopped once all sessions' hooks have failed.
Status run_stretch(Backend* backend, const Model& model, const Workspace& given, Span<const Step> steps, Span<const RopeSpec> ropes,
                   Span<SessionPart> parts, const Cancels& cancel, const Stretch& stretch, bool* stopped) {
  const Description& d = model.description;
  Workspace work = given;
  if (d.norms_after) work.normed = work.x;  // what is normed stands in the residual stream already
  const StepScope scope(backend, steps);
  Hooks hooks(steps, parts);
  Pass pass = make_pass(backend, model, work, steps, &hooks);
  pass.store = model.experts.get(), pass.host = model.host.get(), pass.columns = model.columns.get();
  pass.layers = model.layers.get(), pass.cancel = cancel.waits;
  std::array<AdaptedRows, static_cast<size_t>(kMostTogether)> adapted;
  pass.adapted = {adapted.data(), adapted_rows(steps, {parts.data(), parts.size()}, adapted.data())};
  if (stretch.begins) {
    const bool per_layer = d.n_per_layer > 0;
    if (per_layer) per_layer::read_rows(pass, model.weights.per_layer);  // before other operations
    if (stretch.first == 0 || per_layer) vocabulary::embed(pass, model.weights, d.embedding_scale, work.x);
    if (per_layer) per_layer::make_inputs(pass, model.weights.per_layer);
    if (d.reads_hidden) guessing_head::run(pass, model.weights.head);
    if (stretch.first == 0 && d.layer_norms) encoder_inputs::run(pass, model.weights.inputs);
    if (stretch.first > 0) backend->upload({work.x.address}, stretch.stream, stream_bytes(pass));
    if (stretch.first == 0 && d.embedding_norm) pass.norm(work.x, {}, work.x);
  }
  backend->prepare_ropes(ropes);
  if (d.recurrent()) {
    std::array<SequenceState, static_cast<size_t>(kMostTogether)> states;
    for (size_t i = 0; i < parts.size(); ++i) states[i] = parts[i].state;
    backend->recurrent()->set_states({states.data(), parts.size()});
  }
  for (int32_t i = stretch.first; i < stretch.end; ++i) {
    if (cancel.between_layers && cancel.between_layers->load(std::memory_order_relaxed)) return error(Code::cancelled, "cancelled");
    if (!run_layer(pass, model.weights, i)) {
      *stopped = true;
      return std::move(pass.status);
    }
  }
  if (!stretch.ends) return ok_status();
  if (stretch.end < d.n_layers) backend->download(stretch.stream, {work.x.address}, stream_bytes(pass));
  else if (parts[0].out.n_logits > 0 || parts[0].out.hidden) output(pass, model.weights, {parts.data(), parts.size()});
  return ok_status();
}

}  // namespace

Status forward_together(Backend* backend, const Model& model, const Workspace& work, Span<const Step> steps, Span<const RopeSpec> ropes,
                        Span<SessionPart> parts, const Cancels& cancel, const Layers& layers) {
  const Description& d = model.description;
  const uint64_t n_embd = static_cast<uint64_t>(d.n_embd);
  if (d.reads_hidden) {
    uint64_t row = 0;
    for (size_t i = 0; i < parts.size(); row += steps[i++].rows.size())
      backend->upload({(work.normed + row * n_embd).address}, parts[i].hidden, steps[i].rows.size() * n_embd * sizeof(float));
  }
  const int32_t end = std::min(layers.end, d.n_layers);
  const Tail tail = tail_of(d, steps, {parts.data(), parts.size()});
  bool stopped = false;
  if (layers.first < tail.first) {
    const Stretch stretch = {layers.first, std::min(end, tail.first), true, end <= tail.first, layers.stream};
    ORRERY_TRY(run_stretch(backend, model, work, steps, ropes, parts, cancel, stretch, &stopped));
  }
  if (end > tail.first && tail.n_rows > 0) {
    Step last = steps[0];
    const uint64_t skipped = last.rows.size() - static_cast<uint64_t>(tail.n_rows);
    last.rows = last.rows.subspan(skipped, static_cast<size_t>(tail.n_rows));
    Workspace rest = work;
    rest.x = work.x + skipped * n_embd, rest.normed = work.normed + skipped * n_embd;  // rows stay where they are
    if (d.n_per_layer > 0) rest.per_layer = work.per_layer + skipped * static_cast<uint64_t>(d.per_layer_floats());
    const Stretch stretch = {std::max(layers.first, tail.first), end, layers.first >= tail.first, true,
                             layers.stream ? layers.stream + skipped * n_embd : nullptr};
    ORRERY_TRY(run_stretch(backend, model, rest, {&last, 1}, ropes, parts, cancel, stretch, &stopped));
  }
  return stopped ? ok_status() : backend->synchronize();
}

Status forward(Backend* backend, const Model& model, Span<const RopeSpec> ropes, const Workspace& work, const Step& step,
               const std::atomic<bool>* cancel, const ForwardOutput& out, LayerHook* hook, const SequenceState& state,
               Span<const AdapterUse> adapters) {
  SessionPart part{out, hook, ok_status(), nullptr, state, nullptr, adapters};
  Status status = forward_together(backend, model, work, {&step, 1}, ropes, {&part, 1}, {cancel, cancel});
  if (part.thrown) std::rethrow_exception(part.thrown);
  return part.status.ok() ? std::move(status) : std::move(part.status);
}

}  // namespace orrery::model
