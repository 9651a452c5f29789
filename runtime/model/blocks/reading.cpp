#include "runtime/model/blocks/reading.h"

namespace orrery::model {

Status read_sizes(Reading& in, const char* norm_eps) {
  Keys& keys = in.keys;
  Description& d = in.d;
  ORRERY_TRY(keys.integer("block_count", 1, kMaxLayers, &d.n_layers));
  ORRERY_TRY(keys.integer("embedding_length", 1, kMaxWidth, &d.n_embd));
  ORRERY_TRY(keys.integer("context_length", 1, kMaxContext, &d.trained_context));
  d.layers.resize(static_cast<size_t>(d.n_layers));
  int32_t pooling = 0;
  ORRERY_TRY(keys.integer_or("pooling_type", 0, 0, static_cast<uint64_t>(Pooling::rank), &pooling));
  d.pooling = static_cast<Pooling>(pooling);
  const char* eps = "attention.layer_norm_rms_epsilon";
  if (norm_eps && !keys.has(eps)) eps = norm_eps;
  if (!keys.has(eps))  // no default suits every model
    return error(Code::bad_model, "%s: key '%s' is missing, expected a number", keys.file().path().c_str(), keys.name(eps).c_str());
  return keys.number_or(eps, 0.0, 0.0, 1.0, &d.norm_eps);
}

}  // namespace orrery::model
