// Seed-OSS: Qwen2's blocks; the norm before the FFN has another name.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_seed_oss(Reading& in) {
  for (LayerShape& layer : in.d.layers) layer.ffn_norm = "post_attention_norm";
  ORRERY_TRY(feed_forward::read(in, {}));
  return attention::read(in, {});
}

}  // namespace orrery::model
