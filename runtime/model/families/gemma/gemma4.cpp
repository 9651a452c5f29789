// Gemma 4. Layers with a window have heads and a RoPE of their own; values are normed, and may be made of the keys' projection. The small
// models (E2B, E4B) have per-layer embeddings, and their last layers read the KV of earlier ones; 26B-A4B has experts beside each
// feed-forward block.
#include <cmath>

#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/experts.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/blocks/per_layer.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

namespace {

// No default suits all of its models.
Status check_required(Reading& in) {
  const gguf::File& file = in.keys.file();
  for (const char* key : {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base", "rope.freq_base_swa"})
    if (!in.keys.has(key)) return error(Code::bad_model, "%s: key '%s' is missing", file.path().c_str(), in.keys.name(key).c_str());
  // Of full heads, it leaves three quarters of the pairs as they are.
  if (!file.find_tensor("rope_freqs.weight"))
    return error(Code::bad_model, "%s: tensor 'rope_freqs.weight' is missing", file.path().c_str());
  if (in.rope.set)
    return error(Code::unsupported, "%s: a RoPE scaling was asked for; architecture '%s' is run with that of its file alone",
                 file.path().c_str(), in.d.family);
  return ok_status();
}

Status read_attention(Reading& in) {
  attention::Parts attention;
  attention.qk_norm = attention.v_norm = true;
  attention.windows = attention.window_rope = attention.by_kind = true;
  attention.scale = 1.0f;
  attention.values_of_keys = true;
  attention.shares_kv = true;
  int32_t window = 0;
  std::vector<bool> flags;
  ORRERY_TRY(in.keys.integer("attention.sliding_window", 1, kMaxContext, &window));
  ORRERY_TRY(in.keys.flags("attention.sliding_window_pattern", in.d.layers.size(), &flags));  // a period is not known of it
  ORRERY_TRY(attention::read(in, attention));
  if (in.d.rope().scaling == RopeScaling::llama3) return ok_status();
  return error(Code::unsupported_architecture, "%s: key '%s': architecture '%s' is run without a scaling of RoPE",
               in.keys.file().path().c_str(), in.keys.name("rope.scaling.type").c_str(), in.d.family);
}

}  // namespace

Status describe_gemma4(Reading& in) {
  Description& d = in.d;
  ORRERY_TRY(check_required(in));
  ORRERY_TRY(read_attention(in));
  feed_forward::Parts feed_forward;
  feed_forward.activation = Activation::gelu;
  ORRERY_TRY(feed_forward::read(in, feed_forward));
  int32_t n_experts = 0;
  ORRERY_TRY(in.keys.integer_or("expert_count", 0, 0, kMaxWidth, &n_experts));
  if (n_experts > 0) {
    experts::Parts experts;
    experts.normalised = true;
    experts.beside_ffn = true;
    experts.activation = Activation::gelu;
    ORRERY_TRY(experts::read(in, experts));
  }
  ORRERY_TRY(per_layer::read(in));
  ORRERY_TRY(in.keys.number_or("final_logit_softcapping", 0.0, 0.0, 1e6, &d.logit_cap));
  d.embedding_scale = std::sqrt(static_cast<float>(d.n_embd));
  d.output_scales = true;
  for (LayerShape& layer : d.layers) layer.post_norms = true;
  return ok_status();
}

}  // namespace orrery::model
