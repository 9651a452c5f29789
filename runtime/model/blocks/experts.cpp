#include "runtime/model/blocks/experts.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace orrery::model::experts {

namespace {

constexpr size_t kMostExperts = 1024, kMostUsed = 64;

// One value in all layers: from the key, or from an array of equal values.
Status one_value(Keys& keys, const char* key, size_t n_layers, uint64_t most, int32_t* out) {
  std::vector<int32_t> values;
  ORRERY_TRY(keys.per_layer(key, n_layers, 1, most, &values));
  for (const int32_t v : values)
    if (v != values[0])
      return error(Code::unsupported_architecture, "%s: key '%s' differs between layers (%d and %d)", keys.file().path().c_str(),
                   keys.name(key).c_str(), values[0], v);
  *out = values[0];
  return ok_status();
}

// A key that repeats what the family is may be there, but must not contradict it.
Status agrees(Keys& keys, const char* key, uint64_t value) {
  const gguf::Value* found = keys.find(key);
  if (!found) return ok_status();
  bool flag = false;
  uint64_t n = 0;
  if (found->as_bool(&flag)) n = flag ? 1 : 0;
  else if (!found->as_u64(&n)) n = UINT64_MAX;
  if (n == value) return ok_status();
  return error(Code::unsupported_architecture, "%s: key '%s' is %s: architecture '%s' is not run with it, expected %llu",
               keys.file().path().c_str(), keys.name(key).c_str(), describe(*found).c_str(),
               keys.file().get_string("general.architecture", "").value().data(), static_cast<unsigned long long>(value));
}

Status read_flag(Keys& keys, const char* key, bool* out) {
  const gguf::Value* found = keys.find(key);
  if (found && found->as_bool(out)) return ok_status();
  return error(Code::bad_model, "%s: key '%s' is %s, expected true or false", keys.file().path().c_str(), keys.name(key).c_str(),
               found ? describe(*found).c_str() : "missing");
}

}  // namespace

