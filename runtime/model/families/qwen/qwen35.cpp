// Qwen3.5 to 3.8, dense.
#include "runtime/model/families/qwen/qwen35.h"

#include <algorithm>

#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

namespace {

// Which layers are recurrent: a list of flags, or all but every nth.
Status read_flags(Reading& in) {
  Keys& keys = in.keys;
  Description& d = in.d;
  int32_t interval = 0;
  ORRERY_TRY(keys.integer_or("full_attention_interval", 4, 1, kMaxLayers, &interval));
  const gguf::Value* flags = keys.find("attention.recurrent_layers");
  const auto n_blocks = static_cast<uint64_t>(d.n_layers + d.n_skipped_blocks);
  if (flags && (flags->type() != gguf::ValueType::array || (flags->size() != n_blocks && flags->size() != d.layers.size())))
    return error(Code::bad_model, "%s: key '%s' is not a list of one value for each of %d layers", keys.file().path().c_str(),
                 keys.name("attention.recurrent_layers").c_str(), d.n_layers);
  bool any_attention = false;
  for (size_t i = 0; i < d.layers.size(); ++i) {
    bool recurrent = (i + 1) % static_cast<size_t>(interval) != 0;
    if (flags && !flags->at(i).as_bool(&recurrent))
      return error(Code::bad_model, "%s: key '%s' value %zu is not true or false", keys.file().path().c_str(),
                   keys.name("attention.recurrent_layers").c_str(), i);
    if (recurrent) d.layers[i].mixer = Mixer::delta_net;
    any_attention |= !recurrent;
  }
  if (!any_attention)
    return error(Code::unsupported_architecture, "%s: all %d layers are recurrent; at least one with attention is expected",
                 keys.file().path().c_str(), d.n_layers);
  return ok_status();
}

}  // namespace

Status qwen35::read_skipped(Reading& in) {
  return in.keys.integer_or("nextn_predict_layers", 0, 0, static_cast<uint64_t>(in.d.n_layers) - 1, &in.d.n_skipped_blocks);
}

void qwen35::trim(Reading& in) {
  in.d.n_layers -= in.d.n_skipped_blocks;
  if (in.d.n_skipped_blocks > 0) in.d.guessing_layer = in.d.layers[static_cast<size_t>(in.d.n_layers)];
  in.d.layers.resize(static_cast<size_t>(in.d.n_layers));
}

Status qwen35::read_mixers(Reading& in, const delta_net::Parts& parts) {
  (void)in.keys.find("rope.dimension_sections");  // where images have positions; text has the same one in all sections
  ORRERY_TRY(read_flags(in));
  attention::Parts attention;
  attention.qk_norm = attention.gated = true;
  ORRERY_TRY(attention::read(in, attention));
  for (LayerShape& layer : in.d.layers) layer.ffn_norm = "post_attention_norm";
  const auto attends = [](const LayerShape& layer) { return layer.mixer == Mixer::attention; };
  in.d.guessing_layer.attention = std::find_if(in.d.layers.begin(), in.d.layers.end(), attends)->attention;
  in.d.guessing_layer.ffn_norm = "post_attention_norm";
  return delta_net::read(in, parts);
}

Status describe_qwen35(Reading& in) {
  ORRERY_TRY(qwen35::read_skipped(in));
  ORRERY_TRY(feed_forward::read(in, {}));  // of all blocks
  qwen35::trim(in);
  return qwen35::read_mixers(in, {});
}

}  // namespace orrery::model
