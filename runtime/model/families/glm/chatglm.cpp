// GLM-4-9B and ChatGLM3. Rotary pairs are neighbours; gate and up are one matrix.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_chatglm(Reading& in) {
  attention::Parts attention;
  attention.rope_interleaved = true;
  feed_forward::Parts feed_forward;
  feed_forward.fused = true;
  ORRERY_TRY(feed_forward::read(in, feed_forward));
  return attention::read(in, attention);
}

}  // namespace orrery::model