Status read(Reading& in, const Parts& parts) {
  Keys& keys = in.keys;
  const size_t n_layers = in.d.layers.size();
  ExpertsShape shape;
  shape.router.gating = parts.gating;
  shape.router.normalised = parts.normalised;
  shape.biased = parts.biased, shape.clamped = parts.clamped;
  shape.choice_bias = parts.choice_bias, shape.squared_relu = parts.squared_relu;
  shape.beside_ffn = parts.beside_ffn, shape.activation = parts.activation;
  ORRERY_TRY(keys.integer("expert_count", 1, kMostExperts, &shape.router.n_experts));
  ORRERY_TRY(one_value(keys, "expert_used_count", n_layers, std::min(kMostUsed, static_cast<uint64_t>(shape.router.n_experts)),
                       &shape.router.n_used));
  if (parts.norm_by_key || (parts.norm_or_not && keys.has("expert_weights_norm")))
    ORRERY_TRY(read_flag(keys, "expert_weights_norm", &shape.router.normalised));
  else if (!parts.norm_or_not && parts.gating != Gating::softmax_of_chosen)
    ORRERY_TRY(agrees(keys, "expert_weights_norm", parts.normalised ? 1 : 0));
  if (parts.scaled) {
    ORRERY_TRY(keys.number_or("expert_weights_scale", 1.0, 0.0, 1e6, &shape.router.scale));
    if (shape.router.scale == 0.0f) shape.router.scale = 1.0f;  // not set
  }
  if (!parts.gating_is_read)
    ORRERY_TRY(agrees(keys, "expert_gating_func", parts.gating == Gating::softmax ? 1 : parts.gating == Gating::sigmoid ? 2 : 3));
  // The width of dense layers, of which there are none. Files without the experts' own width have it for all experts of a row.
  const bool whole = !parts.beside_ffn && keys.has("feed_forward_length");
  if (keys.has("expert_feed_forward_length") || !whole) {
    ORRERY_TRY(one_value(keys, "expert_feed_forward_length", n_layers, kMaxWidth, &shape.width));
  } else {
    int32_t width = 0;
    ORRERY_TRY(one_value(keys, "feed_forward_length", n_layers, kMaxWidth, &width));
    shape.width = width / shape.router.n_used;
    if (width % shape.router.n_used != 0)
      return error(Code::bad_model, "%s: key '%s' is %d, which does not divide among %d experts, and no '%s' is given",
                   keys.file().path().c_str(), keys.name("feed_forward_length").c_str(), width, shape.router.n_used,
                   keys.name("expert_feed_forward_length").c_str());
  }
  if (parts.shared_by_count) {
    int32_t count = 0;
    ORRERY_TRY(keys.integer_or("expert_shared_count", 0, 0, kMaxWidth / static_cast<uint64_t>(shape.width), &count));
    shape.shared_width = count * shape.width;
    shape.shared_gated = parts.shared_gated;
  } else if (parts.shared) {
    ORRERY_TRY(keys.integer("expert_shared_feed_forward_length", 1, kMaxWidth, &shape.shared_width));
    shape.shared_gated = parts.shared_gated;
    if (!parts.shared_gated) ORRERY_TRY(agrees(keys, "expert_shared_count", 1));
  }
  if (shape.used_width() > static_cast<int64_t>(kMaxWidth))
    return error(Code::bad_model, "%s: %d experts of %d for each token are wider than any model we know", keys.file().path().c_str(),
                 shape.router.n_used, shape.width);
  for (LayerShape& layer : in.d.layers) layer.experts = shape;
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, const ExpertsShape& shape, const std::string& prefix, Weights* out) {
  const int64_t n = d.n_embd, width = shape.width, n_experts = shape.router.n_experts, shared = shape.shared_width;
  ORRERY_TRY(tensors->matrix(prefix + "ffn_gate_inp.weight", n_experts, n, true, &out->router));
  if (shape.choice_bias) ORRERY_TRY(tensors->vector(prefix + "exp_probs_b.bias", n_experts, true, &out->choice_bias));
  if (shape.squared_relu) {
    ORRERY_TRY(tensors->experts(prefix + "ffn_up_exps.weight", n_experts, 1, width, n, &out->up));
  } else if (!shape.biased && tensors->has(prefix + "ffn_gate_up_exps.weight")) {  // of each expert gate, then up
    ORRERY_TRY(tensors->experts(prefix + "ffn_gate_up_exps.weight", n_experts, 2, 2 * width, n, &out->gate));
  } else {
    ORRERY_TRY(tensors->experts(prefix + "ffn_gate_exps.weight", n_experts, 1, width, n, &out->gate));
    ORRERY_TRY(tensors->experts(prefix + "ffn_up_exps.weight", n_experts, 1, width, n, &out->up));
  }
  ORRERY_TRY(tensors->experts(prefix + "ffn_down_exps.weight", n_experts, 1, n, width, &out->down));
  if (shape.beside_ffn) {
    ORRERY_TRY(tensors->vector(prefix + "ffn_gate_inp.scale", n, true, &out->router_norm));
    ORRERY_TRY(tensors->vector(prefix + "pre_ffw_norm_2.weight", n, true, &out->norm));
    ORRERY_TRY(tensors->vector(prefix + "post_ffw_norm_1.weight", n, true, &out->ffn_post_norm));
    ORRERY_TRY(tensors->vector(prefix + "post_ffw_norm_2.weight", n, true, &out->post_norm));
    ORRERY_TRY(tensors->vector(prefix + "ffn_down_exps.scale", n_experts, true, &out->output_scales));
  }
  if (shape.biased) {
    ORRERY_TRY(tensors->vector(prefix + "ffn_gate_inp.bias", n_experts, true, &out->router_bias));
    ORRERY_TRY(tensors->floats(prefix + "ffn_gate_exps.bias", n_experts, width, true, &out->gate_bias));
    ORRERY_TRY(tensors->floats(prefix + "ffn_up_exps.bias", n_experts, width, true, &out->up_bias));
    ORRERY_TRY(tensors->floats(prefix + "ffn_down_exps.bias", n_experts, n, true, &out->down_bias));
  }
  if (shared == 0) return ok_status();
  if (!shape.squared_relu) ORRERY_TRY(tensors->matrix(prefix + "ffn_gate_shexp.weight", shared, n, true, &out->shared.gate));
  ORRERY_TRY(tensors->matrix(prefix + "ffn_up_shexp.weight", shared, n, true, &out->shared.up));
  ORRERY_TRY(tensors->matrix(prefix + "ffn_down_shexp.weight", n, shared, true, &out->shared.down));
  return shape.shared_gated ? tensors->matrix(prefix + "ffn_gate_inp_shexp.weight", 1, n, true, &out->shared_gate) : ok_status();
}

