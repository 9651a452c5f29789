#include "runtime/model/blocks/recurrent/mamba2.h"

namespace orrery::model::mamba2 {

namespace {

constexpr uint64_t kMaxDim = 256, kMaxHeads = 1024;

}  // namespace

Status read(Reading& in) {
  Keys& keys = in.keys;
  const char* const path = keys.file().path().c_str();
  Mamba2Shape shape;
  int32_t inner = 0;
  ORRERY_TRY(keys.integer("ssm.conv_kernel", 2, kMostTaps, &shape.n_taps));
  ORRERY_TRY(keys.integer("ssm.state_size", 1, kMaxDim, &shape.state_dim));
  ORRERY_TRY(keys.integer("ssm.group_count", 1, kMaxHeads, &shape.n_groups));
  ORRERY_TRY(keys.integer("ssm.time_step_rank", 1, kMaxHeads, &shape.n_heads));
  ORRERY_TRY(keys.integer("ssm.inner_size", 1, kMaxWidth, &inner));
  if (shape.n_heads % shape.n_groups != 0)
    return error(Code::bad_model, "%s: %d heads of Mamba2 layers do not divide among %d groups", path, shape.n_heads, shape.n_groups);
  shape.head_dim = inner / shape.n_heads;
  if (inner % shape.n_heads != 0 || shape.head_dim > static_cast<int32_t>(kMaxDim))
    return error(Code::bad_model, "%s: key '%s' is %d, which does not divide into %d heads of at most %llu", path,
                 keys.name("ssm.inner_size").c_str(), inner, shape.n_heads, static_cast<unsigned long long>(kMaxDim));
  shape.eps = in.d.norm_eps;
  for (LayerShape& layer : in.d.layers)
    if (layer.mixer == Mixer::mamba2) layer.mamba2 = shape;
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, const Mamba2Shape& shape, const std::string& prefix, Weights* out) {
  const int64_t heads = shape.n_heads;
  ORRERY_TRY(tensors->matrix(prefix + "ssm_in.weight", shape.projected(), d.n_embd, true, &out->in));
  ORRERY_TRY(tensors->floats(prefix + "ssm_conv1d.weight", shape.channels(), shape.n_taps, true, &out->own.conv));
  ORRERY_TRY(tensors->vector(prefix + "ssm_conv1d.bias", shape.channels(), true, &out->own.conv_bias));
  ORRERY_TRY(tensors->vector(prefix + "ssm_dt.bias", heads, true, &out->own.dt));
  ORRERY_TRY(tensors->floats(prefix + "ssm_a", heads, 1, true, &out->own.decay));
  ORRERY_TRY(tensors->floats(prefix + "ssm_d", heads, 1, true, &out->own.skip));
  ORRERY_TRY(tensors->floats(prefix + "ssm_norm.weight", shape.n_groups, shape.group_width(), true, &out->own.norm));
  return tensors->matrix(prefix + "ssm_out.weight", d.n_embd, shape.inner(), true, &out->out);
}

void run(Pass& pass, int32_t layer, const Weights& w) {
  const Mamba2Shape& shape = pass.d.layer(layer).mamba2;
  const auto n_rows = static_cast<uint64_t>(pass.n_rows);
  const Ptr<float> projected = pass.work.mixer;
  Mamba2Rows rows;
  rows.projected = projected;
  rows.out = projected + n_rows * static_cast<uint64_t>(shape.projected());
  rows.c = rows.out + n_rows * static_cast<uint64_t>(shape.inner());  // the last one: it has further rows
  const Product p{&w.in, {}, projected, shape.projected(), false};
  pass.project({&p, 1});
  pass.backend.recurrent()->mamba2(shape, w.own, rows, pass.d.states[static_cast<size_t>(layer)]);
  pass.add_branch(w.out, {}, {}, rows.out, shape.inner());
}

}  // namespace orrery::model::mamba2
