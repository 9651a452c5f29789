// Qwen3-Next and Qwen3-Coder-Next. As qwen35moe; the value heads of a key head are neighbours, and one matrix has both scalars of their
// rows.
#include "runtime/model/blocks/experts.h"
#include "runtime/model/families/family.h"
#include "runtime/model/families/qwen/qwen35.h"

namespace orrery::model {

Status describe_qwen3next(Reading& in) {
  ORRERY_TRY(qwen35::read_skipped(in));
  experts::Parts experts;
  experts.normalised = experts.shared = true;
  ORRERY_TRY(experts::read(in, experts));
  qwen35::trim(in);
  delta_net::Parts delta_net;
  delta_net.grouped = true;
  return qwen35::read_mixers(in, delta_net);
}

}  // namespace orrery::model
