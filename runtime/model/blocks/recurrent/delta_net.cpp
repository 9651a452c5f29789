#include "runtime/model/blocks/recurrent/delta_net.h"

namespace orrery::model::delta_net {

namespace {

constexpr uint64_t kMaxHeadDim = 256, kMaxHeads = 1024;

}  // namespace

Status read(Reading& in, const Parts& parts) {
  Keys& keys = in.keys;
  const char* const path = keys.file().path().c_str();
  DeltaNetShape shape;
  shape.grouped = parts.grouped;
  int32_t inner = 0;
  ORRERY_TRY(keys.integer("ssm.conv_kernel", 2, kMostTaps, &shape.n_taps));
  ORRERY_TRY(keys.integer("ssm.state_size", 1, kMaxHeadDim, &shape.key_dim));
  ORRERY_TRY(keys.integer("ssm.group_count", 1, kMaxHeads, &shape.n_key_heads));
  ORRERY_TRY(keys.integer("ssm.time_step_rank", 1, kMaxHeads, &shape.n_value_heads));
  ORRERY_TRY(keys.integer("ssm.inner_size", 1, kMaxWidth, &inner));
  if (shape.n_value_heads % shape.n_key_heads != 0)
    return error(Code::bad_model, "%s: %d value heads of recurrent layers do not divide among %d key heads", path, shape.n_value_heads,
                 shape.n_key_heads);
  shape.value_dim = inner / shape.n_value_heads;
  if (inner % shape.n_value_heads != 0 || shape.value_dim > static_cast<int32_t>(kMaxHeadDim))
    return error(Code::bad_model, "%s: key '%s' is %d, which does not divide into %d value heads of at most %llu", path,
                 keys.name("ssm.inner_size").c_str(), inner, shape.n_value_heads, static_cast<unsigned long long>(kMaxHeadDim));
  shape.eps = in.d.norm_eps;
  for (LayerShape& layer : in.d.layers)
    if (layer.mixer == Mixer::delta_net) layer.delta_net = shape;
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, const DeltaNetShape& shape, const std::string& prefix, Weights* out) {
  const int64_t n = d.n_embd, heads = shape.n_value_heads;
  ORRERY_TRY(tensors->matrix(prefix + "attn_qkv.weight", shape.channels(), n, true, &out->qkv));
  ORRERY_TRY(tensors->matrix(prefix + "attn_gate.weight", shape.values(), n, true, &out->gate));
  ORRERY_TRY(tensors->floats(prefix + "ssm_conv1d.weight", shape.channels(), shape.n_taps, true, &out->own.conv));
  ORRERY_TRY(tensors->vector(prefix + "ssm_dt.bias", heads, true, &out->own.dt));
  ORRERY_TRY(tensors->vector(prefix + "ssm_a", heads, true, &out->own.decay));
  if (shape.grouped) {
    ORRERY_TRY(tensors->matrix(prefix + "ssm_ba.weight", 2 * heads, n, true, &out->beta));
  } else {
    ORRERY_TRY(tensors->matrix(prefix + "ssm_alpha.weight", heads, n, true, &out->alpha));
    ORRERY_TRY(tensors->matrix(prefix + "ssm_beta.weight", heads, n, true, &out->beta));
  }
  ORRERY_TRY(tensors->vector(prefix + "ssm_norm.weight", shape.value_dim, true, &out->own.norm));
  return tensors->matrix(prefix + "ssm_out.weight", n, shape.values(), true, &out->out);
}

void run(Pass& pass, int32_t layer, const Weights& w, Ptr<const float> post_norm) {
  const DeltaNetShape& shape = pass.d.layer(layer).delta_net;
  const auto n_rows = static_cast<uint64_t>(pass.n_rows);
  Ptr<float> next = pass.work.mixer;
  const auto take = [&](int64_t floats) {
    const Ptr<float> at = next;
    next = next + n_rows * static_cast<uint64_t>(floats);
    return at;
  };
  DeltaNetRows rows;
  rows.u = take(shape.channels());
  const Ptr<float> z = take(shape.values());
  rows.out = take(shape.values());
  const Ptr<float> a = take(shape.n_value_heads), b = take(shape.n_value_heads);
  rows.c = next;  // the last one: it has further rows
  rows.z = z, rows.a = a, rows.b = shape.grouped ? a : b;
  const Product p[] = {{&w.qkv, {}, rows.u, shape.channels(), false},
                       {&w.gate, {}, z, shape.values(), false},
                       {&w.alpha, {}, a, shape.n_value_heads, false},
                       {&w.beta, {}, b, shape.n_value_heads, false}};
  const Product both{&w.beta, {}, a, 2 * int64_t{shape.n_value_heads}, false};
  pass.project({p, 2});
  pass.project(shape.grouped ? Span<const Product>{&both, 1} : Span<const Product>{p + 2, 2});
  pass.backend.recurrent()->delta_net(shape, w.own, rows, pass.d.states[static_cast<size_t>(layer)]);
  pass.add_branch(w.out, {}, post_norm, rows.out, shape.values());
}

}  // namespace orrery::model::delta_net
