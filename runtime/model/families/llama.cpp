// Llama, Mistral, Yi, and the distillations of R1 on them. Rotary pairs are neighbours; QKV may have biases.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_llama(Reading& in) {
  attention::Parts attention;
  attention.rope_interleaved = true;
  ORRERY_TRY(feed_forward::read(in, {}));
  return attention::read(in, attention);
}

}  // namespace orrery::model
