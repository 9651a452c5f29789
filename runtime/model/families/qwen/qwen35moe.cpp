// Qwen3.5's mixtures of experts: 35B-A3B and its successors. As qwen35; every layer's FFN is a mixture of experts, with one that every row
// takes.
#include "runtime/model/blocks/experts.h"
#include "runtime/model/families/family.h"
#include "runtime/model/families/qwen/qwen35.h"

namespace orrery::model {

Status describe_qwen35moe(Reading& in) {
  ORRERY_TRY(qwen35::read_skipped(in));
  experts::Parts experts;
  experts.normalised = experts.shared = true;
  ORRERY_TRY(experts::read(in, experts));  // of all blocks
  qwen35::trim(in);
  return qwen35::read_mixers(in, {});
}

}  // namespace orrery::model
