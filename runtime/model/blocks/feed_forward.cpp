#include "runtime/model/blocks/feed_forward.h"

#include <algorithm>

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
    ORRERY_TRY(tensors->feed_forward(prefix + "ffn_up.weight", 2 * width, n, FeedForwardPart::gate_up, out));
  } else {
    if (shape.gated) ORRERY_TRY(tensors->feed_forward(prefix + "ffn_gate.weight", width, n, FeedForwardPart::gate, out));
    ORRERY_TRY(tensors->feed_forward(prefix + "ffn_up.weight", width, n, FeedForwardPart::up, out));
  }
  if (!shape.gated) {
    ORRERY_TRY(tensors->vector(prefix + "ffn_up.bias", width, false, &out->up_bias));
    ORRERY_TRY(tensors->vector(prefix + "ffn_down.bias", n, false, &out->down_bias));
  }
  return tensors->feed_forward(prefix + "ffn_down.weight", n, width, FeedForwardPart::down, out);
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

namespace {

// `sum` += Workspace::normed, which a part of the columns gave.
void add_part(Pass& pass, Ptr<float> sum) { pass.backend.add(sum, pass.work.normed, pass.d.n_embd); }

// normed = the sums of the reservoir's columns, which the device computes.
bool compute_brought(Pass& pass, int32_t layer, FeedForwardShape shape) {
  Weights brought;
  pass.status = pass.columns->bring(&pass.backend, layer, pass.cancel, &brought);
  if (!pass.status.ok()) return false;
  shape.width = static_cast<int32_t>(brought.gate.n_rows);
  activate(pass, shape, brought);
  const Product down{&brought.down, {}, pass.work.normed, pass.d.n_embd, false};
  pass.matmul({&down, 1}, pass.work.act, shape.width);
  pass.status = pass.columns->leave(&pass.backend, layer);
  return pass.status.ok();
}

// normed = the sums of the reservoir's columns, which the processor computes while the device does its part.
template <class Device>
bool compute_by_host(Pass& pass, int32_t layer, const FeedForwardShape& shape, const Device& device) {
  HostColumns& columns = *pass.columns;
  const HostColumns::Rows rows = columns.rows();
  const auto activate = [&](Backend& host, Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> act, int64_t width) {
    if (shape.activation == Activation::gelu_erf) host.encoder()->gelu_erf(gate, up, stride, act, width, width);
    else host.activate(shape.activation, gate, up, stride, act, width, width);
  };
  bool first = true;
  for (int32_t row = 0; row < pass.n_rows; row += rows.n_rows, first = false) {
    const int32_t n = std::min(rows.n_rows, pass.n_rows - row);
    const auto at = static_cast<uint64_t>(row) * static_cast<uint64_t>(pass.d.n_embd);
    const uint64_t bytes = static_cast<uint64_t>(n) * static_cast<uint64_t>(pass.d.n_embd) * sizeof(float);
    pass.backend.download(rows.input, {(pass.work.normed + at).address}, bytes);
    pass.status = pass.backend.synchronize();  // the device's error, before its numbers are used
    if (!pass.status.ok()) return false;
    columns.side_by_side(
        layer, n,
        [&] {
          if (!first) return;
          device();
          pass.backend.send();
        },
        activate);
    pass.backend.upload({(pass.work.normed + at).address}, rows.sums, bytes);
  }
  return true;
}

}  // namespace

bool run_divided(Pass& pass, int32_t layer, const FeedForwardShape& shape, const Weights& w, Ptr<const float> post_norm) {
  const Ptr<float> sum = post_norm ? pass.work.branch : pass.work.x;
  FeedForwardShape part = shape;
  part.width = static_cast<int32_t>(w.gate.n_rows);
  const auto device = [&] {
    if (part.width == 0) return;
    activate(pass, part, w);
    const Product down{&w.down, {}, sum, pass.d.n_embd, !post_norm};
    pass.matmul({&down, 1}, pass.work.act, part.width);
  };
  if (pass.steps[0].phase == Phase::prefill) {
    device();
    if (!compute_brought(pass, layer, shape)) return false;
  } else if (!compute_by_host(pass, layer, shape, device)) {
    return false;
  }
  if (post_norm && part.width == 0) {
    pass.backend.rms_norm(pass.work.normed, pass.d.n_embd, post_norm, sum, pass.d.n_embd, 1, pass.d.n_embd, pass.post_norm_eps);
  } else {
    add_part(pass, sum);
    if (!post_norm) return true;
    pass.backend.rms_norm(sum, pass.d.n_embd, post_norm, sum, pass.d.n_embd, 1, pass.d.n_embd, pass.post_norm_eps);
  }
  pass.backend.add(pass.work.x, sum, pass.d.n_embd);
  return true;
}

}  // namespace orrery::model::feed_forward
