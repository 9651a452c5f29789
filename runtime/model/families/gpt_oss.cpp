// gpt-oss. Every second layer has a window; each query head has a sink; YaRN's ramp lies between pairs; products have biases; every layer's
// FFN is a mixture of experts, whose weights are the softmax of the chosen ones, and whose gates are clamped.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/experts.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_gpt_oss(Reading& in) {
  if (!in.keys.has("attention.sliding_window"))
    return error(Code::bad_model, "%s: key '%s' is missing, expected a number", in.keys.file().path().c_str(),
                 in.keys.name("attention.sliding_window").c_str());
  attention::Parts attention;
  attention.windows = true;
  attention.window_period = 2;
  attention.sinks = true;
  attention.whole_pairs = false;
  experts::Parts experts;
  experts.gating = Gating::softmax_of_chosen;
  experts.biased = experts.clamped = true;
  for (LayerShape& layer : in.d.layers) layer.ffn_norm = "post_attention_norm";
  ORRERY_TRY(experts::read(in, experts));
  return attention::read(in, attention);
}

}  // namespace orrery::model
