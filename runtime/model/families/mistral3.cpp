// Ministral 3, and Devstral Small 2: Llama's blocks, YaRN without a magnitude, and queries that grow with the position.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_mistral3(Reading& in) {
  attention::Parts attention;
  attention.rope_interleaved = true;
  attention.temperature = true;
  ORRERY_TRY(feed_forward::read(in, {}));
  return attention::read(in, attention);
}

}  // namespace orrery::model
