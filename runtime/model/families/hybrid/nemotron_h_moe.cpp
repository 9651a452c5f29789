// Nemotron 3 Nano. A layer is one block behind its norm: Mamba2, attention without RoPE, or a mixture of experts with a shared one, all of
// squared ReLU. head_count_kv is not 0 where it is attention, feed_forward_length where it is a mixture.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/experts.h"
#include "runtime/model/blocks/recurrent/mamba2.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

namespace {

Status read_kinds(Reading& in) {
  Description& d = in.d;
  const char* const path = in.keys.file().path().c_str();
  std::vector<int32_t> n_kv_heads, widths;
  ORRERY_TRY(in.keys.per_layer("feed_forward_length", d.layers.size(), 0, kMaxWidth, &widths));
  ORRERY_TRY(attention::read_kv_heads(in, &n_kv_heads));
  bool any_mamba2 = false;
  for (size_t i = 0; i < d.layers.size(); ++i) {
    const bool attends = n_kv_heads[i] > 0, mixture = widths[i] > 0;
    if (attends && mixture)
      return error(Code::bad_model, "%s: layer %zu has %d KV heads by '%s' and a width of %d by '%s', expected one of them to be 0", path,
                   i, n_kv_heads[i], in.keys.name("attention.head_count_kv").c_str(), widths[i],
                   in.keys.name("feed_forward_length").c_str());
    d.layers[i].mixer = attends ? Mixer::attention : mixture ? Mixer::none : Mixer::mamba2;
    d.layers[i].ffn_norm = "attn_norm";
    any_mamba2 |= d.layers[i].mixer == Mixer::mamba2;
  }
  // Only models with recurrent layers are run without policies. A policy expects attention in every layer.
  if (!any_mamba2)
    return error(Code::unsupported_architecture, "%s: none of %d layers is Mamba2; at least one is expected", path, d.n_layers);
  return ok_status();
}

}  // namespace

Status describe_nemotron_h_moe(Reading& in) {
  ORRERY_TRY(read_kinds(in));
  attention::Parts attention;
  attention.rope_period = 1;
  ORRERY_TRY(attention::read(in, attention));
  experts::Parts experts;
  experts.gating = Gating::sigmoid;
  experts.norm_by_key = experts.choice_bias = experts.scaled = true;
  experts.shared = true, experts.shared_gated = false;
  experts.squared_relu = true;
  ORRERY_TRY(experts::read(in, experts));
  for (LayerShape& layer : in.d.layers)
    if (layer.mixer != Mixer::none) layer.experts = {};
  return mamba2::read(in);
}

}  // namespace orrery::model
