#include "runtime/model/blocks/guessing_head.h"

namespace orrery::model::guessing_head {

Status find(Tensors* tensors, const Description& d, const std::string& prefix, Weights* out) {
  ORRERY_TRY(tensors->matrix(prefix + "eh_proj.weight", d.n_embd, 2 * int64_t{d.n_embd}, true, &out->in));
  ORRERY_TRY(tensors->vector(prefix + "enorm.weight", d.n_embd, true, &out->embedding_norm));
  return tensors->vector(prefix + "hnorm.weight", d.n_embd, true, &out->hidden_norm);
}

void run(Pass& pass, const Weights& w) {
  const int64_t n = pass.d.n_embd;
  const Workspace& work = pass.work;
  pass.backend.rms_norm(work.x, n, w.embedding_norm, work.pair, 2 * n, 1, n, pass.d.norm_eps);
  pass.backend.rms_norm(work.normed, n, w.hidden_norm, work.pair + static_cast<uint64_t>(n), 2 * n, 1, n, pass.d.norm_eps);
  const Product p{&w.in, {}, work.x, n, false};
  pass.matmul({&p, 1}, work.pair, 2 * n);
}

}  // namespace orrery::model::guessing_head
