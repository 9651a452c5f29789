// Muse Glimmer. Three of four layers have a window and RoPE, the others neither; gates of attention have a matrix of their own; the
// embedding's rows are normed; logits are scaled, then capped.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_muse_glimmer(Reading& in) {
  Description& d = in.d;
  for (const char* key : {"attention.sliding_window", "logit_scale"})
    if (!in.keys.has(key))
      return error(Code::bad_model, "%s: key '%s' is missing, expected a number", in.keys.file().path().c_str(), in.keys.name(key).c_str());
  attention::Parts attention;
  attention.rope_interleaved = true;
  attention.qk_norm = true;
  attention.own_gate = true;
  attention.windows = true;
  attention.window_period = 4;
  attention.window_rope = true;
  attention.window_base = 0.0f;
  attention.rope_in_windows = true;
  ORRERY_TRY(feed_forward::read(in, {}));
  ORRERY_TRY(attention::read(in, attention));
  ORRERY_TRY(in.keys.number_or("logit_scale", 1.0, 1e-6, 1e6, &d.logit_scale));
  ORRERY_TRY(in.keys.number_or("final_logit_softcapping", 0.0, 0.0, 1e6, &d.logit_cap));
  d.embedding_norm = true;
  for (LayerShape& layer : d.layers) layer.post_norms = true, layer.post_norm_eps = 1e-8f;
  return ok_status();
}

}  // namespace orrery::model
