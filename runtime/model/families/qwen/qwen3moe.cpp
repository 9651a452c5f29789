// Qwen3's mixtures of experts: 30B-A3B, 235B-A22B, Coder. Attention as in Qwen3; every layer's FFN is a mixture of experts.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/experts.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_qwen3moe(Reading& in) {
  attention::Parts attention;
  attention.qk_norm = true;
  experts::Parts experts;
  experts.normalised = true;
  ORRERY_TRY(experts::read(in, experts));
  return attention::read(in, attention);
}

}  // namespace orrery::model
