// BERT (all-MiniLM, BGE, E5, GTE and their kin): an encoder. Learned positions and token types; layer norms with biases after each addition; an
// FFN without a gate, by GELU's exact form.
#include "runtime/model/blocks/attention.h"
#include "runtime/model/blocks/encoder/inputs.h"
#include "runtime/model/blocks/feed_forward.h"
#include "runtime/model/families/family.h"

namespace orrery::model {

Status describe_bert(Reading& in) {
  Description& d = in.d;
  d.layer_norms = d.norms_after = true;
  attention::Parts attention;
  attention.bidirectional = true;
  attention.rope_period = 1;  // no layer has RoPE
  feed_forward::Parts feed_forward;
  feed_forward.gated = false;
  feed_forward.activation = Activation::gelu_erf;
  ORRERY_TRY(feed_forward::read(in, feed_forward));
  ORRERY_TRY(attention::read(in, attention));
  for (LayerShape& layer : d.layers) layer.ffn_norm = "layer_output_norm";
  return encoder_inputs::read(in, true);
}

}  // namespace orrery::model
