#include "runtime/model/blocks/recurrent/short_conv.h"

namespace orrery::model::short_conv {

Status read(Reading& in) {
  ShortConvShape shape;
  shape.n_channels = in.d.n_embd;
  ORRERY_TRY(in.keys.integer("shortconv.l_cache", 2, kMostTaps, &shape.n_taps));
  for (LayerShape& layer : in.d.layers)
    if (layer.mixer == Mixer::short_conv) layer.short_conv = shape;
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, const ShortConvShape& shape, const std::string& prefix, Weights* out) {
  const int64_t n = shape.n_channels;
  ORRERY_TRY(tensors->matrix(prefix + "shortconv.in_proj.weight", 3 * n, d.n_embd, true, &out->in));
  ORRERY_TRY(tensors->floats(prefix + "shortconv.conv.weight", n, shape.n_taps, true, &out->conv));
  return tensors->matrix(prefix + "shortconv.out_proj.weight", d.n_embd, n, true, &out->out);
}

void run(Pass& pass, int32_t layer, const Weights& w) {
  const ShortConvShape& shape = pass.d.layer(layer).short_conv;
  const auto n = static_cast<uint64_t>(pass.n_rows) * static_cast<uint64_t>(shape.n_channels);
  const Ptr<float> projected = pass.work.mixer;
  const ShortConvRows rows{projected, projected + 3 * n, projected + 4 * n};
  const Product p{&w.in, {}, projected, 3 * int64_t{shape.n_channels}, false};
  pass.project({&p, 1});
  pass.backend.recurrent()->short_conv(shape, w.conv, rows, pass.d.states[static_cast<size_t>(layer)]);
  pass.add_branch(w.out, {}, {}, rows.out, shape.n_channels);
}

}  // namespace orrery::model::short_conv
