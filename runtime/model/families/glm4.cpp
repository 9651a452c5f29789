// GLM-4-0414. Rotary pairs are neighbours; each branch is normalised before it is added; gate and up are one matrix.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_glm4(Reading& in) {
  attention::Parts attention;
  attention.rope_interleaved = true;
  feed_forward::Parts feed_forward;
  feed_forward.fused = true;
  ORRERY_TRY(feed_forward::read(in, feed_forward));
  ORRERY_TRY(attention::read(in, attention));
  for (LayerShape& layer : in.d.layers) layer.post_norms = true;
  return ok_status();
}

}  // namespace orrery::model
