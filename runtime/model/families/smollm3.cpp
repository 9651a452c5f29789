// SmolLM3: Llama's blocks; every fourth layer has no RoPE.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_smollm3(Reading& in) {
  attention::Parts attention;
  attention.rope_interleaved = true;
  attention.rope_period = 4;
  ORRERY_TRY(feed_forward::read(in, {}));
  return attention::read(in, attention);
}

}  // namespace orrery::model
