// Qwen3, dense. A norm of each query and key head takes the place of Qwen2's biases.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_qwen3(Reading& in) {
  attention::Parts attention;
  attention.qk_norm = true;
  ORRERY_TRY(feed_forward::read(in, {}));
  return attention::read(in, attention);
}

}  // namespace orrery::model
