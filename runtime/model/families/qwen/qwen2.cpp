// Qwen2, Qwen2.5, and the distillations of R1 on them. QKV have biases.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_qwen2(Reading& in) {
  ORRERY_TRY(feed_forward::read(in, {}));
  return attention::read(in, {});
}

}  // namespace orrery::model
