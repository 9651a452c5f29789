#include "runtime/model/blocks/per_layer.h"

#include <cmath>

#include "runtime/model/blocks/vocabulary.h"

namespace orrery::model::per_layer {

Status read(Reading& in) {
  Keys& keys = in.keys;
  ORRERY_TRY(keys.integer("embedding_length_per_layer_input", 0, kMaxWidth, &in.d.n_per_layer));
  if (in.d.per_layer_floats() <= static_cast<int64_t>(kMaxWidth)) return ok_status();
  return error(Code::bad_model, "%s: key '%s' is %d, in %d layers: a row of the table would be wider than any model we know",
               keys.file().path().c_str(), keys.name("embedding_length_per_layer_input").c_str(), in.d.n_per_layer, in.d.n_layers);
}

Status find_inputs(Tensors* tensors, const Description& d, Inputs* out) {
  const int64_t width = d.per_layer_floats();
  ORRERY_TRY(tensors->table(kTable, d.n_vocab, width, &out->table));
  ORRERY_TRY(tensors->matrix("per_layer_model_proj.weight", width, d.n_embd, true, &out->projection));
  return tensors->vector("per_layer_proj_norm.weight", d.n_per_layer, true, &out->norm);
}

Status find(Tensors* tensors, const Description& d, const std::string& prefix, Weights* out) {
  ORRERY_TRY(tensors->matrix(prefix + "inp_gate.weight", d.n_per_layer, d.n_embd, true, &out->gate));
  ORRERY_TRY(tensors->matrix(prefix + "proj.weight", d.n_embd, d.n_per_layer, true, &out->projection));
  return tensors->vector(prefix + "post_norm.weight", d.n_embd, true, &out->post_norm);
}

void read_rows(Pass& pass, const Inputs& inputs) {
  vocabulary::read_rows(pass, inputs.table, std::sqrt(static_cast<float>(pass.d.n_per_layer)), pass.work.ffn);
}

void make_inputs(Pass& pass, const Inputs& inputs) {
  const Workspace& work = pass.work;
  const int64_t width = pass.d.per_layer_floats();
  const Product p{&inputs.projection, {}, work.per_layer, width, false};
  pass.matmul({&p, 1}, work.x, pass.d.n_embd);
  // The norm of y / s with an epsilon is that of y with s^2 times the epsilon.
  const float eps = pass.d.norm_eps * static_cast<float>(pass.d.n_embd);
  pass.backend.rms_norm(work.per_layer, width, inputs.norm, work.per_layer, width, pass.d.n_layers, pass.d.n_per_layer, eps);
  pass.backend.add(work.per_layer, work.ffn, width);
  pass.backend.soft_cap(work.per_layer, pass.n_rows, width, std::sqrt(0.5f), 0.0f);
}

void run(Pass& pass, int32_t layer, const Weights& w) {
  const Workspace& work = pass.work;
  const int64_t n = pass.d.n_per_layer, stride = pass.d.per_layer_floats();
  const Ptr<float> input = work.per_layer + static_cast<uint64_t>(layer * n);
  const Product p{&w.gate, {}, work.ffn, stride, false};  // rows as far apart as those of the inputs
  pass.matmul({&p, 1}, work.x, pass.d.n_embd);
  pass.backend.activate(Activation::gelu, work.ffn, input, stride, work.act, n, n);
  pass.add_branch(w.projection, {}, w.post_norm, work.act, n);
}

}  // namespace orrery::model::per_layer
