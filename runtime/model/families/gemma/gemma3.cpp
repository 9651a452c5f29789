// Gemma 3, and EmbeddingGemma, whose rows see both sides, and whose pooled row may go through two products. Five of six layers have a window,
// and a RoPE of their own; norms before and after each branch; the FFN's gate goes through GELU.
#include <cmath>

#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/encoder/dense_modules.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

namespace {

// The 27B's scale is not that of its heads (128), and no key says so: its layers do.
constexpr int32_t kLayersOf27B = 62;

Status describe(Reading& in, bool bidirectional) {
  Description& d = in.d;
  attention::Parts attention;
  attention.bidirectional = bidirectional;
  attention.qk_norm = true;
  attention.windows = true;
  attention.window_period = 6;
  attention.window_rope = true;
  feed_forward::Parts feed_forward;
  feed_forward.activation = Activation::gelu;
  ORRERY_TRY(feed_forward::read(in, feed_forward));
  ORRERY_TRY(attention::read(in, attention));
  // Its contexts are those that scaling has reached.
  RopeParameters& rope = d.ropes[0];
  if (!in.keys.has("rope.scaling.original_context_length") && rope.scaling == RopeScaling::linear && !in.rope.set)
    rope.original_context = std::max(1u, static_cast<uint32_t>(static_cast<float>(d.trained_context) / rope.factor));
  ORRERY_TRY(in.keys.number_or("final_logit_softcapping", 0.0, 0.0, 1e6, &d.logit_cap));
  d.embedding_scale = std::sqrt(static_cast<float>(d.n_embd));
  for (LayerShape& layer : d.layers) {
    layer.post_norms = true;
    AttentionShape& a = layer.attention;
    if (d.n_layers == kLayersOf27B && !in.keys.has("attention.scale"))
      a.scale = 1.0f / std::sqrt(static_cast<float>(d.n_embd) / static_cast<float>(a.n_heads));
  }
  return ok_status();
}

}  // namespace

Status describe_gemma3(Reading& in) { return describe(in, false); }
Status describe_gemma_embedding(Reading& in) {
  ORRERY_TRY(describe(in, true));
  return dense_modules::read(in);
}

}  // namespace orrery::model