namespace {

void run_shared(Pass& pass, const ExpertsShape& shape, const Weights& w) {
  const Workspace& work = pass.work;
  if (shape.squared_relu) {
    const Product up{&w.shared.up, {}, work.act, shape.shared_width, false};
    pass.project({&up, 1});
    pass.backend.experts()->squared_relu(work.act, shape.shared_width);
    pass.add_branch(w.shared.down, {}, {}, work.act, shape.shared_width);
    return;
  }
  const int64_t width = shape.shared_width, stride = 2 * width;
  const Ptr<float> gate = work.ffn, up = gate + static_cast<uint64_t>(width);
  const Ptr<float> row_gates = work.router + static_cast<uint64_t>(pass.n_rows) * static_cast<uint64_t>(shape.router.n_experts);
  const Product p[] = {
      {&w.shared.gate, {}, gate, stride, false}, {&w.shared.up, {}, up, stride, false}, {&w.shared_gate, {}, row_gates, 1, false}};
  pass.project({p, 2});
  pass.backend.swiglu(gate, up, stride, work.act, width, width);
  if (shape.shared_gated) {  // down is linear, so its input may be scaled instead of its output
    pass.project({p + 2, 1});
    pass.backend.experts()->gate_rows(work.act, row_gates, width);
  }
  pass.add_branch(w.shared.down, {}, {}, work.act, width);
}

// What the experts' products read and write, on the device or on the host.
struct Side {
  Backend& backend;
  const ExpertMatrices& matrices;
  RoutedRows routed;
  Ptr<const float> input;  // (n_rows, n_embd)
  Ptr<float> gate, up;     // (n_slots, width) each
  Ptr<float> act;          // (n_slots, width) what goes through the down matrices
  Ptr<float> slots;        // (n_slots, n_embd) what the experts make of their rows
};

// The products before the activation.
void multiply_in(const Side& side, const ExpertsShape& shape) {
  ExpertOperations& experts = *side.backend.experts();
  const ExpertMatrices& m = side.matrices;
  if (shape.squared_relu) {
    const ExpertProduct p{&m.up, {}, side.act};
    return experts.multiply_experts({&p, 1}, shape.router, side.routed, side.input, true);
  }
  const bool paired = !m.up;  // both are in one tensor
  const ExpertWeights gates = paired ? m.gate.of_pair(false) : m.gate, ups = paired ? m.gate.of_pair(true) : m.up;
  const ExpertProduct p[] = {{&gates, m.gate_bias, side.gate}, {&ups, m.up_bias, side.up}};
  experts.multiply_experts({p, 2}, shape.router, side.routed, side.input, true);
}

// Of all slots: they lie side by side, so they may be cut into as many as there are rows.
void activate_slots(const Side& side, const ExpertsShape& shape) {
  ExpertOperations& experts = *side.backend.experts();
  const int64_t width = shape.used_width();
  if (shape.squared_relu) experts.squared_relu(side.act, width);
  else if (shape.clamped) experts.clamped_swiglu(side.gate, side.up, side.act, width);
  else side.backend.activate(shape.activation, side.gate, side.up, width, side.act, width, width);
}

void multiply_out(const Side& side, const ExpertsShape& shape) {
  const ExpertProduct down{&side.matrices.down, side.matrices.down_bias, side.slots};
  side.backend.experts()->multiply_experts({&down, 1}, shape.router, side.routed, side.act, false);
}

void multiply_side(const Side& side, const ExpertsShape& shape) {
  multiply_in(side, shape);
  activate_slots(side, shape);
  multiply_out(side, shape);
}

// All slots on the device, where the reservoir's experts cross the link. False: Pass::status has an error.
bool multiply_streamed(Pass& pass, const Layer& layer, Side side) {
  HostExperts& experts = *pass.host;
  const ExpertsShape& shape = layer.shape.experts;
  pass.backend.download(experts.first_slots(), {side.routed.first_slots.address},
                        (static_cast<uint64_t>(shape.router.n_experts) + 1) * sizeof(int32_t));
  pass.status = pass.backend.synchronize();  // the device's error, before its numbers are used
  const auto stream = [&](HostExperts::Part part, void (*multiply)(const Side&, const ExpertsShape&)) {
    if (!pass.status.ok()) return;
    pass.status = experts.stream(&pass.backend, layer.index, part, layer.weights, pass.cancel, [&](int32_t first, int32_t n) {
      side.routed.first_slot = first, side.routed.n_slots = n;
      multiply(side, shape);
    });
  };
  stream(HostExperts::Part::gate_up, multiply_in);
  if (pass.status.ok()) activate_slots(side, shape);
  stream(HostExperts::Part::down, multiply_out);
  if (pass.status.ok()) experts.count_streamed(layer.index);
  return pass.status.ok();
}

// Workspace::slots = what the chosen experts make of Workspace::normed. Those that lie on the host are computed there meanwhile, or cross the
// link. False: Pass::status has an error.
bool multiply(Pass& pass, const Layer& layer, const RoutedRows& routed) {
  const Workspace& work = pass.work;
  const ExpertsShape& shape = layer.shape.experts;
  const Ptr<float> up = work.ffn + static_cast<uint64_t>(pass.n_rows) * static_cast<uint64_t>(shape.used_width());
  const Side device = {pass.backend, layer.weights, routed, work.normed, work.ffn, up, work.act, work.slots};
  if (!pass.host) {
    multiply_side(device, shape);
    return true;
  }
  HostExperts& experts = *pass.host;
  const Phase phase = pass.steps[0].phase;
  if (experts.streams(layer.index, pass.n_rows, phase))
    return multiply_streamed(
        pass, layer, {pass.backend, experts.streamed(layer.index, layer.weights), routed, work.normed, work.ffn, up, work.act, work.slots});
  const auto n_rows = static_cast<uint64_t>(pass.n_rows), n_embd = static_cast<uint64_t>(pass.d.n_embd);
  const HostExperts::Rows rows = experts.rows();
  const Download both[] = {{rows.chosen, {routed.experts.address}, n_rows * static_cast<uint64_t>(shape.router.n_used) * sizeof(int32_t)},
                           {rows.input, {work.normed.address}, n_rows * n_embd * sizeof(float)}};
  pass.backend.download_all({both, 2});
  pass.status = pass.backend.synchronize();  // the device's error, before its numbers are used
  if (!pass.status.ok()) return false;
  const HostExperts::Dealt dealt = experts.deal(layer.index, pass.n_rows, phase);
  if (dealt.n_on_host == 0) {
    multiply_side(device, shape);
    return true;
  }
  pass.backend.upload({routed.slots.address}, dealt.lists.data(), dealt.lists.size() * sizeof(int32_t));
  const HostExperts::Side side = experts.side(pass.n_rows);
  const Side host = {experts.host(), experts.matrices(layer.index), side.routed, side.input, side.gate, side.up, side.act, side.slots};
  experts.side_by_side(
      phase, pass.n_rows,
      [&] {
        if (dealt.n_on_device == 0) return;
        multiply_side(device, shape);
        pass.backend.send();
      },
      [&] { multiply_side(host, shape); });
  const Ptr<float> at = work.slots + static_cast<uint64_t>(dealt.n_on_device) * n_embd;
  pass.backend.upload({at.address}, reinterpret_cast<const void*>(side.slots.address),
                      static_cast<uint64_t>(dealt.n_on_host) * n_embd * sizeof(float));
  return true;
}

// The most rows whose next choice is guessed. More rows use most experts of a layer.
constexpr int32_t kMostGuessing = kMostTogether;

// Where experts cross a link: has the chosen ones on the device, and begins to bring those that the next layer will probably choose, by its
// router's choice for this layer's input (Workspace::normed).
bool bring(Pass& pass, const Layer& layer, const RoutedRows& routed) {
  if (!pass.store || pass.store->in_place()) return true;
  const Phase phase = pass.steps[0].phase;
  const RouterShape& router = layer.shape.experts.router;
  const int32_t next = pass.store->next_layer(layer.index);
  const bool guesses = layer.next && next >= 0 && pass.n_rows <= kMostGuessing;
  const RoutedRows ahead = RoutedRows::at(pass.work.routed_next, kMostGuessing, router);
  if (guesses) {
    const Product choice{&layer.next->router, layer.next->router_bias, pass.work.router, router.n_experts, false};
    pass.project({&choice, 1});
    pass.backend.experts()->route(pass.work.router, layer.next->choice_bias, {}, router, ahead);
  }
  const size_t n = static_cast<size_t>(router.n_experts) + 1;
  std::array<int32_t, 2 * (kMostExperts + 1)> firsts;
  const Download both[] = {{firsts.data(), {routed.first_slots.address}, n * sizeof(int32_t)},
                           {&firsts[n], {ahead.first_slots.address}, n * sizeof(int32_t)}};
  pass.backend.download_all({both, guesses ? size_t{2} : size_t{1}});
  // The device's error, before its numbers are used. Operations on other layers' experts are done then.
  pass.status = pass.backend.synchronize();
  if (pass.status.ok()) pass.status = pass.store->bring(&pass.backend, layer.index, {firsts.data(), n}, phase, pass.cancel);
  if (!pass.status.ok()) return false;
  if (guesses) pass.store->expect(next, {&firsts[n], n}, phase);
  else if (next >= 0) pass.store->expect(next, {}, phase);
  return true;
}

}  // namespace

