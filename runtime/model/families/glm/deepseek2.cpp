// DeepSeek-V2 and its kin, of which GLM-4.7-Flash: latent attention, a few dense layers, then mixtures of experts beside shared ones
// without a gate. The router is a sigmoid, chosen with a bias, or a softmax.
#include "runtime/model/blocks/experts.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/blocks/latent_attention.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

namespace {

// Early files of GLM-4.7-Flash, and DeepSeek's, lack the key, or have 0. The former have 47 layers, 48 with the one that guesses, and
// 154,880 tokens.
Status read_gating(Reading& in, Gating* out) {
  int32_t value = 0;
  ORRERY_TRY(in.keys.integer_or("expert_gating_func", 0, 0, 2, &value));
  const gguf::Tensor* embedding = in.keys.file().find_tensor("token_embd.weight");
  const bool glm = embedding && embedding->dims[1] == 154880 && (in.d.n_layers == 47 || in.d.n_layers == 48);
  *out = value == 2 || (value == 0 && glm) ? Gating::sigmoid : Gating::softmax;
  return ok_status();
}

Status read_experts(Reading& in, size_t n_dense) {
  experts::Parts experts;
  ORRERY_TRY(read_gating(in, &experts.gating));
  experts.gating_is_read = experts.norm_or_not = experts.scaled = true;
  experts.shared_by_count = true, experts.shared_gated = false;
  // DeepSeek-V2's softmax has no bias.
  experts.choice_bias =
      experts.gating == Gating::sigmoid || in.keys.file().find_tensor("blk." + std::to_string(n_dense) + ".exp_probs_b.bias");
  if (!in.keys.has("expert_feed_forward_length"))  // the width of the dense layers says nothing of it
    return error(Code::bad_model, "%s: key '%s' is missing", in.keys.file().path().c_str(),
                 in.keys.name("expert_feed_forward_length").c_str());
  return experts::read(in, experts);
}

}  // namespace

Status describe_deepseek2(Reading& in) {
  Description& d = in.d;
  int32_t n_dense = 0;
  ORRERY_TRY(in.keys.integer_or("nextn_predict_layers", 0, 0, static_cast<uint64_t>(d.n_layers) - 1, &d.n_skipped_blocks));
  ORRERY_TRY(in.keys.integer_or("leading_dense_block_count", 0, 0, static_cast<uint64_t>(d.n_layers - d.n_skipped_blocks), &n_dense));
  if (n_dense > 0) ORRERY_TRY(feed_forward::read(in, {}));  // of all blocks
  (void)in.keys.find("feed_forward_length");
  if (n_dense < d.n_layers - d.n_skipped_blocks) ORRERY_TRY(read_experts(in, static_cast<size_t>(n_dense)));
  d.n_layers -= d.n_skipped_blocks;
  d.layers.resize(static_cast<size_t>(d.n_layers));
  for (size_t i = 0; i < d.layers.size(); ++i) {
    LayerShape& layer = d.layers[i];
    if (i < static_cast<size_t>(n_dense)) layer.experts = {};
    else layer.feed_forward = {};
  }
  return latent_attention::read(in);
}

}  // namespace orrery::model
