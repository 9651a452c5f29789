// Phi-3, 3.5 and Phi-4. Some have windows, and factors of long contexts; gate and up are one matrix.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_phi3(Reading& in) {
  attention::Parts attention;
  attention.windows = true;
  attention.long_factors = true;
  feed_forward::Parts feed_forward;
  feed_forward.fused = true;
  ORRERY_TRY(feed_forward::read(in, feed_forward));
  return attention::read(in, attention);
}

}  // namespace orrery::model