bool run(Pass& pass, const Layer& layer) {
  const Workspace& work = pass.work;
  const ExpertsShape& shape = layer.shape.experts;
  const Weights& w = layer.weights;
  const RouterShape& router = shape.router;
  ExpertOperations& experts = *pass.backend.experts();
  const RoutedRows routed = RoutedRows::at(work.routed, pass.n_rows, router);
  const Product choice{&w.router, w.router_bias, work.router, router.n_experts, false};
  pass.project({&choice, 1});
  experts.route(work.router, w.choice_bias, {}, router, routed);
  if (!bring(pass, layer, routed) || !multiply(pass, layer, routed)) return false;
  experts.add_experts(work.x, work.slots, pass.d.n_embd, router, routed, true);
  if (shape.shared_width > 0) run_shared(pass, shape, w);
  return true;
}

bool run_beside(Pass& pass, const Layer& layer, const feed_forward::Weights& dense, Ptr<const float> post_norm) {
  const Workspace& work = pass.work;
  Backend& b = pass.backend;
  const Weights& w = layer.weights;
  const RouterShape& router = layer.shape.experts.router;
  const int64_t n = pass.d.n_embd;
  feed_forward::activate(pass, layer.shape.feed_forward, dense);
  const Product down{&dense.down, {}, work.branch, n, false};
  pass.matmul({&down, 1}, work.act, layer.shape.feed_forward.width);
  pass.norm(work.branch, w.ffn_post_norm, work.branch);

  pass.norm(work.x, w.router_norm, work.normed);
  const Product choice{&w.router, {}, work.router, router.n_experts, false};
  pass.project({&choice, 1});
  b.soft_cap(work.router, pass.n_rows, router.n_experts, 1.0f / std::sqrt(static_cast<float>(n)), 0.0f);
  const RoutedRows routed = RoutedRows::at(work.routed, pass.n_rows, router);
  b.experts()->route(work.router, {}, w.output_scales, router, routed);
  if (!bring(pass, layer, routed)) return false;
  pass.norm(work.x, w.norm, work.normed);
  if (!multiply(pass, layer, routed)) return false;
  b.experts()->add_experts(work.normed, work.slots, n, router, routed, false);
  pass.norm(work.normed, w.post_norm, work.normed);

  b.add(work.branch, work.normed, n);
  pass.norm(work.branch, post_norm, work.branch);
  b.add(work.x, work.branch, n);
  return true;
}

}  // namespace orrery::model::experts
