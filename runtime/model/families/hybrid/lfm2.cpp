// LFM2 and LFM2.5: short convolutions, and attention with a norm of each query and key head where head_count_kv is not 0. The mixtures
// (8B-A1B, 24B-A2B) have experts in all but their first layers; the router's bias takes part in the choice, and in no weight.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/experts.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/blocks/recurrent/short_conv.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

namespace {

Status read_mixers(Reading& in) {
  Description& d = in.d;
  d.output_norm = "token_embd_norm";
  std::vector<int32_t> n_kv_heads;
  ORRERY_TRY(attention::read_kv_heads(in, &n_kv_heads));
  for (size_t i = 0; i < d.layers.size(); ++i)
    if (n_kv_heads[i] == 0) d.layers[i].mixer = Mixer::short_conv;
  attention::Parts attention;
  attention.qk_norm = true;
  attention.windows = true;
  ORRERY_TRY(attention::read(in, attention));
  return short_conv::read(in);
}

}  // namespace

Status describe_lfm2(Reading& in) {
  ORRERY_TRY(feed_forward::read(in, {}));
  return read_mixers(in);
}

Status describe_lfm2moe(Reading& in) {
  Description& d = in.d;
  int32_t n_dense = 0;
  ORRERY_TRY(in.keys.integer_or("leading_dense_block_count", 0, 0, static_cast<uint64_t>(d.n_layers), &n_dense));
  experts::Parts experts;
  experts.gating = Gating::sigmoid;
  experts.normalised = experts.choice_bias = experts.scaled = true;
  ORRERY_TRY(experts::read(in, experts));
  if (n_dense > 0) ORRERY_TRY(feed_forward::read(in, {}));
  for (size_t i = 0; i < d.layers.size(); ++i) {
    LayerShape& layer = d.layers[i];
    if (i < static_cast<size_t>(n_dense)) layer.experts = {};
    else layer.feed_forward = {};
  }
  return read_mixers(in);
}

}  // namespace orrery::model
