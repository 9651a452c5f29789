#include "runtime/model/blocks/feed_forward.h"

namespace orrery::model::feed_forward {

Status read(Reading& in, const Parts& parts) {
  std::vector<int32_t> widths;
  ORRERY_TRY(in.keys.per_layer("feed_forward_length", in.d.layers.size(), 1, kMaxWidth, &widths));
  for (size_t i = 0; i < widths.size(); ++i) in.d.layers[i].feed_forward = {widths[i], parts.gated, parts.fused, parts.activation};
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, const FeedForwardShape& shape, const std::string& prefix, Weights* out) {
  const int64_t n = d.n_embd, width = shape.width;
  if (shape.fused) {
    ORRERY_TRY(tensors->matrix(prefix + "ffn_up.weight", 2 * width, n, true, &out->gate_up));
  } else {
    if (shape.gated) ORRERY_TRY(tensors->matrix(prefix + "ffn_gate.weight", width, n, true, &out->gate));
    ORRERY_TRY(tensors->matrix(prefix + "ffn_up.weight", width, n, true, &out->up));
  }
  if (!shape.gated) {
    ORRERY_TRY(tensors->vector(prefix + "ffn_up.bias", width, false, &out->up_bias));
    ORRERY_TRY(tensors->vector(prefix + "ffn_down.bias", n, false, &out->down_bias));
  }
  return tensors->matrix(prefix + "ffn_down.weight", n, width, true, &out->down);
}

void activate(Pass& pass, const FeedForwardShape& shape, const Weights& w) {
  const Workspace& work = pass.work;
  const int64_t stride = 2 * int64_t{shape.width};
  const Ptr<float> gate = work.ffn, up = gate + static_cast<uint64_t>(shape.width);
  if (!shape.gated) {
    const Product p{&w.up, w.up_bias, work.ffn, stride, false};
    pass.project({&p, 1});
    pass.backend.encoder()->gelu_erf(work.ffn, {}, stride, work.act, shape.width, shape.width);
    return;
  }
  if (w.gate_up) {
    const Product p{&w.gate_up, {}, gate, stride, false};
    pass.project({&p, 1});
  } else {
    const Product p[] = {{&w.gate, {}, gate, stride, false}, {&w.up, {}, up, stride, false}};
    pass.project({p, 2});
  }
  if (shape.activation == Activation::gelu_erf)
    return pass.backend.encoder()->gelu_erf(gate, up, stride, work.act, shape.width, shape.width);
  pass.backend.activate(shape.activation, gate, up, stride, work.act, shape.width, shape.width);
}

void run(Pass& pass, const FeedForwardShape& shape, const Weights& w, Ptr<const float> post_norm) {
  activate(pass, shape, w);
  pass.add_branch(w.down, w.down_bias, post_norm, pass.work.act, shape.width);
}

}  // namespace orrery::model::feed_forward
