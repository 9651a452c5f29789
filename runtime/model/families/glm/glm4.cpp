// GLM-4-0414. As chatglm; besides, each branch is normalised before it is added.
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_glm4(Reading& in) {
  ORRERY_TRY(describe_chatglm(in));
  for (LayerShape& layer : in.d.layers) layer.post_norms = true;
  return ok_status();
}

}  // namespace orrery::model
